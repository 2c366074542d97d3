"""The first sentences of a report, computed from its numbers."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from triplu_ray.compare import (
    NATS,
    Comparison,
    gap_statistics,
    paired_gaps,
    variant_summary,
)
from triplu_ray.report.axes import at_best, selection_axes
from triplu_ray.report.caveats import without_leaks
from triplu_ray.report.costs import (
    COST_WORDS,
    cost_to_target,
    equal_cost_gaps,
    equal_cost_statistics,
)
from triplu_ray.report.model import axis_words
from triplu_ray.significance import EXACT_SEEDS

MAX_SENTENCES = 4


def headline(comparison: Comparison, costs: pd.DataFrame, targets: list[float]) -> list[str]:
    """What came out: who wins, by how much, how surely, and whether at equal cost too.

    `costs` are `evaluation_costs` of the comparison. Where a learning rate or a gain was varied,
    each variant is taken at its best one. Variants that see later tokens are left to the tables.
    """
    comparison = without_leaks(comparison)
    axes = selection_axes(comparison)
    prefix = ""
    if axes:
        words = " and ".join(axis_words(axis) for axis in axes)
        prefix = f"Each variant at its best {words}: "
    for axis in axes:
        comparison = at_best(comparison, axis)
    statistics = gap_statistics(paired_gaps(comparison), comparison.metric)
    statistics = statistics[statistics["n"] > 0].sort_values("mean_gap", ascending=False)
    if statistics.empty:
        return [prefix + line for line in _without_pairs(comparison)]
    baseline = str(comparison.baseline)
    if comparison.runs["setting"].nunique() > 1:
        return [prefix + line for line in _by_settings(statistics, baseline)]
    unit = "" if comparison.metric == NATS else f" {comparison.metric.words}"
    lines = [prefix + _one_setting(row, baseline, unit) for _, row in statistics.iterrows()]
    if len(lines) > MAX_SENTENCES:
        lines = [*lines[:MAX_SENTENCES], f"{len(lines) - MAX_SENTENCES} more variants are below."]
    first = str(statistics["label"].iloc[0])
    lines += _equal_cost(comparison, costs, first, baseline)
    return lines + _targets(comparison, costs, targets, first)


def _one_setting(row: "pd.Series[float]", baseline: str, unit: str) -> str:
    n, wins = int(row["n"]), int(row["wins"])
    seeds = f"{n} seed" if n == 1 else f"{n} seeds"
    is_ahead = row["mean_gap"] > 0
    ahead = f"beats {baseline} in {wins}" if is_ahead else f"loses to {baseline} in {n - wins}"
    line = f"{row['label']} {ahead} of {seeds}: mean paired gap {row['mean_gap']:+.4f}{unit}"
    if n == 1:
        return f"{line}; one seed says nothing about luck."
    line += f" (95 % interval {row['t_low']:+.4f} to {row['t_high']:+.4f})"
    least = row["p_value"] <= row["smallest_p"] * (1 + 1e-9)
    bound = f"the smallest that {seeds} can give" if least else f"{row['p_holm']:.3g} after Holm"
    exact = "exact " if n <= EXACT_SEEDS else ""
    return f"{line}, {exact}p {row['p_value']:.3g}, {bound}."


def _by_settings(statistics: pd.DataFrame, baseline: str) -> list[str]:
    lines = []
    for label, rows in statistics.groupby("label", sort=False):
        ahead = int((rows["mean_gap"] > 0).sum())
        highest, lowest = rows.iloc[0], rows.iloc[-1]
        lines.append(
            f"{label} is ahead of {baseline} on the mean in {ahead} of {len(rows)} settings and in "
            f"{rows['wins'].sum():.0f} of {rows['n'].sum():.0f} pairs; the mean gap goes from "
            f"{lowest['mean_gap']:+.4f} ({lowest['setting']}) to {highest['mean_gap']:+.4f} "
            f"({highest['setting']})."
        )
    return lines[:MAX_SENTENCES]


def _without_pairs(comparison: Comparison) -> list[str]:
    summary, metric = variant_summary(comparison), comparison.metric
    finished = summary[summary["finished"] > 0].sort_values(metric.best)
    if finished.empty:
        return [
            f"No run finished: {summary['diverged'].sum()} diverged, "
            f"{summary['missing'].sum()} are missing."
        ]
    return [
        f"{row.label} has a mean best {metric.words} of {row[metric.best]:.4f} over {row.finished} "
        f"finished runs{f' at {row.setting}' if row.setting else ''}; nothing is paired with it."
        for _, row in finished.head(MAX_SENTENCES).iterrows()
    ]


def _equal_cost(
    comparison: Comparison, costs: pd.DataFrame, label: str, baseline: str
) -> list[str]:
    """Whether the advantage stands: the interval of the gaps lies above zero."""
    table = equal_cost_statistics(equal_cost_gaps(comparison, costs))
    rows = table[table["label"] == label]
    if rows["verdict"].isna().any():
        gaps = [
            f"{row['mean_gap']:+.4f} at equal {COST_WORDS[row['cost']]}"
            for _, row in rows.iterrows()
        ]
        return [f"One seed cannot tell whether {label}'s advantage stands: it is {_listed(gaps)}."]
    stands = [_at_equal(row) for _, row in rows[rows["verdict"] == "ahead"].iterrows()]
    fails = [_at_equal(row) for _, row in rows[rows["verdict"] != "ahead"].iterrows()]
    parts = [f"stands {_listed(stands)}"] if stands else []
    parts += [f"{'it ' if stands else ''}is not shown {_listed(fails)}"] if fails else []
    seconds = rows[rows["cost"] == "seconds"].iloc[0]
    return [
        f"{label}'s advantage {'; '.join(parts)}.",
        f"The seconds of {label}'s runs are {seconds['ratio_low']:.2f} to "
        f"{seconds['ratio_high']:.2f} times those of {baseline}'s; what scatters there over seeds "
        "is the machine's load.",
    ]


def _at_equal(row: "pd.Series[Any]") -> str:
    where = {"ahead": "", "undecided": " holds zero", "behind": " lies below zero"}[row["verdict"]]
    return (
        f"at equal {COST_WORDS[row['cost']]} ({row['mean_gap']:+.4f}, {row['wins']}/{row['n']}, "
        f"interval {row['t_low']:+.4f} to {row['t_high']:+.4f}{where}, p {row['p_value']:.3g})"
    )


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _targets(
    comparison: Comparison, costs: pd.DataFrame, targets: list[float], label: str
) -> list[str]:
    """The hardest target that all runs of the variant reached."""
    if not targets:
        return []
    table = cost_to_target(comparison, costs, targets)
    mine = table[(table["label"] == label) & table["tokens"].notna()]
    if mine.empty:
        return [f"No target was reached by all runs of {label}."]
    row = mine.sort_values("target").iloc[0]
    same = (table["label"] == comparison.baseline) & (table["target"] == row["target"])
    target = f"{comparison.metric.one} of {row['target']:g}"
    line = f"{label} reaches {target} in all {row['trained']} runs, "
    line += f"after {row['tokens'] / 1e6:.2f} M tokens on the mean; "
    other = table[same].iloc[0]
    if other["reached"] < other["trained"]:
        return [f"{line}{other['label']} in {other['reached']} of {other['trained']}."]
    ratios = [
        f"{other[cost] / row[cost]:.2f} times the {words}" for cost, words in COST_WORDS.items()
    ]
    return [f"{line}{other['label']} takes {', '.join(ratios)}."]
