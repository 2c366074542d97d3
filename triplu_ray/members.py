"""What is known of a run while and after it is trained: the rows of the store's tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Evaluation:
    """A row of the table `evals`; see the store for units."""

    run_id: str
    step: int
    tokens: int
    split: str
    loss: float
    bits_per_byte: float | None
    train_loss: float | None
    seconds: float


@dataclass
class Measurement:
    """A row of the table `probes`; see the store."""

    run_id: str
    probe: str
    group: str
    step: int
    value: float
    count: int | None = None


@dataclass
class MemberState:
    """One run of a cohort so far; losses in nats a token."""

    run_id: str
    train_loss_sum: float = 0.0
    train_loss_steps: int = 0
    best_val_loss: float | None = None
    best_step: int | None = None
    last_val_loss: float | None = None
    diverged_step: int | None = None
    stopped_step: int | None = None
    """Where validation had risen for long: see `patience`."""
    evaluations: list[Evaluation] = field(default_factory=list)
    heldout: Evaluation | None = None
    """Of the best checkpoint, once, at the end."""
    measurements: list[Measurement] = field(default_factory=list)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "MemberState":
        """Of what `dataclasses.asdict` gave."""
        rows = {
            "evaluations": [Evaluation(**row) for row in content["evaluations"]],
            "heldout": content["heldout"] and Evaluation(**content["heldout"]),
            "measurements": [Measurement(**row) for row in content["measurements"]],
        }
        return MemberState(**{**content, **rows})

    @property
    def is_running(self) -> bool:
        """Whether it takes further updates."""
        return self.diverged_step is None and self.stopped_step is None

    def record(self, evaluation: Evaluation, patience: int | None) -> bool:
        """Take over an evaluation; whether it is the best so far.

        After `patience` evaluations in a row without a new best the run is stopped.
        """
        loss = evaluation.loss
        self.train_loss_sum, self.train_loss_steps = 0.0, 0
        self.evaluations.append(evaluation)
        self.last_val_loss = loss
        is_best = self.best_val_loss is None or loss < self.best_val_loss
        if is_best:
            self.best_val_loss, self.best_step = loss, evaluation.step
        since = sum(row.step > (self.best_step or 0) for row in self.evaluations)
        if patience is not None and since >= patience:
            self.stopped_step = evaluation.step
        return is_best

    def mean_train_loss(self) -> float | None:
        """Since the last evaluation."""
        steps = self.train_loss_steps
        return self.train_loss_sum / steps if steps else None

    def summary(self, step: int, bits_per_byte: float | None) -> dict[str, Any]:
        """The columns of the table `runs` that losses decide, after `step` steps of its cohort.

        `bits_per_byte`: of a validation loss of one nat a token.
        """
        best, diverged = self.best_val_loss, self.diverged_step is not None
        final = None if diverged else self.last_val_loss
        ends = [end for end in (self.diverged_step, self.stopped_step) if end is not None]
        return {
            "steps": min(ends, default=step),
            "best_val_loss": best,
            "best_step": self.best_step,
            "final_val_loss": final,
            "best_bits_per_byte": bits_per_byte and best and bits_per_byte * best,
            "final_bits_per_byte": bits_per_byte and final and bits_per_byte * final,
            "heldout_loss": self.heldout and self.heldout.loss,
            "heldout_bits_per_byte": self.heldout and self.heldout.bits_per_byte,
            "perplexity": None if best is None else _exp(best),
            "status": "diverged" if diverged else "finished",
            "diverged_step": self.diverged_step,
            "stopped_step": self.stopped_step,
        }


def _exp(exponent: float) -> float:
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf
