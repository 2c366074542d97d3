"""Sweeps on Ray Tune: one trial trains one cohort. The only room that imports ray."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new engine prints even when told not to
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the store holds the results


from triplu_ray.raytune.record import FailedCohort
from triplu_ray.raytune.sweep import SweepOutcome, sweep

__all__ = ["FailedCohort", "SweepOutcome", "sweep"]
