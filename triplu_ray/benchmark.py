"""How fast the training engine is, as a ratio to a plain PyTorch loop: `make benchmark`.

The contestants live in processes of their own, one thread each, and take turns, so that a noisy
machine slows all of them alike: the reference loop; the engine in the same environment; the engine
as a sweep's worker runs it; and two such workers at once. Only ratios are reported.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

from rich.console import Console
from rich.table import Table

from triplu_ray.config import RunConfig, resolve_ffn
from triplu_ray.corpus import Corpus, CorpusSource, load_corpus
from triplu_ray.environment import worker_environment
from triplu_ray.plan import Cohort, CorpusFacts, PlannedRun

ROUNDS, STEPS = 15, 10
VARIANTS = {"swiglu": 322, "triplu": 242}
"""The TriPLU paper's character setting."""


def main() -> None:
    """Print each variant's ratios: median, and the middle half of the rounds."""
    console = Console(highlight=False, width=120)
    table = Table(title="Tokens a second over the plain eager loop's; two workers over one")
    for heading in ("variant", "engine", "as a worker", "cohort of 4", "two workers"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for variant in VARIANTS:
        table.add_row(variant, *(_spread(ratios) for ratios in measure(variant).values()))
        console.print(table if variant == list(VARIANTS)[-1] else f"measured {variant}")


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def measure(variant: str, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, list[float]]:
    """Ratios of throughput by round."""
    plain: Mapping[str, str] = {}
    contestants = {
        "reference": _Contestant(variant, "reference", plain, steps),
        "engine": _Contestant(variant, "engine", plain, steps),
        "worker": _Contestant(variant, "engine", worker_environment(), steps),
        "second worker": _Contestant(variant, "engine", worker_environment(), steps),
        "cohort of 4": _Contestant(variant, "cohort of 4", worker_environment(), steps),
    }
    alone = ("reference", "engine", "worker", "cohort of 4")
    seconds: dict[str, list[float]] = {name: [] for name in (*alone, "both workers")}
    try:
        for _ in range(rounds):
            for name in alone:
                seconds[name].append(contestants[name].run())
            both = contestants["worker"], contestants["second worker"]
            for worker in both:
                worker.start()
            seconds["both workers"].append(max(worker.finish() for worker in both))
    finally:
        for contestant in contestants.values():
            contestant.end()

    def ratio(name: str, base: str, work: float = 1.0) -> list[float]:
        return [work * b / a for a, b in zip(seconds[name], seconds[base], strict=True)]

    return {
        "engine": ratio("engine", "reference"),
        "worker": ratio("worker", "reference"),
        "cohort of 4": ratio("cohort of 4", "reference", work=4),
        "two workers": ratio("both workers", "worker", work=2),
    }


class _Contestant:
    """A process that trains a given number of steps whenever it is told to."""

    def __init__(self, variant: str, kind: str, environment: Mapping[str, str], steps: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        before = dict(os.environ)
        os.environ.update(environment)  # what the process reads at its start
        try:
            self._process = context.Process(target=_serve, args=(other, variant, kind, steps))
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.run()  # the first steps allocate

    def start(self) -> None:
        self._pipe.send("run")

    def finish(self) -> float:
        seconds: float = self._pipe.recv()
        return seconds

    def run(self) -> float:
        """Seconds of the steps."""
        self.start()
        return self.finish()

    def end(self) -> None:
        self._pipe.send("end")
        self._process.join()


def _serve(pipe: Connection, variant: str, kind: str, steps: int) -> None:
    import torch

    torch.set_num_threads(1)
    step = _reference_step(variant) if kind == "reference" else _engine_step(variant, kind)
    while pipe.recv() == "run":
        started = time.perf_counter()
        for _ in range(steps):
            step()
        pipe.send(time.perf_counter() - started)


def _corpus() -> Corpus:
    return load_corpus(CorpusSource("tinystories_lite", 1_000_000, 200_000))


def _config(variant: str, seed: int) -> RunConfig:
    ffn = resolve_ffn(variant, {}, "")
    return RunConfig.model_validate({"ffn": ffn, "hidden": VARIANTS[variant], "seed": seed})


def _engine_step(variant: str, kind: str) -> Callable[[], object]:
    from triplu_ray.train import CohortTrainer

    corpus = _corpus()
    facts = CorpusFacts(len(corpus.vocabulary), corpus.sha256)
    seeds = range(4 if kind == "cohort of 4" else 1)
    cohort = Cohort(tuple(PlannedRun(_config(variant, seed), facts) for seed in seeds))
    return CohortTrainer(cohort, corpus).train_step


def _reference_step(variant: str) -> Callable[[], object]:
    import numpy as np
    import torch

    from triplu_ray.reference import ReferenceDecoder, train_step

    config, corpus = _config(variant, 1), _corpus()
    tokens = torch.from_numpy(corpus.train.astype(np.int64))
    model = ReferenceDecoder(config.ffn, config.shape(len(corpus.vocabulary)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )

    def step() -> None:
        starts = torch.randint(len(tokens) - config.context_length, (config.batch_size,))
        windows = torch.stack([tokens[s : s + config.context_length + 1] for s in starts.tolist()])
        train_step(model, optimizer, windows[:, :-1], windows[:, 1:])

    return step


if __name__ == "__main__":
    main()
