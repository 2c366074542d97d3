"""A sweep whose workers, raylets and drivers are killed again and again."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
from cohorts import write_space
from sweeps import TIMEOUT, run, runs_and_curves, start

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TRIPLU_RAY_SOAK_SECONDS", "600"))
"""How long things are killed; then the sweep may end in peace."""

SETTINGS = {
    "grid": {"seed": list(range(1, 31)), "variant": ["swiglu", "triplu"]},
    "num_steps": 2000,
    "eval_interval": 500,
    "checkpoint_seconds": 0.5,
    "max_failures": 20,
}
KINDS = {"worker": 6, "raylet": 1, "driver": 2}
"""What is killed, and how often of the kinds."""


def victims(process: subprocess.Popen[str], kind: str) -> list[psutil.Process]:
    """Processes of a kind that a sweep has started, or the sweep itself."""
    driver = psutil.Process(process.pid)
    if kind == "driver":
        return [driver]
    found = []
    for child in driver.children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if (kind == "raylet" and words and words[0].endswith("raylet/raylet")) or (
            kind == "worker" and "Trainable" in " ".join(words[:1])
        ):
            found.append(child)
    return found


def test_nothing_is_lost_or_doubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space, store = write_space(tmp_path, **SETTINGS), tmp_path / "store"
    choice, counts = random.Random(1), Counter[str]()
    until = time.monotonic() + SECONDS
    code = None
    while code != 0:
        process = start(space, store)
        counts["commands"] += 1
        family: list[psutil.Process] = []
        ended_by_us = False
        while process.poll() is None and time.monotonic() < until and not ended_by_us:
            time.sleep(choice.uniform(1.0, 8.0))
            (kind,) = choice.choices(list(KINDS), list(KINDS.values()))
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                if found := victims(process, kind):
                    choice.choice(found).kill()
                    counts[f"{kind}s killed"] += 1
                    ended_by_us = kind != "worker"
        if ended_by_us:
            # A driver whose raylet is gone may see so late, or not at all.
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                counts["drivers that hung"] += 1
        _, stderr = process.communicate(timeout=TIMEOUT + SECONDS)
        code = process.returncode
        for child in psutil.wait_procs(family, timeout=60)[1]:
            child.kill()
        counts["retries by Ray"] += stderr.count("\nagain ")
        assert counts["commands"] < 500
        assert ended_by_us or code in (0, 1), stderr
    rows = [row for path in store.glob("runs/*.parquet") for row in pq.read_table(path).to_pylist()]
    stored = Counter(row["run_id"] for row in rows)
    runs, curves = runs_and_curves(store)
    counts["runs"], counts["resumes"] = len(runs), int(runs["resumes"].sum())
    counts["doubled"] = sum(stored.values()) - len(stored)
    counts["lost"] = 60 - len(stored)
    with capsys.disabled():
        sys.stdout.write("\n" + ", ".join(f"{n} {name}" for name, n in counts.items()) + "\n")
    assert counts["lost"] == counts["doubled"] == 0
    assert not list(store.glob("checkpoints/*"))
    assert not list(store.glob("running/*.json"))
    code, _, stderr = run(space, tmp_path / "undisturbed")
    assert code == 0, stderr
    pd.testing.assert_frame_equal(curves, runs_and_curves(tmp_path / "undisturbed")[1])
