"""The main comparison from start to end: three seeds of four variants at equal parameters."""

import math
import time
from statistics import mean

from triplu_ray.config import resolve_ffn
from triplu_ray.gpu_check.check import Check, Row
from triplu_ray.resolve import matched_width
from triplu_ray.train import CohortTrainer, train_cohort

VARIANTS = ("swiglu", "triplu", "quad_prod", "double_prod")
SEEDS: list[Row] = [{"seed": 1}, {"seed": 2}, {"seed": 3}]

SHARE = 1 / 3
"""Of the time left that it may take; an early end is better than no throughput."""

LEAST_SECONDS = 4.0


def main_setting(check: Check) -> list[Row]:
    """Train the seeds of each variant as a cohort, in the fastest precision, not compiled.

    A cohort that its share of the time cannot hold ends early.
    """
    if not check.fits(LEAST_SECONDS, "main setting"):
        return []
    rows: list[Row] = []
    began = time.monotonic()
    ends = began + SHARE * check.seconds_left()
    for index, variant in enumerate(VARIANTS):
        share = (ends - time.monotonic()) / (len(VARIANTS) - index)
        rows += _train_variant(check, variant, time.monotonic() + share)
    check.tell(f"main setting: {len(rows)} runs in {time.monotonic() - began:.1f} s")
    return rows


def _train_variant(check: Check, variant: str, deadline: float) -> list[Row]:
    base, ffn = check.models[0].config, resolve_ffn(variant, {}, "")
    started = time.monotonic()
    cohort = check.cohort(
        base,
        SEEDS,
        ffn=ffn,
        hidden=matched_width(ffn, base.ffn, base.hidden, base.d_model),
        precision=check.precisions[-1],
        num_steps=check.sizes.main_steps,
        eval_interval=check.sizes.main_steps // 20,
    )
    trainer = CohortTrainer(cohort, check.corpus, check.device)
    for _ in train_cohort(trainer, progress_seconds=0.5):
        if time.monotonic() > deadline:
            break
    trainer.synchronize()
    seconds = time.monotonic() - started
    rows = [
        {
            "variant": variant,
            "hidden": run.config.hidden,
            "seed": run.config.seed,
            "precision": run.config.precision,
            "steps": trainer.step,
            "best_val_loss": member.best_val_loss,
            "cohort_seconds": seconds,
        }
        for run, member in zip(cohort.runs, trainer.members, strict=True)
    ]
    losses = [math.nan if m.best_val_loss is None else m.best_val_loss for m in trainer.members]
    check.tell(
        f"main setting: {variant} {trainer.config.hidden}, {trainer.config.precision}, "
        f"{trainer.step:,} of {check.sizes.main_steps:,} steps in {seconds:.1f} s: best losses "
        f"{', '.join(f'{loss:.4f}' for loss in losses)}, mean {mean(losses):.4f}"
    )
    return rows
