from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.gradcheck import GradcheckError
from torch.utils.flop_counter import FlopCounterMode
from variants import every_variant

from triplu_ray.ffn import (
    Alternating,
    FeedForwardConfig,
    FeedForwardLayer,
    GatedLinearUnit,
    GatedProduct,
    Gelu,
    GeluPlusProduct,
    HardSignProduct,
    LogPower,
    PolyGlu,
    Product,
    ProductOutput,
    SquaredRelu,
    UntiedSquaredRelu,
)
from triplu_ray.stacked import Starts, initialize, normal_start

D_MODEL, HIDDEN = 6, 10


def build(*configs: FeedForwardConfig, std: float = 1.0) -> FeedForwardLayer:
    """A layer in float64 with weights N(0, std), so that products are neither tiny nor huge."""
    start = normal_start(std)
    layer = configs[0].build(configs, D_MODEL, HIDDEN, Starts(start, start))
    initialize(layer, range(1, len(configs) + 1))
    return layer.double()


def weights(layer: FeedForwardLayer, *names: str) -> list[torch.Tensor]:
    return [layer.get_parameter(f"{name}.weight")[0] for name in names]


@every_variant
def test_parameters_are_as_many_as_said(ffn: FeedForwardConfig) -> None:
    count = sum(parameter.numel() for parameter in build(ffn).parameters())
    beside = D_MODEL * D_MODEL if ffn.multiplies_values else 0
    assert count + beside == ffn.num_params(D_MODEL, HIDDEN)


@every_variant
def test_flops_are_as_many_as_torch_counts(ffn: FeedForwardConfig) -> None:
    layer, sequences, time = build(ffn), 3, 7
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, sequences * time, D_MODEL, dtype=torch.float64), time)
    once_a_sequence = 2 * 32 * (D_MODEL + 4) * sequences if ffn.sees_later_tokens else 0
    beside = 2 * D_MODEL * D_MODEL if ffn.multiplies_values else 0
    counted = counter.get_total_flops() - once_a_sequence
    assert counted == sequences * time * (ffn.flops(D_MODEL, HIDDEN) - beside)


@every_variant
def test_gradients_agree_with_finite_differences(ffn: FeedForwardConfig) -> None:
    # Powers of small inputs are steep: smaller weights keep their differences finite.
    layer = build(ffn, ffn, std=0.3 if ffn.kind == "log_power" else 1.0)
    torch.manual_seed(0)
    x = torch.randn(2, 4, D_MODEL, dtype=torch.float64, requires_grad=True)
    parameters = tuple(layer.parameters())

    def apply(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = layer(x, 2)
        return output

    if ffn.is_straight_through:
        with pytest.raises(GradcheckError):
            torch.autograd.gradcheck(apply, (x, *parameters))
    else:
        assert torch.autograd.gradcheck(apply, (x, *parameters))


@every_variant
def test_a_member_computes_what_it_would_alone(ffn: FeedForwardConfig) -> None:
    layer = build(ffn, ffn, ffn)
    alone = build(ffn)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter[0] = layer.get_parameter(name)[2]
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    together = layer(x.expand(3, -1, -1), 2)
    torch.testing.assert_close(together[2], alone(x, 2)[0])


def test_formulas_written_out() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)

    gelu = build(Gelu())
    wi, wo = weights(gelu, "streams.0", "output")
    torch.testing.assert_close(gelu(x, 4)[0], F.gelu(x[0] @ wi) @ wo)

    glus: list[tuple[Callable[[torch.Tensor], torch.Tensor], GatedLinearUnit]] = [
        (F.silu, GatedLinearUnit(kind="swiglu")),
        (F.gelu, GatedLinearUnit(kind="geglu")),
        (F.relu, GatedLinearUnit(kind="reglu")),
    ]
    for activation, config in glus:
        glu = build(config)
        wg, wv, wo = weights(glu, "streams.0", "streams.1", "output")
        torch.testing.assert_close(glu(x, 4)[0], (activation(x[0] @ wg) * (x[0] @ wv)) @ wo)

    triplu = build(Product(degree=3, gain=5.0))
    wu, wv, ww, wo = weights(triplu, "streams.0", "streams.1", "streams.2", "output")
    product = (x[0] @ wu) * (x[0] @ wv) * (x[0] @ ww)
    torch.testing.assert_close(triplu(x, 4)[0], (5.0 * product) @ wo)

    for gates in (1, 2):
        gated = build(GatedProduct(num_gates=gates, gain=5.0))
        wu, wv, ww, wo = weights(gated, "streams.0", "streams.1", "streams.2", "output")
        u, v = F.silu(x[0] @ wu), x[0] @ wv
        v = F.silu(v) if gates == 2 else v
        torch.testing.assert_close(gated(x, 4)[0], (5.0 * u * v * (x[0] @ ww)) @ wo)

    hybrid = build(GeluPlusProduct(gain=5.0))
    w0, wu, wv, ww, wo = weights(hybrid, *(f"streams.{i}" for i in range(4)), "output")
    product = (x[0] @ wu) * (x[0] @ wv) * (x[0] @ ww)
    torch.testing.assert_close(hybrid(x, 4)[0], (F.gelu(x[0] @ w0) + 5.0 * product) @ wo)

    hard = build(HardSignProduct(gain=2.0))
    wu, wv, ww, wo = weights(hard, "streams.0", "streams.1", "streams.2", "output")
    product = (x[0] @ wu) * (x[0] @ wv).sign() * (x[0] @ ww).sign()
    torch.testing.assert_close(hard(x, 4)[0], (2.0 * product) @ wo)

    tied = build(ProductOutput(output="tied", gain=2.0))
    wu, wv, ww = weights(tied, "streams.0", "streams.1", "streams.2")
    product = (x[0] @ wu) * (x[0] @ wv) * (x[0] @ ww)
    torch.testing.assert_close(tied(x, 4)[0], (2.0 * product) @ wu.T)


