"""Layers with a leading member axis: several models of equal shape trained as one.

Parameters are `[members, ...]`; members share nothing, so each one's numbers are those it would
have alone. A layer's author writes `u(x) * v(x) * w(x)` and never meets the axis.

M members, N positions (batch x time), B batch, T time, D model width, H heads, V vocabulary
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

Initializer = Callable[[int, np.random.Generator], NDArray[np.float64] | float]
"""Draws one member's initial values, given its index and the parameter's own generator."""


def keyed_generator(*key: str | int) -> np.random.Generator:
    """A generator that depends on its key alone: the common random numbers of paired runs."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def normal(shape: Sequence[int], std: float) -> Initializer:
    """N(0, std), independent entries."""
    return lambda _, generator: generator.standard_normal(tuple(shape)) * std


def uniform(shape: Sequence[int], std: float) -> Initializer:
    """Uniform around 0 with a standard deviation, independent entries."""
    bound = 3**0.5 * std
    return lambda _, generator: generator.uniform(-bound, bound, tuple(shape))


def constant(value: float) -> Initializer:
    """The same value everywhere."""
    return lambda _member, _generator: value


Start = Callable[[int, int], Initializer]
"""How the weights of a linear map begin, given its numbers of inputs and outputs."""


def normal_start(std: float) -> Start:
    """N(0, std), whatever the sizes."""
    return lambda inputs, outputs: normal((inputs, outputs), std)


NORMAL_START = normal_start(0.02)


@dataclass(frozen=True)
class Starts:
    """How linear maps begin: those that read a norm's output, and those that write the residual."""

    inputs: Start = NORMAL_START
    outputs: Start = NORMAL_START


class Stacked(nn.Module):
    """A module whose parameters are `[members, ...]` and know how they start."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members
        self.initializers: dict[str, Initializer] = {}
        self.undecayed: set[str] = set()
        """Names of its parameters that weight decay never acts on."""

    def declare(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, decayed: bool = True
    ) -> nn.Parameter:
        """Register a parameter `[members, *shape]`, to be filled by `initialize`.

        Weight decay acts on it as the run's `decay` says, or never if it is not `decayed`.
        """
        parameter = nn.Parameter(torch.zeros(self.members, *shape))
        self.register_parameter(name, parameter)
        self.initializers[name] = initializer
        if not decayed:
            self.undecayed.add(name)
        return parameter

    def settle(self) -> None:
        """Set what depends on several initial values, once all are drawn."""


@torch.no_grad()
def initialize(model: nn.Module, seeds: Sequence[int]) -> None:
    """Draw each member's parameters from generators keyed by (seed, parameter name).

    Equally named and shaped parameters of two models, or of two members with the same seed, start
    equal whatever else the models hold.
    """
    for module_name, module in model.named_modules():
        if not isinstance(module, Stacked):
            continue
        for name, initializer in module.initializers.items():
            parameter = module.get_parameter(name)
            for member, seed in enumerate(seeds):
                generator = keyed_generator("weights", seed, f"{module_name}.{name}")
                values = np.asarray(initializer(member, generator), dtype=np.float32)
                parameter[member] = torch.from_numpy(values)
    for module in model.modules():
        if isinstance(module, Stacked):
            module.settle()


class Linear(Stacked):
    """`[M, N, inputs] -> [M, N, outputs]`, weights `[M, inputs, outputs]`, a bias begins at 0.

    Weights are fp32 and take part in the dtype of the input.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        start: Start = NORMAL_START,
    ) -> None:
        super().__init__(members)
        self.weight = self.declare("weight", (inputs, outputs), start(inputs, outputs))
        self.bias = self.declare("bias", (outputs,), constant(0.0)) if bias else None

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Apply; `scale` `[M, 1, 1]` multiplies the weights, which costs less than the output."""
        weight = self.weight if scale is None else self.weight * scale
        output = matmul(x, weight.to(x.dtype))
        return output if self.bias is None else output + self.bias[:, None].to(x.dtype)


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """`[M, N, inputs], [M, inputs, outputs] -> [M, N, outputs]`."""
    if len(x) > 1:
        return torch.bmm(x, weight)
    # The same bits; but as a batch of one, the gradient of a bf16 weight takes twice the time.
    return torch.mm(x.squeeze(0), weight.squeeze(0)).unsqueeze(0)


class LayerNorm(Stacked):
    """`[M, N, D]` fp32 -> `[M, N, D]` of `dtype`, with learned scale (1) and shift (0).

    What a layer computes in is what it gets from its norm: a `Linear` follows its input, sums with
    the residual stream are fp32 again.
    """

    def __init__(self, members: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(members)
        self.width = width
        self.dtype = dtype
        self.weight = self.declare("weight", (width,), constant(1.0))
        self.bias = self.declare("bias", (width,), constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis."""
        if x.is_cuda:
            normed = F.layer_norm(x, (self.width,))
            return torch.addcmul(self.bias[:, None], normed, self.weight[:, None]).to(self.dtype)
        # One kernel a member: faster on a CPU, and a member's bits are those it would have alone.
        members = [
            F.layer_norm(x[m], (self.width,), self.weight[m], self.bias[m])
            for m in range(self.members)
        ]
        normed = members[0][None] if self.members == 1 else torch.stack(members)
        return normed.to(self.dtype)


