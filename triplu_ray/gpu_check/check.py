"""Where and how much is checked, and what was found."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console

from triplu_ray.bench.subjects import Mode, Subject, papers_models
from triplu_ray.config import RunConfig
from triplu_ray.corpus import DATA_VARIABLE, CorpusName, CorpusSource, load_corpus
from triplu_ray.errors import UserError
from triplu_ray.execution import abilities
from triplu_ray.model import Precision
from triplu_ray.plan import Cohort, CorpusFacts, PlannedRun

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")

RESERVE_SECONDS = 5.0
"""Kept for the end."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is done; the default is the real check."""

    train_bytes: int = 1_000_000
    validation_bytes: int = 200_000
    model: Mapping[str, int] = field(default_factory=dict)
    """What replaces the papers' sizes."""
    eval_batches: int = 50
    agreement_steps: int = 50
    alone_steps: int = 20
    main_steps: int = 5_000
    cohorts: tuple[int, ...] = (1, 4, 16, 64, 256)
    point_seconds: float = 1.0
    compiling: bool = True


TINY = Sizes(
    train_bytes=20_000,
    validation_bytes=5_000,
    model={"d_model": 16, "num_layers": 1, "context_length": 16, "batch_size": 4, "hidden": 12},
    eval_batches=2,
    agreement_steps=10,
    alone_steps=6,
    main_steps=20,
    cohorts=(1, 2),
    point_seconds=0.02,
    compiling=False,
)


class Check:
    """What all parts of the check share; findings are told line by line and kept for the file."""

    def __init__(self, device: str, sizes: Sizes, minutes: float, console: Console) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: expected a GPU in this machine, found none")
        self._ends = time.monotonic() + 60 * minutes
        self._console = console
        self.device, self.sizes = device, sizes
        self.failures: list[str] = []
        self.skipped: list[str] = []

        can = abilities(PRECISIONS, device)
        self.gpu_bytes = can.gpu_bytes
        self.precisions = [p for p in PRECISIONS if p not in can.missing_units]
        for precision, units in can.missing_units.items():
            self.tell(f"note: {precision} is left out, it needs {units}")
        compiling = sizes.compiling and "bf16" in self.precisions and not can.missing_compiler
        self.compiled = [Mode("bf16", compiled=True)] * compiling
        """Modes that are compiled: the fastest, or none."""
        if not compiling:
            self.tell("note: nothing is compiled")

        self.models = [
            Subject(
                name=subject.name + ", shrunk" * bool(sizes.model),
                config=subject.config.model_copy(update=dict(sizes.model)),
                vocab_size=subject.vocab_size,
            )
            for subject in papers_models()
        ]
        """The first two are the character setting."""
        real = os.environ.get(DATA_VARIABLE) and not sizes.model
        name: CorpusName = "tinystories" if real else "tinystories_lite"
        self.corpus = load_corpus(CorpusSource(name, sizes.train_bytes, sizes.validation_bytes))
        self.tell(f"corpus {self.corpus.description}")

    def tell(self, line: str) -> None:
        """One finding."""
        self._console.print(line)

    def seconds_left(self) -> float:
        """Until only the reserve remains."""
        return max(0.0, self._ends - RESERVE_SECONDS - time.monotonic())

    def fits(self, seconds: float, what: str) -> bool:
        """Whether so much time is left; if not, `what` is skipped."""
        left = self.seconds_left()
        if seconds > left:
            self.skipped.append(what)
            self.tell(f"skipped: {what}: takes about {seconds:.0f} s, {left:.0f} s are left")
        return seconds <= left

    def cohort(self, config: RunConfig, changes: Sequence[Row], **common: Any) -> Cohort:
        """A run on the corpus for each of the changes to a configuration."""
        facts = CorpusFacts(self.corpus.vocab_size, self.corpus.sha256)
        common |= {"eval_batches": self.sizes.eval_batches}
        configs = (config.model_copy(update={**common, **change}) for change in changes)
        return Cohort(tuple(PlannedRun(config, facts) for config in configs))