def test_units_without_a_projection_fold_into_the_channels() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    layer = build(ProductOutput(output="diagonal", gain=2.0))
    scales = torch.linspace(1, 2, HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("unit_scales")[0] = scales
    wu, wv, ww = weights(layer, "streams.0", "streams.1", "streams.2")
    units = 2.0 * scales * (x[0] @ wu) * (x[0] @ wv) * (x[0] @ ww)
    expected = torch.zeros(4, D_MODEL, dtype=torch.float64)
    for unit in range(HIDDEN):
        expected[:, unit % D_MODEL] += units[:, unit]
    torch.testing.assert_close(layer(x, 4)[0], expected)


def test_degree_two_is_bilinear() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    bilinear = build(GatedLinearUnit(kind="bilinear"))
    assert torch.equal(build(Product(degree=2))(x, 4), bilinear(x, 4))


@given(degree=st.integers(2, 6), scale=st.floats(-3, 3))
def test_a_product_of_degree_k_scales_as_the_kth_power(degree: int, scale: float) -> None:
    layer = build(Product(degree=degree, gain=2.0))
    x = torch.randn(1, 2, D_MODEL, dtype=torch.float64)
    torch.testing.assert_close(layer(scale * x, 2), scale**degree * layer(x, 2))


@given(scale=st.floats(0.5, 20))
def test_a_normed_branch_forgets_the_scale_of_its_projections(scale: float) -> None:
    layer = build(Product(degree=3, gain=0.1, branch_norm=True))
    x = torch.randn(1, 3, D_MODEL, dtype=torch.float64)
    before = layer(x, 3)
    with torch.no_grad():
        layer.get_parameter("streams.1.weight").mul_(scale)
    # Exact but for the epsilon under the root.
    torch.testing.assert_close(layer(x, 3), before, rtol=1e-4, atol=1e-6)


def test_members_may_differ_in_gain() -> None:
    layer = build(Product(degree=3, gain=1.0), Product(degree=3, gain=7.0))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter[1] = parameter[0]
    x = torch.randn(1, 2, D_MODEL, dtype=torch.float64).expand(2, -1, -1)
    first, second = layer(x, 2)
    torch.testing.assert_close(second, 7 * first)


def test_a_learned_gain_starts_at_its_value_in_every_member() -> None:
    layer = build(
        Product(degree=3, gain=5.0, learned_gain=True),
        Product(degree=3, gain=0.5, learned_gain=True),
    )
    assert layer.get_parameter("gain").tolist() == [5.0, 0.5]


def test_paired_variants_start_from_the_same_projections() -> None:
    swiglu, double = build(GatedLinearUnit(kind="swiglu")), build(Product(degree=2))
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
        (GatedProduct(), "triple_swiglu"),
        (GatedProduct(num_gates=2), "double_silu_triple"),
        (UntiedSquaredRelu(initial_similarity=0.999), "untied_squared_relu similarity=0.999"),
        (LogPower(sign="hard", integer=True), "integer_hard_sign_log_power"),
        (ProductOutput(output="diagonal"), "triplu_diagonal_output"),
        (PolyGlu(), "polyglu"),
        (PolyGlu(pooling="sequence", decay_preferences=True), "polyglu_leaking_decayed"),
        (Gelu(), "gelu"),
    ],
)
def test_labels(config: FeedForwardConfig, label: str) -> None:
    assert config.label == label


