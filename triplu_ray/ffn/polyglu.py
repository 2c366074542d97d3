"""PolyGLU: every unit routes its gate through four activations, by itself and by what is read.

M members, B batch, T time, N positions (B x T), D model width, H hidden units, K activations
"""

from collections.abc import Sequence
from functools import reduce
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer
from triplu_ray.stacked import Linear, Starts, constant, keyed_generator

ACTIVATIONS = ("relu", "tanh", "silu", "gelu")
ROUTER_WIDTH = 32
LOWEST_TEMPERATURE = 0.1
LEAST_DRAW = 2.0**-24
"""Of the exponential distribution: about as fine as draws in fp32 are."""


class PolyGlu(FeedForwardConfig):
    """Wo (sum_k g_k act_k(Wg x) * Wu x), k over ReLU, tanh, SiLU and GELU.

    The logits of unit j are alpha_jk + beta_k f(pooled x)_k, alpha (at first 0) and beta (at first
    1) learned, f = Linear(32) -> ReLU -> Linear(4). g is their soft Gumbel-softmax at temperature
    max(0.1, 1 - 0.9 step / num_steps), one draw a sequence and unit; without noise in evaluations.

    `pooling`: the source averages x over the whole `sequence`, so that its routers see later
    tokens; `prefix` averages over positions so far and is causal. alpha and beta take no weight
    decay; `decay_preferences` repeats the source's first weeks, in which alpha did.
    """

    draws_noise: ClassVar[bool] = True
    kind: Literal["polyglu"] = "polyglu"
    pooling: Literal["prefix", "sequence"] = "prefix"
    decay_preferences: bool = False

    @property
    def num_streams(self) -> int:
        """Gate and value."""
        return 2

    @property
    def label(self) -> str:
        """The kind with its options."""
        leaking = "_leaking" * self.sees_later_tokens
        return f"polyglu{leaking}{'_decayed' * self.decay_preferences}"

    @property
    def formula(self) -> str:
        """The mixture."""
        return f"sum_k g_k act_k(Wg x) * Wu x, g from the mean of the {self.pooling}"

    @property
    def sees_later_tokens(self) -> bool:
        """Where the router reads the whole sequence."""
        return self.pooling == "sequence"

    def num_params(self, d_model: int, hidden: int) -> int:
        """Projections, preferences and router."""
        router = (d_model + 1) * ROUTER_WIDTH + (ROUTER_WIDTH + 1) * len(ACTIVATIONS)
        return super().num_params(d_model, hidden) + len(ACTIVATIONS) * (hidden + 1) + router

    def projections(self, d_model: int, hidden: int) -> list[tuple[int, int]]:
        """With the router's, unless it runs once for a whole sequence."""
        router = [(d_model, ROUTER_WIDTH), (ROUTER_WIDTH, len(ACTIVATIONS))]
        return super().projections(d_model, hidden) + router * (self.pooling == "prefix")

    @classmethod
    def build(
        cls, configs: Sequence["PolyGlu"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return PolyGluLayer(configs, d_model, hidden, starts)


class PolyGluLayer(FeedForwardLayer):
    """See PolyGlu."""

    temperature: Tensor
    noise: Tensor

    def __init__(
        self, configs: Sequence[PolyGlu], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        members, choices = self.members, len(ACTIVATIONS)
        self.pooling = configs[0].pooling
        decayed = configs[0].decay_preferences
        self.alpha = self.declare("alpha", (hidden, choices), constant(0.0), decayed=decayed)
        self.beta = self.declare("beta", (choices,), constant(1.0), decayed=False)
        self.router_input = Linear(members, d_model, ROUTER_WIDTH, bias=True, start=starts.inputs)
        self.router_output = Linear(members, ROUTER_WIDTH, choices, bias=True, start=starts.inputs)
        self.register_buffer("temperature", torch.ones(members, 1, 1, 1), persistent=False)
        # A draw a sequence; before the first one, none for all of them.
        self.register_buffer("noise", torch.zeros(members, 1, choices, hidden), persistent=False)
        self.frozen: Tensor | None = None
        """Routing weights `[M, K, H]` in place of the router's."""

    def begin_step(
        self, key: str, seeds: Sequence[int], batch_size: int, step: int, num_steps: int
    ) -> None:
        """Cool down, and draw Gumbel noise by (seed, step)."""
        self.temperature.fill_(_temperature(step, num_steps))
        shape = (batch_size, *self.noise.shape[2:])
        drawn = np.stack(
            [
                keyed_generator("gumbel", key, seed, step).standard_exponential(shape, np.float32)
                for seed in seeds
            ]
        )
        if self.noise.shape != drawn.shape:
            self.noise = self.noise.new_zeros(drawn.shape)
        # One draw in millions is 0, which would make the noise, and the loss, infinite.
        self.noise.copy_(torch.from_numpy(-np.log(np.maximum(drawn, LEAST_DRAW))))

    def begin_evaluation(self, steps: Sequence[int], num_steps: int) -> None:
        """Route without noise."""
        temperatures = torch.tensor([_temperature(step, num_steps) for step in steps])
        self.temperature.copy_(temperatures.view_as(self.temperature))
        self.noise.zero_()

    def forward(self, x: Tensor, time: int) -> Tensor:
        """Mix the activations of the gate by the routing weights."""
        routing = self.routing(x, time)
        gate, value = (stream(x) for stream in self.streams)
        gate = gate.view(len(x), -1, time, gate.shape[-1])
        activated = (gate.relu(), gate.tanh(), F.silu(gate), F.gelu(gate))
        mixed = sum(map(torch.mul, routing, activated))
        assert isinstance(mixed, Tensor)
        output: Tensor = self.output(mixed.to(x.dtype).flatten(1, 2) * value)
        return output

    def routing(self, x: Tensor, time: int) -> list[Tensor]:
        """Weights of each activation `[M, B, T, H]`, fp32 at least; 1 where they do not vary.

        A softmax written out: elementwise over four tensors it is compiled into the same loop as
        the activations, where a sum along an axis would go through memory.
        """
        if self.frozen is not None:
            return list(self.frozen[:, None, None].unbind(3))
        modulation = self.modulation(x, time)
        logits = [
            (
                self.alpha[:, None, None, :, k]
                + modulation[..., k, None]
                + self.noise[:, : modulation.shape[1], None, k]
            )
            / self.temperature
            for k in range(len(ACTIVATIONS))
        ]
        # It changes no weight, so no gradient goes through it.
        highest = reduce(torch.maximum, logits).detach()
        grown = [(logit - highest).exp() for logit in logits]
        share = 1 / reduce(torch.add, grown)
        return [part * share for part in grown]

    def modulation(self, x: Tensor, time: int) -> Tensor:
        """The router's part of the logits `[M, B, T, K]`; T is 1 if it reads whole sequences."""
        sequences = _at_least_fp32(x).view(len(x), -1, time, x.shape[-1])
        if self.pooling == "sequence":
            pooled = sequences.mean(2, keepdim=True)
        else:
            read = torch.arange(1, time + 1, device=x.device)[:, None]
            pooled = sequences.cumsum(2) / read
        routed = self.router_output(self.router_input(pooled.flatten(1, 2).to(x.dtype)).relu())
        modulation: Tensor = _at_least_fp32(routed).view(*pooled.shape[:3], -1)
        return modulation * self.beta[:, None, None]


def _temperature(step: int, num_steps: int) -> float:
    return max(LOWEST_TEMPERATURE, 1 - (1 - LOWEST_TEMPERATURE) * step / num_steps)


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
