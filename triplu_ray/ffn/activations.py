"""Layers of one activation: GELU, and squared ReLU with its untied form.

M members, N positions, D model width
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from triplu_ray.ffn.base import FeedForwardConfig, FeedForwardLayer
from triplu_ray.stacked import Starts


class Gelu(FeedForwardConfig):
    """Wo GELU(Wi x): TriPLU, equation 3."""

    kind: Literal["gelu"] = "gelu"

    @property
    def num_streams(self) -> int:
        """One."""
        return 1

    @property
    def formula(self) -> str:
        """Equation 3."""
        return "GELU(Wi x)"

    @classmethod
    def build(
        cls, configs: Sequence["Gelu"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return GeluLayer(configs, d_model, hidden, starts)


class GeluLayer(FeedForwardLayer):
    """See Gelu."""

    def branch(self, x: Tensor) -> Tensor:
        """Equation 3."""
        return F.gelu(self.streams[0](x))


class SquaredRelu(FeedForwardConfig):
    """Wo ReLU(W x)^2: Primer's activation, the baseline of its untied form."""

    kind: Literal["squared_relu"] = "squared_relu"

    @property
    def num_streams(self) -> int:
        """One."""
        return 1

    @property
    def formula(self) -> str:
        """The square of a ReLU."""
        return "ReLU(W x)^2"

    @classmethod
    def build(
        cls, configs: Sequence["SquaredRelu"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return SquaredReluLayer(configs, d_model, hidden, starts)


class SquaredReluLayer(FeedForwardLayer):
    """See SquaredRelu."""

    def branch(self, x: Tensor) -> Tensor:
        """The square of a ReLU."""
        return F.relu(self.streams[0](x)).square()


class UntiedSquaredRelu(FeedForwardConfig):
    """Wo (ReLU(Wa x) * ReLU(Wb x)): squared ReLU if Wa = Wb.

    `initial_similarity` is the cosine of each unit's two rows at the start: those of independent
    draws (about 0) by default, else Wb = s Wa + sqrt(1 - s^2) of its own draw.
    """

    kind: Literal["untied_squared_relu"] = "untied_squared_relu"
    initial_similarity: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def num_streams(self) -> int:
        """Two."""
        return 2

    @property
    def label(self) -> str:
        """The kind, and how similar the pair starts unless independent."""
        similar = f" similarity={self.initial_similarity:g}" if self.initial_similarity else ""
        return self.kind + similar

    @property
    def formula(self) -> str:
        """Two ReLUs."""
        return "ReLU(Wa x) * ReLU(Wb x)"

    @classmethod
    def build(
        cls, configs: Sequence["UntiedSquaredRelu"], d_model: int, hidden: int, starts: Starts
    ) -> FeedForwardLayer:
        """See FeedForwardConfig.build."""
        return UntiedSquaredReluLayer(configs, d_model, hidden, starts)


class UntiedSquaredReluLayer(FeedForwardLayer):
    """See UntiedSquaredRelu."""

    def __init__(
        self, configs: Sequence[UntiedSquaredRelu], d_model: int, hidden: int, starts: Starts
    ) -> None:
        super().__init__(configs, d_model, hidden, starts)
        self.initial_similarity = configs[0].initial_similarity

    def settle(self) -> None:
        """Turn the second stream towards the first."""
        similarity = self.initial_similarity
        if similarity:
            first, second = (stream.get_parameter("weight") for stream in self.streams)
            second.mul_((1 - similarity**2) ** 0.5).add_(first, alpha=similarity)

    def branch(self, x: Tensor) -> Tensor:
        """Two ReLUs."""
        first, second = self.streams
        return F.relu(first(x)) * F.relu(second(x))

    def measures(self) -> dict[str, Tensor]:
        """`similarity`: mean over units of the cosine between the two streams' weights."""
        first, second = (stream.get_parameter("weight") for stream in self.streams)
        return {"similarity": torch.cosine_similarity(first, second, dim=1).mean(1)}
