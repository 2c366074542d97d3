"""Feed-forward variants: each one's configuration beside its module, and their union.

A variant is added here alone: a frozen configuration (`kind`, its fields, `num_params`, `flops`,
`label`, `build`), its module, and an entry in `FeedForward`. `ALIASES` holds the papers' names.

M members, N positions, D model width; every projection is free of biases.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from triplu_ray.stacked import Linear, Stacked


class FeedForwardConfig(BaseModel):
    """What a variant is, apart from its width; `num_streams` projections in, one out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    per_member: ClassVar[frozenset[str]] = frozenset()
    """Fields in which the members of a cohort may differ."""
    kind: str

    @property
    def num_streams(self) -> int:
        """How many projections of the input the branch takes."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name in tables; one name for one formula."""
        return self.kind

    @property
    def formula(self) -> str:
        """The branch before the output projection."""
        raise NotImplementedError

    def num_params(self, d_model: int, hidden: int) -> int:
        """Parameters of one layer."""
        return (self.num_streams + 1) * d_model * hidden

    def flops(self, d_model: int, hidden: int) -> int:
        """Forward FLOPs of one layer a token: projections only, a multiply-add counts 2."""
        return 2 * (self.num_streams + 1) * d_model * hidden

    @staticmethod
    def build(configs: Sequence[Any], d_model: int, hidden: int, output_std: float) -> nn.Module:
        """The stacked layer of members that differ at most in `per_member`."""
        raise NotImplementedError


class Gelu(FeedForwardConfig):
    """Wo GELU(Wi x): TriPLU, equation 3."""

    kind: Literal["gelu"] = "gelu"

    @property
    def num_streams(self) -> int:
        """One."""
        return 1

    @property
    def formula(self) -> str:
        """Equation 3."""
        return "GELU(Wi x)"

    @staticmethod
    def build(
        configs: Sequence["Gelu"], d_model: int, hidden: int, output_std: float
    ) -> "GeluLayer":
        """See FeedForwardConfig.build."""
        return GeluLayer(len(configs), d_model, hidden, output_std)


class GeluLayer(Stacked):
    """`[M, N, D] -> [M, N, D]`."""

    def __init__(self, members: int, d_model: int, hidden: int, output_std: float) -> None:
        super().__init__(members)
        self.input = Linear(members, d_model, hidden)
        self.output = Linear(members, hidden, d_model, std=output_std)

    def forward(self, x: Tensor) -> Tensor:
        """Equation 3."""
        output: Tensor = self.output(F.gelu(self.input(x)))
        return output


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

    @staticmethod
    def build(
        configs: Sequence["GatedLinearUnit"], d_model: int, hidden: int, output_std: float
    ) -> "GatedLinearUnitLayer":
        """See FeedForwardConfig.build."""
        return GatedLinearUnitLayer(len(configs), configs[0].kind, d_model, hidden, output_std)


GATE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "reglu": F.relu,
    "bilinear": nn.Identity(),
}


class GatedLinearUnitLayer(Stacked):
    """`[M, N, D] -> [M, N, D]`."""

    def __init__(
        self, members: int, kind: str, d_model: int, hidden: int, output_std: float
    ) -> None:
        super().__init__(members)
        self.activation = GATE_ACTIVATIONS[kind]
        # Named as Product's streams are: paired runs then start from the same projections.
        self.streams = nn.ModuleList(Linear(members, d_model, hidden) for _ in range(2))
        self.output = Linear(members, hidden, d_model, std=output_std)

    def forward(self, x: Tensor) -> Tensor:
        """Equation 4."""
        gate, value = self.streams
        output: Tensor = self.output(self.activation(gate(x)) * value(x))
        return output


class Product(FeedForwardConfig):
    """Wo gain (W1 x * ... * Wk x), k the degree: TriPLU, equations 5 to 8.

    `learned_gain` makes the gain a parameter of each layer that starts at `gain`; `branch_norm`
    divides the product by its root mean square before the gain (the paper's normed TriPLU).
    """

    per_member: ClassVar[frozenset[str]] = frozenset({"gain"})
    kind: Literal["product"] = "product"
    degree: Annotated[int, Field(ge=2)]
    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    learned_gain: bool = False
    branch_norm: bool = False

    @property
    def num_streams(self) -> int:
        """The degree."""
        return self.degree

    @property
    def label(self) -> str:
        """The paper's name of the degree, with its options."""
        names = {2: "double_prod", 3: "triplu", 4: "quad_prod"}
        name = names.get(self.degree, f"product_{self.degree}")
        return "normed_" * self.branch_norm + name + "_learned_gain" * self.learned_gain

    @property
    def formula(self) -> str:
        """Equations 5 to 8."""
        product = " * ".join(f"W{stream} x" for stream in range(1, self.degree + 1))
        return f"gain RMSNorm({product})" if self.branch_norm else f"gain ({product})"

    def num_params(self, d_model: int, hidden: int) -> int:
        """Projections, and the gain where it is learned."""
        return super().num_params(d_model, hidden) + self.learned_gain

    @staticmethod
    def build(
        configs: Sequence["Product"], d_model: int, hidden: int, output_std: float
    ) -> "ProductLayer":
        """See FeedForwardConfig.build."""
        return ProductLayer(configs, d_model, hidden, output_std)


class ProductLayer(Stacked):
    """`[M, N, D] -> [M, N, D]`."""

    gain: Tensor

    def __init__(
        self, configs: Sequence[Product], d_model: int, hidden: int, output_std: float
    ) -> None:
        super().__init__(len(configs))
        self.streams = nn.ModuleList(
            Linear(self.members, d_model, hidden) for _ in range(configs[0].degree)
        )
        self.output = Linear(self.members, hidden, d_model, std=output_std)
        self.branch_norm = configs[0].branch_norm
        gains = [config.gain for config in configs]
        if configs[0].learned_gain:
            self.gain = self.declare("gain", (), lambda member, _: gains[member])
        else:
            self.register_buffer("gain", torch.tensor(gains), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Equation 8, with the optional norm of section 3."""
        product = reduce(torch.mul, (stream(x) for stream in self.streams))
        if self.branch_norm:
            product = F.rms_norm(product, product.shape[-1:])
        output: Tensor = self.output(product, scale=self.gain.view(-1, 1, 1))
        return output


FeedForward = Annotated[Gelu | GatedLinearUnit | Product, Field(discriminator="kind")]

ALIASES: dict[str, dict[str, Any]] = {
    "double_prod": {"kind": "product", "degree": 2, "gain": 1.0},
    "triple_prod": {"kind": "product", "degree": 3, "gain": 5.0},
    "triplu": {"kind": "product", "degree": 3, "gain": 5.0},
    "quad_prod": {"kind": "product", "degree": 4, "gain": 25.0},
}
"""The paper's names, with the gains of its character suites (section 3)."""
