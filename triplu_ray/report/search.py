"""What a space's `search` found: its suggestions apart from the runs that are compared."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from triplu_ray.choice import choose
from triplu_ray.compare import GROUP, Comparison, value_text
from triplu_ray.report.model import axis_words
from triplu_ray.significance import t_interval, verdict

Values = Mapping[str, float]


@dataclass(frozen=True)
class Tried:
    """A suggestion that was trained to its end: its values, and the loss of each seed."""

    values: Values
    losses: list[float | None]
    """None of a seed that diverged."""
    run_ids: list[str]

    @property
    def mean(self) -> float | None:
        """None if a seed diverged."""
        finite = [loss for loss in self.losses if loss is not None]
        return statistics.fmean(finite) if len(finite) == len(self.losses) else None


@dataclass(frozen=True)
class FoundStudy:
    """One study: what was tried, and what came of its best on fresh seeds."""

    name: str
    keys: tuple[str, ...]
    wanted: int
    """Suggestions that it is to have."""
    made: int
    stopped: int
    """Of those made, how many were stopped early."""
    tried: list[Tried]
    fixed: Values | None
    confirmed: Mapping[str, Sequence[str]] | None
    """Ids of the runs on the confirmation seeds: best, fixed, baseline."""

    @property
    def best(self) -> Tried | None:
        """Fewest divergences, then the lowest mean."""
        return self.tried[choose([one.losses for one in self.tried])] if self.tried else None

    @property
    def near(self) -> list[Tried]:
        """`near_best` of what was tried, the best included; empty if the seeds cannot tell."""
        whole = [(one, one.losses) for one in self.tried if one.mean is not None]
        losses = [[loss for loss in losses if loss is not None] for _, losses in whole]
        return [one for (one, _), is_near in zip(whole, near_best(losses), strict=True) if is_near]

    def edge(self, key: str) -> str:
        """Lowest or highest, if the best value of a key is that of all that were tried."""
        values = [one.values[key] for one in self.tried]
        if self.best is None or min(values) == max(values):
            return ""
        ends = {min(values): "lowest", max(values): "highest"}
        return ends.get(self.best.values[key], "")


@dataclass(frozen=True)
class Found:
    """All studies of a space."""

    studies: list[FoundStudy]
    keys: tuple[str, ...]
    logarithmic: frozenset[str]
    seeds: tuple[int, ...]
    confirm_seeds: tuple[int, ...]
    everything: Comparison
    """Every run, with values of the keys that are no part of labels and settings."""
    is_confirmed: bool
    """Whether what is compared are runs on the confirmation seeds."""

    @property
    def words(self) -> str:
        """The searched keys in words."""
        return " and ".join(axis_words(key) for key in self.keys)

    @property
    def sentence(self) -> str:
        """How the variants that are compared came to their values."""
        seeds = ", ".join(map(str, self.seeds))
        fresh = ", ".join(map(str, self.confirm_seeds))
        compared = f"compared on others: {fresh}" if self.is_confirmed else "compared on the same"
        best = f"Each variant is taken at its best {self.words}"
        return f"{best}, searched on seeds {seeds} and {compared}."


def near_best(losses: Sequence[Sequence[float]], level: float = 0.95) -> list[bool]:
    """Which values are no worse than the best by more than the noise; all False if it is unknown.

    `losses` are `[values, seeds]`. The noise is what is left of the losses of the better half of
    the values (at least two), when each value and each seed is granted a level of its own: worse
    values scatter more, and say nothing about the best. A value is near if its mean lies within
    Student's one-sided bound, at `level`, of a difference of two means with that noise.
    """
    table = np.array(losses, float)
    count, seeds = table.shape if table.ndim == 2 else (0, 0)
    if count < 2 or seeds < 2:
        return [False] * count
    means = table.mean(axis=1)
    half = table[np.argsort(means, kind="stable")[: max(2, math.ceil(count / 2))]]
    rest = half - half.mean(axis=1, keepdims=True) - half.mean(axis=0) + half.mean()
    freedom = (len(half) - 1) * (seeds - 1)
    noise = math.sqrt((rest**2).sum() / freedom)
    bound = stdtrit(freedom, level) * noise * math.sqrt(2 / seeds)
    return list(means <= means.min() + bound)


def merged_search(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The `search` of several plans of one space: of each study what knows most suggestions."""
    found = [plan["search"] for plan in plans if plan.get("search")]
    if not found:
        return None
    studies: dict[str, Mapping[str, Any]] = {}
    for study in (study for search in found for study in search["studies"]):
        both = [studies.get(study["study"], study), study]
        studies[study["study"]] = max(both, key=_knowledge)
    return {**found[-1], "studies": list(studies.values())}


def _knowledge(study: Mapping[str, Any]) -> tuple[int, bool]:
    return study["suggested"], study["confirmation"] is not None


