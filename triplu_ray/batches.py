"""Which windows of a text are read, and their tokens.

Offsets depend on (seed, step) alone, so every variant of a seed sees the same text in the same
order, and a resumed run goes on exactly.

B batch, T time
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triplu_ray.stacked import keyed_generator


def training_offsets(
    num_tokens: int, seed: int, step: int, batch_size: int, context_length: int
) -> NDArray[np.int64]:
    """Where the windows of one update begin `[B]`."""
    generator = keyed_generator("batch", seed, step)
    return generator.integers(0, num_tokens - context_length, size=batch_size)


def validation_offsets(
    num_tokens: int, num_batches: int, batch_size: int, context_length: int
) -> NDArray[np.int64]:
    """`[num_batches, B]`, spread evenly over the text; the same at every evaluation."""
    last = num_tokens - context_length - 1
    offsets: NDArray[np.int64] = np.linspace(0, last, num_batches * batch_size).astype(np.int64)
    return offsets.reshape(num_batches, batch_size)


def packed(tokens: NDArray[np.uint16]) -> Tensor:
    """Tokens in two bytes each, for `windows`: as int16, since torch gathers no uint16.

    They are read where they lie, in a file or in memory that the workers of a machine share, and
    never to be written to.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(tokens.view(np.int16))


def windows(tokens: Tensor, offsets: Tensor, context_length: int) -> Tensor:
    """The tokens at `offsets [...]` and the `context_length` after each: `[..., T + 1]`, int64.

    `tokens` are `packed`.
    """
    steps = torch.arange(context_length + 1, device=tokens.device)
    return tokens[offsets[..., None] + steps].long() & 0xFFFF
