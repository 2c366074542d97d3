"""Losses that must agree: GPU and CPU, graph and eager, a member of a cohort and the run alone."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from triplu_ray.bench.subjects import Mode
from triplu_ray.gpu_check.check import Check, Row
from triplu_ray.model import Precision
from triplu_ray.plan import Cohort
from triplu_ray.sizing import compile_seconds
from triplu_ray.train import CohortTrainer, train_cohort

TOLERANCES: dict[str, dict[Precision, float]] = {
    "cpu against device": {"fp32": 1e-4, "tf32": 1e-3, "bf16": 2e-3},
    "graph against eager": {"fp32": 1e-4, "tf32": 5e-4, "bf16": 1e-3},
    "member against alone": {"fp32": 1e-4, "tf32": 5e-4, "bf16": 1e-3},
}
"""Largest differences of a loss, in nats. The first is to fp32 on the CPU, where bf16 alone makes
2e-4 in 50 steps, another order of sums in fp32 5e-5 in 600, and another seed 5e-2: ten times the
former is allowed, and for fp32 too little for bf16 to pass as it. The others stay within a
precision: kernels for one member sum in another order than those for four, atomic additions in
any. On a CPU these two must be exactly 0."""

Losses = list[tuple[float, float]]
"""Of a run: validation loss and mean training loss at every evaluation."""

SEEDS: list[Row] = [{"seed": 1}, {"seed": 2}]


def cpu_against_device(check: Check) -> list[Row]:
    """Two runs in every precision on the device, against fp32 on the CPU."""
    steps, rows = check.sizes.agreement_steps, []
    times = {"num_steps": steps, "eval_interval": steps // 5}
    for subject in check.models[:2]:
        reference = trained_losses(check, check.cohort(subject.config, SEEDS, **times), "cpu")
        apart = largest_difference(reference[:1], reference[1:])
        check.tell(f"{subject.name}: for scale, its two seeds differ by {apart:.1e}")
        compiling = compile_seconds(subject.config.num_layers)
        for mode in [*map(Mode, check.precisions), *check.compiled]:
            what = f"{subject.name}, {mode.precision}{' compiled' * mode.compiled}, {steps} steps"
            if mode.compiled and not check.fits(compiling, f"cpu against device: {what}"):
                continue
            cohort = check.cohort(subject.config, SEEDS, **times, precision=mode.precision)
            found = trained_losses(check, cohort, check.device, compiled=mode.compiled)
            difference = largest_difference(reference, found)
            rows.append(expect(check, "cpu against device", what, mode.precision, difference))
    return rows


def graph_against_eager(check: Check) -> list[Row]:
    """The same two runs with their updates captured in a CUDA graph and not."""
    steps, rows = check.sizes.agreement_steps, []
    times = {"num_steps": steps, "eval_interval": steps // 5}
    for subject, precision in itertools.product(check.models[:2], check.precisions):
        cohort = check.cohort(subject.config, SEEDS, **times, precision=precision)
        graph = trained_losses(check, cohort, check.device)
        eager = trained_losses(check, cohort, check.device, capture=False)
        what = f"{subject.name}, {precision}, {steps} steps"
        difference = largest_difference(graph, eager)
        rows.append(expect(check, "graph against eager", what, precision, difference))
    return rows


def member_against_alone(check: Check) -> list[Row]:
    """Members of a cohort of four, of two seeds and two learning rates, against the runs alone."""
    steps, rows = check.sizes.alone_steps, []
    times = {"num_steps": steps, "eval_interval": steps // 2}
    members = [{**seed, "learning_rate": rate} for seed in SEEDS for rate in (3e-4, 1e-3)]
    for subject, precision in itertools.product(check.models[:2], check.precisions):
        four = check.cohort(subject.config, members, **times, precision=precision)
        together = trained_losses(check, four, check.device)
        alone = [trained_losses(check, Cohort((run,)), check.device)[0] for run in four.runs]
        what = f"{subject.name}, {precision}, {steps} steps"
        difference = largest_difference(together, alone)
        rows.append(expect(check, "member against alone", what, precision, difference))
    return rows


def trained_losses(check: Check, cohort: Cohort, device: str, **options: bool) -> list[Losses]:
    """Of every run, trained to the end."""
    trainer = CohortTrainer(cohort, check.corpus, device, **options)
    for _ in train_cohort(trainer):
        pass
    return [
        [(row.loss, row.train_loss or 0.0) for row in member.evaluations]
        for member in trainer.members
    ]


def largest_difference(one: Sequence[Losses], other: Sequence[Losses]) -> float:
    """Of runs in the same order; infinite where an evaluation is missing, as after divergence."""
    pairs = list(zip(one, other, strict=True))
    if any(not mine or len(mine) != len(its) for mine, its in pairs):
        return math.inf
    return float(np.max([np.abs(np.subtract(mine, its)).max() for mine, its in pairs]))


def expect(check: Check, section: str, what: str, precision: Precision, difference: float) -> Row:
    """Hold a difference of losses against its tolerance."""
    exact = check.device == "cpu" and section != "cpu against device"
    tolerance = 0.0 if exact else TOLERANCES[section][precision]
    holds = difference <= tolerance  # so not for NaN
    words = f"{section}: {what}: differs by {difference:.1e}, at most {tolerance:.0e} allowed"
    check.tell(words + ": FAILED" * (not holds))
    if not holds:
        check.failures.append(words)
    known = difference if math.isfinite(difference) else None
    return {"what": what, "difference": known, "tolerance": tolerance, "holds": holds}
