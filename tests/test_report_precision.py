"""The same runs in two precisions."""

import io
import json
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pyarrow.parquet as pq
import pytest
from fabricate import curve, planned_run, stored_run, write_space
from rich.console import Console

from triplu_ray.model import Precision
from triplu_ray.report import (
    Report,
    build_report,
    print_report,
    report_json,
    to_markdown,
    write_report,
)
from triplu_ray.report.model import Section
from triplu_ray.report.precision import PRECISIONS
from triplu_ray.store import Store

FP32 = {("swiglu", 1): 1.100, ("swiglu", 2): 1.120, ("triplu", 1): 1.070, ("triplu", 2): 1.130}
BF16 = {("swiglu", 1): 1.101, ("swiglu", 2): 1.124, ("triplu", 1): 1.068, ("triplu", 2): 1.123}
# Differences: swiglu +0.001 and +0.004, mean +0.0025; triplu -0.002 and -0.007, mean -0.0045.
# Gaps of triplu: fp32 +0.030 and -0.010; bf16 +0.033 and +0.001: seed 2 changes its winner.
Losses = dict[tuple[str, int], float]


def write(
    store: Store, space: str, losses: Losses, row: dict[str, Any] | None = None, **config: Any
) -> list[str]:
    """A space of runs with these losses by variant and seed; returns their ids."""
    planned = [planned_run(variant, seed, **config) for variant, seed in losses]
    write_space(store, space, planned, lambda run: losses[run["variant"], run["seed"]], **row or {})
    return [run["run_id"] for run in planned]


def precision_sections(report: Report) -> list[Section]:
    return [section for section in report.sections if section.title == "Precision"]


def rows(report: Report, table: str) -> dict[str, dict[str, Any]]:
    """The raw rows of a table by label."""
    return {row["label"]: row for row in report_json(report)["tables"][table]}


def test_every_precision_has_its_place() -> None:
    assert sorted(PRECISIONS) == sorted(get_args(Precision))


def test_twins_are_compared_seed_by_seed(store: Store) -> None:
    write(store, "exact", FP32)
    write(store, "coarse", {**BF16, ("triplu", 3): 1.0, ("quad_prod", 1): 1.0}, precision="bf16")
    report = build_report(store, "exact")
    triplu, swiglu = (rows(report, "precision_bf16_fp32")[name] for name in ("triplu", "swiglu"))
    assert triplu["seeds"] == swiglu["seeds"] == 2  # the third seed has no twin
    assert (triplu["loss_fp32"], triplu["loss_bf16"]) == pytest.approx((1.1, 1.0955))
    assert (triplu["difference"], swiglu["difference"]) == pytest.approx((-0.0045, 0.0025))
    assert triplu["largest_difference"] == pytest.approx(-0.007)
    assert swiglu["largest_difference"] == pytest.approx(0.004)
    assert (triplu["gap_fp32"], triplu["gap_bf16"]) == pytest.approx((0.010, 0.017))
    assert [triplu[key] for key in ("gap_pairs", "wins_fp32", "wins_bf16", "same_winner")] == [
        2, 1, 2, 1
    ]  # fmt: skip
    assert swiglu["gap_fp32"] is swiglu["wins_fp32"] is swiglu["same_winner"] is None
    # SDs in fp32, n - 1: 0.02 / sqrt(2) and 0.06 / sqrt(2).
    assert precision_sections(report)[0].text == [
        "bf16 against fp32 on the same 2 seeds: mean best losses differ by at most 0.0045 "
        "(triplu), those of a single run by at most 0.0070; another seed moves a loss by 0.0141 to "
        "0.0424 (SD over these seeds in fp32).",
        "The order of the variants is the same: triplu, swiglu.",
        "The winner of a pair is the same in 1 of 2 pairs.",
    ]
    assert report_json(report)["text"] == {"Precision": precision_sections(report)[0].text}
    output = io.StringIO()
    print_report(report, Console(file=output, width=160))
    assert "The winner of a pair is the same in 1 of 2 pairs.\n" in output.getvalue()


