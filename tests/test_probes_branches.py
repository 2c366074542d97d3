import math

import pytest
import torch

from triplu_ray.ffn import PolyGlu
from triplu_ray.ffn.polyglu import ACTIVATIONS, PolyGluLayer
from triplu_ray.model import Decoder, ModelShape
from triplu_ray.probes.branches import routing_probe
from triplu_ray.stacked import initialize

SHAPE = ModelShape(vocab_size=7, context_length=6, d_model=8, num_layers=2, num_heads=2, hidden=5)


def decoder() -> tuple[Decoder, list[PolyGluLayer]]:
    model = Decoder([PolyGlu()] * 2, SHAPE)
    initialize(model, [1, 2])
    return model, [module for module in model.modules() if isinstance(module, PolyGluLayer)]


def windows() -> torch.Tensor:
    return torch.randint(7, (3, 4, 7), generator=torch.Generator().manual_seed(1))


def test_a_router_without_influence_routes_evenly() -> None:
    model, layers = decoder()
    with torch.no_grad():
        for layer in layers:
            layer.beta.zero_()
    values = routing_probe(model, windows())
    for layer_index in range(2):
        assert values[f"layer {layer_index} entropy"].tolist() == pytest.approx([math.log(4)] * 2)
        for name in ACTIVATIONS:
            assert values[f"layer {layer_index} {name}"].tolist() == pytest.approx([0.25] * 2)


def test_strong_preferences_are_found_and_freezing_them_changes_nothing() -> None:
    model, layers = decoder()
    with torch.no_grad():
        for layer in layers:
            layer.beta.zero_()
            layer.alpha[0, :, 1] = 50.0  # member 0: all tanh
            layer.alpha[1, :3, 2] = 50.0  # member 1: three units SiLU, two ReLU
            layer.alpha[1, 3:, 0] = 50.0
    values = routing_probe(model, windows())
    assert values["layer 1 tanh"].tolist() == pytest.approx([1.0, 0.0])
    assert values["layer 1 silu"].tolist() == pytest.approx([0.0, 0.6])
    assert values["layer 1 relu"].tolist() == pytest.approx([0.0, 0.4])
    assert values["layer 0 entropy"].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert values["layer 0 static"].tolist() == pytest.approx([1.0, 1.0])
    torch.testing.assert_close(values["loss"], values["frozen_loss"])
    assert all(layer.frozen is None for layer in layers)


def test_freezing_what_was_mixed_changes_the_loss() -> None:
    model, layers = decoder()
    with torch.no_grad():
        for layer in layers:
            layer.alpha[..., 1] = 1.0
            for name in ("streams.0.weight", "streams.1.weight", "output.weight"):
                layer.get_parameter(name).mul_(100)
    values = routing_probe(model, windows())
    assert (values["loss"] - values["frozen_loss"]).abs().min() > 1e-4


def test_static_share_is_that_of_the_variances() -> None:
    model, layers = decoder()
    with torch.no_grad():
        for layer in layers:
            layer.alpha[..., 0] = 1.0
            layer.router_output.weight.zero_()
            layer.get_parameter("router_output.bias")[..., 3] = 2.0
    # Variances over four activations: 3/16 of the preferences, 4 x 3/16 of the router.
    values = routing_probe(model, windows())
    assert values["layer 0 static"].tolist() == pytest.approx([0.2, 0.2])
