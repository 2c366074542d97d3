"""Training a cohort: a loop that reads from top to bottom and knows neither Ray nor the CLI.

M members, B batch, T time
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from triplu_ray.corpus import Corpus
from triplu_ray.model import Decoder
from triplu_ray.optim import MemberAdamW, schedule_factor
from triplu_ray.plan import Cohort
from triplu_ray.stacked import cross_entropy, initialize, keyed_generator


@dataclass
class Evaluation:
    """A row of the table `evals`; see the store for units."""

    run_id: str
    step: int
    tokens: int
    split: str
    loss: float
    train_loss: float | None
    seconds: float


@dataclass
class MemberState:
    """What is known of one run so far; losses in nats a token."""

    run_id: str
    train_loss_sum: float = 0.0
    train_loss_steps: int = 0
    best_val_loss: float | None = None
    best_step: int | None = None
    last_val_loss: float | None = None
    diverged_step: int | None = None
    evaluations: list[Evaluation] = field(default_factory=list)


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
    """A cohort's models, optimizer and results, advanced step by step."""

    def __init__(self, cohort: Cohort, corpus: Corpus, device: str = "cpu") -> None:
        self.configs = [run.config for run in cohort.runs]
        self.config = self.configs[0]  # members agree in all that is read from here
        self.device = torch.device(device)
        self.train_tokens = corpus.train
        self.validation = validation_batches(
            corpus.validation,
            self.config.eval_batches,
            self.config.batch_size,
            self.config.context_length,
        )
        self.model = Decoder(
            [config.ffn for config in self.configs],
            self.config.shape(len(corpus.vocabulary)),
            self.config.initialization,
        )
        initialize(self.model, [config.seed for config in self.configs])
        self.model.to(self.device)
        self.optimizer = MemberAdamW(
            self.model,
            learning_rates=[config.learning_rate for config in self.configs],
            weight_decays=[config.weight_decay for config in self.configs],
            betas=(self.config.beta1, self.config.beta2),
            decay=self.config.decay,
            gradient_clip=self.config.gradient_clip,
        )
        self.members = [MemberState(run.run_id) for run in cohort.runs]
        self.best_values = self.optimizer.values.clone()
        """Each member's parameters at its lowest validation loss `[M, size]`."""
        self.step = 0
        self.seconds = 0.0
        """Time in training steps, evaluations and checkpoints excluded."""
        self.resumes = 0

    @property
    def running(self) -> bool:
        """Whether a step remains for some member."""
        diverged = all(member.diverged_step is not None for member in self.members)
        return self.step < self.config.num_steps and not diverged

    def train_step(self) -> None:
        """One update of every member that has not diverged."""
        started = time.perf_counter()
        factor = schedule_factor(
            self.config.schedule,
            self.step,
            num_steps=self.config.num_steps,
            warmup_steps=self.config.warmup_steps,
            decay_fraction=self.config.decay_fraction,
            final_ratio=self.config.final_learning_rate_ratio,
        )
        windows = np.stack(
            [
                training_batch(
                    self.train_tokens,
                    config.seed,
                    self.step,
                    config.batch_size,
                    config.context_length,
                )
                for config in self.configs
            ]
        )
        losses = self._losses(torch.from_numpy(windows).to(self.device))
        self.optimizer.backward(losses)
        norms = self.optimizer.clip()
        self.step += 1
        for index, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True)):
            self._record_training_loss(index, loss, norm)
        self.optimizer.step(factor)
        self.seconds += time.perf_counter() - started

    @torch.no_grad()
    def evaluate(self) -> tuple[Evaluation, ...]:
        """Mean loss over the validation batches of every member that has not diverged."""
        total = torch.zeros(len(self.members), dtype=torch.float64)
        for windows in self.validation:
            batch = torch.from_numpy(windows).to(self.device)
            total += self._losses(batch.expand(len(self.members), -1, -1)).double().cpu()
        means = (total / len(self.validation)).tolist()
        evaluations = (self._record_evaluation(i, loss) for i, loss in enumerate(means))
        return tuple(evaluation for evaluation in evaluations if evaluation)

    def _losses(self, windows: Tensor) -> Tensor:
        """Mean next-token loss of each member `[M]` on windows `[M, B, T + 1]`."""
        return cross_entropy(self.model(windows[..., :-1]), windows[..., 1:].flatten(1))

    def _record_training_loss(self, index: int, loss: float, gradient_norm: float) -> None:
        member = self.members[index]
        if member.diverged_step is not None:
            return
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            self._stop(index)
            return
        member.train_loss_sum += loss
        member.train_loss_steps += 1

    def _record_evaluation(self, index: int, loss: float) -> Evaluation | None:
        member = self.members[index]
        if member.diverged_step is not None:
            return None
        if not math.isfinite(loss):
            self._stop(index)
            return None
        steps = member.train_loss_steps
        evaluation = Evaluation(
            run_id=member.run_id,
            step=self.step,
            tokens=self.step * self.config.tokens_per_step,
            split="validation",
            loss=loss,
            train_loss=member.train_loss_sum / steps if steps else None,
            seconds=self.seconds / len(self.members),
        )
        member.train_loss_sum, member.train_loss_steps = 0.0, 0
        member.evaluations.append(evaluation)
        member.last_val_loss = loss
        if member.best_val_loss is None or loss < member.best_val_loss:
            member.best_val_loss, member.best_step = loss, self.step
            self.best_values[index] = self.optimizer.values[index]
        return evaluation

    def _stop(self, index: int) -> None:
        self.members[index].diverged_step = self.step
        self.optimizer.stop(index)

    def checkpoint(self) -> bytes:
        """Everything an exact continuation needs, in a format that executes nothing when read."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "resumes": self.resumes,
            "members": [asdict(member) for member in self.members],
        }
        encoded = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        tensors = self.optimizer.state() | {
            "best_values": self.best_values,
            "state_json": torch.from_numpy(encoded),
        }
        return safetensors.torch.save(tensors)

    def restore(self, checkpoint: bytes) -> None:
        """Go on from a checkpoint of the same cohort."""
        tensors = safetensors.torch.load(checkpoint)
        state = json.loads(tensors.pop("state_json").numpy().tobytes())
        self.best_values.copy_(tensors.pop("best_values"))
        self.optimizer.load_state(tensors)
        self.step, self.seconds = state["step"], state["seconds"]
        self.resumes = state["resumes"] + 1
        self.members = []
        for index, member in enumerate(state["members"]):
            rows = [Evaluation(**row) for row in member.pop("evaluations")]
            self.members.append(MemberState(**member, evaluations=rows))
            if self.members[index].diverged_step is not None:
                self.optimizer.stop(index)

    def summaries(self) -> list[dict[str, Any]]:
        """The columns of the table `runs` that training decides, one row a member."""
        seconds = self.seconds / len(self.members)
        return [
            {
                "tokens": tokens,
                "best_val_loss": member.best_val_loss,
                "best_step": member.best_step,
                "final_val_loss": member.last_val_loss if member.diverged_step is None else None,
                "perplexity": None
                if member.best_val_loss is None
                else math.exp(member.best_val_loss),
                "seconds": seconds,
                "tokens_per_second": self.step * self.config.tokens_per_step / seconds,
                "resumes": self.resumes,
                "status": "finished" if member.diverged_step is None else "diverged",
                "diverged_step": member.diverged_step,
            }
            for member in self.members
            for tokens in [(member.diverged_step or self.step) * self.config.tokens_per_step]
        ]


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

    if trainer.step == 0:
        yield progress(trainer.evaluate())
    while trainer.running:
        trainer.train_step()
        last = trainer.step == trainer.config.num_steps
        if last or trainer.step % trainer.config.eval_interval == 0:
            yield progress(trainer.evaluate())
        elif time.monotonic() - told >= progress_seconds:
            yield progress(())
        if save is not None and time.monotonic() - saved >= save_seconds:
            save(trainer.checkpoint())
            saved = time.monotonic()


def training_batch(
    tokens: NDArray[np.uint16], seed: int, step: int, batch_size: int, context_length: int
) -> NDArray[np.int64]:
    """Windows `[B, T + 1]` that depend on (seed, step) alone: the same for every variant."""
    generator = keyed_generator("batch", seed, step)
    offsets = generator.integers(0, len(tokens) - context_length, size=batch_size)
    return _windows(tokens, offsets, context_length)


def validation_batches(
    tokens: NDArray[np.uint16], num_batches: int, batch_size: int, context_length: int
) -> NDArray[np.int64]:
    """`[num_batches, B, T + 1]`, spread evenly over the text; the same at every evaluation."""
    last = len(tokens) - context_length - 1
    offsets = np.linspace(0, last, num_batches * batch_size).astype(np.int64)
    windows = _windows(tokens, offsets, context_length)
    return windows.reshape(num_batches, batch_size, context_length + 1)


def _windows(
    tokens: NDArray[np.uint16], offsets: NDArray[np.int64], context_length: int
) -> NDArray[np.int64]:
    windows: NDArray[np.int64] = tokens[offsets[:, None] + np.arange(context_length + 1)].astype(
        np.int64
    )
    return windows
