"""What the variants reach along one axis: a context key such as learning_rate, or the gain."""

from dataclasses import replace

import numpy as np
import pandas as pd

from triplu_ray.compare import Comparison, settings

PLAIN = "plain"
"""The form of a product that has neither norm nor gate nor learned gain."""


def free_axes(comparison: Comparison) -> list[str]:
    """Numbers of the context that no name in it decides, as a corpus may decide the steps."""
    runs = comparison.runs
    numbers = [key for key in comparison.context if pd.api.types.is_numeric_dtype(runs[key])]
    names = [key for key in comparison.context if key not in numbers]
    return [
        axis
        for axis in numbers
        if not any((runs.groupby(name, dropna=False)[axis].nunique() <= 1).all() for name in names)
    ]


def selection_axes(comparison: Comparison) -> list[str]:
    """The axes along which a variant's best value is picked: learning_rate, gain."""
    axes = [axis for axis in free_axes(comparison) if axis == "learning_rate"]
    gains = comparison.runs.groupby(["setting", "family"])["gain"].nunique()
    return [*axes, "gain"] if (gains > 1).any() else axes


def at_best(comparison: Comparison, axis: str) -> Comparison:
    """Keep each variant at the value of an axis where its mean loss is lowest.

    The axis leaves the context (or, for the gain, the labels), so that a pair is the baseline at
    its best against the variant at its best.
    """
    means = axis_means(comparison, axis)
    runs, rest, name = _without_axis(comparison, axis)
    best = means[means["is_best"]][["setting", name, axis]]
    runs = runs.merge(best, on=["setting", name, axis])
    is_baseline = comparison.runs["label"] == comparison.baseline
    baselines = comparison.runs.loc[is_baseline, name].unique()
    return replace(
        comparison,
        runs=runs.assign(label=runs[name]),
        context=rest,
        baseline=baselines[0] if len(baselines) else None,
    )


def axis_means(comparison: Comparison, axis: str) -> pd.DataFrame:
    """Mean losses along an axis, one row a setting (without the axis), variant and value.

    `axis` is one of the context, such as learning_rate, or `gain`. The best value has the lowest
    mean best loss among those where every run finished (or among all, if there is none). Columns:
    setting, label (family for the gain), axis, runs, finished, the metric's two mean losses,
    is_best, num_values, and edge: lowest or highest if the best value lies at the grid's end.
    """
    losses = comparison.metric.losses
    runs, _, name = _without_axis(comparison, axis)
    group = ["setting", name]
    finished = runs["status"] == "finished"
    table = (
        runs.assign(**{loss: runs[loss].where(finished) for loss in losses}, finished=finished)
        .groupby([*group, axis], sort=False, dropna=False)
        .agg(
            runs=("seed", "size"),
            finished=("finished", "sum"),
            **{loss: (loss, "mean") for loss in losses},
        )
        .reset_index()
    )
    incomplete = (table["finished"] < table["runs"]).rename("incomplete")
    ranked = table.join(incomplete)[table["finished"] > 0]
    ranked = ranked.sort_values(["incomplete", comparison.metric.best], kind="stable")
    table["is_best"] = table.index.isin(ranked.drop_duplicates(group).index)
    values = table.groupby(group, sort=False)[axis]
    table["num_values"] = values.transform("nunique")
    is_edge = table["is_best"] & (table["num_values"] > 1)
    lowest, highest = (table[axis] == values.transform(end) for end in ("min", "max"))
    table["edge"] = np.select([is_edge & lowest, is_edge & highest], ["lowest", "highest"], "")
    return table


def product_forms(runs: pd.DataFrame) -> "pd.Series[str]":
    """What a layer with a degree is beside it: PLAIN, normed, with learned gain, gated product."""
    kind = runs["ffn.kind"].str.replace("_", " ")
    options = {"ffn.branch_norm": "normed", "ffn.learned_gain": "with learned gain"}
    form = pd.Series("", runs.index)
    for key, words in options.items():
        if key in runs:
            form += runs[key].map({True: f" {words}"}).fillna("")
    return kind.where(kind != "product", form.str.strip().replace("", PLAIN))


def _without_axis(comparison: Comparison, axis: str) -> tuple[pd.DataFrame, tuple[str, ...], str]:
    """The runs with settings that leave the axis out, the rest of the context, the name column."""
    if axis == "gain":
        return comparison.runs, comparison.context, "family"
    rest = tuple(key for key in comparison.context if key != axis)
    runs = comparison.runs.assign(setting=settings(comparison.runs, rest))
    return runs, rest, "label"
