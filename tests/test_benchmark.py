import pytest

from triplu_ray.benchmark import measure


@pytest.mark.slow
def test_every_contestant_runs_and_is_compared() -> None:
    ratios = measure("triplu", rounds=2, steps=2)
    assert list(ratios) == ["engine", "worker", "cohort of 4", "two workers"]
    # A measurement, not a judgement: an engine ten times off would be a broken one.
    assert all(0.1 < ratio < 10 for values in ratios.values() for ratio in values)
    assert all(len(values) == 2 for values in ratios.values())
