"""Log-domain power units: learned monomials of the inputs, TriPLU's equation 10.

M members, N positions, D model width
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer
from triplu_ray.stacked import Starts, matmul

EPSILON, LOG_LIMIT = 1e-6, 5.0
"""Equation 10's epsilon and c, which the paper leaves open."""


class LogPower(FeedForwardConfig):
    """Wo exp(clip(We log(|x| + eps), -c, c)): unit i is the product of all |x_j|^e_ij.

    Read plainly where the paper is silent. `sign` restores the sign that the magnitude lost, the
    product of the inputs' signs to the same powers: the real part of the complex power,
    cos(pi sum_j e_ij [x_j < 0]); its soft form counts (1 - tanh x_j) / 2 instead of [x_j < 0].
    `integer` rounds the powers, straight through in the backward pass.
    """

    kind: Literal["log_power"] = "log_power"
    sign: Literal["none", "soft", "hard"] = "none"
    integer: bool = False

    @property
    def num_streams(self) -> int:
        """The powers."""
        return 1

    @property
    def is_straight_through(self) -> bool:
        """Where powers are rounded."""
        return self.integer

    @property
    def label(self) -> str:
        """The kind with its options."""
        sign = "" if self.sign == "none" else f"{self.sign}_sign_"
        return "integer_" * self.integer + sign + "log_power"

    @property
    def formula(self) -> str:
        """Equation 10."""
        powers = "round(We)" if self.integer else "We"
        negative = {"soft": "(1 - tanh x) / 2", "hard": "[x < 0]"}.get(self.sign)
        sign = f" * cos(pi {powers} {negative})" if negative else ""
        return f"exp(clip({powers} log(|x| + eps))){sign}"

    def projections(self, d_model: int, hidden: int) -> list[tuple[int, int]]:
        """A sign applies the powers once more."""
        sign = [(d_model, hidden)] if self.sign != "none" else []
        return super().projections(d_model, hidden) + sign

    @classmethod
    def build(
        cls, configs: Sequence["LogPower"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return LogPowerLayer(configs, d_model, hidden, starts)


class LogPowerLayer(FeedForwardLayer):
    """See LogPower."""

    def __init__(
        self, configs: Sequence[LogPower], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.sign, self.integer = configs[0].sign, configs[0].integer

    def branch(self, x: Tensor) -> Tensor:
        """Equation 10, with the optional sign."""
        powers: Tensor = self.streams[0].get_parameter("weight")
        if self.integer:
            powers = powers + (powers.round() - powers).detach()
        powers = powers.to(x.dtype)
        logarithms = matmul((x.abs() + EPSILON).log(), powers)
        magnitude = logarithms.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        if self.sign == "none":
            return magnitude
        negative = (1 - x.tanh()) / 2 if self.sign == "soft" else (x < 0).to(x.dtype)
        return magnitude * torch.cos(math.pi * matmul(negative, powers))
