"""The decoder: pre-norm, learned positions, untied head; only its feed-forward layer varies.

    embedding + positions -> num_layers x [x + attention(norm x); x + ffn(norm x)] -> norm -> head

M members, B batch, T time, D model width, V vocabulary
"""

from collections.abc import Sequence
from typing import Literal

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


class Block(Stacked):
    """Attention and feed-forward layer, each on a normed copy of the residual stream."""

    def __init__(
        self,
        ffns: Sequence[FeedForwardConfig],
        d_model: int,
        hidden: int,
        num_heads: int,
        context_length: int,
        output_std: float,
    ) -> None:
        members = len(ffns)
        super().__init__(members)
        self.attention_norm = LayerNorm(members, d_model)
        self.attention = CausalSelfAttention(
            members, d_model, num_heads, context_length, output_std=output_std
        )
        self.ffn_norm = LayerNorm(members, d_model)
        self.ffn = ffns[0].build(ffns, d_model, hidden, output_std)

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
        *,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        hidden: int,
        initialization: Initialization = "normal",
    ) -> None:
        members = len(ffns)
        super().__init__(members)
        output_std = 0.02 / (2 * num_layers) ** 0.5 if initialization == "mingpt" else 0.02
        self.embedding = Embedding(members, vocab_size, d_model)
        self.positions = self.declare("positions", (context_length, d_model), constant(0.0))
        self.blocks = nn.ModuleList(
            Block(ffns, d_model, hidden, num_heads, context_length, output_std)
            for _ in range(num_layers)
        )
        self.norm = LayerNorm(members, d_model)
        self.head = Linear(members, d_model, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Next-token logits: `[M, B, T] -> [M, B x T, V]`."""
        time = tokens.shape[-1]
        x = self.embedding(tokens) + self.positions[:, None, :time]
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x, time)
        logits: Tensor = self.head(self.norm(x))
        return logits


def num_params(
    ffn: FeedForwardConfig,
    *,
    vocab_size: int,
    context_length: int,
    d_model: int,
    num_layers: int,
    hidden: int,
) -> int:
    """Trainable parameters of one member, without building it."""
    attention_and_norms = 4 * d_model * d_model + 8 * d_model
    per_layer = attention_and_norms + ffn.num_params(d_model, hidden)
    ends = (2 * vocab_size + context_length + 2) * d_model
    return ends + num_layers * per_layer


def flops_per_token(
    ffn: FeedForwardConfig,
    *,
    vocab_size: int,
    context_length: int,
    d_model: int,
    num_layers: int,
    hidden: int,
) -> int:
    """Forward FLOPs of one member a token: matrix products, attention over the whole context."""
    attention = 8 * d_model * d_model + 4 * context_length * d_model
    per_layer = attention + ffn.flops(d_model, hidden)
    return num_layers * per_layer + 2 * d_model * vocab_size
