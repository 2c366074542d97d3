"""The tables of a report: which columns of a comparison are printed, and how."""

from collections.abc import Sequence

import pandas as pd

from triplu_ray.compare import (
    GROUP,
    NATS,
    TRAIN_LOSS,
    Comparison,
    Metric,
    mean_gaps,
    value_text,
    variant_summary,
)
from triplu_ray.report.axes import PLAIN, at_best, axis_means, product_forms
from triplu_ray.report.costs import COST_WORDS, EQUAL, NEAR
from triplu_ray.report.model import Column, Table, axis_words, by_itself
from triplu_ray.significance import BCA_SEEDS, EXACT_SEEDS

MAX_COLUMN_SEEDS = 10
"""Gaps of more seeds than that are in report.json only."""
MAX_COLUMN_LABELS = 5
"""More variants than that are not set side by side."""


def summary_table(comparison: Comparison) -> Table:
    """Every variant, as in the paper's tables 2 and 3."""
    frame, metric = variant_summary(comparison), comparison.metric
    frame["rate"] = frame["learning_rate"].map(value_text)
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column(f"best {metric.words}", (metric.best,), ".4f"),
        Column("SD", ("sd",), ".4f"),
        *_perplexity_column(metric),
        Column(f"final {metric.words}", (metric.final,), ".4f"),
        *_train_loss_column(frame, metric),
        Column("finished", ("finished",), "d"),
        Column("diverged", ("diverged",), "d"),
        Column("missing", ("missing",), "d"),
        *([Column("learning rate", ("rate",))] if frame["rate"].nunique() > 1 else []),
        Column("width", ("hidden",), ",.0f"),
        *([Column("gain", ("gain",), "g")] if frame["gain"].notna().any() else []),
        Column("parameters", ("params",), ",.0f"),
        Column("mismatch", ("mismatch",), "+.2%"),
        Column("FFN FLOPs", ("ffn_flops_per_token",), ",.0f"),
        Column("tokens/s", ("tokens_per_second",), ",.0f"),
        Column("seconds", ("seconds",), ",.0f"),
    ]
    idle = {name for name in ("diverged", "missing") if not frame[name].any()}
    columns = [column for column in columns if column.heading not in idle]
    perplexity = "perplexity exp(mean best loss), " if _perplexity_column(metric) else ""
    note = (
        f"Means over finished seeds; best {metric.words} is the lowest validation {metric.words} "
        f"of a run, SD the sample standard deviation over seeds, {perplexity}train loss the mean "
        "since the last evaluation but one, width that of the feed-forward layer, mismatch the "
        "distance to the baseline's parameters, FFN FLOPs forward, a token and layer."
    )
    return Table("variants", "Variants", frame, columns, note)


def _perplexity_column(metric: Metric) -> list[Column]:
    """Perplexity is that of a token, which says nothing between tokenizers."""
    return [Column("perplexity", ("perplexity",), ".3f")] if metric == NATS else []


def _train_loss_column(frame: pd.DataFrame, metric: Metric) -> list[Column]:
    """Of the training text nobody counts bytes."""
    if TRAIN_LOSS not in frame or frame[TRAIN_LOSS].isna().all():
        return []
    unit = "" if metric == NATS else ", nats a token"
    return [Column(f"final train loss{unit}", (TRAIN_LOSS,), ".4f")]


def gap_tables(comparison: Comparison) -> list[Table]:
    """Each seed's gap in `paired_gaps`, and what they amount to."""
    pairs, metric, statistics = comparison.pairs, comparison.metric, comparison.statistics
    title = f"Gap to {comparison.baseline} by seed"
    note = f"Best validation {metric.words}, baseline minus variant at the same seed; positive "
    note += "favours the variant."
    cells = pairs["gap"].astype(object).where(pairs["gap"].notna(), pairs["pair"])
    frame, seeds = beside_seeds(statistics, pairs.assign(gap=cells), GROUP)
    names = [*setting_column(frame), Column("variant", ("label",))]
    by_seed = [
        *names,
        Column("mean gap", ("mean_gap",), "+.4f"),
        Column("wins", ("wins", "n"), "d", "/"),
        *seeds,
        Column("relative", ("relative_gap",), "+.2%"),
        Column("final gap", ("mean_final_gap",), "+.4f"),
    ]
    return [
        Table("paired_gaps", title, frame, by_seed, note, raw=pairs),
        _statistics_table("gap_statistics", "Statistics of the gaps", statistics),
    ]


