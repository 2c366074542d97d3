"""What a loss costs: tokens, training FLOPs and seconds. Tables in, tables out, like `compare`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from triplu_ray.compare import (
    GROUP,
    Comparison,
    paired_gaps,
    seed_matrices,
)
from triplu_ray.significance import holm, sign_flip_p, t_interval

COST_WORDS = {"tokens": "tokens", "flops": "training FLOPs", "seconds": "seconds"}
COSTS = list(COST_WORDS)


def evaluation_costs(comparison: Comparison, evals: pd.DataFrame) -> pd.DataFrame:
    """Validation losses with what they cost, in order of run and step.

    Columns: those of `evals` with `loss` in the comparison's metric, setting, label, seed, and
    `flops`, the training FLOPs so far: 3 x flops_per_token x tokens, the backward pass counted as
    two forward ones.
    """
    known = comparison.runs[["run_id", *GROUP, "seed", "flops_per_token"]]
    costs = evals[evals["split"] == "validation"].merge(known, on="run_id")
    costs["loss"] = costs[comparison.metric.evaluation]
    costs["flops"] = 3.0 * costs["flops_per_token"] * costs["tokens"]
    return costs.sort_values(["run_id", "step"], kind="stable", ignore_index=True)


def cost_to_target(
    comparison: Comparison, costs: pd.DataFrame, targets: Sequence[float]
) -> pd.DataFrame:
    """Tokens, FLOPs and seconds to each target loss, one row a setting, label and target.

    That is the first of the `evaluation_costs` at or below the target, without interpolation.
    `reached` of `trained` runs got there (a diverged run too, if it did so before).
    `tokens_reached` is the mean over those, and `tokens` the same where all reached it, else null;
    so for the other costs. TriPLU, section 4 and table 10.
    """
    trained = comparison.runs[comparison.runs["status"] != "missing"][["run_id", *GROUP]]
    tables = []
    for target in targets:
        first = costs[costs["loss"] <= target].groupby("run_id")[COSTS].first()
        groups = trained.join(first, on="run_id").groupby(GROUP, sort=False)
        table = groups[COSTS].mean().add_suffix("_reached")
        table.insert(0, "target", target)
        table.insert(1, "reached", groups["tokens"].count())
        table.insert(2, "trained", groups.size())
        all_there = table["reached"] == table["trained"]
        table[COSTS] = table[[f"{cost}_reached" for cost in COSTS]].where(all_there).to_numpy()
        tables.append(table.reset_index())
    return pd.concat(tables, ignore_index=True)


def equal_cost_gaps(comparison: Comparison, costs: pd.DataFrame) -> pd.DataFrame:
    """Paired gaps when both of a pair may spend the same, one row a setting, label, cost and seed.

    The budget of a pair is what the cheaper of its two runs spent in all; each side's loss is its
    `loss_within` that budget. Columns: spent and spent_baseline, loss and loss_baseline, and gap,
    baseline minus variant.
    """
    pairs = paired_gaps(comparison)
    pairs = pairs[pairs["pair"] == "paired"]
    sides = {"": pairs["run_id"], "_baseline": pairs["run_id_baseline"]}
    tables = []
    for cost in COSTS:
        table = pairs[[*GROUP, "seed"]].assign(cost=cost)
        total = costs.groupby("run_id")[cost].max()
        for side, run_ids in sides.items():
            table[f"spent{side}"] = run_ids.map(total).astype(float)
        budget = table[["spent", "spent_baseline"]].min(axis=1)
        for side, run_ids in sides.items():
            table[f"loss{side}"] = loss_within(costs, cost, run_ids, budget)
        tables.append(table.assign(gap=table["loss_baseline"] - table["loss"]))
    gaps = pd.concat(tables, ignore_index=True)
    # Stable: costs and seeds stay in order within their variant.
    place = gaps.groupby(GROUP, sort=False).ngroup()
    return gaps.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)


def equal_cost_statistics(gaps: pd.DataFrame) -> pd.DataFrame:
    """What the gaps of `equal_cost_gaps` amount to, one row a setting, label and cost.

    Columns: n, wins, mean_gap, t_low and t_high (95 % interval), p_value, smallest_p and p_holm, as
    in `gap_statistics`; `verdict`: "ahead" or "behind" if the interval lies above or below zero,
    "undecided" if it holds zero, null below two seeds; and ratio_low and ratio_high, the least and
    the most that a run spent in all over what its baseline did.
    """
    group = [*GROUP, "cost"]
    rows = gaps.assign(win=gaps["gap"] > 0, ratio=gaps["spent"] / gaps["spent_baseline"])
    table = rows.groupby(group, sort=False).agg(
        n=("gap", "size"),
        wins=("win", "sum"),
        mean_gap=("gap", "mean"),
        ratio_low=("ratio", "min"),
        ratio_high=("ratio", "max"),
    )
    columns = ["t_low", "t_high", "p_value"]
    table[columns] = np.nan
    for index, (matrix,) in seed_matrices(gaps, group, ["gap"]):
        table.loc[index, columns] = np.column_stack([*t_interval(matrix), sign_flip_p(matrix)])
    table["smallest_p"] = 2.0 / 2.0 ** table["n"]
    table["p_holm"] = table.groupby(["setting", "cost"], sort=False)["p_value"].transform(holm)
    verdict = np.select([table["t_low"] > 0, table["t_high"] < 0], ["ahead", "behind"], "undecided")
    table["verdict"] = pd.Series(verdict, table.index, dtype=object).where(table["n"] > 1)
    return table.reset_index()


def loss_within(
    costs: pd.DataFrame, cost: str, run_ids: "pd.Series[str]", budget: "pd.Series[float]"
) -> "pd.Series[float]":
    """The lowest loss of each run within a budget, which at its end lies between two evaluations.

    There the loss is interpolated linearly. `run_ids` and `budget` share the index of the answer.
    """
    asked = pd.DataFrame({"row": run_ids.index, "run_id": run_ids, "budget": budget})
    points = asked.merge(costs[["run_id", cost, "loss"]], on="run_id")
    inside = points[cost] <= points["budget"]
    before = points[inside].groupby("row")[[cost, "loss", "budget"]].last()
    after = points[~inside].groupby("row")[[cost, "loss"]].first().reindex(before.index)
    share = (before["budget"] - before[cost]) / (after[cost] - before[cost])
    at_end = before["loss"] + share * (after["loss"] - before["loss"])
    lowest = points[inside].groupby("row")["loss"].min()
    return lowest.where(~(at_end < lowest), at_end).reindex(run_ids.index)
