"""Direct products of projected streams: TriPLU and its neighbours.

M members, N positions, D model width
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer, multiplied
from triplu_ray.stacked import Starts


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

    @classmethod
    def build(
        cls, configs: Sequence["Product"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return ProductLayer(configs, d_model, hidden, starts)


class ProductLayer(FeedForwardLayer):
    """See Product."""

    def __init__(
        self, configs: Sequence[Product], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.branch_norm = configs[0].branch_norm

    def branch(self, x: Tensor) -> Tensor:
        """Equation 8 before its gain, with the optional norm of section 3."""
        product = multiplied(stream(x) for stream in self.streams)
        return F.rms_norm(product, product.shape[-1:]) if self.branch_norm else product
