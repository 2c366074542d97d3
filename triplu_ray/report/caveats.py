"""What a reader must know before believing a comparison, one line each."""

import json
from dataclasses import replace

import pandas as pd

from triplu_ray.compare import (
    BITS_PER_BYTE,
    GROUP,
    NATS,
    Comparison,
    mean_gaps,
    value_text,
    variant_summary,
)
from triplu_ray.report.axes import axis_means, selection_axes
from triplu_ray.report.costs import COST_WORDS, NO_VERDICT
from triplu_ray.report.model import at, axis_words, named
from triplu_ray.report.selection import Selected
from triplu_ray.significance import smallest_p


def warning_lines(
    comparison: Comparison, wanted_baseline: str | None, selected: Selected | None = None
) -> list[str]:
    """All warnings of a comparison; `wanted_baseline` is what the space asked for."""
    return [
        *_baseline(comparison, wanted_baseline),
        *_leaking(comparison),
        *_metric(comparison),
        *_unfinished(comparison),
        *_stopped(comparison),
        *_pairs(comparison),
        *_parameters(comparison),
        *_best_of_several(comparison),
        *_selection(comparison),
        *(_selected(comparison, selected) if selected else []),
        *_unlike_runs(comparison),
    ]


def _baseline(comparison: Comparison, wanted: str | None) -> list[str]:
    if comparison.baseline is not None:
        return []
    if wanted is None:
        return ["the space names no baseline: there are no paired gaps"]
    runs = comparison.runs
    labels = runs.loc[runs["variant"] == wanted, "label"].unique()
    if len(labels) == 0:
        return [f"no run of the baseline {wanted}: there are no paired gaps"]
    return [f"the baseline {wanted} is ambiguous ({named(labels)}): there are no paired gaps"]


def leaking_labels(comparison: Comparison) -> list[str]:
    """Variants whose outputs depend on later tokens: PolyGLU with routers that read sequences."""
    runs = comparison.runs
    if "ffn.pooling" not in runs:
        return []
    leaks = (runs["ffn.kind"] == "polyglu") & (runs["ffn.pooling"] == "sequence")
    return list(runs.loc[leaks, "label"].unique())


def without_leaks(comparison: Comparison) -> Comparison:
    """Only what compares with the baseline: variants that see later tokens just if it does too."""
    leaking = leaking_labels(comparison)
    is_leaking = comparison.runs["label"].isin(leaking)
    is_like = is_leaking == (comparison.baseline in leaking)
    if not is_like.any():
        return comparison
    return replace(comparison, runs=comparison.runs[is_like].reset_index(drop=True))


def _leaking(comparison: Comparison) -> list[str]:
    labels = leaking_labels(comparison)
    if not labels:
        return []
    return [
        "the router reads the whole sequence, also what is to be predicted, so losses compare with "
        f"no other variant's: {named(labels)}"
    ]


def _metric(comparison: Comparison) -> list[str]:
    scored = comparison.runs[comparison.runs[NATS.best].notna()]
    without = scored[BITS_PER_BYTE.best].isna()
    if without.all() or not without.any():
        return []
    return [
        f"{without.sum()} of {len(scored)} runs have no bits per byte: losses are in nats a token, "
        "which do not compare between tokenizers"
    ]


