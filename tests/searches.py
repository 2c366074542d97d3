"""Searches without a cluster: the studies play against losses that a formula gives."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from fabricate import curve, stored_run
from spacefiles import SMALL, plan_of

from triplu_ray.plan import Plan, PlannedRun
from triplu_ray.raytune.search import StudySearch
from triplu_ray.search import Suggestion, suggestions_of
from triplu_ray.store import Store

CONTENT: dict[str, Any] = {
    **SMALL,
    "grid": {"seed": [1, 2], "variant": ["swiglu", "triplu"]},
    "search": {"keys": {"gain": {"low": 0.5, "high": 60, "log": True}}, "num_suggestions": 9},
}
Loss = Callable[[PlannedRun], float | None]


def content(**search: Any) -> dict[str, Any]:
    return {**CONTENT, "search": {**CONTENT["search"], **search}}


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
    for run in search.study.runs(suggestion.values):
        keep(store, run, loss(run))
    search.ended(suggestion.number)


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
