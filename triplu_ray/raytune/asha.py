"""ASHA on Tune: a suggestion that is behind in its study is stopped early."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from triplu_ray.plan import PlannedStudy
from triplu_ray.search import Suggestion, mean_losses
from triplu_ray.store import Store

REDUCTION = 3
"""Of ASHA: at a rung the best third goes on, and the next rung is three times as far."""


class StudiesAsha(FIFOScheduler):
    """ASHA for each study on its own, over the mean losses of suggestions by evaluation.

    It is shown each evaluation once, those of an earlier sweep first.
    """

    def __init__(self, studies: Iterable[PlannedStudy], store: Store) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shown: dict[str, int] = {}
        self._of_study = {}
        for study in studies:
            # No rung at the last evaluation: who came so far is stored.
            last = study.evaluations - 1
            self._of_study[study.study_id] = AsyncHyperBandScheduler(
                time_attr="evaluations",
                metric="mean_loss",
                mode="min",
                max_t=last,
                grace_period=max(1, last // REDUCTION**2),
                reduction_factor=REDUCTION,
                stop_last_trials=False,
            )
            for suggestion in study.done:
                means = suggestion.pruned or stored_means(study, suggestion, store)
                earlier = SimpleNamespace(
                    trial_id=f"{study.study_id} {suggestion.number}",
                    config={"study": study.study_id},
                )
                self.on_trial_add(None, earlier)
                self._show(None, earlier, means)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as of the searcher

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See Tune."""
        self._of_study[trial.config["study"]].on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Whether the suggestion goes on."""
        return self._show(tune_controller, trial, result["means"] or [])

    def _show(self, tune_controller: Any, trial: Any, means: Sequence[float]) -> str:
        """Those that were not shown yet."""
        scheduler = self._of_study[trial.config["study"]]
        decision: str = TrialScheduler.CONTINUE
        for place in range(self._shown.get(trial.trial_id, 0), len(means)):
            shown = {"evaluations": place + 1, "mean_loss": means[place]}
            decision = scheduler.on_trial_result(tune_controller, trial, shown)
            if decision == TrialScheduler.STOP:
                break
        self._shown[trial.trial_id] = len(means)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Nothing: all was shown."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Nothing: it was not shown."""


def stored_means(study: PlannedStudy, suggestion: Suggestion, store: Store) -> list[float]:
    """`mean_losses` of a suggestion that was trained to its end."""
    run_ids = [run.run_id for run in study.runs(suggestion.values)]
    rows = store.read_evals(run_ids).to_pylist()
    members = [
        (
            [
                row["loss"]
                for row in rows
                if row["run_id"] == run_id and row["split"] == "validation"
            ],
            study.results[run_id] is None,
        )
        for run_id in run_ids
    ]
    return mean_losses(members, study.worst)
