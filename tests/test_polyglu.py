import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from triplu_ray.ffn import polyglu
from triplu_ray.ffn.polyglu import ACTIVATIONS, PolyGlu, PolyGluLayer
from triplu_ray.stacked import Starts, initialize

D_MODEL, HIDDEN, TIME = 6, 10, 4
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
}


def layer(config: PolyGlu | None = None, seeds: tuple[int, ...] = (1,)) -> PolyGluLayer:
    config = config or PolyGlu()
    built = config.build([config] * len(seeds), D_MODEL, HIDDEN, Starts())
    assert isinstance(built, PolyGluLayer)
    initialize(built, seeds)
    return built


def inputs(members: int = 1, sequences: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(members, sequences * TIME, D_MODEL, generator=generator)


@pytest.mark.parametrize("choice", range(4))
def test_one_hot_preferences_are_that_gated_unit(choice: int) -> None:
    built, x = layer(), inputs()
    with torch.no_grad():
        built.alpha.zero_()[..., choice] = 1e4
    gate, value = (stream(x) for stream in built.streams)
    expected = built.output(FUNCTIONS[ACTIVATIONS[choice]](gate) * value)
    torch.testing.assert_close(built(x, TIME), expected)


def test_routing_starts_even_and_its_entropy_at_the_logarithm_of_four() -> None:
    built = layer()
    with torch.no_grad():
        built.beta.zero_()
    routing = torch.stack(built.routing(inputs(), TIME), 3)
    entropy = -(routing * routing.log()).sum(-2)
    torch.testing.assert_close(entropy, torch.full_like(entropy, math.log(4)))


def test_prefixes_are_averaged_and_later_positions_unseen() -> None:
    built, x = layer(), inputs(sequences=1)
    expected = [
        built.router_output(built.router_input(x[:, : end + 1].mean(1, keepdim=True)).relu())
        for end in range(TIME)
    ]
    torch.testing.assert_close(built.modulation(x, TIME)[:, 0], torch.cat(expected, 1))


def test_the_sources_pooling_sees_later_positions() -> None:
    built = layer(PolyGlu(pooling="sequence"))
    x = inputs(sequences=1).requires_grad_()
    (gradient,) = torch.autograd.grad(built(x, TIME)[0, 0].sum(), x)
    assert gradient[0, -1].abs().max() > 0


def test_noise_depends_on_seed_and_step_alone() -> None:
    together, alone = layer(seeds=(1, 2)), layer(seeds=(2,))
    together.begin_step("blocks.0.ffn", (1, 2), 3, 7, 100)
    alone.begin_step("blocks.0.ffn", (2,), 3, 7, 100)
    assert torch.equal(together.noise[1], alone.noise[0])
    assert not torch.equal(together.noise[0], together.noise[1])
    before = alone.noise.clone()
    for key, step in (("blocks.0.ffn", 8), ("blocks.1.ffn", 7)):
        alone.begin_step(key, (2,), 3, step, 100)
        assert not torch.equal(alone.noise, before)


def test_noise_has_the_moments_of_gumbels_distribution() -> None:
    built = layer()
    built.begin_step("layer", (5,), 3000, 0, 10)
    # 120,000 draws: deviations of the sample's moments are 0.004 and 0.007.
    assert built.noise.mean().item() == pytest.approx(0.5772, abs=0.015)
    assert built.noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_evaluation_is_without_noise_and_keeps_its_place() -> None:
    built, x = layer(), inputs()
    still = built(x, TIME)
    built.begin_step("layer", (1,), 3, 0, 10)
    place = built.noise.data_ptr()
    assert not torch.equal(built(x, TIME), still)
    built.begin_evaluation([0], 10)
    assert torch.equal(built(x, TIME), still)
    assert built.noise.data_ptr() == place


def test_temperature_falls_to_a_tenth() -> None:
    built = layer()
    temperatures = []
    for step in (0, 50, 100, 200):
        built.begin_step("layer", (1,), 3, step, 100)
        temperatures.append(built.temperature.item())
    assert temperatures == pytest.approx([1.0, 0.55, 0.1, 0.1])
    # Members' selected weights are of steps of their own.
    built = layer(seeds=(1, 2))
    built.begin_evaluation([50, 100], 100)
    assert built.temperature.flatten().tolist() == pytest.approx([0.55, 0.1])


def test_a_draw_of_zero_makes_no_infinite_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes up: step 30 of seed 101 has one, in the shape of the character setting."""
    zero = SimpleNamespace(standard_exponential=lambda shape, dtype: np.zeros(shape, dtype))
    monkeypatch.setattr(polyglu, "keyed_generator", lambda *_: zero)
    built, x = layer(), inputs()
    built.begin_step("layer", (1,), 3, 0, 10)
    assert built.noise.flatten().tolist() == pytest.approx([24 * math.log(2)] * 120)
    assert built(x, TIME).isfinite().all()


def test_routing_is_the_softmax_of_preferences_router_and_noise() -> None:
    built, x = layer(seeds=(1, 2)), inputs(members=2)
    built.begin_step("layer", (1, 2), 3, 60, 100)
    with torch.no_grad():
        built.alpha.copy_(torch.randn(2, HIDDEN, 4, generator=torch.Generator().manual_seed(2)))
    logits = built.alpha.transpose(1, 2)[:, None, None] + built.modulation(x, TIME)[..., None]
    expected = ((logits + built.noise[:, :, None]) / 0.46).softmax(3)
    torch.testing.assert_close(torch.stack(built.routing(x, TIME), 3), expected)


def test_frozen_choices_take_the_routers_place() -> None:
    built, x = layer(), inputs()
    built.frozen = torch.zeros(1, 4, HIDDEN)
    built.frozen[:, 1] = 1.0
    gate, value = (stream(x) for stream in built.streams)
    torch.testing.assert_close(built(x, TIME), built.output(gate.tanh() * value))


@pytest.mark.parametrize(("decayed", "spared"), [(False, {"alpha", "beta"}), (True, {"beta"})])
def test_preferences_take_no_weight_decay_unless_the_sources_error_is_repeated(
    decayed: bool, spared: set[str]
) -> None:
    assert layer(PolyGlu(decay_preferences=decayed)).undecayed == spared
