import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cohorts import corpus, needs_bf16, needs_compiler, plan, write_space
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from variants import CONFIGS

from triplu_ray.bench import Subject, bench_report, papers_models
from triplu_ray.bench.contestant import Contestant
from triplu_ray.bench.measure import Spread, measure
from triplu_ray.bench.report import draw_ratios
from triplu_ray.bench.subjects import PLAIN, Mode, modes_for, products
from triplu_ray.cli import main
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.model import ModelShape
from triplu_ray.report.model import NULL


@given(
    ffn=st.sampled_from(CONFIGS),
    vocab_size=st.integers(2, 600),
    context_length=st.integers(1, 130),
    head_width=st.integers(1, 64),
    num_heads=st.integers(1, 8),
    num_layers=st.integers(1, 8),
    hidden=st.integers(1, 800),
    batch_size=st.integers(1, 64),
)
def test_the_products_of_a_step_are_its_flops(
    ffn: FeedForwardConfig,
    vocab_size: int,
    context_length: int,
    head_width: int,
    num_heads: int,
    num_layers: int,
    hidden: int,
    batch_size: int,
) -> None:
    shape = ModelShape(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=head_width * num_heads,
        num_layers=num_layers,
        num_heads=num_heads,
        hidden=hidden,
    )
    sizes = products(shape, ffn, batch_size)
    flops = sum(2 * count * rows * inner * columns for count, rows, inner, columns in sizes)
    assert flops == 3 * shape.flops_per_token(ffn) * batch_size * context_length


def test_modes_go_from_slow_to_fast_and_the_fastest_comes_in_cohorts() -> None:
    names = [mode.name for mode in modes_for(["fp32", "bf16"], [1, 4], compiling=True)]
    assert names == [
        "fp32 eager",
        "fp32 compiled",
        "bf16 eager",
        "bf16 compiled",
        "bf16 compiled, cohort of 4",
    ]
    assert modes_for(["fp32"], [2, 2], compiling=False) == [Mode(), Mode(members=2)]
    assert PLAIN.name == "plain loop"


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=30))
def test_spread_is_the_median_between_the_quartiles(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.median == pytest.approx(statistics.median(values))
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)


def test_quartiles_by_hand() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)


def test_models_of_a_plan_come_once(tmp_path: Path) -> None:
    planned = plan(
        tmp_path,
        precision="bf16",
        grid={"seed": [1, 2], "variant": ["swiglu", "triplu"], "learning_rate": [1e-3, 1e-2]},
    )
    subjects = Subject.of_plan(planned)
    assert [subject.name for subject in subjects] == ["swiglu 12, L1 d16", "triplu 9, L1 d16"]
    assert {subject.vocab_size for subject in subjects} == {corpus().vocab_size}


def test_models_of_other_sizes_have_other_names(tmp_path: Path) -> None:
    sizes = {"batch_size": [2, 4], "context_length": [8, 16]}
    planned = plan(tmp_path, grid={"seed": [1, 2], "variant": ["triplu"], **sizes})
    assert [subject.name for subject in Subject.of_plan(planned)] == [
        f"triplu 9, L1 d16, context {context}, batch {batch}"
        for batch in (2, 4)
        for context in (8, 16)
    ]


class FakeContestant:
    """Takes 2 s for a turn of the plain loop, 1 s for one of the engine, half of it products."""

    def __init__(self, _subject: Subject, mode: Mode, _device: str, steps: int) -> None:
        self.turn = steps * (2.0 if mode.plain else 1.0)
        self.task = ""

    def tell(self, task: str) -> None:
        self.task = task

    def hear(self) -> float:
        return self.turn / 2 if self.task == "products" else self.turn

    def ask(self, task: str) -> float:
        self.tell(task)
        return self.hear()

    def end(self) -> dict[str, float]:
        return {"start_seconds": 3.0}


def test_rows_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triplu_ray.bench.measure.Contestant", FakeContestant)
    modes = [Mode(), Mode(members=4)]
    rows = measure(papers_models()[0], modes, "cpu", rounds=3, turn_steps=5, workers=2)
    columns = ("mode", "over", "members", "ratio", "tokens_per_second", "tokens_per_second_member")
    positions = 32 * 64
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("plain loop", "plain loop", 1, 1.0, positions / 2, positions / 2),
        ("fp32 eager", "plain loop", 1, 2.0, positions, positions),
        ("fp32 eager, cohort of 4", "plain loop", 4, 8.0, 4 * positions, positions),
        ("fp32 eager, 2 workers over one", "fp32 eager", 2, 2.0, 2 * positions, positions),
    ]
    assert [row.get("products_share") for row in rows] == [0.5, 0.5, 0.5, None]
    assert rows[0]["start_seconds"] == 3.0


def test_a_contestant_that_died_is_told_of_and_can_be_ended() -> None:
    contestant = Contestant(papers_models()[0], PLAIN, "cpu", 1)
    os.kill(contestant._process.pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"plain loop: the process has ended, exit code -9"):
        contestant.hear()
    assert contestant.end().keys() == {"start_seconds", "compile_seconds"}


