"""What a space's `select` chose: its candidates apart from the runs that are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from triplu_ray.choice import choose
from triplu_ray.compare import GROUP, Comparison, best_first, settings, value_text
from triplu_ray.report.model import NULL, Column, Table, axis_words, number_text
from triplu_ray.report.tables import setting_column


@dataclass(frozen=True)
class Selected:
    """The candidates, and what follows from them."""

    key: str
    seeds: tuple[int, ...]
    candidates: Comparison
    """Compared at equal values of the key, which is part of their context."""
    losses: pd.DataFrame
    """`losses_by_value` of the candidates."""

    @property
    def variants(self) -> pd.DataFrame:
        """One row a setting and label: that of `losses` which was chosen, null while none is."""
        chosen = self.losses[self.losses["is_chosen"]]
        return self.losses[GROUP].drop_duplicates().merge(chosen, how="left", on=GROUP)

    @property
    def sentence(self) -> str:
        """How the variants that are compared came to their values."""
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Each variant is taken at its own best {axis_words(self.key)}, chosen on other seeds "
            f"than those compared: {seeds}."
        )


def merged_selection(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The `select` of several plans of one space: all values, of whatever variant, all seeds."""
    found = [plan["select"] for plan in plans if plan.get("select")]
    if not found:
        return None
    key = found[-1]["key"]
    found = [each for each in found if each["key"] == key]
    values = [[each["values"], *each.get("values_for", {}).values()] for each in found]
    return {
        "key": key,
        "values": list(dict.fromkeys(chain(*chain(*values)))),
        "seeds": list(dict.fromkeys(chain(*(each["seeds"] for each in found)))),
    }


def split(everything: Comparison, select: Mapping[str, Any]) -> tuple[Comparison, Selected]:
    """The runs to compare, each variant at its chosen value, and the candidates.

    `everything` is tidied with the key as `selected`. Where the chosen value was not run yet (a
    value was added since), what was run before stays.
    """
    key, seeds, runs = select["key"], tuple(select["seeds"]), everything.runs
    is_candidate = runs["seed"].isin(seeds)
    context = (*everything.context, key)
    candidates = runs[is_candidate]
    losses = losses_by_value(candidates, select)
    at_equal = candidates.assign(setting=settings(candidates, context)).reset_index(drop=True)

    chosen = losses[losses["is_chosen"]][[*GROUP, key]].assign(is_chosen=True)
    compared = runs[~is_candidate].merge(chosen, how="left", on=[*GROUP, key])
    is_chosen = compared["is_chosen"].notna()
    decided = is_chosen.groupby([compared[name] for name in GROUP]).transform("any")
    compared = compared[is_chosen | ~decided].drop(columns="is_chosen")
    compared = compared.drop_duplicates([*GROUP, "seed"], keep="last").reset_index(drop=True)
    baseline = everything.baseline if (compared["label"] == everything.baseline).any() else None
    return (
        replace(everything, runs=compared, baseline=baseline),
        Selected(key, seeds, replace(everything, runs=at_equal, context=context), losses),
    )


def losses_by_value(candidates: pd.DataFrame, select: Mapping[str, Any]) -> pd.DataFrame:
    """What the candidates reached, one row a setting, label and value of the key.

    Columns: runs, finished, diverged, missing, best_val_loss (the mean over finished runs),
    is_chosen (none of a variant's is while a candidate is missing), and edge: lowest or highest if
    the chosen value lies at the grid's end.
    """
    key, status = select["key"], candidates["status"]
    rows = candidates.assign(
        **{name: status == name for name in ("finished", "diverged", "missing")},
        loss=candidates["best_val_loss"].where(status == "finished"),
    )
    table = (
        rows.groupby([*GROUP, key], sort=False)
        .agg(
            runs=("seed", "size"),
            finished=("finished", "sum"),
            diverged=("diverged", "sum"),
            missing=("missing", "sum"),
            best_val_loss=("loss", "mean"),
            losses=("loss", list),
        )
        .reset_index()
    )
    table["is_chosen"], table["edge"] = False, ""
    places = {value: place for place, value in enumerate(select["values"])}
    for _, group in table.groupby(GROUP, sort=False):
        # Values of an earlier plan may lack seeds that a later one added.
        whole = group[group["runs"] == len(select["seeds"])]
        whole = whole.sort_values(key, key=lambda values: values.map(places))
        if group["missing"].any() or whole.empty:
            continue
        losses = [[None if np.isnan(one) else one for one in row] for row in whole["losses"]]
        best = whole.index[choose(losses)]
        table.loc[best, "is_chosen"] = True
        if len(group) > 1:
            ends = {group[key].min(): "lowest", group[key].max(): "highest"}
            table.loc[best, "edge"] = ends.get(table.loc[best, key], "")
    return table.drop(columns="losses")


def selection_table(selected: Selected) -> Table:
    """A row a variant: its loss at each value, and the value that was chosen."""
    key, losses = selected.key, selected.losses
    cells = losses.assign(text=[_cell(row) for row in losses.to_dict("records")])
    wide = cells.pivot(index=GROUP, columns=key, values="text")
    headings = {value: value_text(value) for value in wide}
    frame = wide.rename(columns=headings).reset_index()
    frame = frame.merge(selected.variants, on=GROUP)
    frame["chosen"] = frame[key].map(value_text, na_action="ignore")
    frame["at_edge"] = frame["edge"].replace("", "no")
    frame = best_first(frame, frame["best_val_loss"])
    columns = [
        *setting_column(frame),
        Column("variant", ("label",)),
        *(Column(heading, (heading,), ".4f") for heading in headings.values()),
        Column("chosen", ("chosen",)),
        Column("edge of the grid", ("at_edge",)),
    ]
    note = (
        "Mean best validation loss over the selection seeds; the value of the lowest is chosen, a "
        "diverged run counting as infinitely bad. The tables above compare other seeds."
    )
    title = f"Loss by {axis_words(key)} on the selection seeds"
    return Table("selection", title, frame, columns, note, raw=losses)


def _cell(row: Mapping[Any, Any]) -> str:
    """The mean loss, and what became of the runs that did not finish."""
    others = [f"{row[name]} {name}" for name in ("diverged", "missing") if row[name]]
    if not row["finished"]:
        return ", ".join(others) or NULL
    mean = number_text(row["best_val_loss"], ".4f")
    return f"{mean} ({', '.join(others)})" if others else mean
