"""What reports say of probes: known values in, known cells out."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fabricate import FEED_FORWARD, planned_run, probe, write_space

from triplu_ray.report import Report, build_report, report_json, to_markdown, write_report
from triplu_ray.report.model import Section
from triplu_ray.store import Store

PREFIX = {"kind": "polyglu", "pooling": "prefix", "decay_preferences": False}


def report(
    store: Store,
    values: Mapping[str, Any],
    name: str,
    baseline: str | None = "swiglu",
    counts: Mapping[str, int] | None = None,
) -> Report:
    """A space of two seeds whose probe of a name has these values by variant: one set a seed."""
    planned = [planned_run(variant, seed) for variant in values for seed in (1, 2)]
    write_space(
        store,
        "probed",
        planned,
        lambda _: 1.1,
        baseline,
        probes=lambda run: probe(run, name, values[run["variant"]][run["seed"] - 1], counts=counts),
    )
    return build_report(store, "probed")


def section(made: Report) -> Section:
    (found,) = (section for section in made.sections if section.title == "Probes")
    return found


def rows(made: Report, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report_json(made)["tables"][table]
    return found


def drawn(made: Report) -> dict[str, int]:
    """The figures of the section, drawn, by the number of their panels."""
    figures = section(made).figures
    assert all(figure.images[0].startswith(b"\x89PNG") for figure in figures)
    return {figure.name: len(figure.draw().axes) for figure in figures}


# What models can do


def test_minimal_pairs_are_percent_with_the_categories_beside_them(store: Store) -> None:
    values = {
        "swiglu": [{"all": 0.70, "number": 0.60, "word_order": 0.80},
                   {"all": 0.72, "number": 0.64, "word_order": 0.80}],
        "triplu": [{"all": 0.70, "number": 0.70, "word_order": 0.70},
                   {"all": 0.76, "number": 0.80, "word_order": 0.72}],
    }  # fmt: skip
    made = report(store, values, "minimal_pairs", counts={"number": 25, "word_order": 75})
    text = to_markdown(made)
    assert (
        "| variant | accuracy % (100) | SD | gap to swiglu | 95 % interval (t) | wins | runs | "
        "number (25) | word order (75) |"
    ) in text
    # SDs by hand: 6 / sqrt(2) and 2 / sqrt(2); gaps 0 and 4, half an interval 12.7062 x 2.
    dashes = " | ".join("\N{EN DASH}" * 3)
    assert (
        "| triplu | 73.0 | 4.2 | +2.0 | -23.4 to +27.4 | 1/2 | 2 | 75.0 | 71.0 |\n"
        f"| swiglu | 71.0 | 1.4 | {dashes} | 2 | 62.0 | 80.0 |"
    ) in text
    raw = {(row["label"], row["group"]): row["mean"] for row in rows(made, "minimal_pairs")}
    assert raw["swiglu", "number"] == pytest.approx(0.62)
    assert len(raw) == 6
    assert drawn(made) == {}


def test_minimal_pairs_fill_the_papers_table(store: Store) -> None:
    planned = [planned_run(variant, seed) for variant in FEED_FORWARD for seed in (1, 2)]
    write_space(
        store,
        "main_1m",
        planned,
        lambda _: 1.1,
        probes=lambda run: probe(run, "minimal_pairs", {"all": 0.7 + run["seed"] / 100}),
    )
    text = to_markdown(build_report(store, "main_1m"))
    assert "| triplu | ours | 282,624 | 1.1000 | 0.0000 | 3.004 | 71.5 |" in text
    assert "| triplu | difference | +0 | +0.0363 | -0.0031 | +0.107 | +0.8 |" in text


def test_arithmetic_is_exact_match(store: Store) -> None:
    values = {
        "swiglu": [{"all": 0.20, "multiplication": 0.06}, {"all": 0.19, "multiplication": 0.07}],
        "triplu": [{"all": 0.21, "multiplication": 0.08}, {"all": 0.21, "multiplication": 0.08}],
    }
    made = report(store, values, "arithmetic")
    text = to_markdown(made)
    # Gaps 0.01 and 0.02, then 0.02 and 0.01: half an interval 12.7062 x 0.005.
    gap = "+0.015 | -0.049 to +0.079 | 2/2"
    assert f"| triplu | 0.210 | 0.000 | {gap} | 0.080 | {gap} | 2 |" in text
    assert "| exact match (100) | SD | gap to swiglu | 95 % interval (t) | wins | mult" in text
    assert "Each interval stands by itself, not corrected for the 2 comparisons." in text


def test_a_baseline_without_mistakes_or_right_answers_can_be_compared_with(store: Store) -> None:
    values = {"swiglu": [{"all": 1.0, "multiplication": 0.0}] * 2,
              "triplu": [{"all": 0.5, "multiplication": 0.5}] * 2}  # fmt: skip
    text = to_markdown(report(store, values, "arithmetic"))
    assert "| -0.500 | -0.500 to -0.500 | 0/2 | 0.500 | +0.500 | +0.500 to +0.500 | 2/2 |" in text


def test_without_a_baseline_accuracies_stand_alone(store: Store) -> None:
    made = report(store, {"triplu": [{"all": 0.7}, {"all": 0.8}]}, "minimal_pairs", baseline=None)
    assert "| variant | accuracy % (100) | SD | runs |" in to_markdown(made)


# Adjacent tokens

SLICE_LOSSES = {
    "swiglu": [{"seen_q1": 8.0, "seen_q4": 2.0, "unseen": 12.0},
               {"seen_q1": 8.2, "seen_q4": 2.2, "unseen": math.nan}],
    "triplu": [{"seen_q1": 8.1, "seen_q4": 1.9, "unseen": 12.5},
               {"seen_q1": 8.0, "seen_q4": 2.0, "unseen": 12.0}],
}  # fmt: skip


def test_gaps_by_slice_have_intervals_and_tokens(store: Store) -> None:
    made = report(store, SLICE_LOSSES, "pmi")
    table = {row["slice"]: row for row in rows(made, "pmi_gaps")}
    assert list(table) == ["seen_q1", "seen_q4", "unseen"]
    # Gaps -0.1 and 0.2, then 0.1 and 0.2: half intervals 12.7062 x 0.15 and x 0.05.
    assert table["seen_q1"]["mean_gap"] == pytest.approx(0.05)
    assert table["seen_q1"]["t_high"] == pytest.approx(0.05 + 1.9059, abs=1e-4)
    assert table["seen_q4"]["mean_gap"] == pytest.approx(0.15)
    assert table["seen_q4"]["t_low"] == pytest.approx(0.15 - 0.6353, abs=1e-4)
    assert (table["seen_q4"]["loss"], table["seen_q4"]["baseline_loss"]) == pytest.approx(
        (1.95, 2.1)
    )
    assert table["seen_q1"]["count"] == 100
    # Where a slice of one run is empty there is no pair.
    assert (table["unseen"]["n"], table["unseen"]["mean_gap"]) == pytest.approx((1, -0.5))
    assert table["unseen"]["t_low"] is None
    assert "| triplu | seen Q4 | 100 | +0.1500 | -0.4853 to +0.7853 | 2/2 |" in to_markdown(made)
    assert drawn(made) == {"pmi_gaps": 1}


def test_without_a_baseline_slices_have_no_gaps(store: Store) -> None:
    made = report(store, SLICE_LOSSES, "pmi", baseline=None)
    assert "Probes" not in {section.title for section in made.sections}


# Inside the layers


def routed(entropy: float, relu: float, static: float) -> dict[str, float]:
    """Two layers alike but for the entropy; what ReLU leaves is SiLU's."""
    shares = {"relu": relu, "tanh": 0.1, "silu": 0.9 - relu, "gelu": 0.0, "static": static}
    layers = {f"layer {layer} {name}": value for layer in (0, 10) for name, value in shares.items()}
    return {
        **layers,
        "layer 0 entropy": entropy,
        "layer 10 entropy": 2 * entropy,
        "loss": 1.2,
        "frozen_loss": 1.2 + entropy,
    }


