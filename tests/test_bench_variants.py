import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from triplu_ray.bench import variants
from triplu_ray.bench.subjects import Mode, Subject, every_variant
from triplu_ray.cli import main
from triplu_ray.listings import variant_rows


class FakeContestant:
    """A turn takes 4 s of SwiGLU, 6 of others, each one twice as long as the one before."""

    def __init__(self, subject: Subject, _mode: Mode, _device: str, _steps: int) -> None:
        self.seconds = 2.0 if subject.name.startswith("swiglu") else 3.0

    def ask(self, task: str) -> float:
        assert task == "steps"
        self.seconds *= 2
        return self.seconds

    def end(self) -> dict[str, float]:
        return {"compile_seconds": 0.0}


def test_all_variants_are_measured_once_and_swiglu_first() -> None:
    subjects = every_variant()
    labels = [subject.config.ffn.label for subject in subjects]
    assert labels[0] == "swiglu"
    assert Counter(labels) == Counter({row["label"] for row in variant_rows([96])})
    sizes = {s.config.ffn.label: s.shape.num_params(s.config.ffn) for s in subjects}
    assert (sizes["swiglu"], sizes["triplu"], sizes["quad_prod"]) == (282_240, 282_624, 282_048)


def test_rows_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn by turn: 6 to 4, 12 to 8."""
    monkeypatch.setattr(variants, "Contestant", FakeContestant)
    baseline, other = every_variant()[0], every_variant()[1]
    console = Console(file=io.StringIO())
    (row,) = variants.measure(baseline, [other], Mode(), "cpu", 2, 10, console)
    assert row["milliseconds_per_step"] == 1000 * (6 + 12) / 2 / 10
    assert row["relative_time"] == row["relative_time_low"] == row["relative_time_high"] == 1.5
    flops = [one.shape.flops_per_token(one.config.ffn) for one in (other, baseline)]
    assert row["relative_flops"] == flops[0] / flops[1]
    assert row["time_over_flops"] == 1.5 / row["relative_flops"]


def test_what_is_far_off_is_pointed_at() -> None:
    def row(model: str, ratio: float) -> dict[str, Any]:
        times = {"relative_time": ratio, "relative_time_low": ratio, "relative_time_high": ratio}
        mode = {"mode": "bf16 compiled", "milliseconds_per_step": 9.0, "compile_seconds": 1.0}
        return {"model": model, **mode, **times, "relative_flops": 1.0, "time_over_flops": ratio}

    rows = [row("a", 1.4), row("b", 1.6), row("c", 0.5)]
    report = variants.variants_report(rows, {"hardware": "a CPU"})
    assert report.headline == [
        "bf16 compiled: 1 of 3 variants take what their FLOPs say, within a factor of 1.5."
    ]
    assert [cells[-2] for cells in report.tables()[0].rows()] == ["", "slower", "faster"]


@pytest.mark.slow
def test_every_variant_trains_in_every_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled too, where there is a compiler: a second compilation or a fall-back would raise."""
    arguments = ["bench", "--variants", "--rounds", "2", "--steps", "1", "--json"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    models = {subject.name for subject in every_variant()[1:]}
    for mode in {row["mode"] for row in content["rows"]}:
        assert {row["model"] for row in content["rows"] if row["mode"] == mode} == models
    assert all(0.05 < row["relative_time"] < 20 for row in content["rows"])
    assert (tmp_path / "bench" / "variants" / "report.md").exists()
