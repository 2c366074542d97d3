"""Searches without a cluster: the studies play against losses that a formula gives."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from searches import by_gain, content, gains, keep, play, search_in, train

from triplu_ray.plan import PlannedRun
from triplu_ray.store import Store

INSTALLED = ["tpe", "random", "gp", *(["cmaes"] if find_spec("cmaes") else [])]


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
        "values": {"gain": suggestion.values["gain"]}, "runs": [run.row() for run in runs],
    }  # fmt: skip
    assert [run.config.seed for run in runs] == [1, 2]


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
    assert search_in(store).next() == first


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
    search.stopped(first.number, [3.0, 2.5])
    assert search.study.objective(search.study.suggestions[0]) == 2.5
    later = search_in(store)
    assert later.study.suggestions[0].pruned == (3.0, 2.5)
    second = later.next()
    assert second is not None
    assert second.number == 2
    assert second == search.next()
