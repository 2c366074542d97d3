"""What a loss costs: tokens, training FLOPs and seconds. Tables in, tables out, like `compare`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from triplu_ray.compare import (
    GROUP,
    TRAIN_LOSS,
    Comparison,
    seed_matrices,
)
from triplu_ray.significance import holm, sign_flip_p, smallest_p, t_interval, verdict

COST_WORDS = {"tokens": "tokens", "flops": "training FLOPs", "seconds": "seconds"}
COSTS = list(COST_WORDS)
EQUAL = 1.01
"""Costs whose ratio is no larger count as the same."""
NEAR = 2.0
"""Runs with at most so many durations of the longer one between them were trained side by side:
what slowed the machine for one, mostly did so for the other."""
SAME_PLACE = ("git_sha", "versions", "hardware")
NO_VERDICT = {
    "is_cut": "which needs a run whose schedule ends at that budget",
    "is_apart": "the two runs of a pair not having been trained side by side",
}
"""What is in the way of a verdict at equal cost, by column of `equal_cost_statistics`."""


def with_train_loss(runs: pd.DataFrame, evals: pd.DataFrame) -> pd.DataFrame:
    """The table `runs` with TRAIN_LOSS: that of each run's last evaluation."""
    validation = evals[evals["split"] == "validation"].sort_values("step", kind="stable")
    last = validation.groupby("run_id")["train_loss"].last()
    return runs.assign(**{TRAIN_LOSS: runs["run_id"].map(last).astype(float)})


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
    `loss_within` that budget. Columns: spent and spent_baseline, loss and loss_baseline, is_cut,
    is_apart, and gap, baseline minus variant. The gap is null where it would say nothing of the
    layers: if the dearer run is cut off at more than 1 % above the budget, before its learning rate
    has come down as the other's has (`is_cut`); and, of seconds, if the two were `trained_apart`.
    """
    pairs = comparison.pairs[comparison.pairs["pair"] == "paired"]
    sides = {"": pairs["run_id"], "_baseline": pairs["run_id_baseline"]}
    schedule = comparison.runs.set_index("run_id")["schedule"]
    decays = pairs["run_id"].map(schedule) != "constant"
    is_apart = trained_apart(comparison, pairs)
    tables = []
    for cost in COSTS:
        table = pairs[[*GROUP, "seed"]].assign(cost=cost)
        total = costs.groupby("run_id")[cost].max()
        for side, run_ids in sides.items():
            table[f"spent{side}"] = run_ids.map(total).astype(float)
        spent = table[["spent", "spent_baseline"]]
        budget = spent.min(axis=1)
        for side, run_ids in sides.items():
            table[f"loss{side}"] = loss_within(costs, cost, run_ids, budget)
        table["is_cut"] = decays & (spent.max(axis=1) > EQUAL * budget)
        table["is_apart"] = is_apart & (cost == "seconds")
        gap = table["loss_baseline"] - table["loss"]
        table["gap"] = gap.where(~(table["is_cut"] | table["is_apart"]))
        tables.append(table)
    gaps = pd.concat(tables, ignore_index=True)
    # Stable: costs and seeds stay in order within their variant.
    place = gaps.groupby(GROUP, sort=False).ngroup()
    return gaps.iloc[np.argsort(place, kind="stable")].reset_index(drop=True)


def trained_apart(comparison: Comparison, pairs: pd.DataFrame) -> "pd.Series[bool]":
    """Whether load, code or machine may have favoured a side; by the index of `paired_gaps`' rows.

    That is: more than NEAR durations lie between the two runs, or they differ in SAME_PLACE.
    """
    runs = comparison.runs.set_index("run_id")
    # A run's seconds are its share of its cohort's, whose size is told nowhere else.
    members = runs["hardware"].astype(str).str.extract(r"cohort of (\d+)")[0].astype(float)
    took = pd.to_timedelta(members.fillna(1.0) * runs["seconds"], unit="s")
    spans = runs[list(SAME_PLACE)].fillna("unknown")
    spans = spans.assign(start=runs["finished_at"] - took, end=runs["finished_at"], took=took)
    sides = ("run_id", "run_id_baseline")
    mine, other = (spans.loc[pairs[name]].set_axis(pairs.index) for name in sides)
    between = pd.concat([mine["start"] - other["end"], other["start"] - mine["end"]], axis=1)
    longer = pd.concat([mine["took"], other["took"]], axis=1).max(axis=1)
    is_near = between.max(axis=1) <= NEAR * longer
    same = (mine[list(SAME_PLACE)] == other[list(SAME_PLACE)]).all(axis=1)
    return ~(is_near & same)


def equal_cost_statistics(gaps: pd.DataFrame) -> pd.DataFrame:
    """What the gaps of `equal_cost_gaps` amount to, one row a setting, label and cost.

    Columns: n, wins, mean_gap, t_low and t_high (95 % interval), p_value, smallest_p and p_holm, as
    in `gap_statistics`; `verdict`: "ahead" or "behind" if the interval lies above or below zero,
    "undecided" if it holds zero, null below two seeds; is_cut and is_apart, whether any pair is,
    and then all before is null but n; ratio_low and ratio_high, the least and the most that a run
    spent in all over what its baseline did. At equal seconds a variant is ahead only if it is so at
    equal tokens too, or takes over 1 % fewer FLOPs: else what it gains is the machine's load.
    """
    group = [*GROUP, "cost"]
    rows = gaps.assign(win=gaps["gap"] > 0, ratio=gaps["spent"] / gaps["spent_baseline"])
    table = rows.groupby(group, sort=False).agg(
        n=("gap", "size"),
        wins=("win", "sum"),
        mean_gap=("gap", "mean"),
        is_cut=("is_cut", "any"),
        is_apart=("is_apart", "any"),
        ratio_low=("ratio", "min"),
        ratio_high=("ratio", "max"),
    )
    is_told = ~(table["is_cut"] | table["is_apart"])
    table[["wins", "mean_gap"]] = table[["wins", "mean_gap"]].where(is_told)
    columns = ["t_low", "t_high", "p_value"]
    table[columns] = np.nan
    told = gaps[is_told[pd.MultiIndex.from_frame(gaps[group])].to_numpy()]
    for index, (matrix,) in seed_matrices(told, group, ["gap"]):
        table.loc[index, columns] = np.column_stack([*t_interval(matrix), sign_flip_p(matrix)])
    table["smallest_p"] = table["n"].map(smallest_p).where(is_told)
    table["p_holm"] = table.groupby(["setting", "cost"], sort=False)["p_value"].transform(holm)
    table["verdict"] = list(map(verdict, table["t_low"], table["t_high"]))
    table = table.reset_index()
    table.loc[_is_load(table), "verdict"] = "undecided"
    return table


def _is_load(table: pd.DataFrame) -> "pd.Series[bool]":
    """Whether a row of seconds is ahead of its baseline without a reason in the layers."""
    places = pd.MultiIndex.from_frame(table[GROUP])
    has_reason = ((table["cost"] == "tokens") & (table["verdict"] == "ahead")) | (
        (table["cost"] == "flops") & (table["ratio_high"] < 1 / EQUAL)
    )
    is_ahead = (table["cost"] == "seconds") & (table["verdict"] == "ahead")
    return is_ahead & ~places.isin(places[has_reason])


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