def test_routing_by_layer_and_what_freezing_costs(store: Store) -> None:
    values = [routed(0.2, 0.5, 0.3), routed(0.4, 0.7, 0.5)]
    planned = [planned_run("polyglu", seed, ffn=PREFIX) for seed in (1, 2)]
    planned += [planned_run("swiglu", seed) for seed in (1, 2)]
    write_space(store, "routed", planned, lambda _: 1.1, probes=lambda run: (
        probe(run, "routing", values[run["seed"] - 1]) if run["variant"] == "polyglu" else []
    ))  # fmt: skip
    made = build_report(store, "routed")
    first, last = rows(made, "routing")
    assert (first["layer"], last["layer"]) == (0, 10)
    assert (first["entropy"], last["entropy"]) == pytest.approx((0.3, 0.6))
    assert first["relative_entropy"] == pytest.approx(0.3 / 1.386294, abs=1e-6)
    text = to_markdown(made)
    assert "| polyglu | 10 | 0.600 | 43.3% | 60.0% | 10.0% | 30.0% | 0.0% | 40.0% | 2 |" in text
    assert "| polyglu | 1.2000 | 1.5000 | +0.3000 | +0.4000 | 2 |" in text
    assert drawn(made) == {"routing": 1}


def similar(run: Mapping[str, Any], layers: int) -> list[dict[str, Any]]:
    """Falls with the step, rises with layer and seed."""
    return [
        row
        for step in (0, 2500, 5000)
        for row in probe(
            run,
            "similarity",
            {f"layer {layer}": 0.1 * run["seed"] + 0.01 * layer - step / 1e5
             for layer in range(layers)},
            step,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("layers", [2, 13])
def test_similarity_along_training_and_at_its_end(store: Store, layers: int) -> None:
    untied = {"kind": "untied_squared_relu", "initial_similarity": 0.0}
    planned = [planned_run("untied_squared_relu", seed, ffn=untied, num_layers=depth)
               for seed in (1, 2) for depth in (2, 4)]  # fmt: skip
    write_space(store, "untied", planned, lambda _: 1.1, None,
                probes=lambda run: similar(run, layers))  # fmt: skip
    made = build_report(store, "untied")
    table = rows(made, "similarity")
    assert len(table) == 2 * layers
    assert [row["layer"] for row in table[:layers]] == list(range(layers))
    # Seeds 0.1 and 0.2 have a mean of 0.15, of which 0.05 is lost by the last step.
    assert table[1]["similarity"] == pytest.approx(0.11)
    text = to_markdown(made)
    if layers == 2:
        assert "| num_layers=2 | untied_squared_relu | +0.105 | +0.100 | +0.110 | 2 |" in text
    else:
        assert "| num_layers=2 | untied_squared_relu | +0.160 | 2 |" in text
    assert drawn(made) == {"similarity": 2}


# Files and odd stores


def test_a_report_of_probes_can_be_made_from_its_folder(store: Store, tmp_path: Path) -> None:
    made = report(store, SLICE_LOSSES, "pmi")
    folder = write_report(made, store, tmp_path, ["json"])
    assert pq.read_table(folder / "probes.parquet").num_rows == 12
    again = build_report(Store(str(folder)), "probed")
    assert to_markdown(again) == to_markdown(made)
    assert report_json(again) == report_json(made)


def test_runs_that_diverged_count_for_nothing(store: Store) -> None:
    planned = [planned_run("swiglu", seed) for seed in (1, 2)]
    write_space(
        store, "hot", planned, lambda _: 1.1,
        columns=lambda run: {"status": "diverged" if run["seed"] == 2 else "finished"},
        probes=lambda run: probe(run, "minimal_pairs", {"all": run["seed"] / 4}),
    )  # fmt: skip
    (row,) = rows(build_report(store, "hot"), "minimal_pairs")
    assert (row["mean"], row["seeds"]) == (0.25, 1)
