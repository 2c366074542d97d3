"""Pairs and their PMI by hand, against a plain count, and at full size."""

import json
import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.pmi import SLICES, PairStatistics, pair_statistics, slice_means, slices

texts = st.lists(st.integers(0, 5), min_size=2, max_size=80)


def statistics(tokens: list[int], vocab_size: int = 6) -> PairStatistics:
    return pair_statistics(np.array(tokens, np.uint16), vocab_size)


def pairs_of(found: PairStatistics) -> list[tuple[int, int]]:
    return [divmod(pair, found.vocab_size) for pair in found.pairs.tolist()]


def slice_names(found: PairStatistics, pairs: list[tuple[int, int]]) -> list[str]:
    previous, target = np.array(pairs).T
    return [SLICES[index] for index in slices(found, previous, target)]


def test_pmi_of_a_short_text_by_hand() -> None:
    found = statistics([0, 1, 0, 1, 2, 0, 1, 1, 0], vocab_size=3)
    assert dict(zip(pairs_of(found), found.counts.tolist(), strict=True)) == {
        (0, 1): 3,
        (1, 0): 2,
        (1, 1): 1,
        (1, 2): 1,
        (2, 0): 1,
    }
    # Of the eight pairs 0 comes first in three, 1 in four, 2 in one; and second in as many.
    expected = [8 * 3 / (3 * 4), 8 * 2 / (4 * 3), 8 * 1 / (4 * 4), 8 * 1 / (4 * 1), 8 / (1 * 3)]
    assert found.pmi == pytest.approx(np.log2(expected), rel=1e-14)
    # 1/2 < 4/3 < 2 = 2 < 8/3: of five pairs the borders are the second, third and fourth.
    assert slice_names(found, [(1, 1), (1, 0), (0, 1), (1, 2), (2, 0)]) == [
        "seen_q1",
        "seen_q1",
        "seen_q2",
        "seen_q2",
        "seen_q4",
    ]
    assert slice_names(found, [(0, 0), (2, 2), (2, 1)]) == ["unseen"] * 3


def test_independent_tokens_share_no_information() -> None:
    # Each of the four pairs of two tokens once.
    found = statistics([0, 0, 1, 1, 0], vocab_size=2)
    assert found.pmi.tolist() == [0.0] * 4
    assert found.quartiles.tolist() == [0] * 4  # all are equal, so none lies above a border


def test_largest_vocabulary_fits() -> None:
    found = statistics([65_535, 65_535, 0, 65_535], vocab_size=1 << 16)
    assert pairs_of(found) == [(0, 65_535), (65_535, 0), (65_535, 65_535)]
    assert slices(found, np.array([65_535]), np.array([65_534])).tolist() == [4]
    with pytest.raises(AssertionError):
        statistics([0, 6])


@given(texts)
def test_equals_a_plain_count(tokens: list[int]) -> None:
    found = statistics(tokens)
    pairs = Counter(pairwise(tokens))
    first, second = Counter(tokens[:-1]), Counter(tokens[1:])
    total = len(tokens) - 1
    assert pairs_of(found) == sorted(pairs)
    for pair, count, pmi in zip(pairs_of(found), found.counts, found.pmi, strict=True):
        a, b = pair
        expected = math.log2((pairs[pair] / total) / (first[a] / total * second[b] / total))
        assert count == pairs[pair]
        assert pmi == pytest.approx(expected, abs=1e-12)


@given(texts)
def test_quartiles_hold_a_quarter_of_the_pairs_each_but_for_ties(tokens: list[int]) -> None:
    found = statistics(tokens)
    for index in range(3):
        inside = found.pmi[found.quartiles <= index]
        assert len(inside) >= (index + 1) / 4 * len(found.pairs)
        # Without the pairs at its upper border, there would be too few.
        below_border = (inside < inside.max() - 1e-9).sum()
        assert below_border < (index + 1) / 4 * len(found.pairs)


@given(texts)
def test_equal_pmi_means_equal_slice_whatever_tokens_are_called(tokens: list[int]) -> None:
    found = statistics(tokens)
    for value in found.pmi:
        assert len(set(found.quartiles[np.abs(found.pmi - value) < 1e-9])) == 1
    renamed = statistics([5 - token for token in tokens])
    assert renamed.quartiles.tolist() == [
        dict(zip(pairs_of(found), found.quartiles.tolist(), strict=True))[5 - a, 5 - b]
        for a, b in pairs_of(renamed)
    ]


@given(texts, texts)
def test_slices_are_those_of_the_pairs(tokens: list[int], evaluated: list[int]) -> None:
    found = statistics(tokens)
    quartile_of = dict(zip(pairs_of(found), found.quartiles.tolist(), strict=True))
    previous, target = np.array(evaluated[:-1], np.uint16), np.array(evaluated[1:], np.int64)
    expected = [quartile_of.get(pair, 4) for pair in pairwise(evaluated)]
    got = slices(found, previous, target)
    assert got.dtype == np.int8
    assert got.tolist() == expected


def test_slice_means_are_bits_a_token_beside_their_counts() -> None:
    slice_of = np.array([0, 4, 0, 3, 3, 3], np.int8)
    nats = math.log(2) * np.array([[1, 5, 3, 2, 2, 8], [0, 1, 1, 0, 0, 3]])
    means, counts = slice_means(slice_of, nats)
    assert counts.tolist() == [2, 0, 0, 3, 1]
    expected = [[2, np.nan, np.nan, 4, 5], [0.5, np.nan, np.nan, 1, 1]]
    np.testing.assert_allclose(means, expected, rtol=1e-15)


def test_slice_means_sum_single_precision_in_double() -> None:
    losses = np.full((1, 100_000), 0.1, np.float32)
    means, _ = slice_means(np.zeros(100_000, np.int8), losses)
    assert means[0, 0] * math.log(2) == pytest.approx(float(np.float32(0.1)), rel=1e-11)


_MEASURED = """
import json, resource, sys, time
import numpy as np
from triplu_ray.pmi import pair_statistics, slices

vocab_size = int(sys.argv[1])
tokens = np.empty(50_000_000, np.uint16)
zipf = np.cumsum(1 / np.arange(1, vocab_size + 1))
generator = np.random.default_rng(1)
for part in np.array_split(tokens, 50):
    part[:] = np.searchsorted(zipf, zipf[-1] * generator.random(len(part)))
started = time.perf_counter()
found = pair_statistics(tokens, vocab_size)
slices(found, tokens[:1_000_000], tokens[1:1_000_001])
print(json.dumps({
    "seconds": time.perf_counter() - started,
    "gibibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
    "pairs": len(found.pairs),
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [512, 50_257])
def test_fifty_million_tokens_take_a_minute_and_two_gibibytes_at_most(vocab_size: int) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(vocab_size)],
        check=True,
        capture_output=True,
        text=True,
    )
    measured = json.loads(process.stdout)
    assert measured["seconds"] < 60
    assert measured["gibibytes"] < 2
