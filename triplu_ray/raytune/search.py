"""Searches on Tune: Optuna suggests for each study on its own, ASHA stops what is behind in it.

The store holds every suggestion before it is trained. A search that was interrupted asks for all of
them anew, in their order, and so comes to where it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from triplu_ray.plan import Cohort, Plan, PlannedRun
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.sampling import SeededAnew, distributions
from triplu_ray.search import Suggestion, mean_losses
from triplu_ray.store import Store
from triplu_ray.studies import Study

REDUCTION = 3
"""Of ASHA: at a rung the best third goes on, and the next rung is three times as far."""

PlannedStudy = Study[PlannedRun]


def search_config(
    plan: Plan, store: Store, progress: SweepProgress
) -> tuple["StudiesSearch", tune.TuneConfig]:
    """What suggests, and Tune's configuration with it, for the studies of a plan that can go on."""
    space = plan.space.header
    assert space.search is not None
    studies = [
        study
        for planned in plan.studies
        for study in [
            replace(planned, results={**planned.results, **store.results(planned.reference)})
        ]
        if study.is_ready and not study.is_done
    ]
    search = StudiesSearch([StudySearch(one, store, space.name) for one in studies], progress)
    scheduler = StudiesAsha(studies, store) if space.search.pruning == "asha" else None
    # Without a limit Tune starts one worker after the other, each with all its imports.
    most = max(1, len(studies) * space.search.concurrency)
    return search, tune.TuneConfig(
        search_alg=search,
        scheduler=scheduler,
        num_samples=-1,
        max_concurrent_trials=most,
        reuse_actors=True,
    )


class StudySearch:
    """One study: asks Optuna for suggestions, keeps them in the store, tells what came of them."""

    def __init__(self, study: PlannedStudy, store: Store, space: str) -> None:
        self.study = replace(study, suggestions=())
        self._recorded = study.suggestions
        self._store = store
        self._space = space
        self._optuna = OptunaSearch(
            distributions(study.search, study.keys),
            metric="objective",
            mode="min",
            sampler=SeededAnew(study.search, study.suggestions),
        )
        self._told: set[int] = set()
        self._running: set[int] = set()
        self._failed: set[int] = set()
        for _ in self._recorded:
            self._ask()

    @property
    def is_running(self) -> bool:
        """Whether a suggestion of it is being trained."""
        return bool(self._running)

    def next(self) -> Suggestion | None:
        """A suggestion to train, or None: for now, if one is running, or for good."""
        while len(self._running) < self.study.search.concurrency:
            for suggestion in self.study.suggestions:
                if self._is_waiting(suggestion):
                    self._running.add(suggestion.number)
                    return suggestion
            if len(self.study.suggestions) == self.study.search.num_suggestions:
                return None
            self._ask()
        return None

    def cohort(self, suggestion: Suggestion) -> Cohort:
        """What is left to train of a suggestion."""
        runs = self.study.runs(suggestion.values)
        return Cohort(tuple(run for run in runs if run.run_id not in self.study.results))

    def ended(self, number: int, means: Sequence[float] | None) -> None:
        """A suggestion is trained; or it was stopped after these `mean_losses`."""
        self._running.remove(number)
        if means is not None:
            (stopped,) = (one for one in self.study.suggestions if one.number == number)
            for one in self.study.suggestions:
                if one.values == stopped.values:
                    self._keep(replace(one, pruned=tuple(means)))
        self._tell()

    def failed(self, number: int) -> None:
        """A suggestion could not be trained; the next sweep tries it again."""
        self._running.remove(number)
        self._failed.add(number)
        self._optuna.on_trial_complete(str(number), error=True)

    def _is_waiting(self, suggestion: Suggestion) -> bool:
        """Neither known nor taken, nor has another one of its values been."""
        taken = self._running | self._failed
        return suggestion.number not in self._told and all(
            one.values != suggestion.values for one in self.study.suggestions if one.number in taken
        )

    def _ask(self) -> None:
        """For one more; or, at first, for those that are recorded."""
        number = len(self.study.suggestions) + 1
        suggestion = Suggestion(number, self._optuna.suggest(str(number)) or {})
        if number <= len(self._recorded):
            assert suggestion.values == self._recorded[number - 1].values
            suggestion = self._recorded[number - 1]
            self.study = replace(self.study, suggestions=(*self.study.suggestions, suggestion))
        else:
            self._keep(suggestion)
        self._tell()

    def _tell(self) -> None:
        """Optuna what has come to be known."""
        results = self._store.results(
            {run.run_id for one in self.study.suggestions for run in self.study.runs(one.values)}
            | {*self.study.reference}
        )
        self.study = replace(self.study, results=results)
        for suggestion in self.study.suggestions:
            objective = self.study.objective(suggestion)
            if objective is not None and suggestion.number not in self._told | self._failed:
                self._optuna.on_trial_complete(str(suggestion.number), {"objective": objective})
                self._told.add(suggestion.number)

    def _keep(self, suggestion: Suggestion) -> None:
        """Here, and in the store."""
        record = {
            "space": self._space,
            "study": self.study.study_id,
            "number": suggestion.number,
            "values": dict(suggestion.values),
            "pruned": suggestion.pruned,
            "run_ids": [run.run_id for run in self.study.runs(suggestion.values)],
        }
        path = f"searches/{self._space}/{self.study.study_id}/{suggestion.number:04}"
        self._store.write_record(path, record)
        others = (one for one in self.study.suggestions if one.number != suggestion.number)
        suggestions = sorted([*others, suggestion], key=lambda one: one.number)
        self.study = replace(self.study, suggestions=tuple(suggestions))


class StudiesSearch(Searcher):
    """The suggestions of all studies, of the one that has fewest first."""

    def __init__(self, searches: Sequence[StudySearch], progress: SweepProgress) -> None:
        super().__init__()
        self._searches = searches
        self._progress = progress
        self._trials: dict[str, tuple[StudySearch, int]] = {}
        self.cohorts: list[Cohort] = []
        """All that were handed out."""
        self.is_finished = False

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it for a restore, which is never asked of it

    def suggest(self, trial_id: str) -> Any:
        """The configuration of a trial; None while there is none, FINISHED if none will come."""
        for search in sorted(self._searches, key=lambda one: len(one.study.suggestions)):
            suggestion = search.next()
            if suggestion is not None:
                cohort = search.cohort(suggestion)
                values = ", ".join(f"{k} {value:g}" for k, value in suggestion.values.items())
                self._progress.added(cohort, values)
                self.cohorts.append(cohort)
                self._trials[trial_id] = search, suggestion.number
                return {
                    "cohort_id": cohort.cohort_id,
                    "study": search.study.study_id,
                    "values": dict(suggestion.values),
                    "seeds": [run.config.seed for run in cohort.runs],
                }
        self.is_finished = not any(search.is_running for search in self._searches)
        return Searcher.FINISHED if self.is_finished else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial was trained, stopped by the scheduler, or given up."""
        search, number = self._trials.pop(trial_id)
        if error or result is None:
            search.failed(number)
        else:
            search.ended(number, None if result["stored"] else result["means"])

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the store is the truth."""


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
