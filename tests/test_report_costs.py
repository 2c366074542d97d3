"""What losses cost, and gaps at equal cost: when they mean something, and when not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparisons import curves
from fabricate import planned_run

from triplu_ray.compare import TRAIN_LOSS, paired_gaps
from triplu_ray.report.caveats import equal_cost_lines
from triplu_ray.report.costs import (
    cost_to_target,
    equal_cost_gaps,
    equal_cost_statistics,
    loss_within,
    trained_apart,
    with_train_loss,
)

AT = pd.Timestamp("2026-01-01", tz="UTC")
"""When fabricated runs end."""


def test_cost_to_target_takes_the_first_evaluation_at_or_below() -> None:
    comparison, costs = curves()
    table = cost_to_target(comparison, costs, [1.10, 1.03])
    swiglu, triplu, never, late = (row for _, row in table.iterrows())
    assert table["label"].tolist() == ["swiglu", "triplu"] * 2
    assert (swiglu["reached"], swiglu["trained"]) == (1, 2)
    assert np.isnan(swiglu["tokens"])
    assert swiglu["tokens_reached"] == 2000 * 2048
    assert (triplu["reached"], triplu["trained"]) == (2, 2)
    assert triplu["tokens"] == triplu["tokens_reached"] == 1500 * 2048
    assert triplu["seconds"] == 180.0
    flops_per_token = 2 * planned_run("triplu", 1)["params"]
    assert triplu["flops"] == 3 * flops_per_token * 1500 * 2048
    assert (never["reached"], late["reached"]) == (0, 1)
    assert np.isnan(never["tokens_reached"])


def test_equal_cost_gives_the_dearer_run_the_budget_of_the_cheaper() -> None:
    comparison, costs = curves()
    gaps = equal_cost_gaps(comparison, costs)
    assert gaps["cost"].tolist() == ["tokens"] * 2 + ["flops"] * 2 + ["seconds"] * 2
    by_cost = {cost: rows["gap"].to_numpy() for cost, rows in gaps.groupby("cost")}
    # Tokens: whole runs, gaps 0.03 and 0.07. Seconds: TriPLU stops at 300 of 360, half way
    # between its last two evaluations, at 1.05 and 1.065: gaps 0.00 and 0.045.
    assert by_cost["tokens"] == pytest.approx([0.03, 0.07])
    assert by_cost["seconds"] == pytest.approx([0.0, 0.045])
    seconds = gaps[gaps["cost"] == "seconds"].iloc[0]
    assert (seconds["spent"], seconds["spent_baseline"]) == (360.0, 300.0)
    assert (seconds["loss"], seconds["loss_baseline"]) == pytest.approx((1.05, 1.05))
    more = planned_run("triplu", 1)["params"] / planned_run("swiglu", 1)["params"]
    share = 1 - (3 - 3 / more)
    losses = np.array([1.08, 1.09]) + share * (np.array([1.02, 1.04]) - np.array([1.08, 1.09]))
    assert by_cost["flops"] == pytest.approx(np.array([1.05, 1.11]) - losses)


def test_a_loss_within_a_budget_is_the_lowest_so_far() -> None:
    points = pd.DataFrame({"run_id": "a", "tokens": [0, 10, 20], "loss": [4.0, 1.0, 2.0]})
    asked = pd.Series(["a", "a", "a"], index=[5, 6, 7])
    budget = pd.Series([5.0, 15.0, 99.0], index=[5, 6, 7])
    assert loss_within(points, "tokens", asked, budget).tolist() == [2.5, 1.0, 1.0]


# What the gaps amount to


def gaps_by_seed(
    gaps: list[float], spent: list[float] | float = 100.0, cost: str = "tokens"
) -> pd.DataFrame:
    seeds = range(1, len(gaps) + 1)
    table = pd.DataFrame({"setting": "", "label": "triplu", "cost": cost, "seed": seeds})
    return table.assign(gap=gaps, spent=spent, spent_baseline=100.0, is_cut=False, is_apart=False)


@pytest.mark.parametrize(
    ("gaps", "low", "high", "p_value", "verdict"),
    [
        # Mean 0.02, sample SD 0.01, over sqrt(3), times 4.302653 = 0.0248414.
        ([0.01, 0.02, 0.03], -0.0048414, 0.0448414, 0.25, "undecided"),
        ([0.019, 0.020, 0.021], 0.0175159, 0.0224841, 0.25, "ahead"),
        ([-0.019, -0.020, -0.021], -0.0224841, -0.0175159, 0.25, "behind"),
        ([-0.01, 0.02, 0.04], -0.0458498, 0.0791832, 0.5, "undecided"),
        # Without spread the interval is the mean: zero holds zero.
        ([0.0, 0.0, 0.0], 0.0, 0.0, 1.0, "undecided"),
    ],
)
def test_an_advantage_stands_if_its_interval_excludes_zero(
    gaps: list[float], low: float, high: float, p_value: float, verdict: str
) -> None:
    row = equal_cost_statistics(gaps_by_seed(gaps, [90.0, 120.0, 110.0])).iloc[0]
    assert (row["n"], row["smallest_p"], row["verdict"]) == (3, 0.25, verdict)
    assert row["mean_gap"] == pytest.approx(np.mean(gaps))
    assert (row["t_low"], row["t_high"]) == pytest.approx((low, high), abs=1e-6)
    assert row["p_value"] == row["p_holm"] == p_value
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((0.9, 1.2))


def test_groups_of_unlike_size_keep_their_own_statistics() -> None:
    other = gaps_by_seed([0.5, 0.7]).assign(label="quad_prod")
    table = equal_cost_statistics(pd.concat([gaps_by_seed([0.01, 0.02, 0.03]), other]))
    assert table["label"].tolist() == ["triplu", "quad_prod"]
    assert table["mean_gap"].tolist() == pytest.approx([0.02, 0.6])
    assert table["p_value"].tolist() == [0.25, 0.5]
    assert table["p_holm"].tolist() == [0.5, 0.5]


def test_one_seed_has_no_verdict() -> None:
    row = equal_cost_statistics(gaps_by_seed([0.01])).iloc[0]
    assert pd.isna(row["verdict"])
    assert np.isnan(row["t_low"])


# What is in the way of a verdict


@pytest.mark.parametrize(
    ("schedule", "seconds", "is_cut"),
    [("constant", 360.0, False), ("cosine", 360.0, True), ("linear", 360.0, True),
     ("cosine", 302.0, False), ("cosine", 304.0, True), ("cosine", 296.0, True)],
)  # fmt: skip
def test_under_a_decaying_rate_nothing_is_read_off_before_its_end(
    schedule: str, seconds: float, is_cut: bool
) -> None:
    """At 300 of 360 seconds the dearer run has not cooled down; within 1 % that is no matter."""
    comparison, costs = curves({"seconds": seconds}, schedule=schedule)
    gaps = equal_cost_gaps(comparison, costs)
    is_seconds = gaps["cost"] == "seconds"
    assert gaps["is_cut"].tolist() == (is_seconds & is_cut).tolist()
    assert gaps["gap"].isna().tolist() == (is_seconds & is_cut).tolist()
    tokens, flops, at_seconds = (row for _, row in equal_cost_statistics(gaps).iterrows())
    assert (tokens["verdict"], flops["verdict"]) == ("undecided", "undecided")
    told = ["verdict", "mean_gap", "wins", "t_low", "p_value", "p_holm"]
    assert at_seconds[told].isna().all() == at_seconds[told].isna().any() == is_cut
    assert at_seconds["ratio_low"] == pytest.approx(seconds / 300)


def test_more_flops_under_a_decaying_rate_need_a_run_of_their_own() -> None:
    comparison, costs = curves(schedule="linear")
    dearer = costs["flops"].where(costs["label"] != "triplu", 1.3 * costs["flops"])
    table = equal_cost_statistics(equal_cost_gaps(comparison, costs.assign(flops=dearer)))
    assert table.set_index("cost")["is_cut"].to_dict() == {
        "tokens": False,
        "flops": True,
        "seconds": True,
    }
    assert equal_cost_lines(table) == [
        "no verdict at equal training FLOPs, which needs a run whose schedule ends at that budget: "
        "triplu",
        "no verdict at equal seconds, which needs a run whose schedule ends at that budget: triplu",
    ]


@pytest.mark.parametrize(
    ("triplu", "is_apart"),
    [
        # SwiGLU is trained from -300 s to 0, TriPLU takes 360 s; twice that may lie between.
        ({"finished_at": AT + pd.Timedelta(seconds=360 + 700)}, False),
        ({"finished_at": AT + pd.Timedelta(seconds=360 + 740)}, True),
        ({"finished_at": AT - pd.Timedelta(seconds=300 + 700)}, False),
        ({"finished_at": AT - pd.Timedelta(seconds=300 + 740)}, True),
        ({"git_sha": "other"}, True),
        ({"versions": "{}"}, True),
        ({"hardware": "another machine"}, True),
    ],
)
def test_seconds_compare_only_side_by_side(triplu: dict[str, Any], is_apart: bool) -> None:
    comparison, costs = curves(triplu)
    gaps = equal_cost_gaps(comparison, costs)
    is_seconds = gaps["cost"] == "seconds"
    assert gaps["is_apart"].tolist() == (is_seconds & is_apart).tolist()
    assert gaps["gap"].isna().tolist() == (is_seconds & is_apart).tolist()
    lines = equal_cost_lines(equal_cost_statistics(gaps))
    assert lines == is_apart * [
        "no verdict at equal seconds, the two runs of a pair not having been trained side by side: "
        "triplu"
    ]


def test_a_cohort_lasts_as_long_as_its_members_together() -> None:
    """The seconds of a run are its share: 4 members of 360 s lay between -300 and 1140 s."""
    place = {"hardware": "gpu, cohort of 4, compiled"}
    later = {**place, "finished_at": AT + pd.Timedelta(seconds=4 * 360 + 2000)}
    comparison, _ = curves(later)
    comparison = replace(comparison, runs=comparison.runs.assign(**place))
    assert not trained_apart(comparison, paired_gaps(comparison)).any()


def test_one_pair_trained_apart_leaves_the_variant_without_a_verdict() -> None:
    gaps = gaps_by_seed([0.019, 0.020, 0.021], cost="seconds")
    gaps.loc[1, ["gap", "is_apart"]] = [np.nan, True]
    table = equal_cost_statistics(pd.concat([gaps_by_seed([0.019, 0.020, 0.021]), gaps]))
    assert table["n"].tolist() == [3, 3]
    assert table["verdict"][0] == "ahead"
    told = ["verdict", "mean_gap", "wins", "t_low", "p_value", "smallest_p"]
    assert table.loc[1, told].isna().all()


@pytest.mark.parametrize(
    ("tokens", "flops", "verdict"),
    [
        ([0.019, 0.020, 0.021], 100.0, "ahead"),
        ([-0.01, 0.02, 0.04], 100.0, "undecided"),
        ([-0.01, 0.02, 0.04], 99.5, "undecided"),
        # Fewer FLOPs are a reason to be faster, more are none.
        ([-0.01, 0.02, 0.04], 98.0, "ahead"),
        ([-0.01, 0.02, 0.04], 102.0, "undecided"),
    ],
)
def test_what_is_ahead_in_seconds_alone_is_load(
    tokens: list[float], flops: float, verdict: str
) -> None:
    gaps = [
        gaps_by_seed(tokens),
        gaps_by_seed(tokens, flops, "flops"),
        gaps_by_seed([0.019, 0.020, 0.021], 90.0, "seconds"),
    ]
    table = equal_cost_statistics(pd.concat(gaps, ignore_index=True))
    assert table["verdict"].iloc[-1] == verdict
    assert table["t_low"].iloc[-1] > 0


# Training loss


def test_the_final_training_loss_is_that_of_the_last_evaluation() -> None:
    runs = pd.DataFrame({"run_id": ["a", "b"]})
    evals = pd.DataFrame(
        [("a", 20, 1.5, "validation"), ("a", 10, 2.5, "validation"), ("a", 20, 9.0, "heldout")],
        columns=["run_id", "step", "train_loss", "split"],
    )
    told = with_train_loss(runs, evals)[TRAIN_LOSS]
    assert told[0] == 1.5
    assert np.isnan(told[1])
