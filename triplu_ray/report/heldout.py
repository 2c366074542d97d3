"""The heldout text: what the selected checkpoints make of what neither chose nor trained them."""

import pandas as pd

from triplu_ray.compare import GROUP, Comparison, best_first
from triplu_ray.report.model import Column, Section, Table, by_itself
from triplu_ray.report.tables import beside_seeds, setting_column


def heldout_summary(comparison: Comparison) -> pd.DataFrame:
    """Heldout losses and their gaps, one row a setting and label, lowest mean loss first.

    Over finished runs with a heldout loss. Columns: `scored` of them, the means of the metric's
    heldout and best loss, heldout_sd (n - 1), and from `gap_statistics` on the heldout loss
    heldout_gap (its mean_gap), relative_gap, t_low, t_high, wins, n. TriPLU, table 5.
    """
    metric, held = comparison.metric, comparison.heldout
    table = (
        held.runs[held.runs["status"] == "finished"]
        .groupby(GROUP, sort=False)
        .agg(
            scored=("seed", "size"),
            **{loss: (loss, "mean") for loss in (metric.heldout, metric.best)},
            heldout_sd=(metric.heldout, "std"),
        )
        .reset_index()
    )
    gaps = held.statistics.rename(columns={"mean_gap": "heldout_gap"})
    columns = ["heldout_gap", "relative_gap", "t_low", "t_high", "wins", "n"]
    table = table.merge(gaps[[*GROUP, *columns]], how="left", on=GROUP)
    return best_first(table, table[metric.heldout])


def heldout_section(comparison: Comparison, summary: pd.DataFrame) -> list[Section]:
    """The section about the `heldout_summary`, if any finished run was scored."""
    metric = comparison.metric
    if summary.empty:
        return []
    frame, seeds = beside_seeds(summary, comparison.heldout.pairs, GROUP)
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column(f"heldout {metric.words}", (metric.heldout,), ".4f"),
        Column("SD", ("heldout_sd",), ".4f"),
        Column("runs", ("scored",), "d"),
        Column("gap", ("heldout_gap",), "+.4f"),
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        Column("wins", ("wins", "n"), ".0f", "/"),
        Column("relative", ("relative_gap",), "+.2%"),
        Column(f"validation {metric.words}", (metric.best,), ".4f"),
        *seeds,
    ]
    note = (
        f"Means over finished seeds: the heldout text is scored once, with the parameters of each "
        f"run's lowest validation {metric.words}, which stands beside it. "
    )
    if comparison.baseline is not None:
        note += (
            f"Gap is {comparison.baseline} minus variant at the same seed; positive favours the "
            f"variant.{by_itself(summary['t_low'].count())}"
        )
    table = Table("heldout", "Heldout", frame, columns, note.strip())
    return [Section("Heldout", tables=[table])]
