"""What the driver hears of its trials."""

import signal
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.record import FailedCohort, SweepRecord


class SweepCallback(tune.Callback):
    """Hands Tune's events to the display and keeps what the outcome needs."""

    def __init__(self, progress: SweepProgress, record: SweepRecord) -> None:
        self._progress, self._record = progress, record
        self._running: dict[str, float] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self.ended: set[str] = set()
        """Cohorts that are finished or given up."""
        self.elsewhere: set[str] = set()
        """Cohorts that another sweep is at."""
        self.written: set[str] = set()
        """Ids of the runs that workers of this sweep have stored."""
        self.pruned: set[str] = set()
        """Ids of the runs of suggestions that were stopped early."""
        self.unfit: str | None = None
        """Why a node that joined later must not train."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks for a restore, which is never asked of it

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._running[cohort_id] = 0.0
        self._record.most_running = max(self._record.most_running, len(self._running))
        self._progress.started(cohort_id)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._running[cohort_id] = result["busy_seconds"]
        self._results[cohort_id] = result
        self.written.update(result["written"])
        for note in result["notes"]:
            self._progress.told(f"note: {note}")
        if not result["done"]:
            self._progress.reached(
                cohort_id, result["step"], result["best_val_loss"], result["tokens_per_second"]
            )

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._record.busy_seconds += self._running.pop(cohort_id, 0.0)
        result = self._results.pop(cohort_id)
        if result["unfit"]:
            # It would fail one cohort after the other in no time: Tune is told to come to an end.
            if not self.unfit:
                signal.raise_signal(signal.SIGINT)
            self.unfit = result["unfit"]
        elif result["elsewhere"]:
            self.elsewhere.add(cohort_id)
            self._progress.elsewhere(cohort_id, result["elsewhere"])
        elif not result["ended"]:  # the scheduler has ended it
            self.pruned.update(self._progress.run_ids(cohort_id))
            self._progress.pruned(cohort_id)
        elif result["failed"]:
            self.ended.add(cohort_id)
            for failure in result["failed"]:
                self._fail(cohort_id, FailedCohort(**failure))
        else:
            self.ended.add(cohort_id)
            self._progress.finished(cohort_id)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._record.busy_seconds += self._running.pop(cohort_id, 0.0)
        self.ended.add(cohort_id)
        run_ids = self._progress.run_ids(cohort_id)
        self._fail(cohort_id, FailedCohort(cohort_id, run_ids, _reason(trial)))

    def _fail(self, cohort_id: str, failed: FailedCohort) -> None:
        self._record.fail(failed)
        self._progress.failed(cohort_id, failed.reason)

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._record.busy_seconds += self._running.pop(cohort_id, 0.0)
        self._progress.retried(cohort_id, _reason(trial))


def _reason(trial: Trial) -> str:
    """Why a trial failed, in one line: the end of the remote traceback, the exception itself."""
    if trial.error_file is None:
        return "no reason given"
    text = Path(trial.error_file).read_text(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-1]
