"""Which of several values of a key is the best."""

import statistics
from collections.abc import Sequence


def choose(losses: Sequence[Sequence[float | None]]) -> int:
    """Place of the best value, given the losses `[values, seeds]`; None is a diverged run.

    Fewest divergences first, as each counts as infinitely bad; then the lowest mean over the seeds
    that finished; then the first.
    """

    def badness(place: int) -> tuple[int, float]:
        finite = [loss for loss in losses[place] if loss is not None]
        mean = statistics.fmean(finite) if finite else 0.0
        return len(losses[place]) - len(finite), mean

    return min(range(len(losses)), key=badness)