def _unfinished(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    lines = []
    for status in ("diverged", "missing"):
        some = runs[runs["status"] == status]
        if len(some):
            names = named(
                at(f"{row.label} seed {row.seed}", row.setting) for row in some.itertuples()
            )
            lines.append(f"{len(some)} of {len(runs)} runs {status}: {names}")
    if comparison.superseded:
        lines.append(
            f"{comparison.superseded} runs left out: the same configuration was run or planned "
            "again under another id (the corpus or the code changed); the latest finished counts"
        )
    return lines


def _stopped(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    stopped = runs[runs["stopped_step"].notna()]
    if stopped.empty:
        return []
    names = named(
        at(f"{row.label} seed {row.seed} at step {row.stopped_step:.0f}", row.setting)
        for row in stopped.itertuples()
    )
    return [
        f"{len(stopped)} of {len(runs)} runs stopped early, their losses having risen for as long "
        f"as patience bears; what is final is of that step: {names}"
    ]


def _pairs(comparison: Comparison) -> list[str]:
    pairs = comparison.pairs
    lines = []
    broken = pairs[pairs["pair"] != "paired"]
    if len(broken):
        names = named(
            at(f"{row.label} seed {row.seed} ({row.pair})", row.setting)
            for row in broken.itertuples()
        )
        lines.append(f"{len(broken)} of {len(pairs)} pairs missing: {names}")
    table = mean_gaps(pairs)
    few = table[table["n"] < 3]
    if len(few):
        names = named(at(f"{row.label} has {row.n}", row.setting) for row in few.itertuples())
        lines.append(f"fewer than 3 paired seeds, too few for an interval: {names}")
    elif len(table) and (smallest := smallest_p(int(table["n"].max()))) > 0.05:
        lines.append(f"with {table['n'].max()} seeds no exact test can give p below {smallest:.2g}")
    return lines


def _parameters(comparison: Comparison) -> list[str]:
    table = variant_summary(comparison)
    apart = table[table["mismatch"].abs() > 0.01]
    names = named(at(f"{row.label} {row.mismatch:+.1%}", row.setting) for row in apart.itertuples())
    return [f"parameters differ from the baseline's by more than 1 %: {names}"] if names else []


def _best_of_several(comparison: Comparison) -> list[str]:
    """The headline begins with the best; several gains of a variant are told of apart."""
    fair = without_leaks(comparison)
    paired = fair.pairs.loc[fair.pairs["pair"] == "paired", "label"]
    count = fair.runs.loc[fair.runs["label"].isin(paired), "family"].nunique()
    if count < 2:
        return []
    return [
        f"what the headline begins with is the best of {count} variants, picked on the seeds that "
        "are reported, which flatters it; fresh seeds would settle it"
    ]


def equal_cost_lines(statistics: pd.DataFrame) -> list[str]:
    """Where `equal_cost_statistics` have no verdict, and what is in the way of it."""
    lines = []
    for column, reason in NO_VERDICT.items():
        for cost, rows in statistics[statistics[column]].groupby("cost", sort=False):
            names = named(at(row.label, row.setting) for row in rows.itertuples())
            lines.append(f"no verdict at equal {COST_WORDS[str(cost)]}, {reason}: {names}")
    return lines


def _selection(comparison: Comparison) -> list[str]:
    lines = []
    for axis in selection_axes(comparison):
        means = axis_means(comparison, axis)
        name = "family" if axis == "gain" else "label"
        words = axis_words(axis)
        edges = means[means["edge"] != ""]
        if len(edges):
            names = named(
                at(f"{row[name]} {value_text(row[axis])} ({row['edge']})", row["setting"])
                for _, row in edges.iterrows()
            )
            lines.append(f"best {words} at the edge of the grid: {names}")
        lines.append(
            f"the best {words} is picked on the seeds that are reported, which flatters whatever "
            "has more values to pick from; fresh seeds would settle it"
        )
    return lines


def _selected(comparison: Comparison, selected: Selected) -> list[str]:
    """Of values that were chosen on seeds apart: at the edge, not yet chosen, not yet run."""
    key, words = selected.key, axis_words(selected.key)
    run = comparison.runs[[*GROUP, key]].drop_duplicates().assign(is_run=True)
    variants = selected.variants.merge(run, how="left", on=[*GROUP, key])
    is_chosen = variants[key].notna()
    kinds = {
        f"chosen {words} at the edge of the grid": variants["edge"].isin(["lowest", "highest"]),
        f"no {words} is chosen yet, for want of runs on the selection seeds": ~is_chosen,
        f"not run yet at the chosen {words}": is_chosen & variants["is_run"].isna(),
    }
    value = variants[key].map(lambda value: f" {value_text(value)}", na_action="ignore")
    edge = variants["edge"].map(lambda edge: f" ({edge})" if edge else "", na_action="ignore")
    names = variants["label"] + value.fillna("") + edge.fillna("")
    places = pd.Series(map(at, names, variants["setting"]), dtype=object)
    return [
        f"{line}: {named(places[is_concerned])}"
        for line, is_concerned in kinds.items()
        if is_concerned.any()
    ]


def _unlike_runs(comparison: Comparison) -> list[str]:
    stored = comparison.runs[comparison.runs["status"] != "missing"]
    lines = []
    keys = ["corpus", "train_bytes", "validation_bytes", "tokenizer"]
    same_text = [key for key in keys if key in stored]
    if same_text and (stored.groupby(same_text)["corpus_sha256"].nunique() > 1).any():
        lines.append("runs were trained on different texts under one corpus name")
    versions = pd.DataFrame([json.loads(text) for text in stored["versions"].dropna().unique()])
    for library in versions:
        values = versions[library].dropna().unique()
        if len(values) > 1:
            lines.append(f"runs differ in the version of {library}: {named(values)}")
    if stored["git_sha"].nunique() > 1:
        lines.append(f"runs differ in the commit of the code: {named(stored['git_sha'].unique())}")
    if stored["hardware"].nunique() > 1:
        names = named(stored["hardware"].dropna().unique())
        lines.append(f"seconds and tokens/s come from unlike hardware or cohorts: {names}")
    return lines
