"""What the driver hears of its trials."""

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from triplu_ray.progress import SweepProgress


class SweepCallback(tune.Callback):
    """Hands Tune's events to the display and keeps what the outcome needs."""

    def __init__(self, progress: SweepProgress) -> None:
        self._progress = progress
        self._running: dict[str, float] = {}
        self.finished: set[str] = set()
        self.pruned: set[str] = set()
        self.failures: dict[str, str] = {}
        self.busy_seconds = 0.0
        self.most_running = 0

    @property
    def num_ended(self) -> int:
        """Cohorts that are stored or were given up."""
        return len(self.finished | self.failures.keys())

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks for a restore, which is never asked of it

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self._running[cohort_id] = 0.0
        self.most_running = max(self.most_running, len(self._running))
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
        if not result["done"]:
            self._progress.reached(
                cohort_id, result["step"], result["best_val_loss"], result["tokens_per_second"]
            )

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        if trial.last_result["stored"]:
            self.finished.add(cohort_id)
            self._progress.finished(cohort_id)
        else:
            self.pruned.add(cohort_id)
            self._progress.pruned(cohort_id)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        self.failures[cohort_id] = _reason(trial)
        self._progress.failed(cohort_id, self.failures[cohort_id])

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cohort_id = trial.config["cohort_id"]
        self.busy_seconds += self._running.pop(cohort_id, 0.0)
        self._progress.retried(cohort_id, _reason(trial))


def _reason(trial: Trial) -> str:
    """Why a trial failed, in one line: the end of the remote traceback, the exception itself."""
    if trial.error_file is None:
        return "no reason given"
    text = Path(trial.error_file).read_text(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-1]
