"""What is seen inside a model: the routing of PolyGLU.

M members, B batch, T time, K activations, H hidden units
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from triplu_ray.execution import member_losses
from triplu_ray.ffn.polyglu import ACTIVATIONS, PolyGluLayer
from triplu_ray.model import Decoder


@torch.no_grad()
def routing_probe(model: Decoder, validation: Tensor) -> dict[str, Tensor]:
    """How the layers, in evaluation, route on windows `[batches, B, T + 1]`; values `[M]`.

    By layer: `entropy` (nats, ln 4 at most), the mean weight of each activation, and `static`, the
    share of the units' own preferences in the variance of the logits over the activations, the
    rest being the router's. `loss` is the mean loss as routed, `frozen_loss` that with every unit
    held to the activation of its greatest mean weight.
    """
    layers = [module for module in model.modules() if isinstance(module, PolyGluLayer)]
    sums = [_RoutingSums() for _ in layers]
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs, seen=seen: seen.add(layer, *inputs))
        for layer, seen in zip(layers, sums, strict=True)
    ]
    routed = _mean_losses(model, validation)
    for hook in hooks:
        hook.remove()
    values: dict[str, Tensor] = {}
    for index, (layer, seen) in enumerate(zip(layers, sums, strict=True)):
        values |= {f"layer {index} {name}": value for name, value in seen.values(layer).items()}
        favourite = seen.weights.argmax(1)
        layer.frozen = F.one_hot(favourite, len(ACTIVATIONS)).transpose(1, 2).float()
    frozen = _mean_losses(model, validation)
    for layer in layers:
        layer.frozen = None
    return values | {"loss": routed, "frozen_loss": frozen}


class _RoutingSums:
    """Means over all batches seen."""

    def __init__(self) -> None:
        self.batches = 0
        self.weights: Any = 0.0  # [M, K, H]
        self.entropy: Any = 0.0  # [M]
        self.routed_variance: Any = 0.0  # [M]

    def add(self, layer: PolyGluLayer, x: Tensor, time: int) -> None:
        routing = torch.stack(layer.routing(x, time), 3)
        entropy = torch.special.entr(routing).sum(-2)
        modulation = layer.modulation(x, time)
        self.batches += 1
        self.weights = self.weights + routing.mean((1, 2))
        self.entropy = self.entropy + entropy.flatten(1).mean(1)
        self.routed_variance = self.routed_variance + _variance(modulation).flatten(1).mean(1)

    def values(self, layer: PolyGluLayer) -> dict[str, Tensor]:
        weights = self.weights.mean(-1) / self.batches
        static = _variance(layer.alpha).mean(1)
        routed = self.routed_variance / self.batches
        return {
            "entropy": self.entropy / self.batches,
            **{name: weights[:, index] for index, name in enumerate(ACTIVATIONS)},
            "static": static / (static + routed).clamp(min=1e-30),
        }


def _variance(logits: Tensor) -> Tensor:
    return logits.var(-1, correction=0)


def _mean_losses(model: Decoder, validation: Tensor) -> Tensor:
    batches = (batch.repeat(model.members, 1, 1) for batch in validation)
    return torch.stack([member_losses(model, batch) for batch in batches]).double().mean(0)
