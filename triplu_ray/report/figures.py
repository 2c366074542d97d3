"""The figures of a report, each drawn with every seed shown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from triplu_ray.compare import (
    Comparison,
    mean_gaps,
    settings,
    value_text,
)
from triplu_ray.report.axes import PLAIN, product_forms
from triplu_ray.report.costs import COST_WORDS
from triplu_ray.report.model import at, axis_words, named
from triplu_ray.report.style import BASELINE, OTHERS, colours, line_key, panels, step_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 8
MAX_SETTINGS = 6
MAX_COST_SETTINGS = 3
MAX_PAIR_PANELS = 12
MAX_TICKS = 8


def shown_labels(comparison: Comparison) -> list[str]:
    """The labels that a figure has room for: the baseline and the best of the others."""
    means = comparison.runs.groupby("label", sort=False)[comparison.metric.best].mean()
    is_baseline = means.index == comparison.baseline
    best = means.index[np.lexsort((means, ~is_baseline))][:MAX_LABELS]
    return [label for label in colours(means.index, comparison.baseline) if label in best]


def label_colours(comparison: Comparison) -> dict[str, str]:
    """A colour for each label: a distinct one where figures show it, one for all others."""
    others = dict.fromkeys(comparison.runs["label"], OTHERS)
    return others | colours(shown_labels(comparison), comparison.baseline)


def shown_settings(column: pd.Series[str], limit: int = MAX_SETTINGS) -> list[str]:
    """At most `limit` settings, spread evenly over all of them."""
    names = list(column.unique())
    return [names[place] for place in _spread(len(names), limit)]


def axis_names(comparison: Comparison, axis: str) -> list[str]:
    """Whom a figure along an axis may show: the baseline, then the others, best value first.

    These are labels, or families along the gain; those that have no degree or gain have no place.
    """
    name, runs = "family" if axis == "gain" else "label", comparison.runs
    others = runs[(runs[name] != comparison.baseline) & runs[axis].notna()]
    losses = others[comparison.metric.best].where(others["status"] == "finished")
    best = losses.groupby([others[name], others[axis]]).mean().groupby(level=0).min()
    baseline = [] if comparison.baseline is None else [comparison.baseline]
    return [*baseline, *best.sort_values(kind="stable").index]


def left_out(
    comparison: Comparison, context: Sequence[str], limit: int, names: Sequence[str] | None = None
) -> str:
    """What a figure with a panel for each setting of a context has no room for.

    `names` are all that it might show: the labels, unless they are `axis_names`.
    """
    count = settings(comparison.runs, context).nunique()
    variants = comparison.runs["label"].nunique() if names is None else len(names)
    text = f" Shown are {limit} of {count} settings." if count > limit else ""
    if variants > MAX_LABELS:
        text += f" Shown are the best {MAX_LABELS} of {variants} variants."
    return text


def left_out_pairs(comparison: Comparison) -> str:
    """The comparisons that `paired_dots` has no room for, by name."""
    table = mean_gaps(comparison.pairs)
    table = table[table["n"] > 0].reset_index(drop=True)
    rest = table.drop(index=_spread(len(table), MAX_PAIR_PANELS))
    names = named(at(row.label, row.setting) for row in rest.itertuples())
    return f" Left out of {len(table)} comparisons: {names}." if names else ""


def loss_curves(comparison: Comparison, costs: pd.DataFrame) -> Figure:
    """Validation loss by step: the mean over seeds, the range of the seeds, and each seed."""
    words = f"validation {comparison.metric.words}"
    return _curves_by_step(comparison, costs, shown_labels(comparison), words)


def gap_curves(comparison: Comparison, costs: pd.DataFrame) -> Figure:
    """Paired gap by step: baseline minus variant at the same seed and step; above 0 is better."""
    is_baseline = costs["label"] == comparison.baseline
    pair = ["setting", "seed", "step"]
    baseline = costs[is_baseline].set_index(pair)["loss"].rename("baseline_loss")
    gaps = costs[~is_baseline].join(baseline, on=pair, how="inner")
    gaps = gaps.assign(loss=gaps["baseline_loss"] - gaps["loss"])
    labels = [label for label in shown_labels(comparison) if label != comparison.baseline]
    figure = _curves_by_step(comparison, gaps, labels, f"gap to {comparison.baseline}")
    for ax in figure.axes:
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, -0.03 * high), max(high, -0.03 * low))
        ax.axhline(0, color=BASELINE, linewidth=1.2)
    return figure


def loss_against_costs(comparison: Comparison, costs: pd.DataFrame) -> Figure:
    """Validation loss against tokens, training FLOPs and seconds, one row a setting."""
    labels = shown_labels(comparison)
    palette = label_colours(comparison)
    shown = shown_settings(comparison.runs["setting"], limit=MAX_COST_SETTINGS)
    figure, axes = panels(3 * len(shown), 3, 3.4, 2.9)
    for place, setting in enumerate(shown):
        here = costs[(costs["setting"] == setting) & costs["label"].isin(labels)]
        for ax, (cost, words) in zip(axes[3 * place :], COST_WORDS.items(), strict=False):
            for label in labels:
                mine = here[here["label"] == label]
                # Seeds differ in their seconds, so at the mean ones there is no range of losses.
                _curve(ax, mine, cost, palette[label], has_band=cost != "seconds")
            _focus(ax, here, cost)
            ax.set_xlabel(words)
        axes[3 * place].set_title(short_setting(setting))
        for ax in axes[3 * place + 1 : 3 * place + 3]:
            ax.tick_params(labelleft=False)
    share_ylabel(axes, 3, f"validation {comparison.metric.words}")
    legend(figure, labels, palette)
    return figure


def paired_dots(comparison: Comparison) -> Figure:
    """Best loss of the baseline and of a variant, a line for each seed."""
    pairs, metric = comparison.pairs, comparison.metric
    pairs = pairs[pairs["pair"] == "paired"]
    table = mean_gaps(pairs)
    shown = table.iloc[_spread(len(table), MAX_PAIR_PANELS)]
    palette = label_colours(comparison)
    figure, axes = panels(len(shown), 4, 2.4, 3.0)
    for ax, (_, row) in zip(axes, shown.iterrows(), strict=True):
        here = pairs[(pairs["setting"] == row["setting"]) & (pairs["label"] == row["label"])]
        left, right = here[f"{metric.best}_baseline"], here[metric.best]
        ax.plot([0, 1], [left, right], color=palette[row["label"]], linewidth=1.0, alpha=0.55)
        for x, losses, label in ((0, left, comparison.baseline), (1, right, row["label"])):
            colour = palette[str(label)]
            ax.scatter(np.full(len(losses), x), losses, s=26, color=colour, zorder=3)
            ax.plot([x - 0.13, x + 0.13], [losses.mean()] * 2, color=colour, linewidth=2.2)
        ax.set_xlim(-0.4, 1.4)
        ax.set_xticks([0, 1], [wrapped(str(comparison.baseline)), wrapped(str(row["label"]))])
        ax.set_title(f"gap {row['mean_gap']:+.4f}, wins {row['wins']:.0f}/{row['n']:.0f}")
        if row["setting"]:
            ax.set_xlabel(short_setting(row["setting"], width=26))
    if table["setting"].nunique() == 1:
        _share_limits(axes, 4)
    share_ylabel(axes, 4, f"best validation {metric.words}")
    return figure


def gap_ranking(comparison: Comparison) -> Figure:
    """Mean gap to the baseline with its 95 % t interval and every seed: a row a variant."""
    pairs, table = comparison.pairs, comparison.statistics
    table = table[table["n"] > 0]
    shown = shown_settings(table["setting"])
    height = 0.7 + 0.21 * table.groupby("setting").size().max()
    figure, axes = panels(len(shown), 2, 6.8 if len(shown) == 1 else 4.6, height)
    palette = label_colours(comparison)
    for ax, setting in zip(axes, shown, strict=True):
        here = table[table["setting"] == setting].reset_index(drop=True)
        ax.axvline(0, color=BASELINE, linewidth=1.2)
        gaps_here = pairs[pairs["setting"] == setting]
        for place, row in enumerate(here.to_dict("records")):
            gaps = gaps_here.loc[gaps_here["label"] == row["label"], "gap"]
            colour = palette[row["label"]]
            ax.plot([row["t_low"], row["t_high"]], [place] * 2, color=colour)
            ax.scatter(gaps, [place + 0.3] * len(gaps), s=9, color=colour, linewidth=0)
            ax.scatter(row["mean_gap"], place, s=30, color=colour, marker="D", zorder=3)
        ax.set_yticks(here.index, here["label"])
        ax.set_ylim(len(here) - 0.3, -0.6)
        ax.grid(visible=False, axis="y")
        ax.set_title(short_setting(setting))
        ax.set_xlabel(f"gap to {comparison.baseline}")
    return figure


def loss_against_axis(comparison: Comparison, axis: str) -> Figure:
    """Best loss along one axis: the mean line and every seed, a panel for each other setting.

    `axis` is of the context, or `gain` or `degree`; a baseline without one is a level line. Plain
    products of one degree each are joined.
    """
    metric = comparison.metric
    runs = comparison.runs[comparison.runs["status"] == "finished"]
    rest = [key for key in comparison.context if key != axis]
    name = "family" if axis == "gain" else "label"
    runs = runs.assign(panel=settings(runs, rest), name=runs[name], loss=runs[metric.best])
    best = axis_names(comparison, axis)[:MAX_LABELS]
    names = comparison.runs[name]
    palette = colours(names[names.isin(best)], comparison.baseline)
    labels = list(palette)
    shown = shown_settings(runs["panel"])
    wide = len(shown) == 1
    figure, axes = panels(len(shown), 3, 6.4 if wide else 3.4, 4.0 if wide else 2.8)
    values = np.sort(runs[axis].dropna().unique().astype(float))
    for ax, setting in zip(axes, shown, strict=True):
        here = runs[runs["panel"] == setting]
        plain = here[product_forms(here) == PLAIN] if axis == "degree" else here[:0]
        if plain.groupby("degree")["label"].nunique().max() == 1:
            means = plain.groupby("degree")["loss"].mean()
            ax.plot(means.index, means, color=BASELINE, linewidth=1.0, alpha=0.6)
        for label in labels:
            mine = here[here["name"] == label]
            if mine[axis].notna().any():
                _axis_line(ax, mine, axis, palette[label])
            elif len(mine):
                losses = mine["loss"]
                ax.axhspan(
                    losses.min(), losses.max(), color=palette[label], alpha=0.13, linewidth=0
                )
                ax.axhline(losses.mean(), color=palette[label], linestyle="--")
        ax.set_title(short_setting(setting))
        ax.set_xlabel(axis_words(axis))
        if values[0] > 0 and values[-1] / values[0] >= 10:
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.xaxis.set_major_formatter("{x:g}")
        if len(values) <= MAX_TICKS:
            ax.set_xticks(values, [value_text(value) for value in values])
    share_ylabel(axes, 3, f"best validation {metric.words}")
    legend(figure, [label for label in labels if label in set(runs["name"])], palette)
    return figure


def _curves_by_step(
    comparison: Comparison, costs: pd.DataFrame, labels: Sequence[str], words: str
) -> Figure:
    palette = label_colours(comparison)
    column = comparison.runs["setting"]
    shown = shown_settings(column[column.isin(costs["setting"])])
    wide = len(shown) == 1
    figure, axes = panels(len(shown), 3, 6.8 if wide else 3.4, 3.8 if wide else 2.7)
    for ax, setting in zip(axes, shown, strict=True):
        here = costs[(costs["setting"] == setting) & costs["label"].isin(labels)]
        for label in labels:
            _curve(ax, here[here["label"] == label], "step", palette[label])
        _focus(ax, here, "step")
        ax.set_title(short_setting(setting))
        ax.set_xlabel("step")
    share_ylabel(axes, 3, words)
    legend(figure, labels, palette)
    return figure


def _curve(ax: Axes, runs: pd.DataFrame, x: str, colour: str, *, has_band: bool = True) -> None:
    """A line for each run, their range and their mean; runs share the steps they evaluate at."""
    if runs.empty:
        return
    loss = runs.pivot(index="step", columns="run_id", values="loss")
    cost = runs.assign(x=runs[x]).pivot(index="step", columns="run_id", values="x")
    mean_cost = cost.mean(axis=1)
    if loss.shape[1] > 1:
        ax.plot(cost.to_numpy(), loss.to_numpy(), color=colour, linewidth=0.6, alpha=0.45)
        low, high = loss.min(axis=1), loss.max(axis=1)
        if has_band:
            ax.fill_between(mean_cost, low, high, color=colour, alpha=0.14, linewidth=0)
    ax.plot(mean_cost, loss.mean(axis=1), color=colour)


def _axis_line(ax: Axes, runs: pd.DataFrame, axis: str, colour: str) -> None:
    means = runs.groupby(axis)["loss"].mean()
    marker = "_" if len(means) <= MAX_TICKS else None
    ax.plot(means.index, means, color=colour, linewidth=1.6, marker=marker, markersize=13)
    ax.scatter(runs[axis], runs["loss"], s=16, color=colour, alpha=0.75, linewidth=0)


def _focus(ax: Axes, costs: pd.DataFrame, x: str) -> None:
    """Leave out the steep start, in which all curves fall alike: the first quarter of the steps."""
    late = costs[(costs["step"] >= 0.25 * costs["step"].max()) & costs["loss"].notna()]
    if len(late) and late["loss"].max() > late["loss"].min() and late[x].max() > late[x].min():
        for limits, values in ((ax.set_xlim, late[x]), (ax.set_ylim, late["loss"])):
            margin = 0.03 * (values.max() - values.min())
            limits(values.min() - margin, values.max() + margin)
    step_ticks(ax)


def short_setting(setting: str, width: int = 44) -> str:
    """A setting with three digits a number, broken into lines."""
    rounded = re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.3g}", setting)
    return textwrap.fill(rounded, width)


def wrapped(label: str, width: int = 13) -> str:
    """A label broken into lines after underscores and spaces, where one of its parts ends."""
    lines = [""]
    for part in re.split(r"(?<=[_ ])", label):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _spread(count: int, limit: int) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, limit))})


def _share_limits(axes: Sequence[Axes], columns: int) -> None:
    limits = np.array([ax.get_ylim() for ax in axes])
    for place, ax in enumerate(axes):
        ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())
        ax.tick_params(labelleft=place % columns == 0)


def share_ylabel(axes: Sequence[Axes], columns: int, text: str) -> None:
    """The label of the panels at the left of each row."""
    for ax in axes[::columns]:
        ax.set_ylabel(text)


def legend(figure: Figure, labels: Sequence[str], palette: dict[str, str]) -> None:
    """One for all panels, above them."""
    handles = [line_key(palette[label], label, width=2.4) for label in labels]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(len(labels), 4))
