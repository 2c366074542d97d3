"""The first sentences of a report, computed from its numbers."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from triplu_ray.compare import (
    NATS,
    Comparison,
    Metric,
    gap_statistics,
    over_settings,
    variant_summary,
)
from triplu_ray.report.axes import at_best, selection_axes
from triplu_ray.report.caveats import without_leaks
from triplu_ray.report.costs import (
    COST_WORDS,
    NO_VERDICT,
    cost_to_target,
    equal_cost_gaps,
    equal_cost_statistics,
)
from triplu_ray.report.model import axis_words
from triplu_ray.significance import DRAWN_PATTERNS, EXACT_SEEDS, verdict

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
    pairs, metric, statistics = comparison.pairs, comparison.metric, comparison.statistics
    statistics = statistics[statistics["n"] > 0].sort_values("mean_gap", ascending=False)
    if statistics.empty:
        return _first([prefix + line for line in _without_pairs(comparison)])
    baseline = str(comparison.baseline)
    if comparison.runs["setting"].nunique() > 1:
        pooled = gap_statistics(over_settings(pairs, metric), metric)
        lines = _by_settings(statistics, pooled, baseline, metric)
        return _first([prefix + line for line in lines])
    lines = [
        _one_setting(row, baseline, metric, len(statistics)) for _, row in statistics.iterrows()
    ]
    first = str(statistics["label"].iloc[0])
    equal = equal_cost_statistics(equal_cost_gaps(comparison, costs))
    equal = equal[equal["label"] == first]
    return [
        *_first([prefix + line for line in lines]),
        *_equal_cost(equal, first, baseline),
        *_targets(comparison, costs, targets, first, is_apart=bool(equal["is_apart"].any())),
    ]


def _first(lines: list[str]) -> list[str]:
    """A line a variant, as many as one reads, and how many more there are."""
    more = len(lines) - MAX_SENTENCES
    return [*lines[:MAX_SENTENCES], f"{more} more are below."] if more > 0 else lines


def _one_setting(row: "pd.Series[Any]", baseline: str, metric: Metric, variants: int) -> str:
    n, wins = int(row["n"]), int(row["wins"])
    of_seeds = f"of {n} seed" if n == 1 else f"of {n} seeds"
    clear = {
        "ahead": f"beats {baseline} in {wins} {of_seeds}: ",
        "behind": f"loses to {baseline} in {n - wins} {of_seeds}: ",
    }
    undecided = f"is undecided against {baseline}: ahead in {wins} {of_seeds}, "
    what = clear.get(str(verdict(row["t_low"], row["t_high"])), undecided)
    return f"{row['label']} {what}mean paired gap {_how_surely(row, metric, variants)}."


def _by_settings(
    statistics: pd.DataFrame, pooled: pd.DataFrame, baseline: str, metric: Metric
) -> list[str]:
    """A line a label, best first: its settings counted, its seeds' means over them judged."""
    surely = {
        row["label"]: _how_surely(row, metric, len(pooled)) for row in pooled.to_dict("records")
    }
    lines = []
    for label in statistics.groupby("label")["mean_gap"].mean().sort_values(ascending=False).index:
        mine = statistics[statistics["label"] == label]
        verdicts = list(map(verdict, mine["t_low"], mine["t_high"]))
        ahead, behind = verdicts.count("ahead"), verdicts.count("behind")
        highest, lowest = mine.iloc[0], mine.iloc[-1]
        gap = surely.get(label, "not known, for want of seeds with a pair in every setting")
        lines.append(
            f"{label} against {baseline} in {len(mine)} settings: ahead in {ahead}, behind in "
            f"{behind}, undecided in {len(mine) - ahead - behind}, each judged by itself, and "
            f"{mine['wins'].sum():.0f} of {mine['n'].sum():.0f} pairs won; gap over the settings "
            f"{gap}; from {lowest['mean_gap']:+.4f} ({lowest['setting']}) to "
            f"{highest['mean_gap']:+.4f} ({highest['setting']})."
        )
    return lines


