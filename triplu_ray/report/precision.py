"""The same runs in two precisions: what rounding changes, beside what another seed changes."""

import json
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd

from triplu_ray.added_keys import with_added_keys
from triplu_ray.compare import (
    BITS_PER_BYTE,
    GROUP,
    NATS,
    Comparison,
    Metric,
    best_first,
    is_among,
    settings,
)
from triplu_ray.report.model import Column, Section, Table
from triplu_ray.report.tables import setting_column

PRECISIONS = ("fp32", "tf32", "bf16")
"""From exact to coarse; of two, the coarser is set against the more exact."""

ORIGIN = {"git_sha": "Code", "hardware": "Hardware"}

TWIN_COLUMNS = [
    *("config", "corpus_sha256", "status", "finished_at"),
    *(metric.best for metric in (NATS, BITS_PER_BYTE)),
    *ORIGIN,
]
"""What `find_twins` needs of the table `runs`."""

NOT_COMPARED = ("precision", "train_file", "validation_file")
"""Twins may differ in these keys; of the text only what it says counts, as in a run's id."""


def find_twins(comparison: Comparison, stored: pd.DataFrame) -> pd.DataFrame:
    """The stored runs of a comparison that exist in several precisions, and their twins.

    Twins have the same configuration but for the precision, and the same corpus; `stored` is the
    table `runs` with TWIN_COLUMNS, and a twin may belong to any space. Of equal runs in one
    precision that of the comparison counts, else the latest finished. Columns: those of `stored`,
    loss (the metric's best), precision, identity (equal for twins), label, seed, setting (without
    the precision), and is_own, whether the run is one of the comparison; in its order.
    """
    own_precision = comparison.runs.set_index("run_id")["precision"]
    is_own = is_among(stored["run_id"], own_precision.index)
    others = stored.loc[~is_own, "config"]
    precision = others.map(lambda config: with_added_keys(config).get("precision"))
    precision = precision.reindex(stored.index).fillna(stored["run_id"].map(own_precision))
    if precision.nunique() < 2:  # as in most stores, and the identities of many runs take time
        stored, precision, is_own = stored[:0], precision[:0], is_own[:0]
    rows = stored.drop(columns="config").assign(
        loss=stored[comparison.metric.best],
        precision=precision,
        identity=stored["config"].map(_but_for_precision) + stored["corpus_sha256"],
        is_own=is_own,
        is_finished=stored["status"] == "finished",
    )
    context = [key for key in comparison.context if key != "precision"]
    own = comparison.runs[["run_id", "label", "seed"]].assign(
        setting=settings(comparison.runs, context), place=range(len(comparison.runs))
    )
    places = own.merge(rows[["run_id", "identity"]], on="run_id").drop(columns="run_id")
    latest = rows.sort_values(["is_own", "is_finished", "finished_at", "run_id"]).drop_duplicates(
        ["identity", "precision"], keep="last"
    )
    twins = latest.merge(places.drop_duplicates("identity"), on="identity")
    several = twins.groupby("identity")["precision"].transform("nunique") > 1
    return twins[several].sort_values(["place", "precision"]).reset_index(drop=True)


def _but_for_precision(config: str) -> str:
    kept = {k: v for k, v in with_added_keys(config).items() if k not in NOT_COMPARED}
    return json.dumps(kept, sort_keys=True)


