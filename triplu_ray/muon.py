"""Muon for stacked models: momentum, made orthogonal, moves the matrices; AdamW moves the rest.

Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024), with the constants
and the order of operations of `torch.optim.Muon`. Each member has its own rates, decay and clip.

M members; a matrix is `[inputs, outputs]`, the transpose of torch's
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from triplu_ray.optim import AdamWRows, Decay, MemberOptimizer, decayed_names, split_by_decay
from triplu_ray.stacked import Linear

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz polynomial a s + b s^3 + c s^5, which acts on every singular value s."""
NUM_ITERATIONS = 5
EPSILON = 1e-7
"""The norm below which a matrix is not scaled up to one."""


class _Stack(NamedTuple):
    """Matrices of equal shape, side by side in the rows: one batch of products."""

    columns: slice
    shape: tuple[int, int, int]
    """Count, inputs, outputs."""
    weight_decays: Tensor
    """`[M]`."""


class MemberMuon(MemberOptimizer):
    """Muon for the weights of the linear maps in the blocks, AdamW for all other parameters.

    `rates` is `[2, M]`: Muon's, and AdamW's. Muon's is multiplied by sqrt(max(1, outputs/inputs)).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decays: Sequence[float],
        momentum: float,
        betas: tuple[float, float],
        decay: Decay,
        gradient_clip: float,
    ) -> None:
        matrices, decayed = hidden_matrices(model), decayed_names(model, decay)
        rest = {name: p for name, p in model.named_parameters() if name not in matrices}
        alike = [
            group
            for shape in dict.fromkeys(p.shape for p in matrices.values())
            for group in split_by_decay(
                {name: p for name, p in matrices.items() if p.shape == shape}, decayed
            )
        ]
        others = split_by_decay(rest, decayed)
        super().__init__([*alike, *others], num_rates=2, gradient_clip=gradient_clip)
        self._adamw = AdamWRows(
            self,
            others,
            self.columns[len(alike) :],
            rates=self.rates[1],
            weight_decays=weight_decays,
            betas=betas,
        )
        decays = self.rates.new_tensor(weight_decays)
        self._stacks = [
            _Stack(columns, (len(group.parameters), inputs, outputs), decays * group.decayed)
            for group, columns in zip(alike, self.columns[: len(alike)], strict=True)
            for _, inputs, outputs in [group.parameters[0].shape]
        ]
        self._momentum = momentum
        self._width = sum(p[0].numel() for p in matrices.values())
        self.momentum_buffer = torch.zeros_like(self.values[:, : self._width])
        """Running mean of the matrices' gradients `[M, size of the matrices]`."""

    def step(self, moving: Tensor) -> None:
        """See MemberOptimizer.step."""
        super().step(moving)
        self._adamw.step()
        if self.values.is_cuda:
            self._update_matrices(slice(None), moving)
            return
        # One by one: the bits of a product or a sum could depend on the number of members.
        for member in range(len(self.values)):
            self._update_matrices(slice(member, member + 1), moving)

    def _update_matrices(self, members: slice, moving: Tensor) -> None:
        gradient = self.gradients[members, : self._width]
        buffer = self.momentum_buffer[members]
        # A stopped member keeps its momentum as it is.
        buffer.lerp_(gradient, (1 - self._momentum) * moving[members, None])
        direction = gradient.lerp(buffer, self._momentum)  # Nesterov's
        rates = self.rates[0, members]
        for columns, shape, weight_decays in self._stacks:
            _, inputs, outputs = shape
            values = self.values[members, columns].view(-1, *shape)
            update = orthogonalized(direction[:, columns].view(-1, *shape))
            kept = 1 - rates * weight_decays[members]
            step = rates * math.sqrt(max(1.0, outputs / inputs))
            values.mul_(kept.to(values.dtype).view(-1, 1, 1, 1))
            values.sub_(update * step.to(values.dtype).view(-1, 1, 1, 1))

    def state(self) -> dict[str, Tensor]:
        """See MemberOptimizer.state."""
        return super().state() | {"momentum": self.momentum_buffer} | self._adamw.state()


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """What Muon updates: weights of linear maps between hidden layers, so not those of the head."""
    return {
        f"{name}.weight": module.weight
        for name, module in model.named_modules()
        if name.startswith("blocks.") and isinstance(module, Linear)
    }


def orthogonalized(matrices: Tensor) -> Tensor:
    """U V' of each matrix U S V', roughly: singular values end up between 0.5 and 1.5, in bf16.

    `[M, count, inputs, outputs]` to the same shape, by Newton-Schulz iterations. What is below
    about 0.002 of a matrix's norm has not grown as far by then.
    """
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16().flatten(0, 1)
    # The smaller products; where both are equal, those of torch, whose matrices are the transposes.
    transposed = x.shape[1] >= x.shape[2]
    x = x.mT if transposed else x
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if transposed else x).view(matrices.shape)
