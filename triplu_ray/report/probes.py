"""What the selected models can do beside their loss: minimal pairs, arithmetic, adjacent tokens.

What is seen inside of PolyGLU and of the untied squared ReLU is in `branches`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from triplu_ray.compare import GROUP, Comparison, best_first
from triplu_ray.report import branches, figures
from triplu_ray.report.model import Column, Figure, Section, Table, by_itself
from triplu_ray.report.style import BASELINE, colours, panels
from triplu_ray.report.tables import setting_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

SLICES = {
    "seen_q1": "seen Q1",
    "seen_q2": "seen Q2",
    "seen_q3": "seen Q3",
    "seen_q4": "seen Q4",
    "unseen": "unseen",
}
"""Adjacent tokens from the lowest PMI in training to the highest, and those that never met."""


def probe_means(comparison: Comparison, probes: pd.DataFrame, probe: str) -> pd.DataFrame:
    """A probe's values over the seeds of finished runs, one row a setting, label and group.

    Columns: mean, sd (n - 1), seeds, and count, the items behind the value of one run. In the order
    of the comparison, and of the groups in `probes`.
    """
    finished = comparison.runs[comparison.runs["status"] == "finished"]
    mine = probes[(probes["probe"] == probe) & probes["value"].notna()]
    return (
        finished[["run_id", *GROUP]]
        .merge(mine, on="run_id")
        .groupby([*GROUP, "group"], sort=False)
        .agg(
            mean=("value", "mean"),
            sd=("value", "std"),
            seeds=("run_id", "nunique"),
            count=("count", "first"),
        )
        .reset_index()
    )


def accuracy_gaps(
    comparison: Comparison, probes: pd.DataFrame, probe: str, group: str = "all"
) -> pd.DataFrame:
    """How far a share of right answers lies above the baseline's, one row a setting and label.

    Columns: gap, variant minus baseline at the same seed, its 95 % paired t interval gap_low and
    gap_high, and gap_wins of gap_n pairs. Empty without a baseline.
    """
    mine = probes[(probes["probe"] == probe) & (probes["group"] == group)]
    right = comparison.runs["run_id"].map(mine.set_index("run_id")["value"])
    # Of what is wrong less is better, as of a loss.
    wrong = replace(comparison, runs=comparison.runs.assign(wrong=1.0 - right)).measured_by("wrong")
    table = wrong.statistics
    names = {"mean_gap": "gap", "t_low": "gap_low", "t_high": "gap_high"}
    names |= {"wins": "gap_wins", "n": "gap_n"}
    return table.rename(columns=names)[[*GROUP, *names.values()]]


def slice_gaps(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """Gaps by PMI slice in bits a token, one row a setting, label and slice (TriPLU, table 6).

    Columns: those of `gap_statistics` on the losses of a slice; loss and baseline_loss, their means
    over the pairs; count, the tokens of the slice. The paper gives neither counts nor intervals.
    """
    mine = probes[probes["probe"] == "pmi"].set_index("run_id")
    tables = [
        _gaps_in_slice(comparison, mine[mine["group"] == name]).assign(slice=name)
        for name in SLICES
        if (mine["group"] == name).any()
    ]
    if not tables:
        return pd.DataFrame(columns=[*GROUP, "slice", "mean_gap"])
    gaps = pd.concat(tables, ignore_index=True)
    # Stable: slices stay in order within their variant.
    place = gaps.groupby(GROUP, sort=False).ngroup()
    return gaps.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)


def _gaps_in_slice(comparison: Comparison, probes: pd.DataFrame) -> pd.DataFrame:
    """`slice_gaps` of the rows of one slice, by run id."""
    runs = comparison.runs
    known = {column: runs["run_id"].map(probes[column]) for column in ("value", "count")}
    sliced = replace(comparison, runs=runs.assign(**known)).measured_by("value")
    paired = sliced.pairs[sliced.pairs["pair"] == "paired"].groupby(GROUP)
    means = paired.agg(loss=("value", "mean"), baseline_loss=("value_baseline", "mean"))
    counts = sliced.runs.groupby(GROUP)["count"].first()
    table = sliced.statistics
    for more in (means, counts):
        table = table.merge(more.reset_index(), on=GROUP)
    return table


def probe_quantities(
    comparison: Comparison, probes: pd.DataFrame, gaps: pd.DataFrame
) -> list[pd.DataFrame]:
    """What the papers' tables give of the probes, by setting and label; `gaps` are `slice_gaps`.

    Columns: minimal_pairs (%), exact_match, multiplication, `pmi_gap_` and a slice.
    """
    wide = [
        _by_group(probe_means(comparison, probes, "minimal_pairs"))
        .mul(100)
        .rename(columns={"all": "minimal_pairs"}),
        _by_group(probe_means(comparison, probes, "arithmetic")).rename(
            columns={"all": "exact_match"}
        ),
        gaps.pivot(index=GROUP, columns="slice", values="mean_gap").add_prefix("pmi_gap_"),
    ]
    return [frame.reset_index() for frame in wide]


def probes_section(
    comparison: Comparison, probes: pd.DataFrame, gaps: pd.DataFrame
) -> list[Section]:
    """The section about everything that was probed, if anything was; `gaps` are `slice_gaps`."""
    tables = [
        *_minimal_pairs_table(comparison, probes),
        *_arithmetic_table(comparison, probes),
        *_slice_table(comparison, gaps),
        *branches.branch_tables(comparison, probes),
    ]
    drawn = branches.branch_figures(comparison, probes)
    if len(gaps):
        figure = Figure(
            "pmi_gaps",
            f"Gap to {comparison.baseline} in bits a token by how strongly adjacent tokens attract "
            "each other in training: mean and 95 % paired t interval over seeds."
            + figures.left_out(comparison, comparison.context, figures.MAX_SETTINGS),
            lambda: _draw_slices(comparison, gaps),
        )
        drawn = [figure, *drawn]
    return [Section("Probes", tables=tables, figures=drawn)] if tables else []


def _minimal_pairs_table(comparison: Comparison, probes: pd.DataFrame) -> list[Table]:
    """As in TriPLU's table 2, with the gap to the baseline and the categories beside it."""
    means = probe_means(comparison, probes, "minimal_pairs")
    whole = means[means["group"] == "all"]
    if whole.empty:
        return []
    parts = [group for group in means["group"].unique() if group != "all"]
    gaps = accuracy_gaps(comparison, probes, "minimal_pairs")
    frame = whole.merge(_by_group(means).reset_index(), on=GROUP).merge(gaps, how="left", on=GROUP)
    percent = ["all", "sd", *parts, "gap", "gap_low", "gap_high"]
    frame[percent] *= 100
    frame = best_first(frame, -frame["all"])
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column(_counted("accuracy %", means, "all"), ("all",), ".1f"),
        Column("SD", ("sd",), ".1f"),
        *_gap_columns(comparison, "+.1f"),
        Column("runs", ("seeds",), "d"),
        *(Column(_counted(part.replace("_", " "), means, part), (part,), ".1f") for part in parts),
    ]
    note = (
        "How often the right sentence of a pair is the likelier one, by chance 50 %: means over "
        "finished seeds, of all pairs and by category, in brackets how many pairs."
        f"{_gap_note(comparison, frame, 'percentage points')}"
    )
    return [Table("minimal_pairs", "Minimal pairs", frame, columns, note, raw=means)]


