"""Gated layers: an activation on some streams, all of them multiplied.

M members, N positions, D model width
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer, multiplied
from triplu_ray.stacked import Starts


class GatedLinearUnit(FeedForwardConfig):
    """Wo (activation(Wg x) * Wv x): SwiGLU is TriPLU's equation 4, the others Shazeer's (2020)."""

    kind: Literal["swiglu", "geglu", "reglu", "bilinear"]

    @property
    def num_streams(self) -> int:
        """Gate and value."""
        return 2

    @property
    def formula(self) -> str:
        """Equation 4 with the form's activation."""
        activation = {"swiglu": "SiLU", "geglu": "GELU", "reglu": "ReLU"}.get(self.kind)
        return f"{activation}(Wg x) * Wv x" if activation else "Wg x * Wv x"

    @classmethod
    def build(
        cls, configs: Sequence["GatedLinearUnit"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return GatedLinearUnitLayer(configs, d_model, hidden, starts)


GATE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "reglu": F.relu,
    "bilinear": nn.Identity(),
}


class GatedLinearUnitLayer(FeedForwardLayer):
    """See GatedLinearUnit."""

    def __init__(
        self, configs: Sequence[GatedLinearUnit], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.activation = GATE_ACTIVATIONS[configs[0].kind]

    def branch(self, x: Tensor) -> Tensor:
        """Equation 4."""
        gate, value = self.streams
        gated: Tensor = self.activation(gate(x)) * value(x)
        return gated


class GatedProduct(FeedForwardConfig):
    """Wo gain (SiLU(W1 x) * ... * Wk x), SiLU on the first `num_gates` of k streams.

    Degree 3 with one gate is the paper's triple_swiglu, with two its double_silu_triple
    (TriPLU, equation 11).
    """

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["gated_product"] = "gated_product"
    degree: Annotated[int, Field(ge=2)] = 3
    num_gates: Annotated[int, Field(ge=1)] = 1
    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @property
    def num_streams(self) -> int:
        """The degree."""
        return self.degree

    @property
    def label(self) -> str:
        """The paper's name where it has one."""
        names = {(3, 1): "triple_swiglu", (3, 2): "double_silu_triple"}
        shape = (self.degree, self.num_gates)
        return names.get(shape, f"gated_product_{self.degree}_{self.num_gates}")

    @property
    def formula(self) -> str:
        """Equation 11."""
        streams = [f"W{stream} x" for stream in range(1, self.degree + 1)]
        gates = [f"SiLU({stream})" for stream in streams[: self.num_gates]]
        return f"gain ({' * '.join([*gates, *streams[self.num_gates :]])})"

    @classmethod
    def build(
        cls, configs: Sequence["GatedProduct"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return GatedProductLayer(configs, d_model, hidden, starts)


class GatedProductLayer(FeedForwardLayer):
    """See GatedProduct."""

    def __init__(
        self, configs: Sequence[GatedProduct], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.num_gates = configs[0].num_gates

    def branch(self, x: Tensor) -> Tensor:
        """Equation 11, before its gain."""
        streams = [stream(x) for stream in self.streams]
        gates = [F.silu(stream) for stream in streams[: self.num_gates]]
        return multiplied([*gates, *streams[self.num_gates :]])