def twin_pairs(twins: pd.DataFrame, exact: str, other: str, baseline: str | None) -> pd.DataFrame:
    """Runs of `find_twins` side by side in two precisions, one row a setting, label and seed.

    One of the two at least is of the comparison. Columns: run_id, status, loss, git_sha and
    hardware of both (`_fp32`, `_bf16`), `difference` of the losses, other minus exact, and
    `gap_fp32`, `gap_bf16` to the baseline at the same seed; null unless all runs concerned
    finished.
    """
    sides = [twins[twins["precision"] == precision] for precision in (exact, other)]
    same = ["identity", "corpus_sha256", *GROUP, "seed"]
    columns = [*same, "run_id", "status", "loss", "is_own", *ORIGIN]
    pairs = sides[0][columns].merge(sides[1][columns], on=same, suffixes=(f"_{exact}", f"_{other}"))
    pairs = pairs[pairs[f"is_own_{exact}"] | pairs[f"is_own_{other}"]]
    both = (pairs[f"status_{exact}"] == "finished") & (pairs[f"status_{other}"] == "finished")
    losses = [f"loss_{exact}", f"loss_{other}"]
    pairs = pairs.assign(**{name: pairs[name].where(both) for name in losses})
    pairs["difference"] = pairs[f"loss_{other}"] - pairs[f"loss_{exact}"]
    match = ["setting", "seed", "corpus_sha256"]
    is_baseline = pairs["label"] == baseline
    beside = pairs[match].merge(pairs.loc[is_baseline, [*match, *losses]], how="left", on=match)
    for precision, name in zip((exact, other), losses, strict=True):
        gap = beside[name].set_axis(pairs.index) - pairs[name]
        pairs[f"gap_{precision}"] = gap.where(~is_baseline)
    return pairs.drop(columns=["identity", f"is_own_{exact}", f"is_own_{other}"])


def precision_summary(pairs: pd.DataFrame, exact: str, other: str) -> pd.DataFrame:
    """What `twin_pairs` amount to, one row a setting and label, lowest mean loss first.

    Over the seeds that finished in both precisions. Columns: seeds, `loss_fp32` and `loss_bf16`,
    the means, `sd_fp32` and `sd_bf16` over seeds, `difference` of the means, `largest_difference`
    of one seed by size, and of the gaps to the baseline: gap_pairs, `gap_fp32`, `wins_fp32`, ...
    and `same_winner`, in how many pairs the same side wins in both. Null for the baseline itself.
    """
    pairs = pairs[pairs["difference"].notna()]
    signs = [np.sign(pairs[f"gap_{precision}"]) for precision in (exact, other)]
    rows = pairs.assign(same_winner=signs[0] == signs[1])
    measured = {}
    for precision in (exact, other):
        rows[f"wins_{precision}"] = rows[f"gap_{precision}"] > 0
        measured[f"loss_{precision}"] = (f"loss_{precision}", "mean")
        measured[f"sd_{precision}"] = (f"loss_{precision}", "std")
        measured[f"gap_{precision}"] = (f"gap_{precision}", "mean")
        measured[f"wins_{precision}"] = (f"wins_{precision}", "sum")
    table = (
        rows.groupby(GROUP, sort=False)
        .agg(
            seeds=("seed", "size"),
            difference=("difference", "mean"),
            largest_difference=("difference", lambda values: values[values.abs().idxmax()]),
            gap_pairs=(f"gap_{exact}", "count"),
            same_winner=("same_winner", "sum"),
            **measured,
        )
        .reset_index()
    )
    counts = ["gap_pairs", f"wins_{exact}", f"wins_{other}", "same_winner"]
    table[counts] = table[counts].where(table["gap_pairs"] > 0)
    return best_first(table, table[f"loss_{exact}"])


def precision_section(twins: pd.DataFrame, comparison: Comparison) -> list[Section]:
    """The section about the runs of `find_twins`, if there are any."""
    baseline, metric = comparison.baseline, comparison.metric
    text: list[str] = []
    tables: list[Table] = []
    for exact, other in combinations(PRECISIONS, 2):
        pairs = twin_pairs(twins, exact, other, baseline)
        summary = precision_summary(pairs, exact, other)
        if len(summary):
            text += _sentences(pairs, summary, exact, other, metric)
            tables.append(_table(summary, exact, other, comparison))
        text += _unfinished(pairs, exact, other)
    return [Section("Precision", text, tables)] if text else []


