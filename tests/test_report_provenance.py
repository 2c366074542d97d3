"""Where a report's numbers come from, and what its sweeps took."""

from typing import Any

import pandas as pd
from fabricate import frames, planned_run, stored_run

from triplu_ray.compare import tidy
from triplu_ray.report.provenance import provenance_table

SWEEP = {"wall_seconds": 1800.0, "ray_start_seconds": 4.0, "workers": 2, "busy_seconds": 3240.0,
         "trained": 12, "interrupted": False}  # fmt: skip


def facts(*sweeps: dict[str, Any]) -> "pd.Series[str]":
    planned = [planned_run("triplu", 1)]
    comparison = tidy(*frames([stored_run(planned[0], 1.1)], planned), None)
    return provenance_table(comparison.runs, sweeps).frame.set_index("fact")["value"]


def test_workers_that_are_at_no_cohort_are_start_and_idle_time() -> None:
    """3240 of 2 x 1800 seconds are 90 %."""
    told = facts(SWEEP, {**SWEEP, "trained": 0, "busy_seconds": 0.0})
    assert told["workers' time outside cohorts"] == (
        "10.0%: start of Ray and of workers, between cohorts, idle at the end"
    )
    assert told["sweeps"] == "1, 0.50 hours of wall time"
    assert told["Ray's start"] == "4.0 s at most"


def test_interrupted_sweeps_do_not_count_as_idle() -> None:
    """What their workers were at in the end is in no record."""
    cut = {**SWEEP, "busy_seconds": 100.0, "interrupted": True}
    told = facts(SWEEP, cut)
    assert told["workers' time outside cohorts"].startswith("10.0%: ")
    assert told["sweeps"] == "2, 1 interrupted, 1.00 hours of wall time"
    assert "workers' time outside cohorts" not in facts(cut)


def test_records_of_old_sweeps_know_of_no_interruption() -> None:
    old = {key: value for key, value in SWEEP.items() if key != "interrupted"}
    assert facts(old)["workers' time outside cohorts"].startswith("10.0%: ")
    assert "sweeps" not in facts()
