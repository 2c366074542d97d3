"""How fast training is on this machine, as ratios to a plain PyTorch loop: `triplu-ray bench`.

All contestants of a model live in processes of their own, one thread each, and take turns, so that
a noisy machine slows all of them alike. The plain loop (`reference.py`, eager fp32) runs in the
environment of the caller, the engine in that of a sweep's workers. Texts are random tokens: speed
does not depend on them.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from triplu_ray import provenance
from triplu_ray.bench.contestant import Contestant
from triplu_ray.bench.subjects import PLAIN, Mode, Subject, modes_for
from triplu_ray.errors import UserError
from triplu_ray.execution import abilities
from triplu_ray.model import Precision
from triplu_ray.sizing import granted_here
from triplu_ray.space import Header

PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "cpu": ("fp32", "bf16"),
    "cuda": ("fp32", "tf32", "bf16"),
}
"""From slow to fast, by device."""


@dataclass(frozen=True)
class Spread:
    """Median of the rounds, and their middle half."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Of at least two rounds."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high)


def run_bench(
    header: Header,
    subjects: Sequence[Subject],
    rounds: int,
    steps: int | None,
    cohorts: Sequence[int] | None,
    console: Console,
) -> dict[str, Any]:
    """Measure all models on what the header's resources grant; `rows` are those of `measure`.

    A turn has `steps`; None: as many as last about half a second.
    """
    device, modes = engine_modes(header, cohorts, console)
    workers = 1 if device == "cuda" else os.cpu_count() or 1
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        turn_steps = steps or subject.turn_steps
        console.print(
            f"measuring {subject.name}: {len(modes) + 1} modes, {rounds} rounds of "
            f"{turn_steps} step{'s' * (turn_steps != 1)}"
        )
        rows += measure(subject, modes, device, rounds, turn_steps, workers)
    return {"space": header.name, "measured_on": measured_on(device, rounds), "rows": rows}


def measured_on(device: str, rounds: int) -> dict[str, Any]:
    """What a reader must know of the place."""
    return {
        "hardware": provenance.place(device, 1),
        "rounds": rounds,
        "versions": provenance.versions(),
    }


def engine_modes(
    header: Header, cohorts: Sequence[int] | None, console: Console
) -> tuple[str, list[Mode]]:
    """The device that the header's resources grant, and what it can do; tells what it cannot."""
    device = granted_here(header.resources).device
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("resources.gpu: expected a GPU in this machine, found none")
    can = abilities(PRECISIONS[device], device)
    for precision, units in can.missing_units.items():
        console.print(f"note: {precision} is left out, it needs {units}")
    if can.missing_compiler:
        console.print(f"note: nothing is compiled, that needs {can.missing_compiler}")
    modes = modes_for(
        [precision for precision in PRECISIONS[device] if precision not in can.missing_units],
        cohorts or ((1, 4, 16, 64) if device == "cuda" else (1, 4)),
        compiling=header.compile is not False and not can.missing_compiler,
    )
    return device, modes


def measure(
    subject: Subject,
    modes: Sequence[Mode],
    device: str,
    rounds: int,
    turn_steps: int,
    workers: int,
) -> list[dict[str, Any]]:
    """A row for each mode, the plain loop first, and one for several workers at once.

    Columns: model, mode, members (or workers); `ratio`, tokens a second, all members together, over
    those of the mode that `over` names: the plain loop, for several workers one of them;
    `tokens_per_second`, all together, and `tokens_per_second_member`, medians; `products_share` of
    the step that bare matrix products of the same shapes and dtype take; `start_seconds` of the
    process until the models stand, `compile_seconds`, `peak_memory_mib`.
    Ratios are taken round by round; `ratio_low` and `ratio_high` bound their middle half.
    """
    fastest = next(mode for mode in reversed(modes) if mode.members == 1)
    contestants: dict[str, Contestant] = {}
    others: list[Contestant] = []
    try:
        for mode in (PLAIN, *modes):
            contestants[mode.name] = Contestant(subject, mode, device, turn_steps)
        others += (Contestant(subject, fastest, device, turn_steps) for _ in range(workers - 1))
        names = [mode.name for mode in (PLAIN, *modes)]
        seconds: dict[str, list[float]] = {name: [] for name in names}
        products: dict[str, list[float]] = {name: [] for name in names}
        together: list[float] = []
        for _ in range(rounds):
            for name in names:
                seconds[name].append(contestants[name].ask("steps"))
                products[name].append(contestants[name].ask("products"))
            if others:
                crowd = [contestants[fastest.name], *others]
                for contestant in crowd:
                    contestant.tell("steps")
                together.append(max(contestant.hear() for contestant in crowd))
    finally:
        facts = {name: contestant.end() for name, contestant in contestants.items()}
        for contestant in others:
            contestant.end()

    positions = turn_steps * subject.config.tokens_per_step

    def row(mode: str, over: str, members: int, took: Sequence[float]) -> dict[str, Any]:
        ratios = [members * b / a for a, b in zip(took, seconds[over], strict=True)]
        spread = Spread.of(ratios)
        rate = positions / statistics.median(took)
        return {
            "model": subject.name,
            "mode": mode,
            "members": members,
            "over": over,
            "ratio": spread.median,
            "ratio_low": spread.low,
            "ratio_high": spread.high,
            "tokens_per_second": members * rate,
            "tokens_per_second_member": rate,
        }

    rows = []
    for mode in (PLAIN, *modes):
        took = seconds[mode.name]
        share = statistics.median(p / s for p, s in zip(products[mode.name], took, strict=True))
        measured = row(mode.name, PLAIN.name, mode.members, took)
        rows.append(measured | {"products_share": share} | facts[mode.name])
    if others:
        name = f"{fastest.name}, {workers} workers over one"
        rows.append(row(name, fastest.name, workers, together))
    return rows