def _arithmetic_table(comparison: Comparison, probes: pd.DataFrame) -> list[Table]:
    """As in TriPLU's table 12, with the gaps to the baseline."""
    means = probe_means(comparison, probes, "arithmetic")
    whole = means[means["group"] == "all"]
    if whole.empty:
        return []
    gaps = accuracy_gaps(comparison, probes, "arithmetic")
    products = accuracy_gaps(comparison, probes, "arithmetic", "multiplication")
    gaps = gaps.merge(products, on=GROUP, suffixes=("", "_product"))
    frame = whole.merge(_by_group(means).reset_index(), on=GROUP).merge(gaps, how="left", on=GROUP)
    frame = best_first(frame, -frame["all"])
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column(_counted("exact match", means, "all"), ("all",), ".3f"),
        Column("SD", ("sd",), ".3f"),
        *_gap_columns(comparison, "+.3f"),
        Column(_counted("multiplication", means, "multiplication"), ("multiplication",), ".3f"),
        *_gap_columns(comparison, "+.3f", "_product"),
        Column("runs", ("seeds",), "d"),
    ]
    note = (
        "Share of greedy answers that are right to their end: means over finished seeds, in "
        f"brackets how many prompts.{_gap_note(comparison, frame, 'that share', 2)}"
    )
    return [Table("arithmetic", "Arithmetic", frame, columns, note, raw=means)]


