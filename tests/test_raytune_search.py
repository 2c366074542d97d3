"""Searches without a cluster: the studies play against losses that a formula gives."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fabricate import curve, stored_run
from rich.console import Console
from spacefiles import SMALL, plan_of

from triplu_ray.plan import Plan, PlannedRun
from triplu_ray.progress import SweepProgress
from triplu_ray.raytune.search import (
    StudiesAsha,
    StudiesSearch,
    StudySearch,
    search_config,
    stored_means,
)
from triplu_ray.search import Suggestion, suggestions_of
from triplu_ray.store import Store

CONTENT: dict[str, Any] = {
    **SMALL,
    "grid": {"seed": [1, 2], "variant": ["swiglu", "triplu"]},
    "search": {"keys": {"gain": {"low": 0.5, "high": 60, "log": True}}, "num_suggestions": 9},
}
INSTALLED = ["tpe", "random", "gp", *(["cmaes"] if find_spec("cmaes") else [])]
Loss = Callable[[PlannedRun], float | None]


def content(**search: Any) -> dict[str, Any]:
    return {**CONTENT, "search": {**CONTENT["search"], **search}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def by_gain(run: PlannedRun) -> float:
    """Lowest at a gain of 7."""
    gain: float = run.row()["gain"]
    return 1.0 + 0.1 * run.config.seed + 0.1 * abs(math.log(gain / 7))


def plan_in(store: Store, content: dict[str, Any], *overrides: str) -> Plan:
    """The plan as `sweep` makes it: with all that the store knows."""
    suggestions = suggestions_of(store.read_records("searches/small"))
    finished = frozenset(store.finished_run_ids())
    return plan_of(
        content, *overrides, finished=finished, results=store.results(), suggestions=suggestions
    )


def search_in(store: Store, content: dict[str, Any] = CONTENT, *overrides: str) -> StudySearch:
    (study,) = plan_in(store, content, *overrides).studies
    return StudySearch(study, store, "small")


def train(store: Store, search: StudySearch, suggestion: Suggestion, loss: Loss = by_gain) -> None:
    """What a worker does, and what Tune tells of it."""
    for run in search.cohort(suggestion).runs:
        keep(store, run, loss(run))
    search.ended(suggestion.number, None)


def keep(store: Store, run: PlannedRun, loss: float | None) -> None:
    row = stored_run(run.row(), loss or 9.0, status="diverged" if loss is None else "finished")
    store.write_run(row, curve(row, 4))


def play(store: Store, search: StudySearch, most: int = 99, loss: Loss = by_gain) -> list[float]:
    """Train up to so many suggestions, one after the other; all the gains that were suggested."""
    for _ in range(most):
        suggestion = search.next()
        if suggestion is None:
            break
        train(store, search, suggestion, loss)
    return gains(search.study.suggestions)


def gains(suggestions: Sequence[Suggestion]) -> list[float]:
    return [one.values.get("gain", 0.0) for one in suggestions]


# What is suggested


def test_suggestions_lie_in_their_range_with_three_digits(store: Store) -> None:
    found = play(store, search_in(store))
    assert len(found) == 9
    assert all(0.5 <= gain <= 60 for gain in found)
    assert found == [float(f"{gain:.3g}") for gain in found]
    # Better than luck: of nine draws over a range of 120, some are near the best.
    assert min(abs(math.log(gain / 7)) for gain in found) < 0.3


def test_every_kind_of_number_is_suggested_as_one(store: Store) -> None:
    keys = {
        "warmup_steps": {"low": 0, "high": 9},
        "num_layers": {"low": 1, "high": 3, "log": True},
        "weight_decay": {"low": 0, "high": 1},
        "beta1": {"low": 0.5, "high": 0.99},
    }
    grid = {"seed": [1], "variant": ["swiglu"]}
    search = search_in(store, {**content(keys=keys, sampler="random"), "grid": grid})
    play(store, search, loss=lambda run: 1.0 + run.config.weight_decay)
    values = [one.values for one in search.study.suggestions]
    assert len({value["beta1"] for value in values}) == 9
    for value in values:
        assert {key: type(one) for key, one in value.items()} == {
            "warmup_steps": int, "num_layers": int, "weight_decay": float, "beta1": float
        }  # fmt: skip
    # Each key of a suggestion is drawn for itself.
    assert len({round(value["weight_decay"], 1) for value in values}) > 3
    assert any(abs(v["weight_decay"] - (v["beta1"] - 0.5) / 0.49) > 0.1 for v in values)


def test_a_suggestion_is_on_record_before_it_is_trained(store: Store) -> None:
    search = search_in(store)
    suggestion = search.next()
    assert suggestion is not None
    (record,) = store.read_records("searches/small")
    runs = search.study.runs(suggestion.values)
    assert record == {
        "space": "small", "study": search.study.study_id, "number": 1, "pruned": None,
        "values": {"gain": suggestion.values["gain"]}, "run_ids": [run.run_id for run in runs],
    }  # fmt: skip
    assert [run.config.seed for run in search.cohort(suggestion).runs] == [1, 2]


def test_studies_of_one_seed_begin_alike_and_part_by_what_they_learn(tmp_path: Path) -> None:
    found = []
    for name, best in (("low", 1.0), ("high", 40.0)):
        store = Store(str(tmp_path / name))

        def loss(run: PlannedRun, best: float = best) -> float:
            return 1.0 + abs(math.log(run.row()["gain"] / best))

        found.append(play(store, search_in(store), loss=loss))
    assert found[0][:5] == found[1][:5]
    assert found[0] != found[1]


@pytest.mark.parametrize("sampler", INSTALLED)
def test_a_seed_decides(sampler: str, tmp_path: Path) -> None:
    found = [
        play(store, search_in(store, content(sampler=sampler, seed=seed, num_suggestions=7)))
        for place, seed in enumerate([1, 1, 2])
        for store in [Store(str(tmp_path / str(place)))]
    ]
    assert found[0] == found[1] != found[2]
    assert len(set(found[0])) == 7


# Interruptions


@pytest.mark.parametrize("sampler", INSTALLED)
def test_an_interrupted_search_goes_on_as_if_it_were_not(sampler: str, tmp_path: Path) -> None:
    """After every number of suggestions, with another one just begun or not."""
    settings = content(sampler=sampler, num_suggestions=8)
    whole = Store(str(tmp_path / "whole"))
    expected = play(whole, search_in(whole, settings))
    store = Store(str(tmp_path / "parts"))
    for steps in range(8):
        search = search_in(store, settings)
        assert gains(search.study.suggestions) == expected[: steps + (steps % 2)]
        play(store, search, most=1)
        if steps % 2 == 0:
            search.next()  # begun, and killed
    assert play(store, search_in(store, settings)) == expected


def test_what_was_begun_is_trained_before_anything_new(store: Store) -> None:
    first = search_in(store).next()
    assert first is not None
    keep(store, search_in(store).study.runs(first.values)[0], 1.5)
    search = search_in(store)
    again = search.next()
    assert again == first
    # Its first seed is there already.
    assert [run.config.seed for run in search.cohort(first).runs] == [2]


def test_more_suggestions_are_added_to_those_that_are_there(store: Store) -> None:
    few = play(store, search_in(store, content(num_suggestions=6)))
    search = search_in(store, content(num_suggestions=9))
    assert play(store, search)[:6] == few
    assert len(store.read_records("searches/small")) == 9
    whole = Store(f"{store.location}/whole")
    assert gains(search.study.suggestions) == play(whole, search_in(whole))


# What needs no training


def test_what_is_in_the_store_is_not_trained_again(store: Store, tmp_path: Path) -> None:
    other = Store(str(tmp_path / "other"))
    expected = play(other, search_in(other))
    study = search_in(store).study
    for gain in expected[:8]:
        for run in study.runs({"gain": gain}):
            keep(store, run, by_gain(run))
    search = search_in(store)
    last = search.next()
    assert last is not None
    assert (last.number, last.values) == (9, {"gain": expected[8]})


def test_a_value_that_comes_again_is_trained_once(store: Store) -> None:
    keys = {"warmup_steps": {"low": 0, "high": 1}}
    grid = {"seed": [1], "variant": ["swiglu"]}
    settings = {**content(keys=keys, sampler="random", concurrency=2), "grid": grid}
    search = search_in(store, settings)
    first, second = search.next(), search.next()
    assert first is not None
    assert second is not None
    assert first.values != second.values
    assert search.next() is None
    train(store, search, first, lambda _: 1.0)
    # All others have the values of these two: nothing is left but the second.
    assert search.next() is None
    train(store, search, second, lambda _: 2.0)
    assert search.next() is None
    assert search.study.is_done
    assert len(search.study.suggestions) == 9
    assert len(store.finished_run_ids()) == 2


# At the same time, and when something goes wrong


def test_at_most_so_many_at_a_time(store: Store) -> None:
    search = search_in(store, content(concurrency=2))
    first, second = search.next(), search.next()
    assert first is not None
    assert second is not None
    assert search.next() is None
    assert search.is_running
    train(store, search, second)
    third = search.next()
    assert third is not None
    assert (first.number, second.number, third.number) == (1, 2, 3)


def test_a_diverged_seed_is_learned_from(store: Store) -> None:
    search = search_in(store)
    found = play(store, search, loss=lambda run: None if run.row()["gain"] > 5 else 1.5)
    assert search.study.is_done
    worst = 2 * math.log(79)
    assert {search.study.objective(one) for one in search.study.suggestions} == {1.5, worst}
    assert sum(gain <= 5 for gain in found[5:]) >= 3


def test_what_failed_is_left_to_the_next_sweep(store: Store) -> None:
    search = search_in(store)
    first = search.next()
    assert first is not None
    search.failed(first.number)
    second = search.next()
    assert second is not None
    assert second.number == 2
    train(store, search, second)
    later = search_in(store)
    assert later.next() == first


def test_a_suggestion_that_was_stopped_stays_so(store: Store) -> None:
    search = search_in(store)
    first = search.next()
    assert first is not None
    search.ended(first.number, [3.0, 2.5])
    assert search.study.objective(search.study.suggestions[0]) == 2.5
    later = search_in(store)
    assert later.study.suggestions[0].pruned == (3.0, 2.5)
    second = later.next()
    assert second is not None
    assert second.number == 2
    assert second == search.next()


# All studies together


def two_studies(store: Store, **search: Any) -> tuple[Plan, StudiesSearch]:
    grid = {"seed": [1, 2], "variant": ["swiglu", "triplu", "quad_prod"]}
    plan = plan_in(store, {**content(num_suggestions=2, **search), "grid": grid})
    to_come = [run for study in plan.studies for run in study.to_come]
    progress = SweepProgress(Console(quiet=True), [], to_come)
    searcher, config = search_config(plan, store, progress)
    # All that can go on at once, as far as there are workers.
    assert config.max_concurrent_trials == max(1, sum(one.is_ready for one in plan.studies))
    return plan, searcher


def test_studies_take_turns_until_all_is_suggested(store: Store) -> None:
    plan, search = two_studies(store)
    names = {study.study_id: study.name for study in plan.studies}
    order = []
    for turn in range(2):
        for _ in range(2):
            trial = search.suggest(f"{turn} {_}")
            order.append(names[trial["study"]])
        assert search.suggest("none") is None
        for _ in range(2):
            for cohort in search.cohorts:
                for run in cohort.runs:
                    keep(store, run, by_gain(run))
            search.on_trial_complete(f"{turn} {_}", {"stored": True, "means": [1.0]})
    assert order == ["triplu", "quad_prod"] * 2
    assert not search.is_finished
    assert search.suggest("none") == "FINISHED"
    assert search.is_finished
    assert len(search.cohorts) == 4


def test_a_trial_says_what_a_worker_must_know(store: Store) -> None:
    plan, search = two_studies(store)
    trial = search.suggest("a")
    study = plan.studies[0]
    assert trial["study"] == study.study_id
    assert trial["seeds"] == [1, 2]
    assert trial["cohort_id"] == search.cohorts[0].cohort_id
    assert [run.run_id for run in study.runs(trial["values"], trial["seeds"])] == [
        run.run_id for run in search.cohorts[0].runs
    ]


def test_trials_that_are_stopped_and_that_fail(store: Store) -> None:
    plan, search = two_studies(store)
    search.suggest("a")
    search.suggest("b")
    search.on_trial_complete("a", {"stored": False, "means": [2.0, 1.5]})
    search.on_trial_complete("b", error=True)
    later = plan_in(store, {**plan_content(plan)})
    assert [study.line() for study in later.studies] == [
        "triplu: 1 of 2 suggestions done, 1 stopped early",
        "quad_prod: 0 of 2 suggestions done, 1 begun",
    ]


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


# ASHA


def trial(study: str, name: str) -> Any:
    return SimpleNamespace(trial_id=name, config={"study": study})


def shown(scheduler: StudiesAsha, study: str, name: str, means: Sequence[float]) -> list[str]:
    """The decision after each evaluation, until it is to stop."""
    added = trial(study, name)
    scheduler.on_trial_add(None, added)
    decisions = []
    for count in range(1, len(means) + 1):
        decisions.append(scheduler.on_trial_result(None, added, {"means": list(means[:count])}))
        if decisions[-1] == "STOP":
            break
    return decisions


ASHA = content(pruning="asha")


def test_what_is_behind_is_stopped_at_a_rung(store: Store) -> None:
    """20 evaluations: rungs at 2, 6 and 18."""
    (study,) = plan_of(ASHA).studies
    assert study.evaluations == 20
    scheduler = StudiesAsha([study], store)
    name = study.study_id
    good, bad = [3.0 - 0.05 * place for place in range(20)], [4.0] * 20
    assert shown(scheduler, name, "a", good) == ["CONTINUE"] * 20
    assert shown(scheduler, name, "b", bad) == ["CONTINUE", "STOP"]
    late = [*good[:5], *[4.0] * 15]
    assert shown(scheduler, name, "c", late) == ["CONTINUE"] * 5 + ["STOP"]


def test_evaluations_are_shown_once_however_results_come(store: Store) -> None:
    (study,) = plan_of(ASHA).studies
    scheduler = StudiesAsha([study], store)
    shown(scheduler, study.study_id, "a", [3.0] * 20)
    resumed = trial(study.study_id, "b")
    scheduler.on_trial_add(None, resumed)
    # It goes on from a checkpoint after its third evaluation: the rung at 2 was as good as any.
    assert scheduler.on_trial_result(None, resumed, {"means": [3.0, 3.0, 9.0]}) == "CONTINUE"
    assert scheduler.on_trial_result(None, resumed, {"means": [3.0, 3.0, 9.0]}) == "CONTINUE"
    # A cohort that lacks a seed has no mean to judge by.
    assert scheduler.on_trial_result(None, resumed, {"means": None}) == "CONTINUE"


def test_studies_do_not_compete(store: Store) -> None:
    grid = {"seed": [1, 2], "variant": ["triplu", "quad_prod"]}
    first, second = plan_of({**ASHA, "grid": grid}).studies
    scheduler = StudiesAsha([first, second], store)
    shown(scheduler, first.study_id, "a", [1.0] * 20)
    assert shown(scheduler, second.study_id, "b", [4.0] * 20) == ["CONTINUE"] * 20


def test_after_an_interruption_asha_knows_what_it_knew(store: Store) -> None:
    search = search_in(store, ASHA)
    whole = search.next()
    assert whole is not None
    train(store, search, whole)
    stopped = search.next()
    assert stopped is not None
    search.ended(stopped.number, [9.0, 9.0])
    (study,) = plan_in(store, ASHA).studies
    means = stored_means(study, study.suggestions[0], store)
    # The curve of four evaluations that fabricated runs have, its mean over both seeds.
    curves = [curve(row, 4)[1:] for row in store.read_runs().to_pylist()]
    assert means == pytest.approx(
        [sum(rows[place]["loss"] for rows in curves) / 2 for place in range(4)]
    )
    scheduler = StudiesAsha([study], store)
    behind = [means[0], 8.9]
    assert shown(scheduler, study.study_id, "next", behind) == ["CONTINUE", "STOP"]
