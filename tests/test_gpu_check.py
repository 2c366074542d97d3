import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from triplu_ray.bench.subjects import Mode
from triplu_ray.gpu_check import agreement
from triplu_ray.gpu_check import throughput as throughput_module
from triplu_ray.gpu_check.__main__ import main
from triplu_ray.gpu_check.agreement import expect, largest_difference
from triplu_ray.gpu_check.check import TINY, Check, Row, Sizes
from triplu_ray.gpu_check.throughput import best_cohorts, expected_seconds, growth_ends, throughput
from triplu_ray.sizing import compile_seconds

WITHOUT_RAY = """
import runpy, sys
sys.modules["ray"] = None  # importing it raises
sys.argv = ["gpu_check", *{arguments!r}]
runpy.run_module("triplu_ray.gpu_check", run_name="__main__")
"""


@pytest.fixture
def check() -> Check:
    return Check("cpu", TINY, 8.0, Console())


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("gpu_check") / "figures.json"
    arguments = ["--device", "cpu", "--quick", "--output", str(output)]
    code = WITHOUT_RAY.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {**json.loads(output.read_text()), "stdout": done.stdout}


def test_the_rehearsal_passes_every_section_without_ray(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["failures"] == rehearsal["skipped"] == []
    assert rehearsal["stdout"].splitlines()[-1].startswith("all agree, 0 skipped")
    for section in ("cpu_against_device", "graph_against_eager", "member_against_alone"):
        rows = rehearsal[section]
        assert {row["what"].split(",")[0] for row in rows} == {"swiglu 322", "triplu 242"}
        assert all(row["holds"] for row in rows)
    first, *_ = rehearsal["cpu_against_device"]
    assert (first["difference"], first["tolerance"]) == (0.0, 1e-4)


def test_on_a_cpu_members_and_modes_agree_to_the_last_bit(rehearsal: dict[str, Any]) -> None:
    for section in ("graph_against_eager", "member_against_alone"):
        assert [row["difference"] for row in rehearsal[section]] == [0.0] * len(rehearsal[section])


def test_the_rehearsal_measures_all_models_and_sizes(rehearsal: dict[str, Any]) -> None:
    rows = rehearsal["throughput"]
    models = {row["model"] for row in rows}
    assert len(models) == len(rehearsal["best_cohorts"]) == 4
    for model in models:
        base, *others = [row for row in rows if row["model"] == model]
        assert (base["mode"], base["members"], base["ratio"]) == ("fp32 eager", 1, 1.0)
        assert {row["members"] for row in others} == {1, 2}
        for row in others:
            ratio = row["tokens_per_second"] / base["tokens_per_second"]
            assert row["ratio"] == pytest.approx(ratio)
            positions = row["steps"] * row["members"] * 4 * 16
            assert row["tokens_per_second"] == pytest.approx(positions / row["seconds"])


def test_the_rehearsal_trains_the_twelve_runs_of_the_main_setting(
    rehearsal: dict[str, Any],
) -> None:
    runs = rehearsal["main_setting"]
    assert {(run["variant"], run["hidden"]) for run in runs} == {
        ("swiglu", 12),
        ("triplu", 9),
        ("quad_prod", 7),
        ("double_prod", 12),
    }
    assert [run["seed"] for run in runs] == [1, 2, 3] * 4
    assert all(run["steps"] == 20 and 3.5 < run["best_val_loss"] < 4.2 for run in runs)


def test_without_time_the_agreements_run_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures.json"
    arguments = ["--device", "cpu", "--quick", "--minutes", "0.01", "--output", str(output)]
    assert main(arguments) == 0
    content = json.loads(output.read_text())
    assert content["throughput"] == content["main_setting"] == content["best_cohorts"] == []
    assert len(content["skipped"]) == 5  # the main setting and four models
    assert content["member_against_alone"]
    assert "skipped: main setting: takes about 4 s, 0 s are left" in capsys.readouterr().out


def test_a_broken_agreement_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = agreement.trained_losses

    def perturbed(check: Check, cohort: Any, device: str, **options: bool) -> Any:
        runs = whole(check, cohort, device, **options)
        if len(runs) == 1:  # what is trained alone
            validation, training = runs[0][-1]
            runs[0][-1] = (validation, training + 1e-6)
        return runs

    monkeypatch.setattr(agreement, "trained_losses", perturbed)
    assert main(["--device", "cpu", "--quick", "--minutes", "0"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("FAILED")]
    assert failed
    assert all(line.startswith("member against alone: ") for line in failed)


@pytest.mark.parametrize(
    ("difference", "holds"), [(1e-4, True), (1.1e-4, False), (math.nan, False), (math.inf, False)]
)
def test_what_is_not_within_the_tolerance_is_a_failure(
    check: Check, difference: float, holds: bool
) -> None:
    row = expect(check, "cpu against device", "some model", "fp32", difference)
    assert row["holds"] == holds
    assert len(check.failures) == (not holds)
    json.dumps(row, allow_nan=False)


def test_largest_difference_by_hand() -> None:
    one = [[(1.0, 0.0), (0.5, 0.75)], [(2.0, 0.0), (1.5, 1.5)]]
    other = [[(1.0, 0.0), (0.5, 0.5)], [(2.125, 0.0), (1.5, 1.5)]]
    assert largest_difference(one, other) == 0.25
    assert largest_difference(one, one) == 0.0
    assert largest_difference(one, [other[0], other[1][:1]]) == math.inf
    assert largest_difference([[]], [[]]) == math.inf
    assert math.isnan(largest_difference(one, [other[0], [(math.nan, 0.0), (1.5, 1.5)]]))


def test_growth_ends_where_the_next_size_adds_less_than_a_tenth() -> None:
    assert growth_ends({1: 1.0, 4: 3.0, 16: 9.0, 64: 9.5, 256: 20.0}) == 16
    assert growth_ends({1: 1.0, 4: 3.0}) == 4
    assert growth_ends({4: 2.0, 1: 2.0}) == 1


def test_expected_seconds_of_a_point(check: Check) -> None:
    subject = check.models[0]

    def row(members: int, start_seconds: float, *, compiled: bool) -> Row:
        return {
            "model": subject.name,
            "members": members,
            "start_seconds": start_seconds,
            "compiled": compiled,
        }

    rows = [row(1, 0.5, compiled=False), row(4, 1.0, compiled=False)]
    assert expected_seconds(subject, Mode(), [], 1.0) == 7.0
    assert expected_seconds(subject, Mode(), rows, 1.0) == 2.5
    assert expected_seconds(subject, Mode(members=16), rows, 1.0) == 6.0
    compiled = Mode("bf16", compiled=True, members=16)
    assert expected_seconds(subject, compiled, rows, 1.0) == 7.0 + compile_seconds(1)
    assert expected_seconds(subject, compiled, [*rows, row(64, 9.0, compiled=True)], 1.0) == 11.0


def test_out_of_memory_ends_a_row_of_cohort_sizes(
    check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = throughput_module._timed

    def within_memory(check: Check, subject: Any, mode: Mode, capture: bool) -> Row:
        if mode.members > 1:
            raise torch.OutOfMemoryError("no more")
        return timed(check, subject, mode, capture)

    monkeypatch.setattr(throughput_module, "_timed", within_memory)
    check.models = check.models[:1]
    rows = throughput(check)
    assert {row["members"] for row in rows} == {1}
    assert best_cohorts(check, rows)[0]["members"] == 1
    assert "out of memory" in capsys.readouterr().out


def test_compiled_cohorts_come_last_and_the_fastest_size_first(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {1: 1.0, 2: 3.0, 4: 2.0}

    def at_once(_check: Check, _subject: Any, mode: Mode, capture: bool) -> Row:
        return {
            "precision": mode.precision,
            "members": mode.members,
            "compiled": mode.compiled,
            "captured": capture,
            "start_seconds": 0.0,
            "tokens_per_second": speeds[mode.members] * (1 + mode.compiled),
            "peak_gib": 0.0,
        }

    monkeypatch.setattr(throughput_module, "_timed", at_once)
    check.sizes = replace(TINY, cohorts=(1, 2, 4))
    check.precisions, check.compiled = ["fp32", "bf16"], [Mode("bf16", compiled=True)]
    check.models = check.models[:2]
    rows = throughput(check)
    order = [(row["model"][:6], row["members"]) for row in rows if row["compiled"]]
    assert order == [(model, size) for size in (2, 4, 1) for model in ("swiglu", "triplu")]
    assert not any(row["compiled"] for row in rows[:-6])
    best, _ = best_cohorts(check, rows)
    assert (best["mode"], best["members"], best["ratio"]) == ("bf16 compiled graph", 2, 6.0)
    assert best["growth_ends_bf16"] == 2


def test_a_cohort_far_beyond_the_memory_is_not_tried(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check.gpu_bytes = 1
    assert throughput(check) == []
    assert capsys.readouterr().out.count("does not fit") == len(check.models)


def test_the_real_check_has_the_papers_sizes() -> None:
    sizes = Sizes()
    assert (sizes.cohorts, sizes.main_steps) == ((1, 4, 16, 64, 256), 5_000)
    assert sizes.model == {}


def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--quick"]) == 2
    assert "expected a GPU in this machine" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    output = str(tmp_path / "file" / "figures.json")
    assert main(["--device", "cpu", "--quick", "--output", output]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_agrees_with_the_cpu(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    assert main(["--device", "cuda", "--quick", "--output", str(output)]) == 0
    assert json.loads(output.read_text())["failures"] == []
