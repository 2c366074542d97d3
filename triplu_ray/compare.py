"""Compare the variants of a space: tables in, tables out, nothing read and nothing written.

Two runs are a pair when everything but the feed-forward layer and its width is equal: the seed and
the `setting`, the configuration keys that vary in the space (learning_rate=0.001, num_layers=4).
A gap is baseline minus variant in a pair; positive favours the variant, as in the TriPLU paper.
Missing and diverged runs stay rows with a status: they are counted, and never dropped silently.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pandas as pd

from triplu_ray.added_keys import with_added_keys
from triplu_ray.significance import (
    Floats,
    bca_interval,
    correlation,
    holm,
    sign_flip_p,
    smallest_p,
    t_interval,
)

GROUP = ["setting", "label"]
TRAIN_LOSS = "final_train_loss"
"""What runs may have beside the store's columns: mean training loss over the steps between the last
two evaluations, nats a token."""


@dataclass(frozen=True)
class Metric:
    """What counts as a run's loss: columns of the store, and what it is called in a sentence.

    `best`, `final` and `heldout` are columns of `runs`, `evaluation` is one of `evals`.
    """

    best: str
    final: str
    heldout: str
    evaluation: str
    words: str
    many: str
    one: str

    @property
    def losses(self) -> list[str]:
        """The columns of a validation loss."""
        return [self.best, self.final]


NATS = Metric(
    *("best_val_loss", "final_val_loss", "heldout_loss", "loss"),
    words="loss",
    many="losses",
    one="a loss",
)
"""Nats a token: what compares between runs that share a tokenizer."""
BITS_PER_BYTE = Metric(
    *("best_bits_per_byte", "final_bits_per_byte", "heldout_bits_per_byte", "bits_per_byte"),
    words="bits per byte",
    many="bits per byte",
    one="bits per byte",
)
"""Bits a UTF-8 byte of the text that was scored: what compares between tokenizers, too."""


@dataclass(frozen=True)
class Comparison:
    """The runs of a space, ready to compare.

    `runs` has a row for every stored or planned run: the columns of the store, those of the
    flattened configuration, and
        label    the variant, with what varies within it: `triplu gain=3`
        family   the same without the gain
        setting  the values of `context`, as text; empty when nothing but variant and seed varies
        status   finished, diverged or missing
    in order of context, variant (the baseline first) and seed. `baseline` is a label, or None.
    `superseded` counts the rows left out because a newer one has the same configuration. `metric`
    says which columns are the losses.
    """

    runs: pd.DataFrame
    context: tuple[str, ...]
    baseline: str | None
    superseded: int = 0
    metric: Metric = NATS

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Its `paired_gaps`, worked out once for all who ask; nobody may change them."""
        return paired_gaps(self)

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """The `gap_statistics` of its pairs, likewise."""
        return gap_statistics(self.pairs, self.metric)

    @cached_property
    def heldout(self) -> "Comparison":
        """The same runs compared by their heldout loss."""
        return self.measured_by(self.metric.heldout)

    def measured_by(self, column: str) -> "Comparison":
        """The same runs compared by another column; a finished run without a value is unscored."""
        is_unscored = (self.runs["status"] == "finished") & self.runs[column].isna()
        runs = self.runs.assign(status=self.runs["status"].mask(is_unscored, "unscored"))
        return replace(self, runs=runs, metric=replace(self.metric, best=column))


