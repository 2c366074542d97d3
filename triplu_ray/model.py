"""The decoder: pre-norm, learned positions, untied head; only its feed-forward layer varies.

    embedding + positions -> num_layers x [x + attention(norm x); x + ffn(norm x)] -> norm -> head

M members, B batch, T time, D model width, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.stacked import (
    CausalSelfAttention,
    Embedding,
    LayerNorm,
    Linear,
    Stacked,
    Starts,
    constant,
    normal_start,
    uniform,
)

Initialization = Literal["normal", "mingpt", "modded_nanogpt"]
"""Weights are N(0, 0.02) in `normal`. `mingpt` scales what writes the residual stream by
1/sqrt(2 num_layers). In `modded_nanogpt` that begins at zero, and what reads the stream is uniform
with a standard deviation of 0.5/sqrt(inputs)."""


def starts_for(initialization: Initialization, num_layers: int) -> Starts:
    """How the linear maps in the blocks begin."""
    if initialization == "mingpt":
        return Starts(outputs=normal_start(0.02 / (2 * num_layers) ** 0.5))
    if initialization == "modded_nanogpt":
        return Starts(
            inputs=lambda inputs, outputs: uniform((inputs, outputs), 0.5 / inputs**0.5),
            outputs=lambda _inputs, _outputs: constant(0.0),
        )
    return Starts()


Precision = Literal["fp32", "bf16", "tf32"]
"""Of matrix products and activations; weights, residual stream, norms, softmax statistics and loss
are fp32 in each. `tf32` rounds the factors of products inside a GPU only."""


@dataclass(frozen=True)
class ModelShape:
    """All sizes of a model."""

    vocab_size: int
    context_length: int
    d_model: int
    num_layers: int
    num_heads: int
    hidden: int
    """Feed-forward width."""

    def num_params(self, ffn: FeedForwardConfig) -> int:
        """Trainable parameters, without building the model."""
        attention_and_norms = 4 * self.d_model * self.d_model + 8 * self.d_model
        ends = (2 * self.vocab_size + self.context_length + 2) * self.d_model
        branches = sum(
            layer.num_params(self.d_model, hidden) for layer, hidden in self.layers_of(ffn)
        )
        return ends + self.num_layers * attention_and_norms + branches

    def flops_per_token(self, ffn: FeedForwardConfig) -> int:
        """Forward FLOPs: matrix products, attention over the whole context; multiply-add = 2."""
        attention = 8 * self.d_model * self.d_model + 4 * self.context_length * self.d_model
        branches = sum(layer.flops(self.d_model, hidden) for layer, hidden in self.layers_of(ffn))
        head = 2 * self.d_model * self.vocab_size
        return self.num_layers * attention + branches + head

    def layers_of(self, ffn: FeedForwardConfig) -> list[tuple[FeedForwardConfig, int]]:
        """Each layer's own variant and width."""
        return [ffn.at_layer(layer, self.hidden) for layer in range(self.num_layers)]


class Block(Stacked):
    """Attention and feed-forward layer, each on a normed copy of the residual stream."""

    def __init__(
        self,
        ffns: Sequence[FeedForwardConfig],
        hidden: int,
        shape: ModelShape,
        starts: Starts,
        dtype: torch.dtype,
    ) -> None:
        members, width = len(ffns), shape.d_model
        super().__init__(members)
        self.attention_norm = LayerNorm(members, width, dtype)
        self.attention = CausalSelfAttention(
            members,
            width,
            shape.num_heads,
            shape.context_length,
            starts,
            multiplies_values=ffns[0].multiplies_values,
        )
        self.ffn_norm = LayerNorm(members, width, dtype)
        self.ffn = ffns[0].build(ffns, width, hidden, starts)

    def forward(self, x: Tensor, time: int) -> Tensor:
        """`[M, N, D] -> [M, N, D]`, N = batch x time."""
        x = x + self.attention(self.attention_norm(x), time)
        output: Tensor = x + self.ffn(self.ffn_norm(x), time)
        return output


class Decoder(Stacked):
    """As many language models of one shape as there are entries in `ffns`."""

    def __init__(
        self,
        ffns: Sequence[FeedForwardConfig],
        shape: ModelShape,
        initialization: Initialization = "normal",
        precision: Precision = "fp32",
    ) -> None:
        members, width = len(ffns), shape.d_model
        super().__init__(members)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        starts = starts_for(initialization, shape.num_layers)
        self.embedding = Embedding(members, shape.vocab_size, width)
        self.positions = self.declare("positions", (shape.context_length, width), constant(0.0))
        self.blocks = nn.ModuleList(
            Block([ffn for ffn, _ in layer], layer[0][1], shape, starts, dtype)
            for layer in zip(*(shape.layers_of(ffn) for ffn in ffns), strict=True)
        )
        self.norm = LayerNorm(members, width, dtype)
        self.head = Linear(members, width, shape.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Next-token logits: `[M, B, T] -> [M, B x T, V]`."""
        time = tokens.shape[-1]
        x = self.embedding(tokens) + self.positions[:, None, :time]
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x, time)
        logits: Tensor = self.head(self.norm(x))
        return logits
