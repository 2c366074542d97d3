"""Intervals and p values of gaps over seeds."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from triplu_ray import significance


@pytest.mark.parametrize(
    ("gaps", "p_value"),
    [
        # Of the eight sums of +-1 +-2 +-4, |sum| is 7, 5, 3 and 1, twice each.
        ((1.0, 2.0, 4.0), 2 / 8),
        ((-1.0, 2.0, 4.0), 4 / 8),
        ((1.0, -2.0, 4.0), 6 / 8),
        ((-1.0, -2.0, 4.0), 8 / 8),
        ((0.3,), 1.0),
        ((0.1,) * 8, 2 / 256),
    ],
)
def test_sign_flip_p_by_enumeration(gaps: tuple[float, ...], p_value: float) -> None:
    assert significance.sign_flip_p(np.array([gaps])).tolist() == [p_value]


def test_sign_flip_p_beyond_exact_seeds_is_drawn() -> None:
    # Of 2^20 patterns two are as large: none of 2^14 draws is likely to be one.
    assert significance.sign_flip_p(np.full((1, 20), 0.1))[0] == significance.smallest_p(20)
    assert significance.smallest_p(17) == significance.smallest_p(20) == 1 / (2**14 + 1)


def test_sign_flips_agree_with_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = np.random.default_rng(1).normal(0.3, 1.0, (5, 12))
    expected = stats.permutation_test(
        (gaps,), np.mean, permutation_type="samples", axis=-1, n_resamples=2**12
    ).pvalue
    np.testing.assert_allclose(significance.sign_flip_p(gaps), expected)
    monkeypatch.setattr(significance, "EXACT_SEEDS", 11)
    # The error of a share p of 2^14 draws is sqrt(p (1 - p) / 2^14), at most 0.004.
    np.testing.assert_allclose(significance.sign_flip_p(gaps), expected, atol=0.016)


def test_holm_textbook_example() -> None:
    corrected = significance.holm(pd.Series([0.01, 0.04, 0.03, 0.005, np.nan]))
    assert corrected[:4].tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert np.isnan(corrected[4])


def test_intervals_need_seeds_and_spread() -> None:
    assert np.isnan(significance.t_interval(np.array([[0.1]]))).all()
    assert np.isnan(significance.bca_interval(np.full((1, 8), 0.1))).all()


def test_the_bootstrap_needs_eight_seeds() -> None:
    gaps = np.random.default_rng(1).normal(0.04, 0.01, (1, 8))
    assert np.isnan(significance.bca_interval(gaps[:, :7])).all()
    low, high = significance.bca_interval(gaps)
    assert gaps.min() < low[0] < gaps.mean() < high[0] < gaps.max()


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.01, 0.02, "ahead"), (-0.02, -0.01, "behind"), (-0.01, 0.01, "undecided"),
     (0.0, 0.0, "undecided"), (np.nan, np.nan, None)],
)  # fmt: skip
def test_a_verdict_is_where_the_interval_excludes_zero(
    low: float, high: float, words: str | None
) -> None:
    assert significance.verdict(low, high) == words


def test_bca_is_near_t_for_many_seeds_and_depends_on_its_row_alone() -> None:
    gaps = np.random.default_rng(1).normal(0.04, 0.01, (5, 40))
    bca, student = significance.bca_interval(gaps), significance.t_interval(gaps)
    assert np.abs(np.subtract(bca, student)).max() < 0.0012
    alone = significance.bca_interval(gaps[3:4])
    assert np.ravel(alone).tolist() == pytest.approx([bca[0][3], bca[1][3]], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1, 1, width=16), min_size=11, max_size=11), min_size=1, max_size=4)
)
def test_bca_agrees_with_scipy(rows: list[list[float]]) -> None:
    gaps = np.array(rows)
    varied = np.ptp(gaps, axis=1) > 0
    found = np.array(significance.bca_interval(gaps))
    assert np.isnan(found[:, ~varied]).all()
    for place in np.flatnonzero(varied):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of degenerate rows
            interval = stats.bootstrap(
                (gaps[place],),
                np.mean,
                method="BCa",
                n_resamples=significance.RESAMPLES,
                batch=significance.RESAMPLES // 10,
                rng=np.random.default_rng(0),
            ).confidence_interval
        expected = [interval.low, interval.high]
        assert found[:, place] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_correlation_over_seeds() -> None:
    first = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    second = np.array([[3.0, 5.0, 7.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]])
    assert significance.correlation(first, second)[:2].tolist() == pytest.approx([1.0, 0.5])
    assert np.isnan(significance.correlation(first, second)[2])
    assert np.isnan(significance.correlation(first[:, :2], second[:, :2])).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_p_is_never_below_the_smallest(gaps: list[float]) -> None:
    p_value = significance.sign_flip_p(np.array([gaps]))[0]
    assert significance.smallest_p(len(gaps)) == 2 / 2 ** len(gaps) <= p_value <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_monotone_and_never_below_p(p_values: list[float]) -> None:
    raw = pd.Series(p_values)
    corrected = significance.holm(raw)
    assert (corrected >= raw).all()
    assert (corrected <= 1).all()
    assert corrected[raw.sort_values(kind="stable").index].is_monotonic_increasing
