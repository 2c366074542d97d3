"""What every variant's step costs beside its FLOPs: `triplu-ray bench --variants`.

Each variant of `triplu-ray variants`, in the TriPLU paper's character setting at the width that
matches SwiGLU, takes turns with SwiGLU. FLOPs are those of matrix products; a variant that takes
longer than they say does much elementwise.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console

from triplu_ray.bench.contestant import Contestant
from triplu_ray.bench.measure import Spread, engine_modes, measured_on
from triplu_ray.bench.report import facts_table
from triplu_ray.bench.subjects import Mode, Subject, every_variant
from triplu_ray.report.model import Column, Report, Section, Table
from triplu_ray.report.step_time import FAR_OFF, off_by
from triplu_ray.space import Header

NAME = "variants"


def run_variants(
    header: Header, rounds: int, steps: int | None, console: Console
) -> dict[str, Any]:
    """Measure all variants in eager fp32 and in the fastest mode; `rows` are those of `measure`."""
    device, modes = engine_modes(header, [1], console)
    baseline, *others = every_variant()
    turn_steps = steps or baseline.turn_steps
    rows: list[dict[str, Any]] = []
    for mode in dict.fromkeys([modes[0], modes[-1]]):
        rows += measure(baseline, others, mode, device, rounds, turn_steps, console)
    return {"space": NAME, "measured_on": measured_on(device, rounds), "rows": rows}


def measure(
    baseline: Subject,
    others: Sequence[Subject],
    mode: Mode,
    device: str,
    rounds: int,
    turn_steps: int,
    console: Console,
) -> list[dict[str, Any]]:
    """A row for each of the others.

    Columns: model, mode; milliseconds_per_step, the median; relative_time and relative_flops, over
    the baseline's, the former taken round by round, with `relative_time_low` and `_high` around its
    middle half; time_over_flops, of the two; compile_seconds.
    """
    rows = []
    reference = Contestant(baseline, mode, device, turn_steps)
    try:
        for subject in others:
            console.print(f"measuring {subject.name}: {mode.name}, {rounds} rounds")
            contestant = Contestant(subject, mode, device, turn_steps)
            try:
                pairs = [(contestant.ask("steps"), reference.ask("steps")) for _ in range(rounds)]
            finally:
                facts = contestant.end()
            spread = Spread.of([own / other for own, other in pairs])
            relative_flops = _flops(subject) / _flops(baseline)
            seconds = statistics.median(own for own, _ in pairs)
            rows.append(
                {
                    "model": subject.name,
                    "mode": mode.name,
                    "milliseconds_per_step": 1000 * seconds / turn_steps,
                    "relative_time": spread.median,
                    "relative_time_low": spread.low,
                    "relative_time_high": spread.high,
                    "relative_flops": relative_flops,
                    "time_over_flops": spread.median / relative_flops,
                    "compile_seconds": facts["compile_seconds"],
                }
            )
    finally:
        reference.end()
    return rows


def _flops(subject: Subject) -> int:
    return subject.shape.flops_per_token(subject.config.ffn)


COLUMNS = (
    Column("model", ("model",)),
    Column("mode", ("mode",)),
    Column("ms a step", ("milliseconds_per_step",), ",.2f"),
    Column("relative time", ("relative_time",), ".2f"),
    Column("middle half", ("relative_time_low", "relative_time_high"), ".2f"),
    Column("relative FLOPs", ("relative_flops",), ".3f"),
    Column("time / FLOPs", ("time_over_flops",), ".2f"),
    Column("", ("off",)),
    Column("compile s", ("compile_seconds",), ".1f"),
)
NOTE = (
    "Over SwiGLU of the same mode, which takes turns with each: median and middle half of the "
    "rounds. FLOPs are the whole model's matrix products, nothing elementwise. Slower or faster: "
    f"than they say, by a factor of more than {FAR_OFF}."
)


def variants_report(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Report:
    """Of the rows of `measure`; `facts` say where and how they were measured."""
    frame = pd.DataFrame(rows)
    frame["off"] = off_by(frame["time_over_flops"])
    table = Table("variants", "Time against FLOPs", frame, COLUMNS, NOTE)
    return Report(
        space=NAME,
        description="Time of a step against its FLOPs, every variant beside SwiGLU",
        headline=[_sentence(mode, of_mode) for mode, of_mode in frame.groupby("mode", sort=False)],
        warnings=[],
        sections=[Section("Time against FLOPs", tables=[table, facts_table(facts)], figures=[])],
    )


def _sentence(mode: Any, rows: pd.DataFrame) -> str:
    within = (rows["off"] == "").sum()
    return (
        f"{mode}: {within} of {len(rows)} variants take what their FLOPs say, within a factor of "
        f"{FAR_OFF}."
    )
