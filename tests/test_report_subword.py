"""Reports in bits per byte, of heldout texts, of runs that stopped early or see later tokens."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from fabricate import frames, planned_run, stored_run, write_space

from triplu_ray.compare import BITS_PER_BYTE, NATS, paired_gaps, tidy
from triplu_ray.report import Report, build_report, report_json, to_markdown, write_report
from triplu_ray.report.caveats import warning_lines
from triplu_ray.report.costs import evaluation_costs
from triplu_ray.report.heldout import heldout_summary
from triplu_ray.store import Store

# Gaps of triplu: bits 0.04 and 0.01, heldout 0.02 and 0.06; in nats it would lose both seeds.
NATS_A_TOKEN = {("swiglu", 1): 2.0, ("swiglu", 2): 2.1, ("triplu", 1): 2.2, ("triplu", 2): 2.3}
BITS = {("swiglu", 1): 1.40, ("swiglu", 2): 1.44, ("triplu", 1): 1.36, ("triplu", 2): 1.43}
HELDOUT = {("swiglu", 1): 1.50, ("swiglu", 2): 1.56, ("triplu", 1): 1.48, ("triplu", 2): 1.50}
Columns = Callable[[Mapping[str, Any]], dict[str, Any]]


def key(run: Mapping[str, Any]) -> tuple[str, int]:
    return run["variant"], run["seed"]


def bits(run: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a subword run; its final loss is 0.1 bits above its best."""
    return {"best_bits_per_byte": BITS[key(run)], "final_bits_per_byte": BITS[key(run)] + 0.1}


def heldout(run: Mapping[str, Any]) -> dict[str, Any]:
    return {**bits(run), "heldout_loss": 1.0, "heldout_bits_per_byte": HELDOUT[key(run)]}


def report(store: Store, columns: Columns, **config: Any) -> Report:
    planned = [planned_run(variant, seed, **config) for variant, seed in NATS_A_TOKEN]
    write_space(store, "subword", planned, lambda run: NATS_A_TOKEN[key(run)], columns=columns,
                targets=(1.45,))  # fmt: skip
    return build_report(store, "subword")


def rows(report: Report, table: str) -> dict[str, dict[str, Any]]:
    """The raw rows of a table by label."""
    return {row["label"]: row for row in report_json(report)["tables"][table]}


# Bits per byte


def test_losses_are_bits_per_byte_throughout(store: Store) -> None:
    made = report(store, bits)
    # By hand: SD 0.03 / sqrt(2), times t(1, 0.975) = 12.7062 over sqrt(2) is 0.1906.
    assert made.headline[0] == (
        "triplu is undecided against swiglu: ahead in 2 of 2 seeds, mean paired gap +0.0250 bits "
        "per byte (95 % interval -0.1656 to +0.2156), exact p 0.5, the smallest that 2 seeds can "
        "give."
    )
    assert made.headline[-1].startswith("triplu reaches bits per byte of 1.45 in all 2 runs, ")
    gaps = report_json(made)["tables"]["paired_gaps"]
    assert [gap["gap"] for gap in gaps] == pytest.approx([0.04, 0.01])
    assert [gap["final_gap"] for gap in gaps] == pytest.approx([0.04, 0.01])
    triplu = rows(made, "variants")["triplu"]
    assert triplu["best_bits_per_byte"] == pytest.approx(1.395)
    assert triplu["final_bits_per_byte"] == pytest.approx(1.495)
    assert triplu["sd"] == pytest.approx(0.07 / 2**0.5)
    assert rows(made, "gap_statistics")["triplu"]["relative_gap"] == pytest.approx(0.025 / 1.42)
    assert rows(made, "equal_cost")["triplu"]["mean_gap"] == pytest.approx(0.025)
    text = to_markdown(made)
    # Of the training text nobody counts bytes: its loss is 0.02 below 2.2 and 2.3 nats a token.
    assert (
        "| variant | best bits per byte | SD | final bits per byte | "
        "final train loss, nats a token | finished |"
    ) in text
    assert "| triplu | 1.3950 | 0.0495 | 1.4950 | 2.2300 | 2 |" in text
    for words in ("best loss", "final loss", "validation loss", "perplexity"):
        assert words not in text.lower(), words
    labels = {figure.name: figure.draw().axes[0].get_ylabel() for figure in made.figures()}
    assert labels == {
        "loss_curves": "validation bits per byte",
        "paired_seeds": "best validation bits per byte",
        "gap_curves": "gap to swiglu",
        "loss_by_cost": "validation bits per byte",
    }