def test_the_coarser_precision_is_set_against_the_more_exact_from_either_side(store: Store) -> None:
    write(store, "exact", FP32)
    write(store, "coarse", BF16, precision="bf16")
    there, back = (precision_sections(build_report(store, name)) for name in ("exact", "coarse"))
    assert there[0].text == back[0].text
    assert there[0].tables[0].rows() == back[0].tables[0].rows()


@pytest.mark.parametrize(
    ("config", "row"),
    [
        ({"precision": "bf16", "num_layers": 4}, {}),
        ({"precision": "bf16"}, {"corpus_sha256": "other"}),
        ({"num_steps": 100}, {}),
    ],
    ids=["other configuration", "other corpus", "no other precision"],
)
def test_what_is_no_twin_is_not_compared(
    store: Store, config: dict[str, Any], row: dict[str, Any]
) -> None:
    write(store, "exact", FP32)
    write(store, "other", FP32, row, **config)
    write(store, "seeds", {("swiglu", 7): 1.0}, precision="bf16")
    report = build_report(store, "exact")
    assert not precision_sections(report)
    assert list(report.twin_ids) == []


def test_where_the_text_lies_does_not_matter(store: Store) -> None:
    write(store, "exact", FP32, corpus="text", train_file="a.txt", validation_file="b.txt")
    ids = write(store, "coarse", BF16, precision="bf16", corpus="text", train_file="c.txt",
                validation_file="d.txt")  # fmt: skip
    assert list(build_report(store, "exact").twin_ids) == sorted(ids)


def test_of_equal_twins_the_latest_finished_counts(store: Store) -> None:
    write(store, "exact", FP32)
    write(store, "coarse", BF16, precision="bf16")
    twin = planned_run("triplu", 2, precision="bf16")
    for run_id, day, status in (("old", "2025", "finished"), ("new", "2027", "diverged")):
        row: dict[str, Any] = {
            "run_id": run_id,
            "finished_at": pd.Timestamp(day, tz="UTC"),
            "status": status,
        }
        again = stored_run(twin, 9.0, **row)
        store.write_run(again, curve(again))
    report = build_report(store, "exact")
    assert rows(report, "precision_bf16_fp32")["triplu"]["loss_bf16"] == pytest.approx(1.0955)
    assert not {"old", "new"} & set(report.twin_ids)


def test_what_did_not_finish_in_both_is_counted_and_left_out(store: Store) -> None:
    write(store, "exact", {key: loss for key, loss in FP32.items() if key != ("triplu", 2)})
    planned = planned_run("triplu", 2)
    run = stored_run(planned, 1.0, status="diverged", final_val_loss=None)
    store.write_run(run, curve(run))
    store.write_record("spaces/exact/more", {
        "space": "exact", "description": "", "baseline": "swiglu", "targets": [], "runs": [planned],
    })  # fmt: skip
    write(store, "coarse", BF16, precision="bf16")
    report = build_report(store, "exact")
    triplu = rows(report, "precision_bf16_fp32")["triplu"]
    assert (triplu["seeds"], triplu["sd_fp32"]) == (1, None)
    assert (triplu["gap_fp32"], triplu["gap_bf16"]) == pytest.approx((0.030, 0.033))
    text = precision_sections(report)[0].text
    assert text[0].startswith("bf16 against fp32 on the same 1 to 2 seeds: ")
    assert text[-1] == (
        "Of 4 runs in both precisions, 0 finished in fp32 only and 1 in bf16 only; they are left "
        "out."
    )


def test_another_order_and_another_origin_are_told(store: Store) -> None:
    write(store, "exact", {("swiglu", 1): 1.2, ("triplu", 1): 1.1})
    write(store, "coarse", {("swiglu", 1): 1.0, ("triplu", 1): 1.1}, {"git_sha": "fff"},
          precision="bf16")  # fmt: skip
    assert precision_sections(build_report(store, "exact"))[0].text == [
        "bf16 against fp32 on the same seed: mean best losses differ by at most 0.2000 (swiglu), "
        "those of a single run by at most 0.2000.",
        "The order of the variants differs: triplu, swiglu in fp32; swiglu, triplu in bf16.",
        "The winner of a pair is the same in 0 of 1 pairs.",
        "Code: abc1234 in fp32; fff in bf16.",
    ]


