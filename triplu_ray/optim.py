"""AdamW, clipping and schedules for stacked models: every member has its own.

All parameters of a cohort lie in one buffer `[members, size]`, so a member is one row: its norm,
update, copy and checkpoint are single operations, and exactly those it would see alone.

M members
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from triplu_ray.stacked import Stacked

Schedule = Literal["constant", "cosine", "linear"]
Decay = Literal["all", "matrices"]
"""Which parameters weight decay acts on: all, or (minGPT) the weights of linear maps only; in both
cases without those that their module declares as undecayed."""


def schedule_factor(
    schedule: Schedule,
    step: int,
    *,
    num_steps: int,
    warmup_steps: int = 0,
    decay_fraction: float = 1.0,
    final_ratio: float = 0.0,
) -> float:
    """The learning rate over its peak for the update number `step` (from 0).

    Linear warm-up over `warmup_steps`; then constant, and in the last `decay_fraction` of the
    remaining steps a cosine or linear fall to `final_ratio` of the peak.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    decay_steps = decay_fraction * (num_steps - warmup_steps)
    progress = max(0.0, 1 - (num_steps - step) / decay_steps) if decay_steps else 0.0
    remaining = (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1 - progress
    return final_ratio + (1 - final_ratio) * remaining


class Group(NamedTuple):
    """Parameters that lie side by side in a member's row and are treated alike."""

    parameters: list[nn.Parameter]
    decayed: bool
    """Whether weight decay acts on them."""


class MemberOptimizer:
    """The rows that an optimizer of a stacked model works on, and what all optimizers do with them.

    Moves the parameters, group by group, into the buffer `values` `[M, size]`, of which they are
    views from then on; `gradients` is the buffer of their gradients. All that an update reads and
    writes stays where it is in memory, as a CUDA graph needs it.
    """

    def __init__(self, groups: Sequence[Group], *, num_rates: int, gradient_clip: float) -> None:
        self.gradient_clip = gradient_clip
        self._parameters = [p for group in groups for p in group.parameters]
        self.values = _into_rows(self._parameters)
        self.gradients = torch.zeros_like(self.values)
        sizes = [p[0].numel() for p in self._parameters]
        self._gradient_parts = torch.split(self.gradients, sizes, dim=1)
        ends = itertools.accumulate(sum(p[0].numel() for p in g.parameters) for g in groups)
        self.columns = [slice(*pair) for pair in itertools.pairwise([0, *ends])]
        """Where in a row each group lies."""
        dtype = torch.float32 if self.values.is_cuda else torch.float64  # what fused kernels read
        size = (num_rates, len(self.values))
        self.rates = torch.zeros(size, dtype=dtype, device=self.values.device)
        """Learning rates of the next update `[num_rates, M]`; each optimizer says whose."""

    def backward(self, losses: Tensor, *, accumulate: bool = False) -> None:
        """Set `gradients` to those of the members' losses `[M]`, or add them."""
        parts = torch.autograd.grad(losses.sum(), self._parameters)
        for gradient, part in zip(self._gradient_parts, parts, strict=True):
            if accumulate:
                gradient.add_(part.reshape(gradient.shape))
            else:
                gradient.copy_(part.reshape(gradient.shape))

    def clip(self) -> Tensor:
        """Scale each member's gradient to the norm `gradient_clip` at most; norms before `[M]`."""
        if self.gradients.is_cuda:
            norms: Tensor = torch.linalg.vector_norm(self.gradients, dim=1)
        else:
            # Row by row: the bits of one reduction would depend on the number of members.
            norms = torch.stack([row.norm() for row in self.gradients])
        factors = (self.gradient_clip / (norms + 1e-6)).clamp(max=1.0)
        # Passes over all gradients that change nothing: a CPU can tell, a GPU would have to wait.
        if self.gradients.is_cuda or not (factors == 1.0).all():
            self.gradients.mul_(factors[:, None])
        return norms

    def step(self, moving: Tensor) -> None:
        """Update the members of the mask `moving` `[M]` with `rates`; leave the others alone.

        Here gradients and rates of the others become 0; the update is each optimizer's own.
        """
        if self.gradients.is_cuda or not moving.all():
            self.gradients.masked_fill_(~moving[:, None], 0.0)
        self.rates.mul_(moving)

    def state(self) -> dict[str, Tensor]:
        """Everything an exact continuation needs: parameters, moments, update counts."""
        return {"values": self.values}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from `state()`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class AdamWRows:
    """One torch AdamW over groups of columns of an optimizer's rows; a member's are its own."""

    def __init__(
        self,
        optimizer: MemberOptimizer,
        groups: Sequence[Group],
        columns: Sequence[slice],
        *,
        rates: Tensor,
        weight_decays: Sequence[float],
        betas: tuple[float, float],
    ) -> None:
        # A member's row is one tensor to AdamW, or two: what decays and what does not.
        self._rows = [[row[part] for part in columns] for row in optimizer.values]
        settings = [
            {"params": [row], "weight_decay": weight_decay * group.decayed, "lr": rate}
            for rows, rate, weight_decay in zip(self._rows, rates, weight_decays, strict=True)
            for row, group in zip(rows, groups, strict=True)
        ]
        on_gpu = optimizer.values.is_cuda
        self._adamw = torch.optim.AdamW(settings, betas=betas, fused=True, capturable=on_gpu)
        for rows, gradient in zip(self._rows, optimizer.gradients, strict=True):
            for row, part in zip(rows, columns, strict=True):
                row.grad = gradient[part]
        self._allocate_moments()

    def _allocate_moments(self) -> None:
        """Let AdamW make its state, by an update that changes nothing."""
        self._adamw.step()
        for state in self._adamw.state.values():
            state["step"].zero_()

    def step(self) -> None:
        """Update with the rates and gradients that lie in the optimizer's buffers."""
        self._adamw.step()

    def state(self) -> dict[str, Tensor]:
        """Moments and update counts."""
        return {
            f"{name}.{member}.{part}": tensor
            for member, rows in enumerate(self._rows)
            for part, row in enumerate(rows)
            for name, tensor in self._adamw.state[row].items()
        }


class MemberAdamW(MemberOptimizer):
    """AdamW for all parameters; `rates` is `[1, M]`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decays: Sequence[float],
        betas: tuple[float, float],
        decay: Decay,
        gradient_clip: float,
    ) -> None:
        groups = split_by_decay(dict(model.named_parameters()), decayed_names(model, decay))
        super().__init__(groups, num_rates=1, gradient_clip=gradient_clip)
        self._adamw = AdamWRows(
            self,
            groups,
            self.columns,
            rates=self.rates[0],
            weight_decays=weight_decays,
            betas=betas,
        )

    def step(self, moving: Tensor) -> None:
        """See MemberOptimizer.step."""
        super().step(moving)
        self._adamw.step()

    def state(self) -> dict[str, Tensor]:
        """See MemberOptimizer.state."""
        return super().state() | self._adamw.state()


def decayed_names(model: nn.Module, decay: Decay) -> set[str]:
    """Names of the parameters that weight decay acts on."""
    undecayed = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, Stacked)
        for name in module.undecayed
    }
    named = model.named_parameters()
    return {name for name, p in named if decay == "all" or _is_matrix(name, p)} - undecayed


def split_by_decay(named: Mapping[str, nn.Parameter], decayed: set[str]) -> list[Group]:
    """What decays and what does not, without a group that would be empty."""
    groups = [
        Group([p for name, p in named.items() if (name in decayed) == wanted], wanted)
        for wanted in (True, False)
    ]
    return [group for group in groups if group.parameters]


def _is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether it is the weight of a linear map: embeddings and positions are not."""
    return parameter.dim() == 3 and not name.startswith(("embedding", "positions"))


def _into_rows(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Move parameters `[M, ...]` into one buffer `[M, size]`, as views of it."""
    members = len(parameters[0])
    values = torch.cat([p.detach().reshape(members, -1) for p in parameters], dim=1)
    start = 0
    for parameter in parameters:
        end = start + parameter[0].numel()
        parameter.data = values[:, start:end].view(parameter.shape)
        start = end
    return values