def _counted(words: str, means: pd.DataFrame, group: str) -> str:
    """A heading with the number of items behind a run's value of a group."""
    counts = means.loc[means["group"] == group, "count"].dropna()
    return f"{words} ({counts.iloc[0]:.0f})" if counts.nunique() == 1 else words


def _gap_columns(comparison: Comparison, spec: str, suffix: str = "") -> list[Column]:
    """Those of `accuracy_gaps`, where there is a baseline."""
    if comparison.baseline is None:
        return []
    return [
        Column(f"gap to {comparison.baseline}", (f"gap{suffix}",), spec),
        Column("95 % interval (t)", (f"gap_low{suffix}", f"gap_high{suffix}"), spec),
        Column("wins", (f"gap_wins{suffix}", f"gap_n{suffix}"), ".0f", "/"),
    ]


def _gap_note(comparison: Comparison, frame: pd.DataFrame, unit: str, kinds: int = 1) -> str:
    if comparison.baseline is None:
        return ""
    return (
        f" Gap is variant minus {comparison.baseline} at the same seed, in {unit}; positive "
        f"favours the variant.{by_itself(kinds * frame['gap_low'].count())}"
    )


def _slice_table(comparison: Comparison, gaps: pd.DataFrame) -> list[Table]:
    if gaps.empty:
        return []
    frame = gaps.assign(words=gaps["slice"].map(SLICES))
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column("pairs", ("words",)),
        Column("tokens", ("count",), ",.0f"),
        Column("gap", ("mean_gap",), "+.4f"),
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        Column("wins", ("wins", "n"), "d", "/"),
        Column("bits a token", ("loss",), ".4f"),
        Column(f"{comparison.baseline}", ("baseline_loss",), ".4f"),
    ]
    note = (
        "Loss in bits a token by the token and the one before it: pairs seen in training in "
        "quartiles of their pointwise mutual information, lowest first, and pairs unseen there. "
        f"Gap is {comparison.baseline} minus variant at the same seed; tokens are those of the "
        "heldout text, or of the validation text where there is none."
        f"{by_itself(frame['t_low'].count())}"
    )
    return [Table("pmi_gaps", "Loss by adjacent tokens", frame, columns, note)]


def _draw_slices(comparison: Comparison, gaps: pd.DataFrame) -> MatplotlibFigure:
    """Mean gaps with their intervals by slice, a panel for each setting."""
    palette = colours(comparison.runs["label"], comparison.baseline)
    known = set(gaps["label"])
    labels = [label for label in figures.shown_labels(comparison) if label in known]
    shown = figures.shown_settings(gaps["setting"])
    wide = len(shown) == 1
    figure, axes = panels(len(shown), 3, 6.4 if wide else 3.4, 3.6 if wide else 2.8)
    for ax, setting in zip(axes, shown, strict=True):
        ax.axhline(0, color=BASELINE, linewidth=1.2)
        for place, label in enumerate(labels):
            mine = gaps[(gaps["setting"] == setting) & (gaps["label"] == label)]
            x = mine["slice"].map(list(SLICES).index) + 0.12 * (place - (len(labels) - 1) / 2)
            half = ((mine["t_high"] - mine["t_low"]) / 2).fillna(0.0)
            ax.errorbar(
                x, mine["mean_gap"], half, fmt="o", markersize=4, capsize=2.5, color=palette[label]
            )
        ax.set_xticks(range(len(SLICES)), list(SLICES.values()))
        ax.set_title(figures.short_setting(setting))
    figures.share_ylabel(axes, 3, f"gap to {comparison.baseline}, bits a token")
    figures.legend(figure, labels, palette)
    return figure


def _by_group(means: pd.DataFrame) -> pd.DataFrame:
    """Means of `probe_means` with a column for each group."""
    return means.pivot(index=GROUP, columns="group", values="mean")
