"""Feed-forward variants: each one's configuration beside its module, and their union.

A variant is added here alone: a frozen configuration (`kind`, its fields, `num_params`, `flops`,
`label`, `build`) and its module in a file of its kin, and an entry in `FeedForward`. `ALIASES`
holds the papers' names.
"""

from typing import Annotated, Any

from pydantic import Field

from triplu_ray.ffn.activations import Gelu, SquaredRelu, UntiedSquaredRelu
from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer
from triplu_ray.ffn.diagnostics import (
    Alternating,
    GeluPlusProduct,
    HardSignProduct,
    ProductOutput,
    ValueProduct,
)
from triplu_ray.ffn.gated import GatedLinearUnit, GatedProduct
from triplu_ray.ffn.polyglu import PolyGlu
from triplu_ray.ffn.power import LogPower
from triplu_ray.ffn.product import Product

__all__ = [
    "ALIASES",
    "Alternating",
    "FeedForward",
    "FeedForwardConfig",
    "FeedForwardLayer",
    "GatedLinearUnit",
    "GatedProduct",
    "Gelu",
    "GeluPlusProduct",
    "HardSignProduct",
    "LogPower",
    "PolyGlu",
    "Product",
    "ProductOutput",
    "SquaredRelu",
    "UntiedSquaredRelu",
    "ValueProduct",
]

FeedForward = Annotated[
    Gelu
    | GatedLinearUnit
    | Product
    | GatedProduct
    | SquaredRelu
    | UntiedSquaredRelu
    | PolyGlu
    | LogPower
    | HardSignProduct
    | ProductOutput
    | GeluPlusProduct
    | ValueProduct
    | Alternating,
    Field(discriminator="kind"),
]

ALIASES: dict[str, dict[str, Any]] = {
    "double_prod": {"kind": "product", "degree": 2, "gain": 1.0},
    "triple_prod": {"kind": "product", "degree": 3, "gain": 5.0},
    "triplu": {"kind": "product", "degree": 3, "gain": 5.0},
    "quad_prod": {"kind": "product", "degree": 4, "gain": 25.0},
    "triplu_learned_gain": {"kind": "product", "degree": 3, "gain": 5.0, "learned_gain": True},
    "normed_triplu": {"kind": "product", "degree": 3, "gain": 0.1, "branch_norm": True},
    "triple_swiglu": {"kind": "gated_product", "degree": 3, "num_gates": 1},
    "double_silu_triple": {"kind": "gated_product", "degree": 3, "num_gates": 2},
    "signed_power_soft": {"kind": "log_power", "sign": "soft"},
    "signed_power_hard": {"kind": "log_power", "sign": "hard"},
    "integer_power": {"kind": "log_power", "sign": "hard", "integer": True},
    "triplu_tied_output": {"kind": "product_output", "output": "tied"},
    "triplu_diagonal_output": {"kind": "product_output", "output": "diagonal"},
    "polyglu_leaking": {"kind": "polyglu", "pooling": "sequence"},
}
"""The papers' names, with the gains of TriPLU's character suites (section 3)."""