def tidy(
    runs: pd.DataFrame,
    planned: pd.DataFrame,
    baseline: str | None,
    selected: Collection[str] = (),
) -> Comparison:
    """Join the table `runs` with the planned runs, and find what varies.

    `planned` has at least run_id, variant, seed and config; a run that is not in `runs` is missing.
    `config` may be an object or its JSON. `baseline` is a variant or a whole label; it stays None
    where no label, or more than one, answers to it. The `selected` keys, whose values are chosen
    for each variant, are no part of settings and labels; runs that differ in them alone stay apart.
    Losses are bits per byte where all runs have them, else nats a token.
    """
    missing = planned[~is_among(planned["run_id"], runs["run_id"])].assign(status="missing")
    rows = pd.concat([runs, missing] if len(missing) else [runs], ignore_index=True)
    configs = pd.DataFrame(
        [_flat(with_added_keys(config)) for config in rows["config"]], dtype=object
    ).infer_objects()
    varying = [str(key) for key in configs if configs[key].nunique(dropna=False) > 1]
    chosen = [str(key) for key in configs if str(key).removeprefix("ffn.") in selected]
    layer = [key for key in varying if key.startswith("ffn.") and key not in chosen]
    context = [key for key in varying if key not in [*layer, *chosen, "hidden", "seed"]]

    rows = rows.join(configs[configs.columns.difference(rows.columns)])
    rows["setting"] = settings(rows, context)
    label = family = rows["variant"]
    for key in layer:
        detail = _detail(rows, key, [rows["variant"]], rows["variant"])
        label = label + detail
        family = family if key == "ffn.gain" else family + detail
    # A width that is matched anew in each setting names no new variant. Where one needs its width
    # to be told apart, all of its kind say theirs: `untied_squared_relu similarity=0.999` is one.
    kind = rows["variant"].str.partition(" ")[0]
    width = _detail(rows, "hidden", [family, rows["setting"]], kind)
    rows["label"], rows["family"] = label + width, family + width

    answering = rows.loc[(rows["label"] == baseline) | (rows["variant"] == baseline), "label"]
    baseline_label = answering.iloc[0] if answering.nunique() == 1 else None
    rows = rows.assign(
        is_variant=rows["label"] != baseline_label,
        is_stored=rows["status"] != "missing",
        is_finished=rows["status"] == "finished",
    )
    age = [name for name in ("is_stored", "is_finished", "finished_at") if name in rows]
    order = [*context, "is_variant", "variant", *layer, "hidden", "seed"]
    latest = rows.sort_values([*order, *age, "run_id"], key=_sortable).drop_duplicates(
        [*GROUP, "seed", *chosen], keep="last"
    )
    return Comparison(
        latest.drop(columns=["is_variant", "is_stored", "is_finished"]).reset_index(drop=True),
        tuple(context),
        baseline_label,
        superseded=len(rows) - len(latest),
        metric=_metric(latest),
    )


def _metric(runs: pd.DataFrame) -> Metric:
    """A run that never had a finite loss has no say."""
    scored = runs[runs[NATS.best].notna()]
    return BITS_PER_BYTE if len(scored) and scored[BITS_PER_BYTE.best].notna().all() else NATS


def paired_gaps(comparison: Comparison) -> pd.DataFrame:
    """Every pair of a variant with the baseline, one row a setting, label and seed.

    Columns: run_id and losses of both (`_baseline` for the baseline's), `gap` of the metric's best
    loss, `final_gap` of its final one, and `pair`: "paired", or what is in the way of it
    ("baseline missing", "variant diverged", "variant not planned", "other text", as where a text
    was changed and one side is not yet trained on the new one); then the gaps are null.
    """
    metric = comparison.metric
    columns = [*GROUP, "seed", "run_id", "status", *metric.losses, "corpus_sha256"]
    runs = comparison.runs.reindex(columns=columns)
    is_baseline = runs["label"] == comparison.baseline
    baseline = runs[is_baseline].drop(columns="label")
    variants = runs[~is_baseline] if is_baseline.any() else runs[:0]
    all_seeds = variants[GROUP].drop_duplicates().merge(baseline[["setting", "seed"]], on="setting")
    pairs = (
        pd.concat([variants[[*GROUP, "seed"]], all_seeds])
        .drop_duplicates()
        .merge(variants, how="left", on=[*GROUP, "seed"])
        .merge(baseline, how="left", on=["setting", "seed"], suffixes=("", "_baseline"))
    )
    baseline_status = pairs.pop("status_baseline").fillna("not planned")
    variant_status = pairs.pop("status").fillna("not planned")
    text, other = pairs.pop("corpus_sha256"), pairs.pop("corpus_sha256_baseline")
    pairs["pair"] = np.select(
        [
            baseline_status != "finished",
            variant_status != "finished",
            text.ne(other) & text.notna(),
        ],
        ["baseline " + baseline_status, "variant " + variant_status, "other text"],
        "paired",
    )
    for gap, loss in (("gap", metric.best), ("final_gap", metric.final)):
        difference = pairs[f"{loss}_baseline"] - pairs[loss]
        pairs[gap] = difference.where(pairs["pair"] == "paired")
    in_order = np.lexsort((pairs["seed"], pairs.groupby(GROUP, sort=False).ngroup()))
    return pairs.iloc[in_order].reset_index(drop=True)


