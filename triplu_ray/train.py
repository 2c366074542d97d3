"""Training a cohort: a loop that reads from top to bottom and knows neither Ray nor the CLI.

M members, B batch, T time
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplu_ray.batches import packed, training_offsets, validation_offsets, windows
from triplu_ray.checkpoint import DamagedCheckpointError, pack, part, unpack
from triplu_ray.corpus import Corpus
from triplu_ray.execution import (
    Losses,
    captured,
    compiled_losses,
    member_losses,
    set_matmul_precision,
)
from triplu_ray.ffn import FeedForwardLayer
from triplu_ray.members import Evaluation, Measurement, MemberState
from triplu_ray.model import Decoder
from triplu_ray.muon import MemberMuon
from triplu_ray.optim import MemberAdamW, MemberOptimizer
from triplu_ray.plan import Cohort
from triplu_ray.stacked import initialize

STEPS_AHEAD = 64
"""Whose batches are drawn and uploaded at once."""


@dataclass(frozen=True)
class Progress:
    """What `train_cohort` yields: after evaluations, and in between as a sign of life."""

    step: int
    num_steps: int
    evaluations: tuple[Evaluation, ...]
    best_val_loss: float | None
    tokens_per_second: float
    """All members together, in the steps since the last progress."""


class CohortTrainer:
    """A cohort's models, optimizer and results, advanced step by step.

    On a GPU nothing waits for the device between two calls of `synchronize`: texts and batches lie
    there, and an update is one CUDA graph (unless `capture` is off, which is for comparison).
    `compiled` says whether losses and gradients are compiled code: `execution.CompiledLosses`.
    A batch that memory does not hold is worked on in `micro_batches` equal parts.
    """

    def __init__(
        self,
        cohort: Cohort,
        corpus: Corpus,
        device: str = "cpu",
        *,
        compiled: bool = False,
        capture: bool = True,
        micro_batches: int = 1,
    ) -> None:
        self.configs = [run.config for run in cohort.runs]
        self.config = self.configs[0]  # members agree in all that is read from here
        self.device = torch.device(device)
        self.compiled = compiled
        self.micro_batches = micro_batches
        self._capture = capture and self.device.type == "cuda"
        config, members = self.config, len(self.configs)
        set_matmul_precision(config.precision)
        self.train_tokens = packed(corpus.train).to(self.device)
        validation = packed(corpus.validation).to(self.device)
        offsets = validation_offsets(
            len(validation), config.eval_batches, config.batch_size, config.context_length
        )
        self.validation = windows(
            validation, torch.from_numpy(offsets).to(self.device), config.context_length
        )
        """`[eval_batches, B, T + 1]`."""
        scored = corpus.num_bytes(self.validation[..., 1:].cpu().numpy())
        self.bits_per_byte = scored and self.validation[..., 1:].numel() / scored / math.log(2)
        """Of a validation loss of one nat a token; None where bytes are unknown."""
        shape = config.shape(corpus.vocab_size)
        ffns = [config.ffn for config in self.configs]
        self.model = Decoder(ffns, shape, config.initialization, config.precision)
        initialize(self.model, [config.seed for config in self.configs])
        self.model.to(self.device)
        self._branches = [
            (name, module)
            for name, module in self.model.named_modules()
            if isinstance(module, FeedForwardLayer)
        ]
        optimizer: Callable[..., MemberOptimizer] = MemberAdamW
        if config.optimizer == "muon":
            optimizer = partial(MemberMuon, momentum=config.momentum)
        self.optimizer = optimizer(
            self.model,
            weight_decays=[config.weight_decay for config in self.configs],
            betas=(config.beta1, config.beta2),
            decay=config.decay,
            gradient_clip=config.gradient_clip,
        )
        self._losses: Losses = member_losses
        if compiled:
            name = config.code_key(shape.vocab_size, members)
            self._losses = compiled_losses(f"{name}_{micro_batches}", device)

        self.members = [MemberState(run.run_id) for run in cohort.runs]
        self.best_values = self.optimizer.values.clone()
        """Each member's parameters at its lowest validation loss `[M, size]`."""
        self.step = 0
        self.seconds = 0.0
        """Time in training steps; evaluations, checkpoints and compilation excluded."""
        self.resumes = 0

        # What an update reads and notes, in place: where it runs is not where it is read.
        offsets_shape = (members, config.batch_size)
        self._offsets = torch.zeros(offsets_shape, dtype=torch.int64, device=self.device)
        self._moving = torch.ones(members, dtype=torch.bool, device=self.device)
        self._steps_moved = torch.zeros(members, dtype=torch.int64, device=self.device)
        self._loss_sums = torch.zeros(members, dtype=torch.float64, device=self.device)
        self._loss_counts = torch.zeros(members, dtype=torch.int64, device=self.device)
        self._ahead: deque[tuple[Tensor, Tensor]] = deque()
        self._run_update: Callable[[], None] | None = None

    @property
    def micro_batch_size(self) -> int:
        """Sequences of each member that are worked on at once."""
        return self.config.batch_size // self.micro_batches

    @property
    def running(self) -> bool:
        """Whether a step remains for some member."""
        return self.step < self.config.num_steps and any(m.is_running for m in self.members)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether some member lacks the evaluation that belongs to this step."""
        config, running = self.config, [m for m in self.members if m.is_running]
        if self.step % config.eval_interval and self.step != config.num_steps:
            return False
        return any(not m.evaluations or m.evaluations[-1].step < self.step for m in running)

    def prepare(self) -> None:
        """Compile, or capture, an update: what takes time once, before the first step."""
        if not self.running:
            return
        self._look_ahead()
        self._offsets.copy_(self._ahead[0][0])
        self._begin_step()
        if self._capture:
            noted = [self._moving, self._steps_moved, self._loss_sums, self._loss_counts]
            state = [*noted, self.optimizer.gradients, *self.optimizer.state().values()]
            self._run_update = captured(self._update, state)
        else:
            if self.compiled:
                self.optimizer.backward(next(self._parts_of_losses(self._training_batch())))
            self._run_update = self._update

    def train_step(self) -> None:
        """One update of every member that has not diverged."""
        if self._run_update is None:
            self.prepare()
        assert self._run_update is not None
        started = time.perf_counter()
        if not self._ahead:
            self._look_ahead()
        offsets, rates = self._ahead.popleft()
        self._offsets.copy_(offsets)
        self.optimizer.rates.copy_(rates)
        self._begin_step()
        self._run_update()
        self.step += 1
        self.seconds += time.perf_counter() - started

    def _look_ahead(self) -> None:
        """Upload the batches and learning rates of the steps that come next."""
        steps = range(self.step, min(self.step + STEPS_AHEAD, self.config.num_steps))
        config, length = self.config, len(self.train_tokens)
        offsets = [
            [
                training_offsets(length, c.seed, step, config.batch_size, config.context_length)
                for c in self.configs
            ]
            for step in steps
        ]
        factors = np.array([config.learning_rate_factor(step) for step in steps])
        peaks = np.array([c.learning_rates for c in self.configs]).T
        rates = factors[:, None, None] * peaks
        uploaded = torch.from_numpy(np.array(offsets)).to(self.device)
        self._ahead = deque(zip(uploaded, torch.from_numpy(rates).to(self.device), strict=True))

    def _begin_step(self) -> None:
        seeds, size = [config.seed for config in self.configs], self.config.batch_size
        for name, branch in self._branches:
            branch.begin_step(name, seeds, size, self.step, self.config.num_steps)

    def _training_batch(self) -> Tensor:
        return windows(self.train_tokens, self._offsets, self.config.context_length)

    def _parts_of_losses(self, batch: Tensor) -> Iterator[Tensor]:
        """What each micro-batch of `[M, B, T + 1]` adds to the members' mean losses `[M]`."""
        for micro_batch in batch.chunk(self.micro_batches, dim=1):
            yield self._losses(self.model, micro_batch) / self.micro_batches

    def _update(self) -> None:
        """Losses, gradients, clip, step. Runs on the device alone; `synchronize` reads of it."""
        losses = torch.zeros(len(self.members), device=self.device)
        for index, share in enumerate(self._parts_of_losses(self._training_batch())):
            self.optimizer.backward(share, accumulate=index > 0)
            losses += share.detach()
        norms = self.optimizer.clip()
        self._moving &= losses.isfinite() & norms.isfinite()
        self._steps_moved += self._moving
        self._loss_counts += self._moving
        self._loss_sums += torch.where(self._moving, losses, 0.0)
        self.optimizer.step(self._moving)

    def synchronize(self) -> None:
        """Wait for the device and take over what it has noted."""
        started = time.perf_counter()
        moved = self._steps_moved.tolist()
        self.seconds += time.perf_counter() - started
        moving, counts = self._moving.tolist(), self._loss_counts.tolist()
        for index, loss_sum in enumerate(self._loss_sums.tolist()):
            member = self.members[index]
            member.train_loss_sum, member.train_loss_steps = loss_sum, counts[index]
            if not moving[index] and member.is_running:
                member.diverged_step = moved[index] + 1

    def evaluate(self) -> tuple[Evaluation, ...]:
        """Mean loss over the validation batches of every member that is still running."""
        self.synchronize()
        self.begin_evaluation([self.step] * len(self.members))
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)
        # Compiled code keeps one graph, that of the training step, whose forward half this is.
        with torch.set_grad_enabled(self.compiled):
            for batch in self.validation:
                batch = batch.repeat(len(self.members), 1, 1)
                total += sum(share.detach() for share in self._parts_of_losses(batch))
        means = (total / len(self.validation)).tolist()
        # All that may fail comes first: an evaluation is noted as a whole or not at all.
        measured = self._measured()
        evaluations = [self._record_evaluation(i, loss) for i, loss in enumerate(means)]
        for member, evaluation, rows in zip(self.members, evaluations, measured, strict=True):
            if evaluation:
                member.measurements += rows
        return tuple(evaluation for evaluation in evaluations if evaluation)

    def begin_evaluation(self, steps: Sequence[int]) -> None:
        """Let the layers be as they are after so many updates of each member, nothing random."""
        for _, branch in self._branches:
            branch.begin_evaluation(steps, self.config.num_steps)

    def _record_evaluation(self, index: int, loss: float) -> Evaluation | None:
        member = self.members[index]
        if not member.is_running:
            return None
        if not math.isfinite(loss):
            member.diverged_step = self.step
            self._moving[index] = False
            return None
        evaluation = Evaluation(
            run_id=member.run_id,
            step=self.step,
            tokens=self.step * self.config.tokens_per_step,
            split="validation",
            loss=loss,
            bits_per_byte=self.bits_per_byte and self.bits_per_byte * loss,
            train_loss=member.mean_train_loss(),
            seconds=self.seconds / len(self.members),
        )
        self._loss_sums[index], self._loss_counts[index] = 0.0, 0
        if member.record(evaluation, self.config.patience):
            self.best_values[index] = self.optimizer.values[index]
        if not member.is_running:
            self._moving[index] = False
        return evaluation

    @torch.no_grad()
    def _measured(self) -> list[list[Measurement]]:
        """What the layers have to say of themselves along training, of each member."""
        found: list[list[Measurement]] = [[] for _ in self.members]
        for layer, (_, branch) in enumerate(self._branches):
            for probe, values in branch.measures().items():
                for member, rows, value in zip(self.members, found, values.tolist(), strict=True):
                    group = f"layer {layer}"
                    rows.append(Measurement(member.run_id, probe, group, self.step, value))
        return found

    def checkpoint(self) -> bytes:
        """Everything an exact continuation needs."""
        self.synchronize()
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "resumes": self.resumes,
            "members": [asdict(member) for member in self.members],
        }
        return pack(state, self.optimizer.state() | {"best_values": self.best_values})

    def restore(self, checkpoint: bytes) -> None:
        """Go on from a checkpoint that holds the members, in whatever order, beside others or not.

        DamagedCheckpointError changes nothing.
        """
        state, tensors = part(*unpack(checkpoint), [member.run_id for member in self.members])
        own = self.optimizer.state() | {"best_values": self.best_values}
        if {name: t.shape for name, t in tensors.items()} != {n: t.shape for n, t in own.items()}:
            raise DamagedCheckpointError("its tensors are not those of this cohort")
        self.best_values.copy_(tensors.pop("best_values"))
        self.optimizer.load_state(tensors)
        self.step, self.seconds = state["step"], state["seconds"]
        self.resumes = state["resumes"] + 1
        self.members = [MemberState.from_dict(member) for member in state["members"]]
        for index, member in enumerate(self.members):
            diverged = member.diverged_step
            self._moving[index] = member.is_running
            self._steps_moved[index] = self.step if diverged is None else diverged - 1
            self._loss_sums[index] = member.train_loss_sum
            self._loss_counts[index] = member.train_loss_steps
        self._ahead.clear()

    def summaries(self) -> list[dict[str, Any]]:
        """The columns of the table `runs` that training decides, one row a member."""
        seconds = self.seconds / len(self.members)
        rate = self.step * self.config.tokens_per_step / seconds
        rows = []
        for member in self.members:
            row = member.summary(self.step, self.bits_per_byte)
            row["tokens"] = row.pop("steps") * self.config.tokens_per_step
            row |= {"seconds": seconds, "tokens_per_second": rate, "resumes": self.resumes}
            rows.append(row)
        return rows


