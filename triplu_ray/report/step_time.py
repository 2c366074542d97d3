"""What a step takes beside what it computes: measured seconds against counted FLOPs."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from triplu_ray.compare import GROUP, Comparison, variant_summary
from triplu_ray.report.model import Column, Table
from triplu_ray.report.tables import setting_column

FAR_OFF = 1.5
"""By this factor time and FLOPs may disagree before a table points at it."""


def step_times(comparison: Comparison) -> pd.DataFrame:
    """Time and FLOPs by variant, and both over the baseline's, one row a setting and label.

    Columns: milliseconds_per_step, the median over finished runs of seconds over steps, which are
    tokens / (batch_size x context_length); relative_time, the median over seeds of a run's over the
    baseline's at the same seed, time_low and time_high, the least and the most of them;
    flops_per_token of the whole model, forward, and ffn_flops_per_token of one layer;
    relative_flops and relative_ffn_flops over the baseline's; time_over_flops, relative_time /
    relative_flops.
    """
    runs = comparison.runs[comparison.runs["status"] == "finished"]
    steps = runs["tokens"] / (runs["batch_size"] * runs["context_length"]).astype(float)
    runs = runs.assign(milliseconds=1000 * runs["seconds"] / steps)
    baseline_runs = runs[runs["label"] == comparison.baseline].set_index(["setting", "seed"])
    beside = baseline_runs["milliseconds"].rename("beside")
    runs = runs.join(beside, on=["setting", "seed"])
    table = (
        runs.assign(relative=runs["milliseconds"] / runs["beside"])
        .groupby(GROUP, sort=False)
        .agg(
            milliseconds_per_step=("milliseconds", "median"),
            relative_time=("relative", "median"),
            time_low=("relative", "min"),
            time_high=("relative", "max"),
            flops_per_token=("flops_per_token", "first"),
            ffn_flops_per_token=("ffn_flops_per_token", "first"),
        )
        .reset_index()
    )
    baseline = table[table["label"] == comparison.baseline].set_index("setting")
    for relative, column in (
        ("relative_flops", "flops_per_token"),
        ("relative_ffn_flops", "ffn_flops_per_token"),
    ):
        table[relative] = table[column] / table["setting"].map(baseline[column]).astype(float)
    table["time_over_flops"] = table["relative_time"] / table["relative_flops"]
    return table


def untied_costs(comparison: Comparison, similarity: pd.DataFrame) -> pd.DataFrame:
    """Squared ReLU, where it is the baseline, and its untied forms, one row a setting and label.

    Columns: those of `step_times`, hidden, the metric's mean losses, layer_params, the parameters
    of one layer, and the column of `similarity`, which is `branches.mean_similarity`.
    """
    runs = comparison.runs
    untied = runs.loc[runs["ffn.kind"] == "untied_squared_relu", "label"].unique()
    baseline_kinds = set(runs.loc[runs["label"] == comparison.baseline, "ffn.kind"])
    is_tied = baseline_kinds == {"squared_relu"}
    labels = [comparison.baseline, *untied] if len(untied) and is_tied else []
    summary = variant_summary(comparison)[[*GROUP, "hidden", *comparison.metric.losses]]
    times = step_times(comparison)
    table = times[times["label"].isin(labels)].merge(summary, on=GROUP)
    # Of these layers every parameter belongs to a projection and counts twice.
    table["layer_params"] = table["ffn_flops_per_token"] / 2
    return table.merge(similarity, how="left", on=GROUP)


def step_time_tables(comparison: Comparison, similarity: pd.DataFrame) -> list[Table]:
    """Time against FLOPs, where there is a baseline; squared ReLU against its untied form."""
    times = step_times(comparison)
    times = times[times["relative_time"].notna()].reset_index(drop=True)
    if times["label"].nunique() < 2:
        return []
    return [_time_table(comparison, times), *_untied_table(comparison, similarity)]


def off_by(ratio: "pd.Series[float]") -> npt.NDArray[np.str_]:
    """`slower` or `faster` where time and FLOPs disagree, else empty."""
    return np.select([ratio > FAR_OFF, ratio < 1 / FAR_OFF], ["slower", "faster"], "")


def _time_table(comparison: Comparison, times: pd.DataFrame) -> Table:
    frame = times.assign(off=off_by(times["time_over_flops"]))
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column("ms a step", ("milliseconds_per_step",), ",.2f"),
        Column("relative time", ("relative_time",), ".2f"),
        Column("over seeds", ("time_low", "time_high"), ".2f"),
        Column("relative FLOPs", ("relative_flops",), ".3f"),
        Column("time / FLOPs", ("time_over_flops",), ".2f"),
        Column("", ("off",)),
    ]
    note = (
        "Training time a step: the median over finished runs of a run's share of its cohort's "
        f"time. Relative time is over that of {comparison.baseline} at the same seed, the median "
        "and the range over seeds; where these scatter, or a pair was not trained side by side, "
        "it is load too. FLOPs are the whole model's, forward (matrix products; nothing "
        f"elementwise), over {comparison.baseline}'s. Slower or faster: than the FLOPs say, by a "
        f"factor of more than {FAR_OFF}."
    )
    return Table("time_against_flops", "Time against FLOPs", frame, columns, note)


def _untied_table(comparison: Comparison, similarity: pd.DataFrame) -> list[Table]:
    frame, metric = untied_costs(comparison, similarity), comparison.metric
    if frame.empty:
        return []
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column("width", ("hidden",), ".0f"),
        Column("FFN parameters a layer", ("layer_params",), ",.0f"),
        Column("FFN FLOPs", ("ffn_flops_per_token",), ",.0f"),
        Column("relative", ("relative_ffn_flops",), ".3f"),
        Column("relative FLOPs", ("relative_flops",), ".3f"),
        Column("ms a step", ("milliseconds_per_step",), ",.2f"),
        Column("relative time", ("relative_time",), ".2f"),
        Column("over seeds", ("time_low", "time_high"), ".2f"),
        Column("similarity", ("similarity",), "+.2f"),
        Column(f"best {metric.words}", (metric.best,), ".4f"),
        Column(f"final {metric.words}", (metric.final,), ".4f"),
    ]
    note = (
        "Two weight matrices in place of one squared: 1.5 times the layer's parameters and FLOPs "
        "at the same width. Relative is of the layer, relative FLOPs of the whole model; "
        "similarity is the mean cosine of a unit's two rows at the end of training, over layers "
        "and seeds."
    )
    return [Table("untied", "Squared ReLU and its untied form", frame, columns, note)]