def _how_surely(row: Any, metric: Metric, variants: int) -> str:
    """The mean gap with its interval and p values; `variants` are compared in all."""
    n, unit = int(row["n"]), "" if metric == NATS else f" {metric.words}"
    gap = f"{row['mean_gap']:+.4f}{unit}"
    if n == 1:
        return f"{gap}; one seed says nothing about luck"
    exact, most = "exact ", f"{n} seeds"
    if n > EXACT_SEEDS:
        exact, most = "", f"{DRAWN_PATTERNS:,} draws"
    gap += f" (95 % interval {row['t_low']:+.4f} to {row['t_high']:+.4f}), {exact}p "
    gap += f"{row['p_value']:.3g}"
    if row["p_value"] <= row["smallest_p"] * (1 + 1e-9):
        gap += f", the smallest that {most} can give"
    return gap + f", {row['p_holm']:.3g} after Holm over {variants} variants" * (variants > 1)


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
        for _, row in finished.iterrows()
    ]


def _equal_cost(rows: pd.DataFrame, label: str, baseline: str) -> list[str]:
    """Whether the advantage stands: the interval of the gaps lies above zero.

    Of the best of variants that are all behind at equal tokens, whether the disadvantage does.
    """
    told = rows[rows["mean_gap"].notna()]
    if told["verdict"].isna().any():
        gaps = [
            f"{row['mean_gap']:+.4f} at equal {COST_WORDS[row['cost']]}"
            for _, row in told.iterrows()
        ]
        return [f"One seed cannot tell whether {label}'s advantage stands: it is {_listed(gaps)}."]
    side = "behind" if list(told["verdict"][:1]) == ["behind"] else "ahead"
    stands = [_at_equal(row, side) for _, row in told[told["verdict"] == side].iterrows()]
    fails = [_at_equal(row, side) for _, row in told[told["verdict"] != side].iterrows()]
    clauses = [f"stands {_listed(stands)}"] if stands else []
    clauses += [f"is not shown {_listed(fails)}"] if fails else []
    untold = rows[rows["mean_gap"].isna()]
    for column, reason in NO_VERDICT.items():
        costs = [f"at equal {COST_WORDS[cost]}" for cost in untold.loc[untold[column], "cost"]]
        clauses += [f"is not known {_listed(costs)}, {reason}"] if costs else []
        untold = untold[~untold[column]]
    if not clauses:
        return []
    noun = {"ahead": "advantage", "behind": "disadvantage"}[side]
    lines = [f"{label}'s {noun} {'; it '.join(clauses)}."]
    seconds = rows[rows["cost"] == "seconds"].iloc[0]
    if not seconds["is_apart"]:
        lines.append(
            f"The seconds of {label}'s runs are {seconds['ratio_low']:.2f} to "
            f"{seconds['ratio_high']:.2f} times those of {baseline}'s; what scatters there over "
            "seeds is the machine's load."
        )
    return lines


def _at_equal(row: "pd.Series[Any]", side: str) -> str:
    other = {"ahead": " lies above zero", "behind": " lies below zero", "undecided": " holds zero"}
    what = "" if row["verdict"] == side else other[row["verdict"]]
    if row["verdict"] == "undecided" and row["t_low"] > 0:
        what = " by seconds alone, which is load"
    return (
        f"at equal {COST_WORDS[row['cost']]} ({row['mean_gap']:+.4f}, {row['wins']:.0f}/{row['n']},"
        f" interval {row['t_low']:+.4f} to {row['t_high']:+.4f}{what}, p {row['p_value']:.3g})"
    )


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _targets(
    comparison: Comparison, costs: pd.DataFrame, targets: list[float], label: str, *, is_apart: bool
) -> list[str]:
    """The hardest target that all runs of the variant reached; no seconds of runs trained apart."""
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
        f"{other[cost] / row[cost]:.2f} times the {words}"
        for cost, words in COST_WORDS.items()
        if not (is_apart and cost == "seconds")
    ]
    return [f"{line}{other['label']} takes {', '.join(ratios)}."]