def train_cohort(
    trainer: CohortTrainer,
    *,
    progress_seconds: float = 5.0,
    save: Callable[[bytes], None] | None = None,
    save_seconds: float = 60.0,
) -> Iterator[Progress]:
    """Train to the end, yielding evaluations as they come and a sign of life in between.

    `save` receives a checkpoint every `save_seconds` of wall time.
    """
    saved = told = time.monotonic()
    told_step, told_seconds = trainer.step, trainer.seconds

    def progress(evaluations: tuple[Evaluation, ...]) -> Progress:
        nonlocal told, told_step, told_seconds
        positions = (trainer.step - told_step) * trainer.config.tokens_per_step
        rate = len(trainer.members) * positions / max(trainer.seconds - told_seconds, 1e-9)
        told, told_step, told_seconds = time.monotonic(), trainer.step, trainer.seconds
        losses = [m.best_val_loss for m in trainer.members if m.best_val_loss is not None]
        best = min(losses, default=None)
        return Progress(trainer.step, trainer.config.num_steps, evaluations, best, rate)

    trainer.prepare()
    # Also where it goes on: what failed may have been an evaluation.
    if trainer.evaluation_is_due:
        yield progress(trainer.evaluate())
    while trainer.running:
        trainer.train_step()
        if trainer.evaluation_is_due:
            yield progress(trainer.evaluate())
        elif time.monotonic() - told >= progress_seconds:
            trainer.synchronize()
            yield progress(())
        if save is not None and time.monotonic() - saved >= save_seconds:
            save(trainer.checkpoint())
            saved = time.monotonic()
