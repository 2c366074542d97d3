import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.choice import choose

ROWS = st.integers(1, 4).flatmap(
    lambda seeds: st.lists(
        st.lists(st.none() | st.floats(0.5, 9), min_size=seeds, max_size=seeds),
        min_size=1,
        max_size=5,
    )
)


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([[1.0, 3.0], [1.9, 1.9], [2.5, 2.5]], 1),
        ([[2.0], [1.0], [1.0]], 1),  # the first of two that are as good
        ([[0.1, None], [9.0, 9.0]], 1),  # a divergence outweighs any loss
        ([[0.1, None, None], [9.0, None, 9.0], [8.0, 8.0, None]], 2),
        ([[None, None], [None, None]], 0),
        ([[None, None], [None, 9.0]], 1),
        ([[5.0, 5.0]], 0),
    ],
)
def test_the_lowest_mean_is_chosen(losses: list[list[float | None]], best: int) -> None:
    assert choose(losses) == best


@given(ROWS)
def test_none_is_better_than_what_is_chosen(losses: list[list[float | None]]) -> None:
    def badness(row: list[float | None]) -> tuple[int, float]:
        finite = [loss for loss in row if loss is not None]
        return row.count(None), math.fsum(finite) / len(finite) if finite else 0.0

    best = choose(losses)
    assert badness(losses[best]) == min(map(badness, losses))
    assert choose([row[::-1] for row in losses]) == best
