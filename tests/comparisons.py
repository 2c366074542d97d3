"""Comparisons of known losses, with their curves, for the tests of reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from fabricate import frames, planned_run, stored_run

from triplu_ray.compare import Comparison, tidy
from triplu_ray.report.costs import evaluation_costs

STEPS = [0, 1000, 2000, 3000]
CURVES = {
    ("swiglu", 1): [4.0, 1.20, 1.10, 1.05],
    ("swiglu", 2): [4.0, 1.20, 1.12, 1.11],
    ("triplu", 1): [4.0, 1.10, 1.08, 1.02],
    ("triplu", 2): [4.0, 1.20, 1.09, 1.04],
}


def curves(triplu: Mapping[str, Any] = {}, **config: Any) -> tuple[Comparison, pd.DataFrame]:
    """Two variants, two seeds, four evaluations; TriPLU is slower by a fifth.

    `triplu` changes the rows of its runs, further keys the configuration of all.
    """
    planned, runs, evals = [], [], []
    for (variant, seed), losses in CURVES.items():
        run = planned_run(variant, seed, num_steps=3000, **config)
        row = {"seconds": 360.0, **triplu} if variant == "triplu" else {"seconds": 300.0}
        seconds = row["seconds"]
        planned.append(run)
        runs.append(stored_run(run, min(losses), losses[-1], **row))
        evals += [
            {"run_id": run["run_id"], "step": step, "tokens": 2048 * step, "split": "validation",
             "loss": loss, "seconds": seconds * step / 3000}
            for step, loss in zip(STEPS, losses, strict=True)
        ]  # fmt: skip
    comparison = tidy(*frames(runs, planned), "swiglu")
    return comparison, evaluation_costs(comparison, pd.DataFrame(evals))


def swept(values: dict[tuple[str, float], list[float]], key: str = "learning_rate") -> Comparison:
    """Losses by seed of (variant, value of an axis)."""
    planned, runs = [], []
    for (variant, value), losses in values.items():
        for seed, loss in enumerate(losses, start=1):
            settings: dict[str, Any] = {key: value} if value else {}
            planned.append(planned_run(variant, seed, **settings))
            if np.isfinite(loss):
                runs.append(stored_run(planned[-1], loss))
    return tidy(*frames(runs, planned), "swiglu")