class Embedding(Stacked):
    """`[M, ...] indices -> [M, ..., D]`, entries N(0, 0.02)."""

    def __init__(self, members: int, entries: int, width: int) -> None:
        super().__init__(members)
        self.entries = entries
        self.weight = self.declare("weight", (entries, width), normal((entries, width), 0.02))

    def forward(self, indices: Tensor) -> Tensor:
        """Look up each member's own table."""
        first = torch.arange(self.members, device=indices.device) * self.entries
        first = first.view(-1, *[1] * (indices.dim() - 1))
        return F.embedding(indices + first, self.weight.flatten(0, 1))


class CausalSelfAttention(Stacked):
    """Multi-head attention over earlier positions, with biases; `[M, N, D] -> [M, N, D]`.

    `multiplies_values`: values are multiplied by one more projection, which has no bias.

    Explicit products and softmax on gathered heads: at the short contexts of tiny models faster
    than the fused kernel, whose bf16 version takes 38 % of a step on a CPU.
    """

    causal_mask: Tensor

    def __init__(
        self,
        members: int,
        width: int,
        num_heads: int,
        context_length: int,
        starts: Starts,
        *,
        multiplies_values: bool = False,
    ) -> None:
        super().__init__(members)
        self.num_heads = num_heads
        self.qkv = Linear(members, width, 3 * width, bias=True, start=starts.inputs)
        self.output = Linear(members, width, width, bias=True, start=starts.outputs)
        self.value_factor = (
            Linear(members, width, width, start=starts.inputs) if multiplies_values else None
        )
        mask = torch.full((context_length, context_length), -math.inf).triu(1)
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, x: Tensor, time: int) -> Tensor:
        """Mix the positions of each sequence of length `time`; N is batch x time."""
        head_width = x.shape[-1] // self.num_heads
        parts = self.qkv(x).view(-1, time, 3 * x.shape[-1]).split(head_width, dim=-1)
        # [heads x sequences, T, head width]: strided factors take twice as long.
        query, key, value = (
            torch.cat(parts[first : first + self.num_heads])
            for first in range(0, len(parts), self.num_heads)
        )
        if self.value_factor is not None:
            factor = self.value_factor(x).view(-1, time, x.shape[-1])
            value = value * torch.cat(factor.split(head_width, dim=-1))
        scores = torch.bmm(query, key.transpose(1, 2)) * head_width**-0.5
        scores = scores + self.causal_mask[:time, :time].to(x.dtype)
        mixed = torch.bmm(scores.softmax(-1), value).chunk(self.num_heads)
        output: Tensor = self.output(torch.cat(mixed, dim=-1).view_as(x))
        return output


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of each member, nats, in fp32: logits `[M, N, V]`, targets `[M, N]` -> `[M]`."""
    return token_cross_entropy(logits, targets).mean(1)


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Loss of each token, nats, in fp32: logits `[M, N, V]`, targets `[M, N]` -> `[M, N]`."""
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(len(logits), -1)
