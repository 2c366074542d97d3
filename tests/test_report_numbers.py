"""The report's own computations: costs, axes, warnings, sentences, the paper's numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fabricate import FEED_FORWARD, frames, planned_run, stored_run

from triplu_ray.compare import Comparison, gap_statistics, paired_gaps, tidy
from triplu_ray.report import costs as report_costs
from triplu_ray.report.axes import at_best, axis_means, selection_axes
from triplu_ray.report.caveats import warning_lines
from triplu_ray.report.costs import cost_to_target, equal_cost_gaps, evaluation_costs
from triplu_ray.report.paper import PAPER_FILE, paper_tables, read_paper
from triplu_ray.report.sentences import headline

STEPS = [0, 1000, 2000, 3000]
CURVES = {
    ("swiglu", 1): [4.0, 1.20, 1.10, 1.05],
    ("swiglu", 2): [4.0, 1.20, 1.12, 1.11],
    ("triplu", 1): [4.0, 1.10, 1.08, 1.02],
    ("triplu", 2): [4.0, 1.20, 1.09, 1.04],
}


def curves() -> tuple[Comparison, pd.DataFrame]:
    """Two variants, two seeds, four evaluations; TriPLU is slower by a fifth."""
    planned, runs, evals = [], [], []
    for (variant, seed), losses in CURVES.items():
        run = planned_run(variant, seed, num_steps=3000)
        seconds = 360.0 if variant == "triplu" else 300.0
        planned.append(run)
        runs.append(stored_run(run, min(losses), losses[-1], seconds=seconds))
        evals += [
            {"run_id": run["run_id"], "step": step, "tokens": 2048 * step, "split": "validation",
             "loss": loss, "seconds": seconds * step / 3000}
            for step, loss in zip(STEPS, losses, strict=True)
        ]  # fmt: skip
    comparison = tidy(*frames(runs, planned), "swiglu")
    return comparison, evaluation_costs(comparison, pd.DataFrame(evals))


def swept(values: dict[tuple[str, float], list[float]], key: str = "learning_rate") -> Comparison:
    """Losses by seed of (variant, value of an axis)."""
    planned, runs = [], []
    for (variant, value), losses in values.items():
        for seed, loss in enumerate(losses, start=1):
            settings: dict[str, Any] = {key: value} if value else {}
            planned.append(planned_run(variant, seed, **settings))
            if np.isfinite(loss):
                runs.append(stored_run(planned[-1], loss))
    return tidy(*frames(runs, planned), "swiglu")


# Costs


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
    assert report_costs.loss_within(points, "tokens", asked, budget).tolist() == [2.5, 1.0, 1.0]


# Axes


def test_best_learning_rates_and_the_gap_between_them() -> None:
    comparison = swept(
        {
            ("swiglu", 1e-4): [1.20, 1.22],
            ("swiglu", 1e-3): [1.10, 1.12],
            ("swiglu", 1e-2): [1.15, 1.15],
            ("triplu", 1e-4): [1.09, 1.13],
            ("triplu", 1e-3): [1.14, 1.14],
            ("triplu", 1e-2): [1.00, np.nan],
        }
    )
    means = axis_means(comparison, "learning_rate")
    best = means[means["is_best"]].set_index("label")
    # 1e-2 is not complete, so it is no candidate.
    assert best["learning_rate"].to_dict() == {"swiglu": 1e-3, "triplu": 1e-4}
    assert best["edge"].to_dict() == {"swiglu": "", "triplu": "lowest"}
    assert best["best_val_loss"].to_dict() == pytest.approx({"swiglu": 1.11, "triplu": 1.11})
    pairs = paired_gaps(at_best(comparison, "learning_rate"))
    assert pairs["gap"].tolist() == pytest.approx([0.01, -0.01])
    assert selection_axes(comparison) == ["learning_rate"]


def test_gains_are_compared_within_their_variant() -> None:
    by_gain = {("triplu", gain): [loss] for gain, loss in ((1.0, 1.3), (5.0, 1.1), (9.0, 1.2))}
    comparison = swept({**by_gain, ("swiglu", 0): [1.4]}, key="gain")
    assert selection_axes(comparison) == ["gain"]
    best = at_best(comparison, "gain")
    assert best.runs["label"].tolist() == ["swiglu", "triplu"]
    assert gap_statistics(paired_gaps(best))["mean_gap"].tolist() == pytest.approx([0.3])


# Warnings


def warned(comparison: Comparison, words: str, baseline: str | None = "swiglu") -> bool:
    return any(words in line for line in warning_lines(comparison, baseline))


def test_warnings_name_what_is_missing() -> None:
    comparison = swept({("swiglu", 0): [1.1, 1.1, 1.1, 1.1], ("triplu", 0): [1.0, np.nan]})
    lines = warning_lines(comparison, "swiglu")
    assert "1 of 6 runs missing: triplu seed 2" in lines
    assert lines[1].startswith("3 of 4 pairs missing: triplu seed 2 (variant missing), ")
    assert "fewer than 3 paired seeds, too few for an interval: triplu has 1" in lines


def test_warnings_of_selection() -> None:
    comparison = swept({(v, lr): [1.0 + lr] * 3 for v in ("swiglu", "triplu") for lr in (0.1, 0.2)})
    assert warned(comparison, "best learning rate at the edge of the grid: swiglu 0.1 (lowest), ")
    assert warned(comparison, "the best learning rate is picked on the seeds that are reported")


def test_warnings_of_parameters_and_seeds() -> None:
    planned = [planned_run("swiglu", seed) for seed in (1, 2, 3)]
    planned += [planned_run("triplu", seed, hidden=230) for seed in (1, 2, 3)]
    comparison = tidy(*frames([stored_run(run, 1.1) for run in planned], planned), "swiglu")
    assert warned(
        comparison, "parameters differ from the baseline's by more than 1 %: triplu -3.1%"
    )
    assert warned(comparison, "with 3 seeds no exact test can give p below 0.25")
    assert not warned(comparison, "fewer than 3")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"corpus_sha256": "other"}, "different texts under one corpus name"),
        ({"versions": '{"torch": "2.9"}'}, "differ in the version of torch: 2.12.0, 2.9"),
        ({"git_sha": "fff"}, "differ in the commit of the code: abc1234, fff"),
        ({"hardware": "gpu"}, "unlike hardware or cohorts: cpu, 1 thread, 4 members, gpu"),
        ({"status": "diverged"}, "1 of 2 runs diverged: triplu seed 1"),
    ],
)
def test_warnings_of_unlike_runs(row: dict[str, Any], words: str) -> None:
    planned = [planned_run("swiglu", 1), planned_run("triplu", 1)]
    same = [stored_run(run, 1.1) for run in planned]
    unlike = [same[0], stored_run(planned[1], 1.1, **row)]
    assert not warned(tidy(*frames(same, planned), "swiglu"), words)
    assert warned(tidy(*frames(unlike, planned), "swiglu"), words)


def test_warnings_of_the_baseline() -> None:
    comparison = tidy(*frames([], [planned_run("triplu", 1, gain=g) for g in (1.0, 2.0)]), "triplu")
    assert warned(comparison, "the baseline triplu is ambiguous (triplu gain=1, ", "triplu")
    assert warned(comparison, "no run of the baseline swiglu", "swiglu")
    assert warned(comparison, "names no baseline", None)


# Sentences


def test_headline_of_one_setting() -> None:
    comparison, costs = curves()
    lines = headline(comparison, costs, [1.10, 1.03])
    assert lines[0].startswith(
        "triplu beats swiglu in 2 of 2 seeds: mean paired gap +0.0500 (95 % interval -0.2041 to "
        "+0.3041), exact p 0.5, the smallest that 2 seeds can give."
    )
    assert lines[1] == (
        "triplu's advantage is not shown at equal tokens (+0.0500, 2/2, interval -0.2041 to "
        "+0.3041 holds zero, p 0.5), at equal training FLOPs (+0.0498, 2/2, interval -0.2046 to "
        "+0.3042 holds zero, p 0.5) and at equal seconds (+0.0225, 1/2, interval -0.2634 to "
        "+0.3084 holds zero, p 1)."
    )
    assert lines[2] == (
        "The seconds of triplu's runs are 1.20 to 1.20 times those of swiglu's; what scatters "
        "there over seeds is the machine's load."
    )
    assert lines[3] == (
        "triplu reaches a loss of 1.1 in all 2 runs, after 3.07 M tokens on the mean; "
        "swiglu in 1 of 2."
    )


def test_headline_counts_settings() -> None:
    comparison = swept(
        {
            ("swiglu", 1): [1.1, 1.2],
            ("swiglu", 2): [1.1, 1.2],
            ("triplu", 1): [1.0, 1.0],
            ("triplu", 2): [1.2, 1.15],
        },
        key="num_layers",
    )
    assert headline(comparison, pd.DataFrame(), []) == [
        "triplu is ahead of swiglu on the mean in 1 of 2 settings and in 3 of 4 pairs; the mean "
        "gap goes from -0.0250 (num_layers=2) to +0.1500 (num_layers=1)."
    ]


# The paper


def test_the_papers_file_holds_its_numbers() -> None:
    paper = read_paper(PAPER_FILE)
    assert [entry["table"] for entry in paper["main_1m"]] == [
        "Table 2", "Section 5.1", "Table 3", "Table 10", "Table 13"
    ]  # fmt: skip
    assert [row["num_layers"] for row in paper["depth"][0]["rows"]] == [1, 2, 4, 5, 6, 7, 8]
    for row in paper["depth"][0]["rows"]:
        for variant in ("swiglu", "triplu"):
            run = planned_run(variant, 1, num_layers=row["num_layers"])
            assert run["params"] == row[f"{variant}/params"]
        gap = row["swiglu/best_val_loss"] - row["triplu/best_val_loss"]
        assert gap == pytest.approx(row["triplu/mean_gap"], abs=1.1e-4)
    for row in paper["main_1m"][0]["rows"]:
        assert planned_run(row["variant"], 1)["params"] == row["params"]
        assert round(np.exp(row["best_val_loss"]), 3) == row["perplexity"]


def test_ours_stands_beside_the_papers() -> None:
    planned = [planned_run(v, seed, num_steps=n) for v in FEED_FORWARD for seed in (1, 2, 3)
               for n in (5000, 50)]  # fmt: skip
    runs = [stored_run(run, 1.06 if run["tokens"] > 1e6 else 3.0) for run in planned]
    comparison = tidy(*frames(runs, planned), "swiglu")
    published = read_paper(PAPER_FILE)["main_1m"]
    tables = {table.name: table for table in paper_tables(published, comparison, None)}
    assert set(tables) == {"paper_table_2", "paper_section_5.1", "paper_table_3", "paper_table_13"}
    raw = tables["paper_table_2"].raw
    assert raw is not None
    triplu = raw[raw["variant"] == "triplu"].set_index("source")
    assert triplu["best_val_loss"].tolist() == pytest.approx([1.06, 1.0637, -0.0037])
    assert triplu["minimal_pairs"].tolist()[1] == 70.7
    compute = tables["paper_table_3"].frame.set_index(["variant", "source"])
    assert compute.loc[("quad_prod", "ours"), "projections"] == "5"
    assert compute.loc[("quad_prod", "difference"), "ffn_flops_per_token"] == "+0"


def test_without_runs_of_the_papers_setting_or_its_file_nothing_is_compared(tmp_path: Path) -> None:
    planned = [planned_run(v, 1, num_steps=50) for v in ("swiglu", "triplu")]
    comparison = tidy(*frames([stored_run(run, 3.0) for run in planned], planned), "swiglu")
    assert paper_tables(read_paper(PAPER_FILE)["main_1m"], comparison, None) == []
    assert read_paper(tmp_path / "absent.yaml") == {}
