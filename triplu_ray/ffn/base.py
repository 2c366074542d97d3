"""What every feed-forward variant is made of: a configuration and a stacked layer.

M members, N positions (batch x time), D model width; projections are free of biases.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from triplu_ray.stacked import Linear, Stacked, Starts


class FeedForwardConfig(BaseModel):
    """What a variant is, apart from its width; `num_streams` projections in, one out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    per_member: ClassVar[frozenset[str]] = frozenset()
    """Fields in which the members of a cohort may differ."""
    multiplies_values: ClassVar[bool] = False
    """Whether the attention before the layer multiplies its values by one more projection."""
    draws_noise: ClassVar[bool] = False
    """Whether training draws noise, each sequence of a step its own."""
    kind: str

    @property
    def num_streams(self) -> int:
        """How many projections of the input the branch takes."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name in tables; one name for one formula."""
        return self.kind

    @property
    def formula(self) -> str:
        """The branch before the output projection."""
        raise NotImplementedError

    @property
    def is_straight_through(self) -> bool:
        """Whether its backward pass takes a rounding for the identity."""
        return False

    @property
    def sees_later_tokens(self) -> bool:
        """Whether an output depends on later positions; its losses then compare with no other's."""
        return False

    def at_layer(self, layer: int, hidden: int) -> "tuple[FeedForwardConfig, int]":
        """Variant and width of one layer (from 0) of a model whose nominal width is `hidden`."""
        return self, hidden

    def projections(self, d_model: int, hidden: int) -> list[tuple[int, int]]:
        """Inputs and outputs of every linear map that one layer applies to a token."""
        return [(d_model, hidden)] * self.num_streams + [(hidden, d_model)]

    def num_params(self, d_model: int, hidden: int) -> int:
        """Parameters of one layer."""
        return (self.num_streams + 1) * d_model * hidden

    def flops(self, d_model: int, hidden: int) -> int:
        """Forward FLOPs of one layer a token: projections only, a multiply-add counts 2."""
        sizes = self.projections(d_model, hidden)
        return sum(2 * inputs * outputs for inputs, outputs in sizes)

    @classmethod
    def build(
        cls, configs: Sequence[Self], d_model: int, hidden: int, starts: Starts
    ) -> "FeedForwardLayer":
        """The stacked layer of members that differ at most in `per_member`."""
        raise NotImplementedError


class FeedForwardLayer(Stacked):
    """Projections in, a branch, a gain if the variant has one, a projection out.

    Streams are named alike in all variants, so that paired runs start from the same projections.
    """

    has_output: ClassVar[bool] = True
    """Whether there is a projection out of its own."""
    gain: Tensor | None

    def __init__(self, configs: Sequence[Any], d_model: int, hidden: int, starts: Starts) -> None:
        super().__init__(len(configs))
        self.streams = nn.ModuleList(
            Linear(self.members, d_model, hidden, start=starts.inputs)
            for _ in range(configs[0].num_streams)
        )
        if self.has_output:
            self.output = Linear(self.members, hidden, d_model, start=starts.outputs)
        gains: list[Any] = [getattr(config, "gain", None) for config in configs]
        if getattr(configs[0], "learned_gain", False):
            self.gain = self.declare("gain", (), lambda member, _: gains[member])
        else:
            gain = None if gains[0] is None else torch.tensor(gains)
            self.register_buffer("gain", gain, persistent=False)

    def branch(self, x: Tensor) -> Tensor:
        """What is projected out: `[M, N, D] -> [M, N, hidden]`."""
        raise NotImplementedError

    def forward(self, x: Tensor, time: int) -> Tensor:
        """`[M, N, D] -> [M, N, D]`, N sequences of `time` positions one after another."""
        output: Tensor = self.output(self.branch(x), scale=self.scale)
        return output

    @property
    def scale(self) -> Tensor | None:
        """The gain as `[M, 1, 1]`, for `Linear`."""
        return None if self.gain is None else self.gain.view(-1, 1, 1)

    def begin_step(
        self, key: str, seeds: Sequence[int], batch_size: int, step: int, num_steps: int
    ) -> None:
        """Set what varies from update to update, before update `step` (from 0).

        What is random depends on `key`, the layer's name, on a member's seed and the step alone.
        """

    def measures(self) -> dict[str, Tensor]:
        """What is worth following along training, by name: values `[M]`."""
        return {}

    def begin_evaluation(self, steps: Sequence[int], num_steps: int) -> None:
        """Set what varies as it is after so many updates of each member, without what is random."""


def multiplied(factors: Iterable[Tensor]) -> Tensor:
    """Their elementwise product."""
    product: Tensor = reduce(torch.mul, factors)
    return product
