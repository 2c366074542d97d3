"""The yardstick: a plain eager PyTorch model and loop in the manner of minGPT.

For the papers' layers it shares nothing with the training engine; tests hold the engine to its
numbers, the benchmark to its speed. Its parameters carry the engine's names, so that weights can be
copied by name. Other feed-forward layers are the engine's, called by this loop.

B batch, T time, D model width, V vocabulary
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triplu_ray.ffn import FeedForwardConfig, GatedLinearUnit, Gelu, Product
from triplu_ray.model import ModelShape
from triplu_ray.stacked import Starts


class Attention(nn.Module):
    """Causal self-attention through PyTorch's fused kernel."""

    def __init__(self, d_model: int, num_heads: int, *, multiplies_values: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.value_factor = nn.Linear(d_model, d_model, bias=False) if multiplies_values else None

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if self.value_factor is not None:
            value = value * self.value_factor(x)
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForwardLayer(nn.Module):
    """GELU, SwiGLU or a plain product branch, written out."""

    def __init__(self, ffn: FeedForwardConfig, d_model: int, hidden: int) -> None:
        super().__init__()
        self.ffn = ffn
        streams = (nn.Linear(d_model, hidden, bias=False) for _ in range(ffn.num_streams))
        self.streams = nn.ModuleList(streams)
        self.output = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        if isinstance(self.ffn, Gelu):
            branch = F.gelu(self.streams[0](x))
        elif isinstance(self.ffn, Product):
            branch = self.streams[0](x)
            for stream in self.streams[1:]:
                branch = branch * stream(x)
            branch = self.ffn.gain * branch
        else:
            branch = F.silu(self.streams[0](x)) * self.streams[1](x)
        out: Tensor = self.output(branch)
        return out


class EngineLayer(nn.Module):
    """The engine's own layer, of one member."""

    def __init__(self, ffn: FeedForwardConfig, d_model: int, hidden: int) -> None:
        super().__init__()
        self.layer = ffn.build([ffn], d_model, hidden, Starts())

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        out: Tensor = self.layer(x.flatten(0, 1)[None], x.shape[1])
        return out.view_as(x)


def is_written_out(ffn: FeedForwardConfig) -> bool:
    """Whether `FeedForwardLayer` knows the variant."""
    if isinstance(ffn, Product):
        return not (ffn.branch_norm or ffn.learned_gain)
    return isinstance(ffn, Gelu) or (isinstance(ffn, GatedLinearUnit) and ffn.kind == "swiglu")


class ReferenceBlock(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, ffn: FeedForwardConfig, d_model: int, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, num_heads, multiplies_values=ffn.multiplies_values)
        self.ffn_norm = nn.LayerNorm(d_model)
        layer = FeedForwardLayer if is_written_out(ffn) else EngineLayer
        self.ffn = layer(ffn, d_model, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class ReferenceDecoder(nn.Module):
    """One model; the loss of a batch is what `forward` returns."""

    def __init__(self, ffn: FeedForwardConfig, shape: ModelShape) -> None:
        super().__init__()
        width = shape.d_model
        self.embedding = nn.Embedding(shape.vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(shape.context_length, width))
        self.blocks = nn.ModuleList(
            ReferenceBlock(layer, width, hidden, shape.num_heads)
            for layer, hidden in shape.layers_of(ffn)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, nats a token: `[B, T]`, `[B, T]` -> scalar."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def train_step(
    model: ReferenceDecoder, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor
) -> float:
    """One update: loss, gradient, clip to norm 1, AdamW; the loss before it."""
    optimizer.zero_grad(set_to_none=True)
    loss: Tensor = model(tokens, targets)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
