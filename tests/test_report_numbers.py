"""The report's own computations: axes, warnings, the paper's numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import swept
from fabricate import FEED_FORWARD, frames, planned_run, stored_run

from triplu_ray.compare import Comparison, mean_gaps, paired_gaps, tidy
from triplu_ray.report.axes import at_best, axis_means, selection_axes
from triplu_ray.report.caveats import warning_lines
from triplu_ray.report.paper import PAPER_FILE, paper_tables, read_paper

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
    assert mean_gaps(paired_gaps(best))["mean_gap"].tolist() == pytest.approx([0.3])


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


@pytest.mark.parametrize(
    ("variants", "count"), [(["triplu"], 0), (["triplu", "gelu"], 2), (["triplu", "triplu"], 0)]
)
def test_the_best_of_several_is_flattered(variants: list[str], count: int) -> None:
    """Two gains are no two variants."""
    planned = [planned_run("swiglu", 1)]
    planned += [planned_run(variants[0], 1), *(planned_run(v, 1, gain=7.0) for v in variants[1:])]
    comparison = tidy(*frames([stored_run(run, 1.1) for run in planned], planned), "swiglu")
    assert warned(comparison, f"the best of {count} variants, picked on the seeds") == (count > 0)
    assert warned(comparison, "what the headline begins with") == (count > 0)


def test_warnings_of_the_baseline() -> None:
    comparison = tidy(*frames([], [planned_run("triplu", 1, gain=g) for g in (1.0, 2.0)]), "triplu")
    assert warned(comparison, "the baseline triplu is ambiguous (triplu gain=1, ", "triplu")
    assert warned(comparison, "no run of the baseline swiglu", "swiglu")
    assert warned(comparison, "names no baseline", None)


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