def mean_gaps(pairs: pd.DataFrame) -> pd.DataFrame:
    """Sum the gaps of `paired_gaps` up, one row a setting and label, highest mean gap first.

    Columns: n pairs, unpaired, wins, mean_gap, mean_final_gap.
    """
    table = (
        pairs.assign(win=pairs["gap"] > 0, unpaired=pairs["gap"].isna())
        .groupby(GROUP, sort=False)
        .agg(
            n=("gap", "count"),
            unpaired=("unpaired", "sum"),
            wins=("win", "sum"),
            mean_gap=("gap", "mean"),
            mean_final_gap=("final_gap", "mean"),
        )
        .reset_index()
    )
    return best_first(table, -table["mean_gap"])


def gap_statistics(pairs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """How sure the means of `mean_gaps` are, in further columns; null where seeds are too few.

    relative_gap (of the baseline's mean), t_low and t_high, bca_low and bca_high (95 % intervals),
    p_value and `smallest_p`, p_holm over the variants of a setting, correlation of baseline and
    variant over seeds. The rows must come in the order of `paired_gaps`, and `metric` from its
    comparison.
    """
    table = mean_gaps(pairs).set_index(GROUP)
    columns = ["relative_gap", "t_low", "t_high", "bca_low", "bca_high", "p_value", "correlation"]
    table[columns] = np.nan
    paired = pairs[pairs["pair"] == "paired"]
    for index, (gaps, baseline, variant) in seed_matrices(
        paired, GROUP, ["gap", f"{metric.best}_baseline", metric.best]
    ):
        level = baseline.mean(axis=1)
        table.loc[index, columns] = np.column_stack(
            [
                gaps.mean(axis=1) / np.where(level == 0, np.nan, level),
                *t_interval(gaps),
                *bca_interval(gaps),
                sign_flip_p(gaps),
                correlation(baseline, variant),
            ]
        )
    table["smallest_p"] = table["n"].map(smallest_p).where(table["n"] > 0)
    table["p_holm"] = table.groupby("setting", sort=False)["p_value"].transform(holm)
    return table.reset_index()


def over_settings(pairs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """The pairs of a label at one seed, averaged over its settings; in form those of `paired_gaps`.

    Settings share their seeds, so a seed is the unit to judge by. Seeds without a pair in every
    setting of the label are left out.
    """
    paired = pairs[pairs["pair"] == "paired"]
    settings_of_seed = paired.groupby(["label", "seed"])["setting"].transform("nunique")
    whole = paired[settings_of_seed == paired.groupby("label")["setting"].transform("nunique")]
    sides = [f"{loss}{side}" for loss in metric.losses for side in ("", "_baseline")]
    groups = whole.groupby(["label", "seed"], sort=False)
    means = groups[["gap", "final_gap", *sides]].mean().reset_index()
    in_order = np.lexsort((means["seed"], means.groupby("label", sort=False).ngroup()))
    return means.iloc[in_order].assign(pair="paired", setting="").reset_index(drop=True)


def seed_matrices(
    pairs: pd.DataFrame, group: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[pd.MultiIndex, list[Floats]]]:
    """Columns as matrices `[groups, seeds]`, for all groups with equally many seeds at once.

    The index names the groups, one a row of the matrices. The rows of `pairs` must come group by
    group.
    """
    sizes = pairs.groupby(list(group))["seed"].transform("size")
    for n, block in pairs.groupby(sizes):
        index = pd.MultiIndex.from_frame(block[list(group)].drop_duplicates())
        yield index, [block[name].to_numpy(float).reshape(-1, int(n)) for name in columns]


def variant_summary(comparison: Comparison) -> pd.DataFrame:
    """What each variant is and reached, one row a setting and label, lowest mean loss first.

    Means are over finished runs. `sd` is the sample standard deviation of the best loss (n - 1;
    the paper does not say which it prints, and its numbers fit either). `perplexity` is
    exp(mean best_val_loss), which gives every perplexity of the paper's tables 2, 11 and 13.
    `mismatch` is the parameters' relative distance to the baseline's. TRAIN_LOSS is there if the
    runs have it.
    """
    runs, metric = comparison.runs, comparison.metric
    finished = runs["status"] == "finished"
    losses = dict.fromkeys([*metric.losses, *NATS.losses])
    measured = [*losses, "tokens_per_second", "seconds"]
    measured += [TRAIN_LOSS] if TRAIN_LOSS in runs else []
    counts = {status: runs["status"] == status for status in ("finished", "diverged", "missing")}
    rows = runs.assign(**{name: runs[name].where(finished) for name in measured}, **counts)
    groups = rows.groupby(GROUP, sort=False)
    described = ["variant", "params", "hidden", "degree", "gain", "learning_rate"]
    described += [*comparison.context, "d_model", "ffn_flops_per_token", "flops_per_token"]
    first = [name for name in dict.fromkeys(described) if name in rows]
    table = groups[first].first()
    table[list(counts)] = groups[list(counts)].sum()
    table[measured] = groups[measured].mean()
    table["sd"] = groups[metric.best].std(ddof=1)
    table["perplexity"] = np.exp(table[NATS.best])
    table = table.reset_index()
    baseline = table[table["label"] == comparison.baseline].set_index("setting")["params"]
    table["mismatch"] = table["params"] / table["setting"].map(baseline).astype(float) - 1
    return best_first(table, table[metric.best])


def value_text(value: Any) -> str:
    """A configuration value as the reports write it: 0.0003, 1000000, true."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if not isinstance(value, int | float | np.number):
        return "none" if value is None else str(value)
    number = float(value)
    if np.isnan(number):
        return "none"
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def value_texts(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The `value_text` of each value, of equal ones only once."""
    if column.dtype == object:  # where true and 1 are equal, too
        return column.map(value_text)
    place, values = pd.factorize(column, use_na_sentinel=False)
    texts = pd.Series([value_text(value) for value in values], dtype="str")
    return texts.iloc[place].set_axis(column.index)


def settings(rows: pd.DataFrame, context: Sequence[str]) -> "pd.Series[str]":
    """The context of each row as text, equal where all its values are."""
    parts = [f"{key}=" + value_texts(rows[key]) for key in context]
    nothing = pd.Series("", index=rows.index)
    return reduce(lambda text, part: text + ", " + part, parts) if parts else nothing


def is_among(texts: "pd.Series[str]", others: Iterable[str]) -> "pd.Series[bool]":
    """`isin`, which takes several times as long for thousands of strings."""
    return texts.map(set(others).__contains__).astype(bool)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and plain values of a nested configuration."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": plain for inner, plain in _flat(value).items()}
        else:
            flat[key] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _detail(
    rows: pd.DataFrame, key: str, within: list["pd.Series[str]"], kin: "pd.Series[str]"
) -> "pd.Series[str]":
    """` gain=3` where the key varies within any of the groups of a row's kin; else ""."""
    varies = rows[key].groupby(within).transform("nunique") > 1
    varies = varies.groupby(kin).transform("any")
    text = f" {key.removeprefix('ffn.')}=" + value_texts(rows[key])
    return text.where(varies, "")


def best_first(table: pd.DataFrame, badness: "pd.Series[float]") -> pd.DataFrame:
    """Settings stay in order; within each, the least bad row comes first and nulls last."""
    place = table.groupby("setting", sort=False).ngroup()
    return table.iloc[np.lexsort((badness, place))].reset_index(drop=True)


def _sortable(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Values of unlike types in a column sort as text."""
    return value_texts(column) if column.dtype == object else column
