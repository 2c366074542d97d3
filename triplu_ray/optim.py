"""AdamW, clipping and schedules for stacked models: every member has its own.

All parameters of a cohort lie in one buffer `[members, size]`, so a member is one row: its norm,
update, copy and checkpoint are single operations, and exactly those it would see alone.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Schedule = Literal["constant", "cosine", "linear"]
Decay = Literal["all", "matrices"]
"""Which parameters weight decay acts on: all, or (minGPT) the weights of linear maps only."""


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


class MemberAdamW:
    """One torch AdamW over the rows of a stacked model, each with its own rate, decay and clip.

    Moves the model's parameters into the buffer `values` `[members, size]`, of which they are views
    from then on; `gradients` is the buffer of their gradients. All that an update reads and writes
    stays where it is in memory, as a CUDA graph needs it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decays: Sequence[float],
        betas: tuple[float, float],
        decay: Decay,
        gradient_clip: float,
    ) -> None:
        self.gradient_clip = gradient_clip
        named = list(model.named_parameters())
        decayed = [p for name, p in named if decay == "all" or _is_matrix(name, p)]
        spared = [p for name, p in named if not (decay == "all" or _is_matrix(name, p))]
        self._parameters = [*decayed, *spared]
        self.values = _into_rows(self._parameters)
        self.gradients = torch.zeros_like(self.values)
        sizes = [p[0].numel() for p in self._parameters]
        self._gradient_parts = torch.split(self.gradients, sizes, dim=1)

        on_gpu = self.values.is_cuda
        dtype = torch.float32 if on_gpu else torch.float64  # what the fused kernels read
        self.rates = torch.zeros(len(self.values), dtype=dtype, device=self.values.device)
        """Learning rates of the next update `[M]`."""

        # A member's row is one tensor to AdamW, or two: what decays and what does not.
        boundaries = [sum(sizes[: len(decayed)])] if decayed and spared else []
        ends = [*boundaries, self.values.shape[1]]
        slices = [slice(a, b) for a, b in zip([0, *boundaries], ends, strict=True)]
        shares = [1.0] * bool(decayed) + [0.0] * bool(spared)
        self._rows = [[row[part] for part in slices] for row in self.values]
        groups = [
            {"params": [row], "weight_decay": weight_decays[member] * share, "lr": rate}
            for member, (rows, rate) in enumerate(zip(self._rows, self.rates, strict=True))
            for row, share in zip(rows, shares, strict=True)
        ]
        self._adamw = torch.optim.AdamW(groups, betas=betas, fused=True, capturable=on_gpu)
        for member, rows in enumerate(self._rows):
            for row, part in zip(rows, slices, strict=True):
                row.grad = self.gradients[member, part]
        self._allocate_moments()

    def backward(self, losses: Tensor) -> None:
        """Set `gradients` to those of the members' losses `[M]`; members share nothing."""
        parts = torch.autograd.grad(losses.sum(), self._parameters)
        for gradient, part in zip(self._gradient_parts, parts, strict=True):
            gradient.copy_(part.reshape(gradient.shape))

    def clip(self) -> Tensor:
        """Scale each member's gradient to the norm `gradient_clip` at most; norms before `[M]`."""
        if self.gradients.is_cuda:
            norms: Tensor = torch.linalg.vector_norm(self.gradients, dim=1)
        else:
            # Row by row: the bits of one reduction would depend on the number of members.
            norms = torch.stack([row.norm() for row in self.gradients])
        self.gradients.mul_((self.gradient_clip / (norms + 1e-6)).clamp(max=1.0)[:, None])
        return norms

    def step(self, moving: Tensor) -> None:
        """Update the members of the mask `moving` `[M]` with `rates`; leave the others alone."""
        self.gradients.masked_fill_(~moving[:, None], 0.0)
        self.rates.mul_(moving)
        self._adamw.step()

    def _allocate_moments(self) -> None:
        """Let AdamW make its state, by an update that changes nothing."""
        self._adamw.step()
        for state in self._adamw.state.values():
            state["step"].zero_()

    def state(self) -> dict[str, Tensor]:
        """Everything an exact continuation needs: parameters, moments, update counts."""
        state = {"values": self.values}
        for member, rows in enumerate(self._rows):
            for part, row in enumerate(rows):
                for name, tensor in self._adamw.state[row].items():
                    state[f"{name}.{member}.{part}"] = tensor
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from `state()`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


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
