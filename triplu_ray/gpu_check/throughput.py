"""Tokens a second by cohort size, against one eager member in fp32."""

import gc
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from triplu_ray import provenance
from triplu_ray.bench.contestant import endless_trainer
from triplu_ray.bench.subjects import Mode, Subject
from triplu_ray.gpu_check.check import Check, Row
from triplu_ray.sizing import Machine, cohort_size, compile_seconds, member_bytes
from triplu_ray.train import CohortTrainer

RATIO_TARGET, RATE_TARGET = 15.1, 20e6
"""Of the best cohort in the character setting: over one eager member, and in tokens a second. The
ratio is the best figure of HFTA (Wang et al., MLSys 2021)."""

FIRST_SECONDS = 5.0
"""What a point takes before it is timed, while none like it was measured."""

GROWTH = 1.1
"""Throughput stops growing with a cohort where its next size gives less than this times more."""

GIB = 1 << 30


def throughput(check: Check) -> list[Row]:
    """Every model, precision and cohort size that memory and time hold; compiled ones last.

    A model's first row is the base of its ratios: one member, eager, fp32; all others are captured.
    Compiled are the sizes that were measured without, the fastest of every model first.
    """
    rows: list[Row] = []
    for subject in check.models:
        if not _measure(check, subject, Mode(), rows, capture=False):
            continue
        _measure(check, subject, Mode(), rows)
        for precision in check.precisions[1:] or check.precisions:
            for size in check.sizes.cohorts:
                if not _measure(check, subject, Mode(precision, members=size), rows):
                    break
    for mode, place, subject in itertools.product(
        check.compiled, range(len(check.sizes.cohorts)), check.models
    ):
        rates = _rates(rows, subject, mode.precision)
        for size in sorted(rates, key=lambda size: -rates[size])[place : place + 1]:
            _measure(check, subject, replace(mode, members=size), rows)
    return rows


def best_cohorts(check: Check, rows: Sequence[Row]) -> list[Row]:
    """Of every model: its fastest cohort, and the size to choose against where growth ends."""
    found = []
    for index, subject in enumerate(check.models):
        mine = [row for row in rows if row["model"] == subject.name]
        if not mine:
            continue
        best = max(mine, key=lambda row: row["tokens_per_second"])
        told = (
            f"{subject.name}: best is {best['mode']}, cohort of {best['members']}: {_speed(best)}"
        )
        if index < 2 and check.device == "cuda":
            met = best["ratio"] >= RATIO_TARGET and best["tokens_per_second"] >= RATE_TARGET
            told += (
                f" (aim {RATIO_TARGET} and {RATE_TARGET / 1e6:.0f} M: {'met' if met else 'missed'})"
            )
        check.tell(told)
        row = {key: best[key] for key in ("model", "mode", "members", "tokens_per_second", "ratio")}
        machine = Machine(gpu_bytes=check.gpu_bytes)
        row["chosen_size"] = cohort_size(subject.config, subject.vocab_size, 1 << 20, machine)
        for precision in check.precisions:
            if len(rates := _rates(rows, subject, precision)) > 1:
                row[f"growth_ends_{precision}"] = size = growth_ends(rates)
                check.tell(
                    f"{subject.name}, {precision}: growth ends at a cohort of {size}, "
                    f"a plan would take {row['chosen_size']}"
                )
        found.append(row)
    return found


def growth_ends(rates: Mapping[int, float]) -> int:
    """The first cohort size whose next gives less than a tenth more tokens a second."""
    sizes = sorted(rates)
    for size, larger in itertools.pairwise(sizes):
        if rates[larger] < GROWTH * rates[size]:
            return size
    return sizes[-1]


def expected_seconds(
    subject: Subject, mode: Mode, rows: Sequence[Row], point_seconds: float
) -> float:
    """What a point will take, by those before it: its start grows with members, compiling not."""
    alike = [r for r in rows if r["model"] == subject.name and r["compiled"] == mode.compiled]
    starts = {row["members"]: row["start_seconds"] for row in alike}
    if mode.compiled:
        unknown = FIRST_SECONDS + compile_seconds(subject.config.num_layers)
        start = max(starts.values(), default=unknown)
    else:
        nearest = max((size for size in starts if size <= mode.members), default=None)
        start = starts[nearest] * mode.members / nearest if nearest else FIRST_SECONDS
    return start + 2 * point_seconds


def _rates(rows: Sequence[Row], subject: Subject, precision: str) -> dict[int, float]:
    """Tokens a second by cohort size, as captured and not compiled."""
    return {
        row["members"]: row["tokens_per_second"]
        for row in rows
        if row["model"] == subject.name
        and row["precision"] == precision
        and row["captured"]
        and not row["compiled"]
    }


def _measure(
    check: Check, subject: Subject, mode: Mode, rows: list[Row], *, capture: bool = True
) -> bool:
    """Add a row; False if memory or time do not hold it, nor a larger cohort."""
    name = f"{mode.precision}{' compiled' * mode.compiled} {'graph' if capture else 'eager'}"
    what = f"{subject.name}, {name}, cohort of {mode.members}"
    expected_bytes = mode.members * member_bytes(subject.config, subject.shape, subject.config.ffn)
    # Half is the least it can be: in bf16 activations take half of what they are counted.
    if check.gpu_bytes is not None and expected_bytes > 2 * check.gpu_bytes:
        check.tell(f"{what}: does not fit: expected to need {expected_bytes / GIB:.0f} GiB")
        return False
    if not check.fits(expected_seconds(subject, mode, rows, check.sizes.point_seconds), what):
        return False
    try:
        row = _timed(check, subject, mode, capture)
    except torch.OutOfMemoryError:
        check.tell(f"{what}: out of memory")
        return False
    row |= {"model": subject.name, "mode": name, "expected_gib": expected_bytes / GIB}
    base = next((r for r in rows if r["model"] == subject.name), row)
    row["ratio"] = row["tokens_per_second"] / base["tokens_per_second"]
    rows.append(row)
    check.tell(f"{what}: {_speed(row)}, {row['peak_gib']:.2f} GiB")
    return True


def _speed(row: Row) -> str:
    return f"{row['tokens_per_second'] / 1e6:.3f} M tokens/s, {row['ratio']:.2f} times one eager"


def _timed(check: Check, subject: Subject, mode: Mode, capture: bool) -> Row:
    """As many steps as take about `point_seconds`, after a few that tell how many these are."""
    gc.collect()  # the trainer before and its captured update refer to one another
    if check.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trainer = endless_trainer(subject, mode, check.device, capture=capture)
    trainer.prepare()
    _run(trainer, 2)
    start_seconds = time.perf_counter() - started
    steps = max(3, math.ceil(check.sizes.point_seconds / (_run(trainer, 5) / 5)))
    seconds = _run(trainer, steps)
    peak_gib = provenance.peak_memory_mib() / 1024
    if check.device == "cuda":
        peak_gib = torch.cuda.max_memory_reserved() / GIB
    return {
        "precision": mode.precision,
        "members": mode.members,
        "compiled": mode.compiled,
        "captured": capture,
        "steps": steps,
        "seconds": seconds,
        "start_seconds": start_seconds,
        "tokens_per_second": steps * mode.members * subject.config.tokens_per_step / seconds,
        "peak_gib": peak_gib,
    }


def _run(trainer: CohortTrainer, steps: int) -> float:
    """Seconds of so many steps, from and to an idle device."""
    trainer.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        trainer.train_step()
    trainer.synchronize()
    return time.perf_counter() - started
