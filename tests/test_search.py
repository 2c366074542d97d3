import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacefiles import SMALL, space_of

from triplu_ray import search
from triplu_ray.errors import UserError
from triplu_ray.search import SEARCHABLE, Search, Suggestion, mean_losses, suggestions_of

LOSSES = st.lists(st.floats(0.5, 9), min_size=1, max_size=6)
MEMBERS = st.lists(st.tuples(LOSSES, st.booleans()), min_size=1, max_size=4)


def search_of(*overrides: str, **given: Any) -> Search:
    keys = {"gain": {"low": 1, "high": 60, "log": True}}
    content = {**SMALL, "search": {"keys": keys, "num_suggestions": 4, **given}}
    found = space_of(content, *overrides).header.search
    assert found is not None
    return found


# What a file says


def test_defaults() -> None:
    plain = search_of()
    assert plain.model_dump() == {
        "keys": {"gain": {"low": 1, "high": 60, "log": True}}, "num_suggestions": 4,
        "sampler": "tpe", "seed": 1, "concurrency": 1, "objective": "best_val_loss",
        "confirm_seeds": [], "pruning": "off", "compare_with": None,
    }  # fmt: skip


def test_off_is_off_however_yaml_reads_it() -> None:
    # YAML 1.1 says that `off` is false.
    assert search_of("search.pruning=off").pruning == "off"
    assert search_of("search.pruning='off'").pruning == "off"
    assert search_of("search.pruning=asha").pruning == "asha"


def test_overrides_change_one_entry() -> None:
    changed = search_of("search.num_suggestions=9", "search.sampler=random")
    assert (changed.num_suggestions, changed.sampler) == (9, "random")
    assert changed.keys == search_of().keys


def test_numbers_that_decide_what_is_trained_can_be_searched() -> None:
    assert {"gain", "degree", "learning_rate", "adamw_learning_rate", "num_layers"} <= SEARCHABLE
    # What is read, how it is judged, and luck, are not to be optimized.
    assert not SEARCHABLE & {"train_bytes", "tokenizer_vocab_size", "eval_batches", "seed"}
    assert not SEARCHABLE & {"schedule", "branch_norm", "variant"}


def test_a_sampler_without_its_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None if name == "cmaes" else object())
    assert search_of(sampler="gp").sampler == "gp"
    with pytest.raises(
        UserError, match=r"search\.sampler: cmaes needs the package cmaes, got none"
    ):
        search_of(sampler="cmaes")


# What was suggested


def record(study: str, number: int, **other: Any) -> dict[str, Any]:
    return {"study": study, "number": number, "values": {"gain": 5.0}, "pruned": None, **other}


def test_records_come_in_order_up_to_a_gap() -> None:
    records = [record("a", n) for n in (3, 1, 2, 5)] + [record("b", 2)]
    found = suggestions_of([*records, record("c", 1, pruned=[2.0, 1.5])])
    assert [one.number for one in found["a"]] == [1, 2, 3]
    assert found["b"] == ()
    assert found["c"] == (Suggestion(1, {"gain": 5.0}, (2.0, 1.5)),)


# What an evaluation says of a suggestion


def test_means_over_seeds_of_the_lowest_loss_so_far() -> None:
    # Step 0 counts as a loss, but is no evaluation to judge by.
    whole = ([4.0, 2.0, 3.0, 1.0], False)
    stopped = ([4.0, 3.0, 3.5], False)
    diverged = ([4.0, 1.0], True)
    assert mean_losses([whole], 9.0) == [2.0, 2.0, 1.0]
    assert mean_losses([whole, stopped], 9.0) == [2.5, 2.5, 2.0]
    assert mean_losses([whole, diverged], 9.0) == [1.5, 5.5, 5.0]
    assert mean_losses([([4.0], True), ([4.0], True)], 9.0) == []
    assert mean_losses([([], True), ([4.0, 2.0], False)], 9.0) == [5.5]


@given(MEMBERS)
def test_a_longer_look_agrees_with_a_shorter_one(members: list[tuple[list[float], bool]]) -> None:
    """What was said of an evaluation stays, as long as no member has ended before it."""
    full = mean_losses(members, 10.0)
    assert len(full) == max(len(losses) for losses, _ in members) - 1
    shortest = min(len(losses) for losses, _ in members)
    for length in range(1, shortest + 1):
        cut = [(losses[:length], False) for losses, _ in members]
        assert mean_losses(cut, 10.0) == full[: length - 1]
    if not any(diverged for _, diverged in members):
        assert all(a >= b or math.isclose(a, b) for a, b in itertools.pairwise(full))
    assert all(mean <= 10.0 for mean in full)
