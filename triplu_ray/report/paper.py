"""The paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from triplu_ray.compare import (
    GROUP,
    Comparison,
    value_text,
    variant_summary,
)
from triplu_ray.report.model import Column, Table, number_text
from triplu_ray.report.probes import SLICES

PAPER_FILE = Path(__file__).parents[2] / "reports" / "paper.yaml"

QUANTITIES = {
    "params": ("parameters", ",.0f"),
    "layer_params": ("FFN parameters a layer", "si"),
    "degree": ("degree", ".0f"),
    "hidden": ("branch width", ".0f"),
    "projections": ("projections", ".0f"),
    "ffn_flops_per_token": ("FFN FLOPs", ",.0f"),
    "relative_ffn_flops": ("relative FFN FLOPs", ".3f"),
    "relative_time": ("relative time", ".2f"),
    "best_val_loss": ("best loss", ".4f"),
    "final_val_loss": ("final loss", ".4f"),
    "best_bits_per_byte": ("best bits per byte", ".4f"),
    "final_bits_per_byte": ("final bits per byte", ".4f"),
    "heldout_bits_per_byte": ("heldout bits per byte", ".4f"),
    "sd": ("SD", ".4f"),
    "perplexity": ("perplexity", ".3f"),
    "minimal_pairs": ("minimal pairs %", ".1f"),
    "exact_match": ("exact match", ".3f"),
    "multiplication": ("multiplication", ".3f"),
    "similarity": ("similarity", ".2f"),
    "routing_entropy": ("routing entropy over ln 4", ".2%"),
    "gelu_first": ("GELU in the first layer", ".0%"),
    "tanh_last": ("tanh in the last layer", ".0%"),
    "kilotokens_per_second": ("k tokens/s", ".1f"),
    "mean_gap": ("mean gap", ".4f"),
    "heldout_gap": ("heldout gap", ".4f"),
    **{f"pmi_gap_{name}": (f"gap {words}", ".4f") for name, words in SLICES.items()},
}
"""Heading and format of what is compared; others are `tokens_to_`, `reached_`, `gap_seed_`."""

Values = dict[tuple[str, str, str], Any]
"""Our numbers by setting, label and quantity."""


def read_paper(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The published tables by space; none where the file is absent (an installed package)."""
    if not path.exists():
        return {}
    content: dict[str, list[dict[str, Any]]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def paper_tables(
    published: Sequence[Mapping[str, Any]],
    comparison: Comparison,
    targets: pd.DataFrame | None,
    quantities: Sequence[pd.DataFrame] = (),
) -> list[Table]:
    """A table for each published one, if any run has its settings: ours, the paper's, difference.

    `targets` is `cost_to_target`, if the space has targets; `quantities` hold further numbers of
    ours in columns, one row a setting and label. Ours is the one setting and variant of the space
    that agrees with the published settings (`when`) and with the `keys` of a row.
    """
    if not published:
        return []
    ours = _our_values(comparison, targets, quantities)
    places = _places(comparison)
    tables = [_paper_table(entry, places, ours) for entry in published]
    return [table for table in tables if table is not None]


def _places(comparison: Comparison) -> list[dict[Any, Any]]:
    """Each setting and label once, with its configuration and what published tables call it.

    Beside the label that is `with_gain`, the variant with its gain, which a label has only where
    gains vary; and `relative_hidden`, the width over that of the baseline.
    """
    runs = comparison.runs.drop_duplicates(GROUP)
    baseline = runs[runs["label"] == comparison.baseline].set_index("setting")["hidden"]
    return runs.assign(
        with_gain=runs["variant"] + " gain=" + runs["gain"].map(value_text),
        relative_hidden=runs["hidden"] / runs["setting"].map(baseline).astype(float),
    ).to_dict("records")


def _paper_table(
    entry: Mapping[str, Any], places: Sequence[Mapping[Any, Any]], ours: Values
) -> Table | None:
    keys, source = entry["keys"], entry.get("source", "paper")
    quantities = list(dict.fromkeys(key for row in entry["rows"] for key in row if key not in keys))
    lines = []
    for row in entry["rows"]:
        address = {key: value_text(row[key]) for key in keys}
        where = {**entry.get("when", {}), **{key: row[key] for key in keys if key != "variant"}}
        mine = {key: _ours(places, ours, where, key, row) for key in quantities}
        theirs = {key: row.get(key) for key in quantities}
        difference = {
            key: mine[key] - theirs[key]
            for key in quantities
            if isinstance(mine[key], int | float) and isinstance(theirs[key], int | float)
        }
        lines.append({**address, "source": "ours", **mine})
        lines.append({**address, "source": source, **theirs})
        lines.append({**address, "source": "difference", **difference})
    raw = pd.DataFrame(lines, dtype=object)
    if raw.loc[raw["source"] == "ours", quantities].isna().all(axis=None):
        return None
    printed = raw.copy()
    columns = [*(Column(key.replace("_", " "), (key,)) for key in keys), Column("", ("source",))]
    sign = (raw["source"] == "difference").map({True: "+", False: ""})
    for key in quantities:
        heading, spec = _look(key)
        printed[key] = [
            number_text(value, plus + spec) for value, plus in zip(raw[key], sign, strict=True)
        ]
        columns.append(Column(heading, (key,), spec))
    title = f"{entry['table']} of the {source}: {entry['title']}"
    name = "paper_" + entry["table"].lower().replace(" ", "_")
    return Table(name, title, printed, columns, entry.get("note", ""), raw=raw)


def _ours(
    places: Sequence[Mapping[Any, Any]],
    ours: Values,
    where: Mapping[str, Any],
    key: str,
    row: Mapping[str, Any],
) -> Any:
    """Our number for a published one; `swiglu/params` names its variant, else the row does."""
    named, _, quantity = key.rpartition("/")
    variant = named or row["variant"]
    allowed = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    found = [
        place
        for place in places
        if variant in (place["label"], place["variant"], place["with_gain"])
        and all(place.get(column) in values for column, values in allowed.items())
    ]
    return ours.get((found[0]["setting"], found[0]["label"], quantity)) if len(found) == 1 else None


def _our_values(
    comparison: Comparison, targets: pd.DataFrame | None, quantities: Sequence[pd.DataFrame]
) -> Values:
    """Everything of ours that a published table may name."""
    values: Values = {}
    summary = variant_summary(comparison)
    if "d_model" in summary:
        one = 2 * summary["d_model"].astype(float) * summary["hidden"]
        summary["projections"] = summary["ffn_flops_per_token"] / one
    summary["kilotokens_per_second"] = summary["tokens_per_second"] / 1000
    pairs = comparison.pairs
    for frame in (*quantities, summary, comparison.statistics):
        for row in frame.to_dict("records"):
            for name, value in row.items():
                if value == value and value is not None:
                    values[row["setting"], row["label"], str(name)] = value
    for row in pairs[pairs["gap"].notna()].to_dict("records"):
        values[row["setting"], row["label"], f"gap_seed_{row['seed']}"] = row["gap"]
    for row in [] if targets is None else targets.to_dict("records"):
        place, target = (row["setting"], row["label"]), f"{row['target']:g}"
        values[*place, f"reached_{target}"] = f"{row['reached']}/{row['trained']}"
        if row["tokens"] == row["tokens"]:
            values[*place, f"tokens_to_{target}"] = row["tokens"]
    return values


def _look(key: str) -> tuple[str, str]:
    """Heading and format of a published column."""
    variant, _, quantity = key.rpartition("/")
    if quantity.startswith("tokens_to_"):
        heading, spec = quantity.replace("_", " "), "si"
    elif quantity.startswith("gap_seed_"):
        heading, spec = quantity.replace("_", " "), ".4f"
    else:
        heading, spec = QUANTITIES.get(quantity, (quantity.replace("_", " "), "g"))
    return f"{variant} {heading}".strip(), spec
