"""One configuration of every kind of feed-forward layer, taken from the union itself."""

from typing import Any, get_args

import pytest

from triplu_ray.config import resolve_ffn
from triplu_ray.ffn import (
    FeedForward,
    FeedForwardConfig,
    GatedProduct,
    LogPower,
    PolyGlu,
    Product,
    ProductOutput,
    UntiedSquaredRelu,
)

KINDS = [
    kind
    for config in get_args(get_args(FeedForward)[0])
    for kind in get_args(config.model_fields["kind"].annotation)
]
REQUIRED: dict[str, dict[str, Any]] = {
    "product": {"degree": 3, "gain": 5.0},
    "product_output": {"output": "tied"},
}
CONFIGS: list[FeedForwardConfig] = [
    *(resolve_ffn(kind, REQUIRED.get(kind, {}), "") for kind in KINDS),
    Product(degree=2),
    Product(degree=5, gain=2.0),
    Product(degree=3, gain=5.0, learned_gain=True),
    Product(degree=3, gain=0.1, branch_norm=True),
    GatedProduct(num_gates=2, gain=5.0),
    UntiedSquaredRelu(initial_similarity=0.999),
    LogPower(sign="soft"),
    LogPower(sign="hard"),
    LogPower(sign="hard", integer=True),
    ProductOutput(output="diagonal"),
    PolyGlu(pooling="sequence"),
    PolyGlu(decay_preferences=True),
]

every_variant = pytest.mark.parametrize("ffn", CONFIGS, ids=lambda ffn: ffn.label)