def test_the_papers_flops_a_layer_and_token() -> None:
    assert GatedLinearUnit(kind="swiglu").flops(96, 322) == 185_472
    assert Product(degree=3).flops(96, 242) == 185_856
    assert Product(degree=4).flops(96, 193) == 185_280


def test_tied_streams_are_squared_relu() -> None:
    x = torch.randn(1, 4, D_MODEL, dtype=torch.float64)
    tied, squared = build(UntiedSquaredRelu()), build(SquaredRelu())
    with torch.no_grad():
        tied.get_parameter("streams.1.weight").copy_(tied.get_parameter("streams.0.weight"))
    assert torch.equal(tied(x, 4), squared(x, 4))


@pytest.mark.parametrize("similarity", [0.0, 0.5, 0.999, 1.0])
def test_a_pair_starts_as_similar_as_asked(similarity: float) -> None:
    config = UntiedSquaredRelu(initial_similarity=similarity)
    layer = config.build([config] * 2, 400, 300, Starts())
    initialize(layer, [1, 2])
    # A cosine of independent vectors of width 400 has a deviation of 1 / 20; 300 are averaged.
    assert layer.measures()["similarity"].tolist() == pytest.approx([similarity] * 2, abs=0.012)
    assert layer.get_parameter("streams.1.weight").std().item() == pytest.approx(0.02, rel=0.02)


@given(row=st.integers(0, D_MODEL - 1), seed=st.integers(0, 99))
def test_a_power_unit_of_a_one_hot_row_is_a_magnitude(row: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(1, 3, D_MODEL, dtype=torch.float64)
    layer = build(LogPower())
    with torch.no_grad():
        layer.get_parameter("streams.0.weight").zero_()[:, row] = 1.0
    # The epsilon adds itself; the logarithm's limit stands far off.
    expected = x[..., row : row + 1].abs().clamp(min=torch.exp(torch.tensor(-5.0)).item())
    torch.testing.assert_close(layer.branch(x), expected.expand(-1, -1, HIDDEN), atol=2e-6, rtol=0)


@given(powers=st.lists(st.integers(-1, 2), min_size=D_MODEL, max_size=D_MODEL))
def test_a_hard_sign_makes_a_power_unit_the_monomial(powers: list[int]) -> None:
    x = torch.tensor([[[0.9, -1.3, 1.1, -0.8, -1.2, 0.7]]], dtype=torch.float64)
    layer = build(LogPower(sign="hard"))
    exponents = torch.tensor(powers, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("streams.0.weight").copy_(exponents[:, None].expand(-1, HIDDEN)[None])
    monomial = (x**exponents).prod(-1, keepdim=True)
    torch.testing.assert_close(layer.branch(x), monomial.expand(-1, -1, HIDDEN), rtol=1e-4, atol=0)


def test_rounded_powers_are_whole_and_pass_the_gradient_on() -> None:
    x = torch.tensor([[[0.9, -1.3, 1.1, -0.8, -1.2, 0.7]]], dtype=torch.float64)
    rounded, plain = build(LogPower(integer=True), std=0.8), build(LogPower(), std=0.8)
    with torch.no_grad():
        plain.get_parameter("streams.0.weight").round_()
    torch.testing.assert_close(rounded(x, 1), plain(x, 1))
    torch.autograd.backward([rounded(x, 1).sum(), plain(x, 1).sum()])
    gradients = [layer.get_parameter("streams.0.weight").grad for layer in (rounded, plain)]
    torch.testing.assert_close(*gradients)


def test_alternating_layers_take_turns_at_matched_widths() -> None:
    layers = [Alternating(gain=2.0).at_layer(layer, 322) for layer in range(3)]
    swiglu = (GatedLinearUnit(kind="swiglu"), 322)
    assert layers == [swiglu, (Product(degree=3, gain=2.0), 242), swiglu]


def test_the_source_of_the_untied_form_counts_half_as_much_again() -> None:
    tied, untied = SquaredRelu(), UntiedSquaredRelu()
    assert tied.num_params(768, 3072) == 4_718_592
    assert untied.num_params(768, 3072) == 7_077_888
    assert untied.flops(768, 3072) / tied.flops(768, 3072) == 1.5
    assert untied.num_params(768, 2048) == tied.num_params(768, 3072)