def test_axes_and_gains_are_in_bits_per_byte(store: Store) -> None:
    planned = [planned_run("triplu", seed, gain, learning_rate=rate)
               for seed in (1, 2) for gain in (1.0, 5.0) for rate in (1e-4, 1e-3)]  # fmt: skip
    write_space(store, "gains", planned, lambda _: 2.0, None,
                columns=lambda run: {"best_bits_per_byte": 1.0 + run["gain"] / 100,
                                     "final_bits_per_byte": 1.5})  # fmt: skip
    made = build_report(store, "gains")
    text = to_markdown(made)
    assert "| learning_rate=0.001 | triplu | 1 | 1.0100 | 1.5000 | 2/2 | best |" in text
    by_rate = report_json(made)["tables"]["by_learning_rate"]
    assert {row["best_bits_per_byte"] for row in by_rate} == {1.01, 1.05}
    assert made.headline[0].startswith(
        "Each variant at its best learning rate and gain: triplu has a mean best bits per byte of "
        "1.0100 over 2 finished runs"
    )


def test_without_all_the_bits_losses_are_nats_and_a_line_says_so(store: Store) -> None:
    made = report(store, lambda run: bits(run) if run["variant"] == "triplu" else {})
    assert "triplu loses to swiglu in 2 of 2 seeds: mean paired gap -0.2000 (" in made.headline[0]
    assert (
        "2 of 4 runs have no bits per byte: losses are in nats a token, which do not compare "
        "between tokenizers"
    ) in made.warnings
    assert "| variant | best loss | SD | perplexity | final loss |" in to_markdown(made)


def test_runs_that_never_had_a_loss_do_not_decide_the_metric() -> None:
    planned = [planned_run("swiglu", seed) for seed in (1, 2)]
    row = {"status": "diverged", "best_val_loss": None, "final_val_loss": None}
    stored = [stored_run(planned[0], 1.1), {**stored_run(planned[1], 1.1), **row}]
    assert tidy(*frames(stored, planned), "swiglu").metric is NATS
    stored[0] |= {"best_bits_per_byte": 0.9}
    comparison = tidy(*frames(stored, planned), "swiglu")
    assert comparison.metric is BITS_PER_BYTE
    assert not any("bits per byte" in line for line in warning_lines(comparison, "swiglu"))


def test_precisions_are_compared_in_bits_per_byte(store: Store) -> None:
    report(store, bits)
    planned = [planned_run(variant, seed, precision="bf16") for variant, seed in BITS]
    write_space(store, "coarse", planned, lambda run: NATS_A_TOKEN[key(run)],
                columns=lambda run: {"best_bits_per_byte": BITS[key(run)] + 0.002})  # fmt: skip
    made = build_report(store, "coarse")
    assert rows(made, "precision_bf16_fp32")["swiglu"]["difference"] == pytest.approx(0.002)
    (section,) = (section for section in made.sections if section.title == "Precision")
    assert section.text[0].startswith(
        "bf16 against fp32 on the same 2 seeds: mean best bits per byte differ by at most 0.0020"
    )
    assert "another seed moves bits per byte by 0.0283 to 0.0495 (" in section.text[0]


# Heldout text


def test_heldout_losses_and_their_gaps(store: Store) -> None:
    made = report(store, heldout)
    assert [section.title for section in made.sections][2:4] == ["Paired gaps", "Heldout"]
    table = rows(made, "heldout")
    triplu, swiglu = table["triplu"], table["swiglu"]
    assert list(table) == ["triplu", "swiglu"]
    assert triplu["heldout_bits_per_byte"] == pytest.approx(1.49)
    assert swiglu["heldout_bits_per_byte"] == pytest.approx(1.53)
    # By hand: SD 0.04 / sqrt(2), half of the interval 12.7062 x 0.02 = 0.2541.
    assert triplu["heldout_gap"] == pytest.approx(0.04)
    assert (triplu["t_low"], triplu["t_high"]) == pytest.approx((-0.2141, 0.2941), abs=1e-4)
    assert (triplu["wins"], triplu["n"], triplu["1"]) == pytest.approx((2, 2, 0.02))
    assert triplu["relative_gap"] == pytest.approx(0.04 / 1.53)
    assert swiglu["heldout_gap"] is swiglu["wins"] is swiglu["1"] is None
    text = to_markdown(made)
    assert "| variant | heldout bits per byte | SD | runs | gap |" in text
    assert "| +0.0400 | -0.2141 to +0.2941 | 2/2 | +2.61% | 1.3950 | +0.0200 | +0.0600 |" in text


def test_an_unscored_run_breaks_its_heldout_pair_only(store: Store) -> None:
    made = report(store, lambda run: heldout(run) if key(run) != ("triplu", 2) else bits(run))
    triplu = rows(made, "heldout")["triplu"]
    assert (triplu["scored"], triplu["n"], triplu["heldout_gap"]) == pytest.approx((1, 1, 0.02))
    assert rows(made, "paired_gaps")["triplu"]["pair"] == "paired"
    assert rows(made, "gap_statistics")["triplu"]["n"] == 2
    stored = store.read_runs().to_pandas()
    comparison = tidy(stored, pd.DataFrame(made.record["runs"]), "swiglu")
    held = comparison.measured_by("heldout_bits_per_byte")
    assert paired_gaps(held)["pair"].tolist() == ["paired", "variant unscored"]


