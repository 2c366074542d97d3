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
    constant,
)

Initialization = Literal["normal", "mingpt"]
"""`normal`: all weights N(0, 0.02). `mingpt`: output projections scaled by 1/sqrt(2 num_layers)."""

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
        per_layer = attention_and_norms + ffn.num_params(self.d_model, self.hidden)
        ends = (2 * self.vocab_size + self.context_length + 2) * self.d_model
        return ends + self.num_layers * per_layer

    def flops_per_token(self, ffn: FeedForwardConfig) -> int:
        """Forward FLOPs: matrix products, attention over the whole context; multiply-add = 2."""
        attention = 8 * self.d_model * self.d_model + 4 * self.context_length * self.d_model
        per_layer = attention + ffn.flops(self.d_model, self.hidden)
        return self.num_layers * per_layer + 2 * self.d_model * self.vocab_size


class Block(Stacked):
    """Attention and feed-forward layer, each on a normed copy of the residual stream."""

    def __init__(
        self,
        ffns: Sequence[FeedForwardConfig],
        shape: ModelShape,
        output_std: float,
        dtype: torch.dtype,
    ) -> None:
        members, width = len(ffns), shape.d_model
        super().__init__(members)
        self.attention_norm = LayerNorm(members, width, dtype)
        self.attention = CausalSelfAttention(
            members, width, shape.num_heads, shape.context_length, output_std=output_std
        )
        self.ffn_norm = LayerNorm(members, width, dtype)
        self.ffn = ffns[0].build(ffns, width, shape.hidden, output_std)

    def forward(self, x: Tensor, time: int) -> Tensor:
        """`[M, N, D] -> [M, N, D]`, N = batch x time."""
        x = x + self.attention(self.attention_norm(x), time)
        output: Tensor = x + self.ffn(self.ffn_norm(x))
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
        output_std = 0.02 / (2 * shape.num_layers) ** 0.5 if initialization == "mingpt" else 0.02
        self.embedding = Embedding(members, shape.vocab_size, width)
        self.positions = self.declare("positions", (shape.context_length, width), constant(0.0))
        self.blocks = nn.ModuleList(
            Block(ffns, shape, output_std, dtype) for _ in range(shape.num_layers)
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