def _statistics_table(name: str, title: str, statistics: pd.DataFrame) -> Table:
    columns = [
        *setting_column(statistics),
        Column("variant", ("label",)),
        Column("mean gap", ("mean_gap",), "+.4f"),
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        *(
            [Column("95 % interval (BCa)", ("bca_low", "bca_high"), "+.4f")]
            if statistics["bca_low"].notna().any()
            else []
        ),
        Column("p", ("p_value",), ".3g"),
        Column("smallest p", ("smallest_p",), ".3g"),
        Column("p (Holm)", ("p_holm",), ".3g"),
        Column("wins", ("wins", "n"), "d", "/"),
        Column("seed correlation", ("correlation",), "+.2f"),
    ]
    note = (
        f"Paired t interval; from {BCA_SEEDS} seeds on the BCa bootstrap stands beside it, which "
        "with fewer holds the true mean far too rarely."
        f"{by_itself(statistics['t_low'].count())} p is the two-sided sign-flip test of the mean "
        f"gap, exact up to {EXACT_SEEDS} seeds, and smallest p the least that so many seeds can "
        "give; Holm corrects over the variants of a setting. Seed correlation is that of baseline "
        "and variant."
    )
    return Table(name, title, statistics, columns, note)


def axis_table(comparison: Comparison, axis: str) -> Table | None:
    """A row for each value of an axis with the variants side by side, as in the paper's table 9."""
    raw = axis_means(comparison, axis)
    baseline, metric = comparison.baseline, comparison.metric
    labels = sorted(comparison.runs["label"].unique(), key=lambda label: (label != baseline, label))
    if len(labels) > MAX_COLUMN_LABELS:
        return None
    summary = variant_summary(comparison)
    keys = [axis, *(key for key in comparison.context if key != axis)]
    gaps = mean_gaps(comparison.pairs)
    frame = summary[["setting", *keys]].drop_duplicates().sort_values(keys)
    columns = [Column(key, (key,)) for key in keys]
    for key in keys:
        frame[key] = frame[key].map(value_text)
    same_size = (summary.groupby("label")["params"].nunique() == 1).all()
    for quantity, spec in (("params", ",.0f"), (metric.best, ".4f")):
        for label in labels if quantity != "params" or not same_size else []:
            values = summary[summary["label"] == label].set_index("setting")[quantity]
            name = f"{label} {quantity}"
            frame[name] = frame["setting"].map(values)
            heading = f"{label} {'parameters' if quantity == 'params' else metric.words}"
            columns.append(Column(heading, (name,), spec))
    for label in labels[1:] if baseline else []:
        mine = gaps[gaps["label"] == label].set_index("setting")
        for quantity in ("mean_gap", "wins", "n"):
            frame[f"{label} {quantity}"] = frame["setting"].map(mine[quantity])
        columns.append(Column(f"{label} gap", (f"{label} mean_gap",), "+.4f"))
        columns.append(Column(f"{label} wins", (f"{label} wins", f"{label} n"), ".0f", "/"))
    note = f"Mean best validation {metric.words} over finished seeds; gap is baseline minus "
    note += "variant."
    return Table(f"by_{axis}", f"By {axis_words(axis)}", frame, columns, note, raw=raw)


def best_value_table(comparison: Comparison, axis: str) -> Table:
    """Each variant's best value of an axis, and its gap to the baseline at the baseline's best."""
    name = "family" if axis == "gain" else "label"
    means = axis_means(comparison, axis)
    best = means[means["is_best"]].rename(columns={name: "label"})
    best = best if axis != "gain" else best[best["num_values"] > 1]
    metric = comparison.metric
    gaps = at_best(comparison, axis).statistics
    frame = best.merge(gaps, on=GROUP, how="left")
    frame["value"] = frame[axis].map(value_text)
    frame["at_edge"] = frame["edge"].where(frame["edge"] != "", "no")
    words = axis_words(axis)
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column(f"best {words}", ("value",)),
        Column("edge of the grid", ("at_edge",)),
        Column(f"best {metric.words}", (metric.best,), ".4f"),
        Column("gap at the best", ("mean_gap",), "+.4f"),
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        Column("wins", ("wins", "n"), ".0f", "/"),
    ]
    note = (
        "The gap is between the baseline at its best value and the variant at its own; both are "
        f"picked on the seeds that are shown.{by_itself(frame['t_low'].count())}"
    )
    return Table(f"best_{axis}", f"Each variant at its best {words}", frame, columns, note)


def gain_table(comparison: Comparison) -> Table:
    """The variants with several gains, as in the paper's table 8."""
    frame, metric = axis_means(comparison, "gain"), comparison.metric
    frame = frame[frame["num_values"] > 1].sort_values(["setting", "family", "gain"])
    frame = frame.assign(best=frame["is_best"].map({True: "best", False: ""}))
    columns = [
        *setting_column(frame),
        Column("variant", ("family",)),
        Column("gain", ("gain",), "g"),
        Column(f"best {metric.words}", (metric.best,), ".4f"),
        Column(f"final {metric.words}", (metric.final,), ".4f"),
        Column("finished", ("finished", "runs"), "d", "/"),
        Column("", ("best",)),
    ]
    return Table("by_gain", "By gain", frame, columns)


