"""Loss by how strongly adjacent tokens attract each other (TriPLU section 4, table 6).

The pointwise mutual information of an adjacent pair of training tokens is

    PMI(a, b) = log2(p(a, b) / (p(a as first) p(b as second)))

An evaluated token belongs with the token before it to one of five slices: pairs that occur in
training fall into quartiles by their PMI, the others are unseen. The paper bins pairs, so a
quartile is a quarter of the distinct pairs, however often each occurs; how many evaluated tokens a
slice has, which table 6 omits, is counted.

P distinct pairs, N evaluated tokens, M members
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLICES = ("seen_q1", "seen_q2", "seen_q3", "seen_q4", "unseen")
"""From the lowest PMI to the highest."""

_UNSEEN = SLICES.index("unseen")


@dataclass(frozen=True, eq=False)
class PairStatistics:
    """The distinct adjacent pairs of a training text.

    `pairs [P]` holds first * vocab_size + second in ascending order, `counts [P]` the occurrences,
    `pmi [P]` is in bits. `quartiles [P]` is 0 to 3; a pair whose PMI equals a border falls below
    it, so pairs of equal PMI share a quartile.
    """

    vocab_size: int
    pairs: NDArray[np.uint32]
    counts: NDArray[np.int64]
    pmi: NDArray[np.float64]
    quartiles: NDArray[np.int8]


def pair_statistics(tokens: NDArray[np.uint16], vocab_size: int) -> PairStatistics:
    """Count the adjacent pairs of two or more training `tokens`."""
    first_counts = np.bincount(tokens[:-1], minlength=vocab_size)
    second_counts = np.bincount(tokens[1:], minlength=vocab_size)
    pairs, counts = np.unique(_codes(tokens[:-1], tokens[1:], vocab_size), return_counts=True)
    first, second = np.divmod(pairs, np.uint32(vocab_size))
    # Up to 94 million tokens both products are exact, so that equal ratios are equal numbers;
    # their logarithms need not be.
    ratios = counts * (len(tokens) - 1) / (first_counts[first] * second_counts[second])
    borders = np.quantile(ratios, [0.25, 0.5, 0.75], method="inverted_cdf")
    return PairStatistics(
        vocab_size,
        pairs,
        counts,
        pmi=np.log2(ratios),
        quartiles=np.searchsorted(borders, ratios).astype(np.int8),
    )


def slices(
    statistics: PairStatistics, previous: NDArray[Any], target: NDArray[Any]
) -> NDArray[np.int8]:
    """The index in `SLICES` of each target after its previous token: both `[N]`, integers."""
    codes = _codes(previous, target, statistics.vocab_size)
    places = np.searchsorted(statistics.pairs, codes).clip(max=len(statistics.pairs) - 1)
    is_seen = statistics.pairs[places] == codes
    return np.where(is_seen, statistics.quartiles[places], _UNSEEN).astype(np.int8)


def slice_means(
    slice_of: NDArray[np.int8], losses: NDArray[np.floating[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mean losses `[M, 5]` in bits a token, NaN where a slice is empty, and token counts `[5]`.

    `slice_of [N]` comes from `slices`, `losses [M, N]` are in nats.
    """
    counts = np.bincount(slice_of, minlength=len(SLICES))
    sums = np.array([np.bincount(slice_of, row, len(SLICES)) for row in losses])
    return sums / np.log(2) / np.where(counts > 0, counts, np.nan), counts


def _codes(first: NDArray[Any], second: NDArray[Any], vocab_size: int) -> NDArray[np.uint32]:
    """One number for each pair; 32 bits hold those of the largest vocabulary, 65,536."""
    assert max(first.max(), second.max()) < vocab_size <= 1 << 16
    return first.astype(np.uint32) * np.uint32(vocab_size) + second.astype(np.uint32)
