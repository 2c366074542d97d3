"""All studies together, and two sweeps at one of them."""

from typing import Any

import pytest
from rich.console import Console
from searches import by_gain, content, keep, plan_in, play, search_in, train

from triplu_ray.leases import Claim
from triplu_ray.plan import Plan, PlannedStudy, suggested_cohort
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.search import StudiesSearch, search_config
from triplu_ray.search import Suggestion
from triplu_ray.store import Store


def two_studies(store: Store, **search: Any) -> tuple[Plan, StudiesSearch]:
    grid = {"seed": [1, 2], "variant": ["swiglu", "triplu", "quad_prod"]}
    plan = plan_in(store, {**content(num_suggestions=2, **search), "grid": grid})
    to_come = [run for study in plan.studies for run in study.to_come]
    progress = SweepProgress(Console(quiet=True), [], to_come)
    searcher, config = search_config(plan, store, progress)
    # All that can go on at once, as far as there are workers.
    assert config.max_concurrent_trials == max(1, sum(one.is_ready for one in plan.studies))
    return plan, searcher


def told(**what: Any) -> dict[str, Any]:
    """What Tune has of a trial when it has ended, by itself unless `what` says otherwise."""
    ended = {"failed": [], "unfit": None, "elsewhere": None, "ended": True, "means": [1.0]}
    return {**ended, **what}


def trained(store: Store, plan: Plan, trial: dict[str, Any]) -> None:
    """What a worker stores of a trial."""
    study = next(one for one in plan.studies if one.study_id == trial["study"])
    for run in study.runs(trial["values"]):
        keep(store, run, by_gain(run))


def test_studies_take_turns_until_all_is_suggested(store: Store) -> None:
    plan, search = two_studies(store)
    names = {study.study_id: study.name for study in plan.studies}
    order = []
    for turn in range(2):
        for place in range(2):
            trial = search.suggest(f"{turn} {place}")
            order.append(names[trial["study"]])
            trained(store, plan, trial)
        assert search.suggest("none") is None
        for place in range(2):
            search.on_trial_complete(f"{turn} {place}", told())
    assert order == ["triplu", "quad_prod"] * 2
    assert not search.is_finished
    assert search.suggest("none") == "FINISHED"
    assert search.is_finished
    assert not search.begin_turn()
    assert len(store.finished_run_ids()) == 8


def test_a_trial_says_what_a_worker_must_know(store: Store) -> None:
    plan, search = two_studies(store)
    trial = search.suggest("a")
    study = plan.studies[0]
    assert trial["study"] == study.study_id
    cohort = suggested_cohort(study, trial["values"])
    assert trial["cohort_id"] == cohort.cohort_id
    assert [run.config.seed for run in cohort.runs] == [1, 2]
    assert cohort.description.endswith(f"seed 1, 2 gain {trial['values']['gain']:g}")


def test_trials_that_are_stopped_and_that_fail(store: Store) -> None:
    plan, search = two_studies(store)
    search.suggest("a")
    search.suggest("b")
    search.on_trial_complete("a", told(ended=False, means=[2.0, 1.5]))
    search.on_trial_complete("b", error=True)
    later = plan_in(store, {**plan_content(plan)})
    assert [study.line() for study in later.studies] == [
        "triplu: 1 of 2 suggestions done, 1 stopped early",
        "quad_prod: 0 of 2 suggestions done, 1 begun",
    ]


@pytest.mark.parametrize("what", [{"failed": [{"reason": "disk full"}]}, {"unfit": "another code"}])
def test_what_a_worker_gives_up_is_no_result(what: dict[str, Any], store: Store) -> None:
    plan, search = two_studies(store)
    search.suggest("a")
    search.on_trial_complete("a", told(**what))
    (study, _) = plan_in(store, plan_content(plan)).studies
    assert study.line() == "triplu: 0 of 2 suggestions done, 1 begun"


# Two sweeps at once


def claim_on(study: PlannedStudy, suggestion: Suggestion) -> Claim:
    """That of another sweep's worker."""
    run_ids = frozenset(run.run_id for run in study.runs(suggestion.values))
    return Claim(
        path="", space="small", sweep_id="other", run_ids=run_ids, description="", step=0,
        num_steps=1, settled=True, host="", age_seconds=0.0, is_live=True,
    )  # fmt: skip


def test_what_another_sweep_is_at_is_learned_from_once_it_is_done(store: Store) -> None:
    expected = play(Store(f"{store.location}/whole"), search_in(Store(f"{store.location}/whole")))
    first, second = search_in(store), search_in(store)
    theirs, mine = first.next(), second.next()
    assert theirs is not None
    assert theirs == mine
    second.left(mine.number)
    assert second.is_left_to_others
    assert second.next() is None
    second.look_again([claim_on(first.study, theirs)])
    assert second.is_left_to_others
    train(store, first, theirs)
    second.look_again([])
    assert not second.is_left_to_others
    assert play(store, second) == expected


def test_what_another_sweep_has_left_undone_is_taken_up(store: Store) -> None:
    first, second = search_in(store), search_in(store)
    theirs, mine = first.next(), second.next()
    assert mine is not None
    second.left(mine.number)
    second.look_again([])
    assert second.next() == theirs


def test_what_another_sweep_has_stopped_early_stays_so(store: Store) -> None:
    first, second = search_in(store), search_in(store)
    theirs, mine = first.next(), second.next()
    assert theirs is not None
    assert mine is not None
    second.left(mine.number)
    first.stopped(theirs.number, [3.0, 2.5])
    second.look_again([])
    assert second.study.suggestions[0].pruned == (3.0, 2.5)
    following = second.next()
    assert following is not None
    assert following.number == 2


def test_a_turn_ends_when_all_that_is_left_is_with_others(store: Store) -> None:
    plan, search = two_studies(store)
    trials = {name: search.suggest(name) for name in "ab"}
    for name in trials:
        search.on_trial_complete(name, told(elsewhere="another sweep"))
    assert search.suggest("none") == "FINISHED"
    assert search.is_left_to_others
    assert search.begin_turn()
    trained(store, plan, trials["a"])
    search.look_again([])
    assert not search.is_left_to_others


def plan_content(_: Plan) -> dict[str, Any]:
    grid = {"seed": [1, 2], "variant": ["swiglu", "triplu", "quad_prod"]}
    return {**content(num_suggestions=2), "grid": grid}


def test_a_study_without_its_baseline_waits(store: Store) -> None:
    plan, search = two_studies(store, objective="paired_gap")
    assert search.suggest("a") == "FINISHED"
    for run in plan.runs:
        keep(store, run, 1.5)
    _, search = two_studies(store, objective="paired_gap")
    assert search.suggest("a") != "FINISHED"