def test_the_papers_models_have_the_papers_sizes() -> None:
    sizes = [s.shape.num_params(s.config.ffn) for s in papers_models()]
    assert sizes == [282_240, 282_624, 7_127_552, 7_127_552]


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "model": "swiglu",
        "mode": "plain loop",
        "members": 1,
        "over": "plain loop",
        "ratio": 1.0,
        "ratio_low": 1.0,
        "ratio_high": 1.0,
        "tokens_per_second": 40_000.0,
        "tokens_per_second_member": 40_000.0,
        "products_share": 0.4,
        "start_seconds": 2.0,
        "compile_seconds": 0.0,
        "peak_memory_mib": 400.0,
    }
    return {**base, **changes}


def test_the_table_has_a_row_a_mode_and_the_headline_the_fastest_alone() -> None:
    rows = [
        row(),
        row(mode="bf16 eager", ratio=1.7, ratio_low=1.6, ratio_high=1.8),
        row(mode="bf16 compiled", ratio=2.7, ratio_low=2.5, ratio_high=2.9),
        row(mode="bf16 compiled, cohort of 4", members=4, ratio=2.9, ratio_low=2.8, ratio_high=3.0)
        | {"tokens_per_second": 120_000.0, "tokens_per_second_member": 30_000.0},
        {"model": "swiglu", "mode": "bf16 compiled, 2 workers over one", "members": 2}
        | {"over": "bf16 compiled", "ratio": 1.9, "ratio_low": 1.8, "ratio_high": 2.0}
        | {"tokens_per_second": 200_000.0, "tokens_per_second_member": 100_000.0},
    ]
    report = bench_report("papers", rows, {"hardware": "a CPU"})
    assert report.headline == ["swiglu: bf16 compiled trains 2.70 times as fast as the plain loop."]
    cells = report.tables()[0].rows()
    assert cells[2] == [
        *["swiglu", "bf16 compiled", "2.70", "2.50 to 2.90", "40.0", "40.0", "40%"],
        *["2.0", "0.0", "400"],
    ]
    assert cells[3][4:6] == ["120.0", "30.0"]
    assert cells[4][6:] == [NULL] * 4
    png, _ = report.figures()[0].images
    assert png.startswith(b"\x89PNG")
    # Two workers are compared with one of them, so they have no bar among ratios to the plain loop.
    (panel,) = draw_ratios(pd.DataFrame(rows)).axes
    bars = [float(bar.get_width()) for bar in panel.patches if isinstance(bar, Rectangle)]
    assert bars == [2.9, 2.7, 1.7, 1.0]


def bench(folder: Path, *arguments: str) -> int:
    return main(["bench", *arguments, "--output", str(folder), "--json"])


def test_a_real_bench_of_a_tiny_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = write_space(tmp_path, grid={"seed": [1], "variant": ["triplu"]})
    little, began = ["--rounds", "2", "--steps", "1", "--cohorts", "1"], time.monotonic()
    assert bench(tmp_path, str(space), "compile=off", *little) == 0
    took = time.monotonic() - began
    content = json.loads(capsys.readouterr().out)
    assert content["space"] == "tiny"
    rows = {row["mode"]: row for row in content["rows"]}
    assert {"plain loop", "fp32 eager"} <= rows.keys()
    assert not [mode for mode in rows if "compiled" in mode]
    assert rows["plain loop"]["ratio"] == 1.0
    tokens = ["tokens_per_second", "tokens_per_second_member"]
    assert all(row[key] > 0 for row in rows.values() for key in tokens)
    for mode, measured in rows.items():
        assert measured["ratio_low"] <= measured["ratio"] <= measured["ratio_high"]
        # A measurement, not a judgement: twenty times off would be a broken one.
        assert 0.05 < measured["ratio"] < 20, mode
        if "workers" not in mode:
            assert 0 < measured["products_share"] < 1.5
            assert 50 < measured["peak_memory_mib"] < 1536
            assert 0 < measured["start_seconds"] < took
    written = tmp_path / "bench" / "tiny"
    assert json.loads((written / "bench.json").read_text()) == content
    assert "times as fast as the plain loop" in (written / "report.md").read_text()
    assert (written / "figures" / "speed.png").exists()


@pytest.mark.slow
@needs_compiler
@needs_bf16
def test_a_real_bench_of_compiled_cohorts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path, grid={"seed": [1], "variant": ["triplu"]})
    assert bench(tmp_path, str(space), "--rounds", "2", "--cohorts", "1", "4") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert "bf16 compiled, cohort of 4" in [row["mode"] for row in rows]
    assert all(row["compile_seconds"] > 0 for row in rows if row["mode"] == "bf16 compiled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "1"], "--rounds: expected at least 2, got 1"),
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
        (["--cohorts", "0"], "--cohorts: expected sizes of at least 1, got 0"),
        (["--variants", "space.yaml"], "--variants: expected no space and no --cohorts beside it"),
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert bench(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err