def _table(summary: pd.DataFrame, exact: str, other: str, comparison: Comparison) -> Table:
    both, words = (exact, other), comparison.metric.words
    columns = [
        *setting_column(summary),
        Column("variant", ("label",)),
        Column("seeds", ("seeds",), "d"),
        *(Column(f"{words} {precision}", (f"loss_{precision}",), ".4f") for precision in both),
        Column("difference", ("difference",), "+.4f"),
        Column("largest of a seed", ("largest_difference",), "+.4f"),
        *(Column(f"gap {precision}", (f"gap_{precision}",), "+.4f") for precision in both),
        *(
            Column(f"wins {precision}", (f"wins_{precision}", "gap_pairs"), ".0f", "/")
            for precision in both
        ),
        Column("same winner", ("same_winner", "gap_pairs"), ".0f", "/"),
    ]
    note = (
        f"Means of the best {words} over the seeds that finished in both precisions, the rest of "
        f"the configuration equal; difference is {other} minus {exact}, beside it that of the "
        "single seed where it is largest either way."
    )
    if comparison.baseline is not None:
        note += f" Gap is {comparison.baseline} minus variant at the same seed and precision."
    name, title = f"precision_{other}_{exact}", f"{other} against {exact}"
    return Table(name, title, summary, columns, note)


def _sentences(
    pairs: pd.DataFrame, summary: pd.DataFrame, exact: str, other: str, metric: Metric
) -> Iterator[str]:
    few, most = summary["seeds"].min(), summary["seeds"].max()
    seeds = f"{few} to {most} seeds" if few < most else f"{most} seeds" if most > 1 else "seed"
    worst = summary.iloc[summary["difference"].abs().argmax()]
    where = f"{worst['label']} at {worst['setting']}" if worst["setting"] else worst["label"]
    line = (
        f"{other} against {exact} on the same {seeds}: mean best {metric.many} differ by at most "
        f"{abs(worst['difference']):.4f} ({where}), those of a single run by at most "
        f"{summary['largest_difference'].abs().max():.4f}"
    )
    spread = summary[f"sd_{exact}"].dropna()
    if len(spread):
        low, high = (f"{value:.4f}" for value in (spread.min(), spread.max()))
        moved = low if low == high else f"{low} to {high}"
        line += f"; another seed moves {metric.one} by {moved} (SD over these seeds in {exact})"
    yield f"{line}."

    yield from _same_order(summary, exact, other)
    if summary["gap_pairs"].notna().any():
        same, total = (summary[name].sum() for name in ("same_winner", "gap_pairs"))
        yield f"The winner of a pair is the same in {same:.0f} of {total:.0f} pairs."
    for column, word in ORIGIN.items():
        first, second = (
            " and ".join(sorted(pairs[f"{column}_{precision}"].fillna("unknown").unique()))
            for precision in (exact, other)
        )
        if first != second:
            yield f"{word}: {first} in {exact}; {second} in {other}."


def _same_order(summary: pd.DataFrame, exact: str, other: str) -> Iterator[str]:
    """Whether the variants rank alike by mean loss, in each setting with more than one."""
    orders = [
        tuple(
            tuple(rows.sort_values(f"loss_{precision}", kind="stable")["label"])
            for precision in (exact, other)
        )
        for _, rows in summary.groupby("setting", sort=False)
        if len(rows) > 1
    ]
    same = sum(first == second for first, second in orders)
    if len(orders) > 1:
        yield f"The order of the variants is the same in {same} of {len(orders)} settings."
    elif same:
        yield f"The order of the variants is the same: {', '.join(orders[0][0])}."
    elif orders:
        first, second = (", ".join(order) for order in orders[0])
        yield f"The order of the variants differs: {first} in {exact}; {second} in {other}."


def _unfinished(pairs: pd.DataFrame, exact: str, other: str) -> Iterator[str]:
    finished = [pairs[f"status_{precision}"] == "finished" for precision in (exact, other)]
    only_exact, only_other = finished[0] & ~finished[1], finished[1] & ~finished[0]
    if only_exact.any() or only_other.any():
        yield (
            f"Of {len(pairs)} runs in both precisions, {only_exact.sum()} finished in {exact} "
            f"only and {only_other.sum()} in {other} only; they are left out."
        )
