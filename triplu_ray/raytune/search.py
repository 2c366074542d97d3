"""Searches on Tune: Optuna suggests for each study on its own.

The store holds every suggestion before it is trained. A search that was interrupted asks for all of
them anew, in their order, and so comes to where it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from triplu_ray.leases import Claim, claims_on
from triplu_ray.plan import Plan, PlannedStudy, suggested_cohort
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.asha import StudiesAsha
from triplu_ray.raytune.sampling import SeededAnew, distributions
from triplu_ray.search import Suggestion, suggestions_of
from triplu_ray.store import Store


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
        self._store = store
        self._space = space
        self._folder = f"searches/{space}/{study.study_id}"
        self._recorded = {one.number: one for one in study.suggestions}
        self._optuna = OptunaSearch(
            distributions(study.search, study.keys),
            metric="objective",
            mode="min",
            sampler=SeededAnew(study.search, self._recorded),
        )
        self._told: set[int] = set()
        self._running: set[int] = set()
        self._failed: set[int] = set()
        self._elsewhere: set[int] = set()
        """Suggestions that another sweep is at."""
        for _ in study.suggestions:
            self._ask()

    @property
    def is_running(self) -> bool:
        """Whether a suggestion of it is being trained."""
        return bool(self._running)

    @property
    def is_left_to_others(self) -> bool:
        """Whether nothing can be done until another sweep is done with a suggestion."""
        return bool(self._elsewhere) and not self._can_go_on

    @property
    def is_over(self) -> bool:
        """Whether nothing is left that this sweep can train."""
        return not (self._elsewhere or self._can_go_on)

    @property
    def _can_go_on(self) -> bool:
        """Whether there is one to train, or to ask for."""
        if len(self._running | self._elsewhere) >= self.study.search.concurrency:
            return False
        is_asked = len(self.study.suggestions) == self.study.search.num_suggestions
        return not is_asked or any(map(self._is_waiting, self.study.suggestions))

    def next(self) -> Suggestion | None:
        """A suggestion to train, or None: for now, if one is busy, or for good."""
        while self._can_go_on:
            for suggestion in self.study.suggestions:
                if self._is_waiting(suggestion):
                    self._running.add(suggestion.number)
                    return suggestion
            self._ask()
        return None

    def ended(self, number: int) -> None:
        """A suggestion is trained."""
        self._running.remove(number)
        self._tell()

    def stopped(self, number: int, means: Sequence[float]) -> None:
        """A suggestion was stopped early, after these `mean_losses`."""
        self._running.remove(number)
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

    def left(self, number: int) -> None:
        """A suggestion is left to another sweep, until `look_again`."""
        self._running.remove(number)
        self._elsewhere.add(number)

    def look_again(self, taken: Sequence[Claim]) -> None:
        """What others have done meanwhile; what none of them is at any more is to be trained."""
        self._recorded |= self._records()
        self._take_over(
            replace(one, pruned=self._recorded[one.number].pruned) for one in self.study.suggestions
        )
        self._tell()
        self._elsewhere = {
            one.number
            for one in self.study.suggestions
            if one.number in self._elsewhere - self._told
            and claims_on(suggested_cohort(self.study, one.values), taken)
        }

    def _is_waiting(self, suggestion: Suggestion) -> bool:
        """Neither known nor taken, nor has another one of its values been."""
        taken = self._running | self._failed | self._elsewhere
        return suggestion.number not in self._told and all(
            one.values != suggestion.values for one in self.study.suggestions if one.number in taken
        )

    def _ask(self) -> None:
        """For one more, which stays as it was if it was made before, here or by another sweep."""
        number = len(self.study.suggestions) + 1
        if number not in self._recorded:
            self._recorded |= self._records()
        values = self._optuna.suggest(str(number)) or {}
        if number in self._recorded:
            assert values == self._recorded[number].values
            self._take_over([*self.study.suggestions, self._recorded[number]])
        else:
            self._keep(Suggestion(number, values))
        self._tell()

    def _tell(self) -> None:
        """Optuna what has come to be known."""
        runs = [run for one in self.study.suggestions for run in self.study.runs(one.values)]
        ids = {run.run_id for run in runs} | {*self.study.reference}
        self.study = replace(self.study, results=self._store.results(ids))
        for suggestion in self.study.suggestions:
            objective = self.study.objective(suggestion)
            if objective is not None and suggestion.number not in self._told | self._failed:
                self._optuna.on_trial_complete(str(suggestion.number), {"objective": objective})
                self._told.add(suggestion.number)

    def _records(self) -> dict[int, Suggestion]:
        """The suggestions that the store has of this study."""
        found = suggestions_of(self._store.read_records(self._folder))
        return {one.number: one for one in found.get(self.study.study_id, ())}

    def _keep(self, suggestion: Suggestion) -> None:
        """In the store, and here."""
        record = {
            "space": self._space,
            "study": self.study.study_id,
            "number": suggestion.number,
            "values": dict(suggestion.values),
            "pruned": suggestion.pruned,
            "runs": [run.row() for run in self.study.runs(suggestion.values)],
        }
        self._store.write_record(f"{self._folder}/{suggestion.number:04}", record)
        others = [one for one in self.study.suggestions if one.number != suggestion.number]
        self._take_over([*others, suggestion])

    def _take_over(self, suggestions: Iterable[Suggestion]) -> None:
        in_order = sorted(suggestions, key=lambda one: one.number)
        self.study = replace(self.study, suggestions=tuple(in_order))


class StudiesSearch(Searcher):
    """The suggestions of all studies, of the one that has fewest first.

    Tune may take several turns over it: what another sweep is at comes up again in the next.
    """

    def __init__(self, searches: Sequence[StudySearch], progress: SweepProgress) -> None:
        super().__init__()
        self._searches = searches
        self._progress = progress
        self._trials: dict[str, tuple[StudySearch, Suggestion]] = {}
        self.is_finished = False
        """Whether Tune's turn has come to its end."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it for a restore, which is never asked of it

    def begin_turn(self) -> bool:
        """Whether Tune has something to do."""
        self.is_finished = False
        return not all(search.is_over for search in self._searches)

    @property
    def is_left_to_others(self) -> bool:
        """Whether nothing can be done until another sweep is done with its suggestions."""
        left = [search.is_left_to_others for search in self._searches if not search.is_over]
        return bool(left) and all(left)

    def look_again(self, taken: Sequence[Claim]) -> None:
        """What other sweeps, with these claims, have done meanwhile."""
        for search in self._searches:
            search.look_again(taken)

    def suggest(self, trial_id: str) -> Any:
        """The configuration of a trial; None while there is none, FINISHED if none will come."""
        for search in sorted(self._searches, key=lambda one: len(one.study.suggestions)):
            suggestion = search.next()
            if suggestion is not None:
                cohort = suggested_cohort(search.study, suggestion.values)
                self._progress.added(cohort)
                self._trials[trial_id] = search, suggestion
                return {
                    "cohort_id": cohort.cohort_id,
                    "study": search.study.study_id,
                    "values": dict(suggestion.values),
                }
        self.is_finished = not any(search.is_running for search in self._searches)
        return Searcher.FINISHED if self.is_finished else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial was trained, stopped by the scheduler, left to others or given up."""
        search, suggestion = self._trials.pop(trial_id)
        if error or result is None or result["failed"] or result["unfit"]:
            search.failed(suggestion.number)
        elif result["elsewhere"]:
            search.left(suggestion.number)
        elif result["ended"]:
            search.ended(suggestion.number)
        else:
            search.stopped(suggestion.number, result["means"])

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the store is the truth."""
