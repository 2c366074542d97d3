from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from variants import every_variant

from triplu_ray.ffn import FeedForwardConfig, GatedLinearUnit, Gelu, Product
from triplu_ray.stacked import Stacked, initialize

D_MODEL, HIDDEN = 6, 10


def build(*configs: FeedForwardConfig, std: float = 1.0) -> Stacked:
    """A layer in float64 with weights N(0, std), so that products are neither tiny nor huge."""
    layer = configs[0].build(configs, D_MODEL, HIDDEN, 0.02)
    assert isinstance(layer, Stacked)
    initialize(layer, range(1, len(configs) + 1))
    layer.double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(std / 0.02)
    return layer


def weights(layer: Stacked, *names: str) -> list[torch.Tensor]:
    return [layer.get_parameter(f"{name}.weight")[0] for name in names]


@every_variant
def test_parameters_are_as_many_as_said(ffn: FeedForwardConfig) -> None:
    count = sum(parameter.numel() for parameter in build(ffn).parameters())
    assert count == ffn.num_params(D_MODEL, HIDDEN)


@every_variant
def test_flops_are_as_many_as_torch_counts(ffn: FeedForwardConfig) -> None:
    layer, tokens = build(ffn), 7
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, tokens, D_MODEL, dtype=torch.float64))
    assert counter.get_total_flops() == tokens * ffn.flops(D_MODEL, HIDDEN)


@every_variant
def test_gradients_agree_with_finite_differences(ffn: FeedForwardConfig) -> None:
    layer = build(ffn, ffn)
    torch.manual_seed(0)
    x = torch.randn(2, 3, D_MODEL, dtype=torch.float64, requires_grad=True)
    parameters = tuple(layer.parameters())

    def apply(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = layer(x)
        return output

    assert torch.autograd.gradcheck(apply, (x, *parameters))


@every_variant
def test_a_member_computes_what_it_would_alone(ffn: FeedForwardConfig) -> None:
    layer = build(ffn, ffn, ffn)
    alone = build(ffn)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter[0] = layer.get_parameter(name)[2]
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    together = layer(x.expand(3, -1, -1))
    torch.testing.assert_close(together[2], alone(x)[0])


def test_formulas_written_out() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)

    gelu = build(Gelu())
    wi, wo = weights(gelu, "input", "output")
    torch.testing.assert_close(gelu(x)[0], F.gelu(x[0] @ wi) @ wo)

    glus: list[tuple[Callable[[torch.Tensor], torch.Tensor], GatedLinearUnit]] = [
        (F.silu, GatedLinearUnit(kind="swiglu")),
        (F.gelu, GatedLinearUnit(kind="geglu")),
        (F.relu, GatedLinearUnit(kind="reglu")),
    ]
    for activation, config in glus:
        glu = build(config)
        wg, wv, wo = weights(glu, "streams.0", "streams.1", "output")
        torch.testing.assert_close(glu(x)[0], (activation(x[0] @ wg) * (x[0] @ wv)) @ wo)

    triplu = build(Product(degree=3, gain=5.0))
    wu, wv, ww, wo = weights(triplu, "streams.0", "streams.1", "streams.2", "output")
    product = (x[0] @ wu) * (x[0] @ wv) * (x[0] @ ww)
    torch.testing.assert_close(triplu(x)[0], (5.0 * product) @ wo)


def test_degree_two_is_bilinear() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    assert torch.equal(build(Product(degree=2))(x), build(GatedLinearUnit(kind="bilinear"))(x))


@given(degree=st.integers(2, 6), scale=st.floats(-3, 3))
def test_a_product_of_degree_k_scales_as_the_kth_power(degree: int, scale: float) -> None:
    layer = build(Product(degree=degree, gain=2.0))
    x = torch.randn(1, 2, D_MODEL, dtype=torch.float64)
    torch.testing.assert_close(layer(scale * x), scale**degree * layer(x))


@given(scale=st.floats(0.5, 20))
def test_a_normed_branch_forgets_the_scale_of_its_projections(scale: float) -> None:
    layer = build(Product(degree=3, gain=0.1, branch_norm=True))
    x = torch.randn(1, 3, D_MODEL, dtype=torch.float64)
    before = layer(x)
    with torch.no_grad():
        layer.get_parameter("streams.1.weight").mul_(scale)
    # Exact but for the epsilon under the root.
    torch.testing.assert_close(layer(x), before, rtol=1e-4, atol=1e-6)


def test_members_may_differ_in_gain() -> None:
    layer = build(Product(degree=3, gain=1.0), Product(degree=3, gain=7.0))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter[1] = parameter[0]
    x = torch.randn(1, 2, D_MODEL, dtype=torch.float64).expand(2, -1, -1)
    first, second = layer(x)
    torch.testing.assert_close(second, 7 * first)


def test_a_learned_gain_starts_at_its_value_in_every_member() -> None:
    layer = build(
        Product(degree=3, gain=5.0, learned_gain=True),
        Product(degree=3, gain=0.5, learned_gain=True),
    )
    assert layer.get_parameter("gain").tolist() == [5.0, 0.5]


def test_paired_variants_start_from_the_same_projections() -> None:
    swiglu, double = (
        GatedLinearUnit(kind="swiglu").build(
            [GatedLinearUnit(kind="swiglu")], D_MODEL, HIDDEN, 0.02
        ),
        Product(degree=2).build([Product(degree=2)], D_MODEL, HIDDEN, 0.02),
    )
    initialize(swiglu, [3])
    initialize(double, [3])
    for name, parameter in swiglu.named_parameters():
        assert torch.equal(parameter, double.get_parameter(name))


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (Product(degree=2), "double_prod"),
        (Product(degree=3, gain=5.0), "triplu"),
        (Product(degree=4, gain=25.0), "quad_prod"),
        (Product(degree=7), "product_7"),
        (Product(degree=3, branch_norm=True), "normed_triplu"),
        (Product(degree=3, learned_gain=True), "triplu_learned_gain"),
        (GatedLinearUnit(kind="swiglu"), "swiglu"),
        (Gelu(), "gelu"),
    ],
)
def test_labels(config: FeedForwardConfig, label: str) -> None:
    assert config.label == label


def test_the_papers_flops_a_layer_and_token() -> None:
    assert GatedLinearUnit(kind="swiglu").flops(96, 322) == 185_472
    assert Product(degree=3).flops(96, 242) == 185_856
    assert Product(degree=4).flops(96, 193) == 185_280
