"""What models make of texts: losses of single tokens, of whole sequences, greedy continuations.

Eager code, without gradients, for all members at once; the model's weights are as they are.

M members, S sequences, N tokens, T time, V vocabulary
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triplu_ray.model import Decoder
from triplu_ray.stacked import token_cross_entropy

Tokens = NDArray[np.uint16]
Floats = NDArray[np.float64]


@torch.no_grad()
def token_losses(model: Decoder, tokens: Tokens, context_length: int, batch_size: int) -> Floats:
    """Loss of every token but the first `[M, N - 1]`, nats, each scored exactly once.

    The text is cut into windows of a context one after another; the last one reaches back to be
    whole, and only its new tokens count.
    """
    length = min(context_length, len(tokens) - 1)
    starts = list(range(0, len(tokens) - length, length))
    last = len(tokens) - 1 - length
    if starts[-1] < last:
        starts.append(last)
    windows = torch.from_numpy(
        np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    )
    parts = [_losses(model, batch) for batch in torch.split(windows, batch_size)]
    losses = torch.cat(parts, dim=1)
    repeated = length * len(starts) - (len(tokens) - 1)
    final = losses[:, -1, repeated:]
    return torch.cat([losses[:, :-1].flatten(1), final], dim=1).double().numpy()


@torch.no_grad()
def sequence_losses(model: Decoder, sequences: Sequence[Tokens], batch_size: int) -> Floats:
    """Loss of whole sequences `[M, S]`, nats: the sum over all their tokens but the first."""
    padded, lengths = _padded(sequences)
    losses = torch.cat([_losses(model, batch) for batch in torch.split(padded, batch_size)], dim=1)
    counts = torch.arange(losses.shape[-1]) < (lengths - 1)[:, None]
    return torch.where(counts, losses.double(), 0.0).sum(-1).numpy()


@torch.no_grad()
def greedy_continuations(
    model: Decoder, prompts: Sequence[Tokens], num_tokens: int, batch_size: int
) -> NDArray[np.int64]:
    """The likeliest next token, so many times over: `[M, S, num_tokens]`."""
    return np.concatenate(
        [
            _continue(model, prompts[first : first + batch_size], num_tokens)
            for first in range(0, len(prompts), batch_size)
        ],
        axis=1,
    )


def _continue(model: Decoder, prompts: Sequence[Tokens], num_tokens: int) -> NDArray[np.int64]:
    padded, lengths = _padded(prompts)
    sequences = torch.nn.functional.pad(padded, (0, num_tokens)).repeat(model.members, 1, 1)
    place = lengths.repeat(model.members, 1)
    for _ in range(num_tokens):
        time = int(place.max())
        logits = model(sequences[..., :time].to(_device(model)))
        logits = logits.view(*sequences.shape[:2], time, -1).cpu()
        index = (place - 1)[..., None, None].expand(-1, -1, 1, logits.shape[-1])
        chosen = logits.gather(2, index).squeeze(2).argmax(-1)
        sequences.scatter_(2, place[..., None], chosen[..., None])
        place = place + 1
    first = lengths[:, None] + torch.arange(num_tokens)
    return sequences.gather(2, first.expand(model.members, -1, -1)).numpy()


def _losses(model: Decoder, windows: Tensor) -> Tensor:
    """`[S, T + 1] -> [M, S, T]`."""
    windows = windows.repeat(model.members, 1, 1).to(_device(model))
    losses = token_cross_entropy(model(windows[..., :-1]), windows[..., 1:].flatten(1))
    return losses.view(windows.shape[0], windows.shape[1], -1).cpu()


def _padded(sequences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """`[S, longest]` with what follows a sequence's end, which no causal model sees; lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    padded = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
    return padded, lengths


def _device(model: Decoder) -> torch.device:
    return model.positions.device
