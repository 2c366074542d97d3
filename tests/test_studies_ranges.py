"""What a search's ranges and seeds amount to before anything is suggested."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacefiles import SMALL, plan_of

from triplu_ray.errors import UserError

GRID: dict[str, Any] = {"seed": [1], "variant": ["swiglu"]}


def plan(keys: dict[str, tuple[float, float]], **changes: Any) -> Any:
    ranges = {key: {"low": low, "high": high} for key, (low, high) in keys.items()}
    search = {"keys": ranges, "num_suggestions": 3}
    return plan_of({**SMALL, "grid": GRID, "search": search, **changes})


@settings(max_examples=60)
@given(
    d_model=st.tuples(st.integers(1, 24), st.integers(1, 12)),
    num_heads=st.tuples(st.integers(1, 4), st.integers(1, 3)) | st.integers(1, 4),
)
def test_ranges_are_refused_if_some_value_in_them_makes_no_run(
    d_model: tuple[int, int], num_heads: tuple[int, int] | int
) -> None:
    """By the division itself, over all values; without a baseline, whose width must be near."""
    keys: dict[str, tuple[float, float]] = {"d_model": (d_model[0], sum(d_model))}
    changes: dict[str, Any] = {"hidden": 8, "baseline": None}
    if isinstance(num_heads, tuple):
        keys["num_heads"] = num_heads[0], sum(num_heads)
        heads = [*range(num_heads[0], sum(num_heads) + 1)]
    else:
        changes["num_heads"] = num_heads
        heads = [num_heads]
    widths = range(d_model[0], sum(d_model) + 1)
    if all(width % count == 0 for width in widths for count in heads):
        assert len(plan(keys, **changes).studies) == 1
    else:
        with pytest.raises(UserError, match=r"d_model: expected a multiple of num_heads \("):
            plan(keys, **changes)


def test_the_line_names_the_key_and_the_values() -> None:
    with pytest.raises(UserError) as caught:
        plan({"d_model": (64, 128), "learning_rate": (1e-4, 1e-2)}, num_heads=4)
    assert str(caught.value).endswith(
        "space.yaml: search.keys: expected ranges whose values all make a run, got d_model 65, "
        "learning_rate 0.0001: d_model: expected a multiple of num_heads (4), got 65"
    )


def test_keys_that_bound_one_another_are_held_against_each_other() -> None:
    """Each end for itself makes a run: the most warm-up of the fewest steps does not."""
    keys: dict[str, tuple[float, float]] = {"warmup_steps": (0, 900), "num_steps": (500, 1000)}
    with pytest.raises(UserError, match="warmup_steps: expected at most num_steps"):
        plan(keys, schedule="cosine")
    assert plan({**keys, "warmup_steps": (0, 500)}, schedule="cosine").studies


@pytest.mark.parametrize("low", [64.0, 64.5])
def test_ends_that_are_no_whole_numbers_are_told_as_ever(low: float) -> None:
    with pytest.raises(UserError, match="d_model"):
        plan({"d_model": (low, 128)})


@pytest.mark.parametrize("blocks", [[[1, 2], [2, 3]], [[1, 2, 3], [1, 2, 3]], [[3, 2, 1], [1]]])
def test_a_seed_of_two_blocks_is_one_seed(blocks: list[list[int]]) -> None:
    content = {key: value for key, value in SMALL.items() if key != "grid"}
    search = {"keys": {"gain": {"low": 1, "high": 60}}, "num_suggestions": 3}
    variants = {"variant": ["triplu"]}
    overlapping = [{"grid": {**variants, "seed": seeds}} for seeds in blocks]
    found = plan_of({**content, "search": search, "blocks": overlapping})
    once = plan_of({**content, "search": search, "grid": {**variants, "seed": [1, 2, 3]}})
    (study,) = found.studies
    assert sorted(study.seeds) == [1, 2, 3]
    assert study.study_id == once.studies[0].study_id
    assert found.pending == once.pending == 9