def test_each_setting_has_its_rows(store: Store) -> None:
    for depth, worse in ((2, 0.0), (4, 0.001)):
        write(store, f"exact{depth}", FP32, num_layers=depth)
        losses = {key: loss + worse * (key[0] == "triplu") for key, loss in FP32.items()}
        write(store, f"coarse{depth}", losses, precision="bf16", num_layers=depth)
    both = [planned_run(*key, num_layers=depth) for depth in (2, 4) for key in FP32]
    write_space(store, "depth", both, lambda _: None)
    (section,) = precision_sections(build_report(store, "depth"))
    assert [row[:2] for row in section.tables[0].rows()] == [
        ["num_layers=2", "triplu"], ["num_layers=2", "swiglu"],
        ["num_layers=4", "triplu"], ["num_layers=4", "swiglu"],
    ]  # fmt: skip
    assert "differ by at most 0.0010 (triplu at num_layers=4), " in section.text[0]
    assert section.text[1] == "The order of the variants is the same in 2 of 2 settings."
    assert section.text[2] == "The winner of a pair is the same in 4 of 4 pairs."


def test_an_axis_of_precisions_is_paired_within_and_compared_across(store: Store) -> None:
    planned = [planned_run(*key, precision=name) for name in ("fp32", "bf16") for key in FP32]
    losses = {"fp32": FP32, "bf16": BF16}
    write_space(store, "both", planned,
                lambda run: losses[run["config"]["precision"]][run["variant"], run["seed"]])  # fmt: skip  # noqa: E501
    report = build_report(store, "both")
    gaps = report_json(report)["tables"]["paired_gaps"]
    assert [(gap["setting"], gap["seed"]) for gap in gaps] == [
        ("precision=bf16", 1), ("precision=bf16", 2), ("precision=fp32", 1), ("precision=fp32", 2)
    ]  # fmt: skip
    assert [gap["gap"] for gap in gaps] == pytest.approx([0.033, 0.001, 0.030, -0.010])
    triplu = rows(report, "precision_bf16_fp32")["triplu"]
    assert (triplu["setting"], triplu["seeds"]) == ("", 2)
    assert triplu["difference"] == pytest.approx(-0.0045)
    assert list(report.twin_ids) == []
    assert report.headline[0].startswith("triplu against swiglu in 2 settings: ahead in 0, ")


def test_three_precisions_are_compared_where_the_space_takes_part(store: Store) -> None:
    write(store, "exact", FP32)
    write(store, "coarse", BF16, precision="bf16")
    write(store, "middle", FP32, precision="tf32")
    titles = {
        name: [table.title for table in precision_sections(build_report(store, name))[0].tables]
        for name in ("exact", "middle", "coarse")
    }
    assert titles == {
        "exact": ["tf32 against fp32", "bf16 against fp32"],
        "middle": ["tf32 against fp32", "bf16 against tf32"],
        "coarse": ["bf16 against fp32", "bf16 against tf32"],
    }


def test_the_folder_holds_the_twins_and_tells_the_same(store: Store, tmp_path: Path) -> None:
    write(store, "exact", FP32)
    twins = write(store, "coarse", BF16, precision="bf16")
    write(store, "unrelated", {("triplu", 9): 1.0}, precision="bf16")
    report = build_report(store, "exact")
    folder = write_report(report, store, tmp_path, ["md", "json"])
    runs = pq.read_table(folder / "runs.parquet")
    assert set(runs["run_id"].to_pylist()) == {*report.run_ids, *twins}
    assert pq.read_table(folder / "evals.parquet").num_rows == 8 * 21
    record = json.loads((folder / "spaces/exact/space.json").read_text())
    assert len(record["runs"]) == 4
    again = build_report(Store(str(folder)), "exact")
    assert to_markdown(again) == to_markdown(report)
    assert report_json(again) == report_json(report)
    assert "| runs planned | 4 |" in to_markdown(again)
    second = write_report(again, Store(str(folder)), tmp_path / "second", ["md", "json"])
    for name in ("runs.parquet", "evals.parquet", "report.md"):
        assert (second / name).read_bytes() == (folder / name).read_bytes()