def test_a_heldout_loss_of_characters_is_in_nats() -> None:
    planned = [planned_run(variant, 1) for variant in ("swiglu", "triplu")]
    runs = [stored_run(run, 1.1, heldout_loss=1.2 + run["hidden"] / 1000) for run in planned]
    summary = heldout_summary(tidy(*frames(runs, planned), "swiglu"))
    assert summary["heldout_loss"].tolist() == pytest.approx([1.442, 1.522])
    assert summary["heldout_gap"].tolist()[0] == pytest.approx(0.08)


def test_without_a_baseline_heldout_losses_stand_alone() -> None:
    planned = [planned_run("triplu", seed) for seed in (1, 2)]
    runs = [stored_run(run, 1.1, heldout_loss=1.0 + run["seed"]) for run in planned]
    summary = heldout_summary(tidy(*frames(runs, planned), None))
    assert summary["heldout_loss"].tolist() == [2.5]
    assert summary["heldout_gap"].isna().all()


def test_no_heldout_text_no_section(store: Store) -> None:
    assert "Heldout" not in {section.title for section in report(store, bits).sections}


def test_heldout_evaluations_are_no_part_of_the_curves(store: Store) -> None:
    made = report(store, heldout)
    stored = store.read_evals(made.run_ids).to_pandas()
    assert (stored["split"] == "heldout").sum() == 4
    runs = store.read_runs().to_pandas()
    comparison = tidy(runs, pd.DataFrame(made.record["runs"]), "swiglu")
    costs = evaluation_costs(comparison, stored)
    assert len(costs) == 4 * 21
    assert set(costs["split"]) == {"validation"}
    last = costs.groupby(["label", "seed"])["loss"].last()
    assert last.to_dict() == pytest.approx(BITS)


# Runs that need a word


def test_runs_that_stopped_early_are_named(store: Store) -> None:
    made = report(store, lambda run: {"stopped_step": 4000} if key(run) == ("triplu", 1) else {})
    assert (
        "1 of 4 runs stopped early, their losses having risen for as long as patience bears; what "
        "is final is of that step: triplu seed 1 at step 4000"
    ) in made.warnings


def leaking_space(store: Store, baseline: str | None) -> Report:
    leaking = {"kind": "polyglu", "pooling": "sequence", "decay_preferences": False}
    losses = {"polyglu_leaking": 0.5, "polyglu": 1.15, "swiglu": 1.1}
    planned = [planned_run("polyglu_leaking", seed, ffn=leaking) for seed in (1, 2)]
    planned += [planned_run("polyglu", seed, ffn={**leaking, "pooling": "prefix"})
                for seed in (1, 2)]  # fmt: skip
    planned += [planned_run("swiglu", seed) for seed in (1, 2)]
    write_space(store, "routed", planned, lambda run: losses[run["variant"]], baseline)
    return build_report(store, "routed")


def test_variants_that_see_later_tokens_are_named_and_lead_no_headline(store: Store) -> None:
    made = leaking_space(store, "swiglu")
    assert (
        "the router reads the whole sequence, also what is to be predicted, so losses compare with "
        "no other variant's: polyglu_leaking"
    ) in made.warnings
    assert made.headline[0].startswith("polyglu loses to swiglu in 2 of 2 seeds")
    assert not any("polyglu_leaking" in line for line in made.headline)
    assert rows(made, "gap_statistics")["polyglu_leaking"]["mean_gap"] == pytest.approx(0.6)


def test_of_leaking_variants_alone_the_headline_speaks(store: Store) -> None:
    made = leaking_space(store, "polyglu_leaking")
    assert made.headline[0].startswith("polyglu_leaking has a mean best loss of 0.5000")


def test_a_causal_router_leaks_nothing(store: Store) -> None:
    prefix = {"kind": "polyglu", "pooling": "prefix", "decay_preferences": False}
    planned = [planned_run("polyglu", 1, ffn=prefix), planned_run("swiglu", 1)]
    write_space(store, "causal", planned, lambda _: 1.1)
    assert not any("router" in line for line in build_report(store, "causal").warnings)


# Files


def test_numbers_that_a_corpus_decides_have_no_section(store: Store) -> None:
    planned = [planned_run(variant, 1, corpus=corpus, num_steps=steps, num_layers=depth)
               for variant in ("swiglu", "triplu") for depth in (2, 4)
               for corpus, steps in (("tinystories", 5000), ("wikitext2", 2000))]  # fmt: skip
    write_space(store, "two", planned, lambda _: 1.1)
    titles = [section.title for section in build_report(store, "two").sections]
    assert titles == ["Setting", "Variants", "Paired gaps", "Depth", "Cost", "Provenance"]


def test_a_subword_report_can_be_made_from_its_folder(store: Store, tmp_path: Path) -> None:
    made = report(store, heldout)
    folder = write_report(made, store, tmp_path, ["json"])
    assert to_markdown(build_report(Store(str(folder)), "subword")) == to_markdown(made)
    assert pq.read_table(folder / "evals.parquet").num_rows == 4 * 22
    assert not (folder / "probes.parquet").exists()