def degree_table(comparison: Comparison) -> Table:
    """The products by degree, as in the paper's table 13."""
    frame, metric = variant_summary(comparison), comparison.metric
    forms = comparison.runs.assign(form=product_forms(comparison.runs)).groupby(GROUP)["form"]
    frame = frame[frame["degree"].notna()].join(forms.first(), on=GROUP)
    frame["is_other"] = frame["form"] != PLAIN
    frame = frame.sort_values(["setting", "is_other", "degree"], kind="stable")
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        Column("degree", ("degree",), ".0f"),
        Column("form", ("form",)),
        Column("parameters", ("params",), ",.0f"),
        Column(f"best {metric.words}", (metric.best,), ".4f"),
        Column(f"final {metric.words}", (metric.final,), ".4f"),
        *_train_loss_column(frame, metric),
        *_perplexity_column(metric),
    ]
    note = "" if (frame["form"] == PLAIN).all() else (
        f"Only the {PLAIN} products differ in nothing but their degree: compare others with those "
        "of their form."
    )  # fmt: skip
    return Table("by_degree", "Products by degree", frame, columns, note)


def target_table(frame: pd.DataFrame, metric: Metric) -> Table:
    """What each target loss took (`cost_to_target`), as in the paper's table 10."""
    columns = [
        *setting_column(frame),
        Column("target", ("target",), ".4g"),
        Column("variant", ("label",)),
        Column("reached", ("reached", "trained"), "d", "/"),
        Column("tokens", ("tokens",), "si"),
        Column("FLOPs", ("flops",), "si"),
        Column("seconds", ("seconds",), ",.0f"),
        Column("tokens (reached)", ("tokens_reached",), "si"),
        Column("FLOPs (reached)", ("flops_reached",), "si"),
        Column("seconds (reached)", ("seconds_reached",), ",.0f"),
    ]
    note = (
        "Mean cost of the first evaluation at or below the target, without interpolation, where "
        "all runs reached it; beside it the mean of the runs that did. FLOPs are those of "
        "training, 3 x the forward ones, a multiply-add counting 2."
    )
    return Table("cost_to_target", f"Cost to a target {metric.words}", frame, columns, note)


def equal_cost_tables(gaps: pd.DataFrame, statistics: pd.DataFrame, metric: Metric) -> list[Table]:
    """What the gaps within equal budgets (`equal_cost_gaps`) amount to, and each seed's."""
    statistics = statistics.assign(equal=statistics["cost"].map(COST_WORDS))
    names = [
        *setting_column(statistics),
        Column("variant", ("label",)),
        Column("at equal", ("equal",)),
        Column("mean gap", ("mean_gap",), "+.4f"),
        Column("wins", ("wins", "n"), ".0f", "/"),
    ]
    columns = [
        *names,
        Column("95 % interval (t)", ("t_low", "t_high"), "+.4f"),
        Column("p", ("p_value",), ".3g"),
        Column("smallest p", ("smallest_p",), ".3g"),
        Column("p (Holm)", ("p_holm",), ".3g"),
        Column("verdict", ("verdict",)),
        Column("cost ratio", ("ratio_low", "ratio_high"), ".3f"),
    ]
    percent = f"{100 * (EQUAL - 1):.0f}"
    note = (
        "Each pair may spend what the cheaper of its two runs spent; the dearer one has the lowest "
        f"{metric.words} within that budget, at its end interpolated between two evaluations. "
        "Ahead or behind means that the 95 % paired t interval lies above or below zero, undecided "
        f"that it holds zero; one seed cannot tell.{by_itself(statistics['t_low'].count())} At "
        "equal seconds a variant is ahead only if it is so at equal tokens too, or takes over "
        f"{percent} % fewer FLOPs: else what it gains is load. A dash: where the learning rate "
        f"decays and the costs of a pair differ by over {percent} %, the dearer run is cut off "
        "before it has cooled down, and a verdict needs a run whose schedule ends at that budget; "
        f"and seconds do not compare where over {NEAR:.0f} durations lie between the two runs of a "
        "pair, or code, versions or hardware differ. p as for the gaps above. "
        "Cost ratio is what the variant's whole run took over what the baseline's did, least to "
        "most over the seeds. Seconds are wall time, shared with whatever else ran: where their "
        "ratio scatters over seeds, that is load and not the variant."
    )
    frame, seeds = beside_seeds(statistics, gaps, [*GROUP, "cost"])
    return [
        Table("equal_cost", "Gap at equal cost", statistics, columns, note),
        Table("equal_cost_gaps", "Gap at equal cost by seed", frame, [*names, *seeds], raw=gaps),
    ]


def beside_seeds(
    frame: pd.DataFrame, gaps: pd.DataFrame, group: list[str]
) -> tuple[pd.DataFrame, list[Column]]:
    """Rows of groups with the gap of each seed beside them, unless those are too many."""
    if gaps["seed"].nunique() > MAX_COLUMN_SEEDS:
        return frame, []
    wide = gaps.pivot(index=group, columns="seed", values="gap")
    columns = [Column(f"seed {seed}", (str(seed),), "+.4f") for seed in wide]
    wide.columns = wide.columns.astype(str)
    return frame.merge(wide.reset_index(), how="left", on=group), columns


def setting_column(frame: pd.DataFrame) -> Sequence[Column]:
    """The setting, where there is more than the one without a name."""
    return [Column("setting", ("setting",))] if frame["setting"].astype(bool).any() else []
