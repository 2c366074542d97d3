"""TriPLU's other negative and boundary results (section 5.10), each in its plainest reading.

M members, N positions, D model width
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer, multiplied
from triplu_ray.ffn.gated import GatedLinearUnit
from triplu_ray.ffn.product import Product
from triplu_ray.stacked import Starts, constant, matmul

Gain = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Degree = Annotated[int, Field(ge=2)]


class HardSignProduct(FeedForwardConfig):
    """Wo gain (W1 x * sign(W2 x) * ... * sign(Wk x)): one stream keeps its magnitude.

    A sign's backward pass is the identity between -1 and 1, and zero elsewhere.
    """

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["hard_sign_product"] = "hard_sign_product"
    degree: Degree = 3
    gain: Gain = 1.0

    @property
    def num_streams(self) -> int:
        """The degree."""
        return self.degree

    @property
    def is_straight_through(self) -> bool:
        """In its signs."""
        return True

    @property
    def formula(self) -> str:
        """A magnitude and signs."""
        signs = " * ".join(f"sign(W{stream} x)" for stream in range(2, self.degree + 1))
        return f"gain (W1 x * {signs})"

    @classmethod
    def build(
        cls, configs: Sequence["HardSignProduct"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return HardSignProductLayer(configs, d_model, hidden, starts)


class HardSignProductLayer(FeedForwardLayer):
    """See HardSignProduct."""

    def branch(self, x: Tensor) -> Tensor:
        """A magnitude and signs."""
        magnitude, *others = (stream(x) for stream in self.streams)
        return multiplied([magnitude, *(_hard_sign(other) for other in others)])


def _hard_sign(x: Tensor) -> Tensor:
    passed = F.hardtanh(x)
    return passed + (x.sign() - passed).detach()


class ProductOutput(FeedForwardConfig):
    """A product whose projection out is not its own.

    `tied`: Wo is the transposed W1. `diagonal`: no projection, unit j is scaled by a learned s_j
    (at first 1) and added to channel j modulo the model width.
    """

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["product_output"] = "product_output"
    output: Literal["tied", "diagonal"]
    degree: Degree = 3
    gain: Gain = 5.0

    @property
    def num_streams(self) -> int:
        """The degree."""
        return self.degree

    @property
    def label(self) -> str:
        """The product's, and where it goes."""
        return f"{Product(degree=self.degree).label}_{self.output}_output"

    @property
    def formula(self) -> str:
        """The product, with its way out."""
        product = Product(degree=self.degree).formula
        return f"{product}, Wo = W1^T" if self.output == "tied" else f"s * {product}, no Wo"

    def num_params(self, d_model: int, hidden: int) -> int:
        """Projections in, and the diagonal's scales."""
        return self.degree * d_model * hidden + (self.output == "diagonal") * hidden

    def projections(self, d_model: int, hidden: int) -> list[tuple[int, int]]:
        """A tied one costs what any does."""
        sizes = super().projections(d_model, hidden)
        return sizes if self.output == "tied" else sizes[:-1]

    @classmethod
    def build(
        cls, configs: Sequence["ProductOutput"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        layer = TiedOutputLayer if configs[0].output == "tied" else DiagonalOutputLayer
        return layer(configs, d_model, hidden, starts)


class TiedOutputLayer(FeedForwardLayer):
    """See ProductOutput."""

    has_output = False

    def branch(self, x: Tensor) -> Tensor:
        """The product."""
        return multiplied(stream(x) for stream in self.streams)

    def forward(self, x: Tensor, time: int) -> Tensor:
        """Back through the first stream's weights."""
        assert self.scale is not None
        weight = self.streams[0].get_parameter("weight").transpose(1, 2) * self.scale
        return matmul(self.branch(x), weight.to(x.dtype))


class DiagonalOutputLayer(TiedOutputLayer):
    """See ProductOutput."""

    def __init__(
        self, configs: Sequence[ProductOutput], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.unit_scales = self.declare("unit_scales", (hidden,), constant(1.0))

    def forward(self, x: Tensor, time: int) -> Tensor:
        """Scale the units and fold them into the channels."""
        assert self.scale is not None
        units = self.branch(x) * (self.unit_scales[:, None] * self.scale).to(x.dtype)
        width = x.shape[-1]
        padded = F.pad(units, (0, -units.shape[-1] % width))
        return padded.view(*x.shape[:-1], -1, width).sum(-2)


class GeluPlusProduct(FeedForwardConfig):
    """Wo (GELU(W0 x) + gain (W1 x * ... * Wk x)): the paper's early additive hybrid."""

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["gelu_plus_product"] = "gelu_plus_product"
    degree: Degree = 3
    gain: Gain = 5.0

    @property
    def num_streams(self) -> int:
        """GELU's, and the degree."""
        return 1 + self.degree

    @property
    def formula(self) -> str:
        """The sum."""
        return f"GELU(W0 x) + {Product(degree=self.degree).formula}"

    @classmethod
    def build(
        cls, configs: Sequence["GeluPlusProduct"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return GeluPlusProductLayer(configs, d_model, hidden, starts)


class GeluPlusProductLayer(FeedForwardLayer):
    """See GeluPlusProduct."""

    def branch(self, x: Tensor) -> Tensor:
        """The sum; the gain belongs to one summand."""
        first, *factors = (stream(x) for stream in self.streams)
        assert self.scale is not None
        return F.gelu(first) + multiplied(factors) * self.scale.to(x.dtype)

    def forward(self, x: Tensor, time: int) -> Tensor:
        """The sum, projected out."""
        output: Tensor = self.output(self.branch(x))
        return output


class ValueProduct(FeedForwardConfig):
    """The product on the attention's value path: values Wv x * Wz x, beside a SwiGLU layer.

    The projection Wz (D x D, without bias) counts as the layer's, so that widths match.
    """

    multiplies_values: ClassVar[bool] = True
    kind: Literal["value_product"] = "value_product"

    @property
    def num_streams(self) -> int:
        """SwiGLU's."""
        return 2

    @property
    def formula(self) -> str:
        """Both layers."""
        return "SiLU(Wg x) * Wv x; attention's values times Wz x"

    def num_params(self, d_model: int, hidden: int) -> int:
        """SwiGLU's, and Wz."""
        return super().num_params(d_model, hidden) + d_model * d_model

    def projections(self, d_model: int, hidden: int) -> list[tuple[int, int]]:
        """SwiGLU's, and Wz."""
        return [*super().projections(d_model, hidden), (d_model, d_model)]

    @classmethod
    def build(
        cls, configs: Sequence["ValueProduct"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build; the attention is the decoder's."""
        swiglu = GatedLinearUnit(kind="swiglu")
        return swiglu.build([swiglu] * len(configs), d_model, hidden, starts)


class Alternating(FeedForwardConfig):
    """SwiGLU in the first layer and every second after it, products in between.

    `hidden` is SwiGLU's width; that of a product is 3 / (degree + 1) of it, rounded.
    """

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["alternating"] = "alternating"
    degree: Degree = 3
    gain: Gain = 5.0

    @property
    def num_streams(self) -> int:
        """Of the first layer."""
        return 2

    @property
    def formula(self) -> str:
        """Of a layer, and of the next."""
        product = Product(degree=self.degree).formula
        return f"{GatedLinearUnit(kind='swiglu').formula}, then {product}, by turns"

    def at_layer(self, layer: int, hidden: int) -> tuple[FeedForwardConfig, int]:
        """By turns."""
        if layer % 2 == 0:
            return GatedLinearUnit(kind="swiglu"), hidden
        streams = self.degree + 1
        return Product(degree=self.degree, gain=self.gain), (3 * hidden + streams // 2) // streams

    @classmethod
    def build(
        cls, configs: Sequence["Alternating"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """The first layer; a decoder builds what `at_layer` says."""
        swiglu = GatedLinearUnit(kind="swiglu")
        return swiglu.build([swiglu] * len(configs), d_model, hidden, starts)
