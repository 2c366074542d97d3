"""The published tables of the subword protocol, the probes and the untied squared ReLU."""

import math
import re
from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
import pytest
from fabricate import planned_run, probe, write_space

from triplu_ray.report import Report, build_report
from triplu_ray.report.paper import PAPER_FILE, read_paper
from triplu_ray.store import Store

PAPER = read_paper(PAPER_FILE)
L8: dict[str, Any] = {
    "tokenizer": "bbpe",
    "d_model": 256,
    "num_layers": 8,
    "context_length": 128,
    "learning_rate": 1e-5,
    "train_budget_bytes": 100_000_000,
}


def rows(space: str, table: str) -> list[dict[str, Any]]:
    """What is published."""
    (found,) = (entry["rows"] for entry in PAPER[space] if entry["table"] == table)
    return list(found)


def cells(made: Report, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Raw cells of a table beside the paper by what the row says it is about, and its source."""
    (found,) = (found for found in made.tables() if found.name == f"paper_{table}")
    assert found.raw is not None
    names = [column.keys[0] for column in found.columns]
    keys = names[: names.index("source") + 1]
    records: list[dict[Any, Any]] = found.raw.to_dict("records")
    return {tuple(row[key] for key in keys): row for row in records}


def table_names(made: Report) -> set[str]:
    return {table.name for table in made.tables() if table.name.startswith("paper_")}


def best(run: Mapping[str, Any], losses: Mapping[str, float]) -> dict[str, Any]:
    """Subword columns: a loss by variant, worse with each seed, 0.5 worse at the end."""
    loss = losses[run["variant"]] + 0.01 * run["seed"]
    return {
        "best_bits_per_byte": loss,
        "final_bits_per_byte": loss + 0.5,
        "heldout_loss": 1.0,
        "heldout_bits_per_byte": loss + 0.1,
    }


# The file


def test_published_numbers_agree_with_each_other() -> None:
    triplu, swiglu = rows("bbpe_stress", "Table 4")
    (gaps,) = rows("bbpe_stress", "Section 5.2")
    difference = swiglu["best_bits_per_byte"] - triplu["best_bits_per_byte"]
    assert difference == pytest.approx(gaps["mean_gap"])
    seeds = mean(gaps[f"gap_seed_{seed}"] for seed in (1, 2, 3))
    assert seeds == pytest.approx(gaps["mean_gap"], abs=1e-4)
    for row in rows("bbpe_heldout", "Table 5"):
        for gap, loss in (("mean_gap", "best"), ("heldout_gap", "heldout")):
            ours = row[f"triplu_learned_gain/{loss}_bits_per_byte"]
            theirs = row[f"swiglu/{loss}_bits_per_byte"]
            assert theirs - ours == pytest.approx(row[f"triplu_learned_gain/{gap}"], abs=1.1e-6)
    for row in rows("gated", "Table 11"):
        assert round(np.exp(row["best_val_loss"]), 3) == row["perplexity"]
    scan = {row["learning_rate"]: row for row in rows("bbpe_lr_scan", "Table 7")}
    assert list(scan) == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]
    gain = {row["gain"]: row["best_bits_per_byte"] for row in rows("bbpe_gain", "Table 8")}
    assert gain[1] == scan[1e-4]["triplu gain=1/best_bits_per_byte"]
    for row in rows("bbpe_lr_scan", "Section 5.5"):
        assert row["best_bits_per_byte"] == scan[1e-3][f"{row['variant']}/best_bits_per_byte"]
    for row in rows("arithmetic", "Table 12"):
        for rate, prompts in (("exact_match", 600), ("multiplication", 300)):
            assert round(round(row[rate] * prompts) / prompts, 3) == row[rate]
    squared, untied = rows("untied_relu2", "Table")
    assert squared["layer_params"] == pytest.approx(2 * 768 * 3072, rel=1e-3)
    assert untied["layer_params"] == pytest.approx(3 * 768 * 3072, rel=1e-3)


@pytest.mark.parametrize("space", [space for space in PAPER if f"{space}_small" in PAPER])
def test_small_siblings_have_the_same_numbers_and_say_so(space: str) -> None:
    whole, small = PAPER[space], PAPER[f"{space}_small"]
    assert [entry["rows"] for entry in small] == [entry["rows"] for entry in whole]
    assert all(
        re.search("Not the (PolyGLU )?(paper|post)'s setting: ", entry["note"]) for entry in small
    )
    assert all(entry["when"] for entry in whole)


# Ours beside it


def stress(store: Store, space: str, **config: Any) -> Report:
    losses = {"swiglu": 1.38, "triplu_learned_gain": 1.36}
    planned = [planned_run(variant, seed, **{**L8, **config})
               for variant in losses for seed in (1, 2, 3)]  # fmt: skip
    write_space(store, space, planned, lambda _: 2.0, columns=lambda run: best(run, losses))
    return build_report(store, space)


def test_the_stress_test_beside_the_papers(store: Store) -> None:
    made = stress(store, "bbpe_stress")
    table = cells(made, "table_4")
    ours, difference = (table["triplu_learned_gain", key] for key in ("ours", "difference"))
    assert ours["best_bits_per_byte"] == pytest.approx(1.38)
    assert ours["final_bits_per_byte"] == pytest.approx(1.88)
    assert ours["sd"] == pytest.approx(0.01)
    assert difference["best_bits_per_byte"] == pytest.approx(1.38 - 1.3743)
    assert cells(made, "section_5.2")["triplu_learned_gain", "ours"]["gap_seed_3"] == pytest.approx(
        0.02
    )


@pytest.mark.parametrize("config", [{"train_budget_bytes": 1_000_000}, {"num_layers": 2}])
def test_a_smaller_run_stands_beside_the_paper_under_its_own_name_only(
    store: Store, config: dict[str, Any]
) -> None:
    made = stress(store, "bbpe_stress", **config)
    assert table_names(made) == set()
    assert "no run has the settings of the paper's tables" in made.warnings
    small = stress(store, "bbpe_stress_small", **config)
    assert table_names(small) == {"paper_table_4", "paper_section_5.2"}
    (table,) = (table for table in small.tables() if table.name == "paper_table_4")
    assert table.title == "Table 4 of the paper: Byte-BPE stress test"
    assert table.note.startswith("Not the paper's setting")


@pytest.mark.parametrize(
    ("space", "corpus", "budget"),
    [("bbpe_heldout", "tinystories", 50_000_000), ("bbpe_wikitext2", "wikitext2", 20_000_000)],
)
def test_heldout_texts_and_slices_by_corpus(
    store: Store, space: str, corpus: str, budget: int
) -> None:
    losses = {"swiglu": 1.38, "triplu_learned_gain": 1.36}
    planned = [planned_run(variant, seed, **{**L8, "corpus": corpus, "train_budget_bytes": budget})
               for variant in losses for seed in (1, 2)]  # fmt: skip
    slices = {"swiglu": 3.0, "triplu_learned_gain": 2.9}
    write_space(
        store,
        space,
        planned,
        lambda _: 2.0,
        columns=lambda run: best(run, losses),
        probes=lambda run: probe(run, "pmi", {"seen_q3": slices[run["variant"]], "unseen": 9.0}),
    )
    made = build_report(store, space)
    row = cells(made, "table_5")[corpus, "ours"]
    assert row["swiglu/heldout_bits_per_byte"] == pytest.approx(1.495)
    assert row["triplu_learned_gain/heldout_gap"] == pytest.approx(0.02)
    assert row["triplu_learned_gain/mean_gap"] == pytest.approx(0.02)
    row = cells(made, "table_6")[corpus, "ours"]
    assert row["triplu_learned_gain/pmi_gap_seen_q3"] == pytest.approx(0.1)
    assert row["triplu_learned_gain/pmi_gap_unseen"] == pytest.approx(0.0)
    assert row["triplu_learned_gain/pmi_gap_seen_q1"] is None
    headings = [column.heading for column in next(
        table for table in made.tables() if table.name == "paper_table_6").columns]  # fmt: skip
    assert headings[2] == "triplu_learned_gain gap seen Q1"


def test_a_gain_names_a_variant_whether_or_not_gains_vary(store: Store) -> None:
    fifty: dict[str, Any] = {**L8, "train_budget_bytes": 50_000_000}
    planned = [planned_run("triplu", 1, gain=1.0, **{**fifty, "learning_rate": rate})
               for rate in (1e-4, 1e-3)]  # fmt: skip
    write_space(store, "bbpe_lr_scan", planned, lambda _: 2.0, None,
                columns=lambda run: best(run, {"triplu": 1.3}))  # fmt: skip
    made = build_report(store, "bbpe_lr_scan")
    scan = cells(made, "table_7")
    assert scan["0.0001", "ours"]["triplu gain=1/best_bits_per_byte"] == pytest.approx(1.31)
    assert scan["1e-05", "ours"]["triplu gain=1/best_bits_per_byte"] is None
    hottest = cells(made, "section_5.5")
    assert hottest["triplu gain=1", "ours"]["final_bits_per_byte"] == pytest.approx(1.81)

    planned = [planned_run("triplu", 1, gain=gain, **{**fifty, "learning_rate": 1e-4})
               for gain in (1.0, 10.0)]  # fmt: skip
    write_space(store, "bbpe_gain", planned, lambda _: 2.0, None,
                columns=lambda run: best(run, {"triplu": 1.3 + run["gain"] / 100}))  # fmt: skip
    gains = cells(build_report(store, "bbpe_gain"), "table_8")
    assert gains["triplu", "10", "ours"]["best_bits_per_byte"] == pytest.approx(1.41)
    assert gains["triplu", "5", "ours"]["best_bits_per_byte"] is None


def test_gated_products_go_by_their_gain(store: Store) -> None:
    kinds = {"triple_swiglu": 1, "double_silu_triple": 2}
    planned = [planned_run(variant, 1, gain, hidden=242, ffn={"kind": "gated_product", "degree": 3,
                                                              "num_gates": gates})
               for variant, gates in kinds.items() for gain in (1.0, 5.0)]  # fmt: skip
    planned += [planned_run("triplu", 1), planned_run("swiglu", 1)]
    write_space(store, "gated", planned, lambda run: 1.1 - (run["gain"] or 0) / 100)
    table = cells(build_report(store, "gated"), "table_11")
    ours = {key[0]: row["best_val_loss"] for key, row in table.items() if key[1] == "ours"}
    assert ours == pytest.approx({
        "triplu": 1.05, "triple_swiglu gain=5": 1.05, "double_silu_triple gain=5": 1.05,
        "triple_swiglu gain=1": 1.09, "double_silu_triple gain=1": 1.09, "swiglu": 1.1,
    })  # fmt: skip
    assert table["triple_swiglu gain=5", "difference"]["params"] == 0


def test_exact_match_stands_beside_the_papers(store: Store) -> None:
    planned = [planned_run(variant, 1, corpus="arithmetic_lite", context_length=32)
               for variant in ("gelu", "swiglu")]  # fmt: skip
    write_space(store, "arithmetic", planned, lambda _: 0.9,
                probes=lambda run: probe(run, "arithmetic", {"all": 0.2, "multiplication": 0.1}))  # fmt: skip  # noqa: E501
    row = cells(build_report(store, "arithmetic"), "table_12")["gelu", "difference"]
    assert row["exact_match"] == pytest.approx(0.085)
    assert row["multiplication"] == pytest.approx(0.057)
    assert row["best_val_loss"] == pytest.approx(0.0055)


def test_the_untied_form_at_the_baselines_width_stands_beside_the_post(store: Store) -> None:
    untied = {"kind": "untied_squared_relu", "initial_similarity": 0.0}
    planned = [planned_run("squared_relu", 1, hidden=384)]
    planned += [planned_run("untied_squared_relu", 1, ffn=untied, hidden=hidden)
                for hidden in (384, 256)]  # fmt: skip
    seconds = {"squared_relu": 100.0, "untied_squared_relu": 120.0}
    write_space(
        store,
        "untied_relu2_small",
        planned,
        lambda _: 1.1,
        "squared_relu",
        columns=lambda run: {"seconds": seconds[run["variant"]]},
        probes=lambda run: (
            probe(run, "similarity", {"layer 0": 0.5, "layer 1": 0.7})
            if run["variant"] == "untied_squared_relu"
            else []
        ),
    )
    made = build_report(store, "untied_relu2_small")
    table = cells(made, "table")
    ours = table["untied_squared_relu", "1", "ours"]
    assert ours["layer_params"] == 3 * 96 * 384
    assert ours["relative_ffn_flops"] == 1.5
    assert ours["relative_time"] == pytest.approx(1.2)
    assert ours["similarity"] == pytest.approx(0.6)
    assert ours["mean_gap"] == pytest.approx(0.0)
    assert table["untied_squared_relu", "1", "post"]["mean_gap"] == "practically none"
    assert np.isnan(table["untied_squared_relu", "1", "difference"]["mean_gap"])
    assert table["squared_relu", "1", "ours"]["relative_time"] == 1.0
    (printed,) = (table for table in made.tables() if table.name == "paper_table")
    assert printed.title == "Table of the post: squared ReLU and its untied form"


def test_routing_stands_beside_the_polyglu_papers(store: Store) -> None:
    polyglu = {"kind": "polyglu", "pooling": "prefix", "decay_preferences": False}
    planned = [planned_run("polyglu", 1, ffn=polyglu), planned_run("swiglu", 1)]
    shares = {"relu": 0.0, "silu": 0.0}
    first = {"entropy": 0.1 * math.log(4), **shares, "gelu": 0.9, "tanh": 0.1, "static": 0.5}
    last = {"entropy": 0.3 * math.log(4), **shares, "gelu": 0.2, "tanh": 0.8, "static": 0.5}
    groups = {f"layer {n} {key}": value for n, layer in enumerate((first, last))
              for key, value in layer.items()}  # fmt: skip
    write_space(store, "polyglu_small", planned, lambda _: 1.1, probes=lambda run: (
        probe(run, "routing", groups) if run["variant"] == "polyglu" else []
    ))  # fmt: skip
    made = build_report(store, "polyglu_small")
    ours = cells(made, "analysis")["polyglu", "ours"]
    assert ours["routing_entropy"] == pytest.approx(0.2)
    assert (ours["gelu_first"], ours["tanh_last"]) == pytest.approx((0.9, 0.8))
    (printed,) = (table for table in made.tables() if table.name == "paper_analysis")
    assert ["polyglu", "PolyGLU paper", "0.03%", "35 to 40 %", "50 to 65 %"] in printed.rows()