def merged_suggestions(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One record a suggestion, in order; the last of each counts."""
    merged = {(record["study"], record["number"]): dict(record) for record in records}
    return [merged[place] for place in sorted(merged)]


def _run_ids(suggestion: Mapping[str, Any]) -> list[str]:
    return [run["run_id"] for run in suggestion["runs"]]


def trained_ids(suggestions: Sequence[Mapping[str, Any]]) -> set[str]:
    """Ids of the runs of suggestions that were not stopped early."""
    return {run_id for one in suggestions if not one["pruned"] for run_id in _run_ids(one)}


def stopped_ids(suggestions: Sequence[Mapping[str, Any]]) -> set[str]:
    """Ids of the runs that are missing for good."""
    return {run_id for one in suggestions if one["pruned"] for run_id in _run_ids(one)}


def split_search(
    everything: Comparison,
    search: Mapping[str, Any],
    suggestions: Sequence[Mapping[str, Any]],
) -> tuple[Comparison, Found]:
    """The runs to compare, each variant at its best values, and all that was found.

    `everything` is tidied with the searched keys as `selected`. Compared are runs on the
    confirmation seeds as soon as there are some at the best values, before that those that were
    searched on.
    """
    runs = everything.runs
    studies = [_found_study(everything, search, study, suggestions) for study in search["studies"]]
    confirmed = [study.confirmed for study in studies if study.confirmed]
    at_best = {run_id for one in confirmed for run_id in one["best"]}
    at_fixed = {run_id for one in confirmed for run_id in one["fixed"]}
    is_fresh = runs["seed"].isin(search["confirm_seeds"])
    is_stored = runs["status"] != "missing"
    is_confirmed = bool((runs["run_id"].isin(at_best) & is_stored).any())
    if not is_confirmed:
        at_best = {run_id for study in studies if study.best for run_id in study.best.run_ids}
    is_searched = runs["run_id"].isin(trained_ids(suggestions) | at_best | at_fixed)
    # A variant that has a study is in the comparison at its best alone.
    is_plain = ~is_searched.groupby([runs[name] for name in GROUP]).transform("any")
    is_compared = (is_plain | runs["run_id"].isin(at_best)) & (is_fresh == is_confirmed)
    compared = runs[is_compared].reset_index(drop=True)
    has_baseline = (compared["label"] == everything.baseline).any()
    baseline = everything.baseline if has_baseline else None
    ranges = search["keys"]
    return replace(everything, runs=compared, baseline=baseline), Found(
        studies,
        tuple(ranges),
        frozenset(key for key, of in ranges.items() if of["log"]),
        tuple(sorted({seed for study in search["studies"] for seed in study["seeds"]})),
        tuple(search["confirm_seeds"]),
        everything,
        is_confirmed,
    )


def _found_study(
    everything: Comparison,
    search: Mapping[str, Any],
    study: Mapping[str, Any],
    suggestions: Sequence[Mapping[str, Any]],
) -> FoundStudy:
    runs = everything.runs.set_index("run_id")
    status, loss = runs["status"], runs[everything.metric.best]
    wanted = search["num_suggestions"]
    made = [
        one for one in suggestions if one["study"] == study["study"] and one["number"] <= wanted
    ]
    tried = {
        repr(one["values"]): Tried(
            one["values"],
            [float(loss[run]) if status[run] == "finished" else None for run in _run_ids(one)],
            _run_ids(one),
        )
        for one in made
        if all(status.get(run_id, "missing") != "missing" for run_id in _run_ids(one))
    }
    return FoundStudy(
        study["name"],
        tuple(study["keys"]),
        wanted,
        len(made),
        sum(bool(one["pruned"]) for one in made),
        list(tried.values()),
        study["fixed"],
        study["confirmation"],
    )


def confirmations(found: Found) -> pd.DataFrame:
    """The best of each study against the baseline and its fixed values, on fresh seeds.

    One row a study and opponent. Columns: study, values and against as text, n pairs, wins, loss
    and loss_against (means over the pairs), mean_gap (positive favours the best), t_low and t_high
    (95 % interval), and verdict: ahead, behind, or undecided if the interval holds zero; null below
    two pairs.
    """
    metric = found.everything.metric.best
    finished = found.everything.runs[found.everything.runs["status"] == "finished"]
    losses = finished.set_index("run_id")[["seed", metric]]
    rows = []
    for study in found.studies:
        opponents = {"baseline": found.everything.baseline, "fixed": values_text(study.fixed)}
        for name, against in opponents.items():
            ids = study.confirmed or {}
            best, other = (
                losses[losses.index.isin(ids.get(side, []))].set_index("seed")[metric]
                for side in ("best", name)
            )
            pairs = pd.concat([other, best], axis=1, keys=["other", "best"], join="inner")
            if pairs.empty or against == study.name:
                continue
            gaps = (pairs["other"] - pairs["best"]).to_numpy(float)
            (low,), (high,) = t_interval(gaps[None])
            rows.append(
                {
                    "study": study.name,
                    "values": values_text(study.best.values if study.best else None),
                    "against": against,
                    "n": len(gaps),
                    "wins": int((gaps > 0).sum()),
                    "loss": float(pairs["best"].mean()),
                    "loss_against": float(pairs["other"].mean()),
                    "mean_gap": float(gaps.mean()),
                    "t_low": low,
                    "t_high": high,
                    "verdict": verdict(low, high),
                }
            )
    return pd.DataFrame(rows)


def values_text(values: Values | None) -> str:
    """Values as a report writes them: `gain 4.7, learning rate 0.001`."""
    return ", ".join(f"{axis_words(key)} {value_text(v)}" for key, v in (values or {}).items())
