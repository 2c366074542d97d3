"""What a loss costs: tokens, training FLOPs and seconds. Tables in, tables out, like `compare`."""

from collections.abc import Sequence

import pandas as pd

from triplu_ray.compare import GROUP, Comparison, paired_gaps

COST_WORDS = {"tokens": "tokens", "flops": "training FLOPs", "seconds": "seconds"}
COSTS = list(COST_WORDS)


def evaluation_costs(comparison: Comparison, evals: pd.DataFrame) -> pd.DataFrame:
    """Validation losses with what they cost, in order of run and step.

    Columns: those of `evals`, setting, label, seed, and `flops`, the training FLOPs so far:
    3 x flops_per_token x tokens, the backward pass counted as two forward ones.
    """
    known = comparison.runs[["run_id", *GROUP, "seed", "flops_per_token"]]
    costs = evals[evals["split"] == "validation"].merge(known, on="run_id")
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
    """Paired gaps when both of a pair may spend the same, one row a setting and label.

    The budget of a pair is what the cheaper of its two runs spent in all; each side's loss is its
    `loss_within` that budget. Columns: n, and for each cost `tokens_gap`, the mean, `tokens_wins`.
    """
    pairs = paired_gaps(comparison)
    pairs = pairs[pairs["pair"] == "paired"]
    gaps = pairs[GROUP].copy()
    for cost in COSTS:
        spent = costs.groupby("run_id")[cost].max()
        totals = [pairs[side].map(spent).astype(float) for side in ("run_id", "run_id_baseline")]
        budget = pd.concat(totals, axis=1).min(axis=1)
        baseline = loss_within(costs, cost, pairs["run_id_baseline"], budget)
        gaps[f"{cost}_gap"] = baseline - loss_within(costs, cost, pairs["run_id"], budget)
        gaps[f"{cost}_wins"] = gaps[f"{cost}_gap"] > 0
    groups = gaps.groupby(GROUP, sort=False)
    table = groups.agg({name: "sum" if "wins" in name else "mean" for name in gaps.columns[2:]})
    table.insert(0, "n", groups.size())
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
