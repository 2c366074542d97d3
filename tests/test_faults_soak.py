"""Sweeps whose workers, raylets and drivers are killed again and again."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from cohorts import write_space
from faults import Trainings, injected
from sweeps import TIMEOUT, checkpoints, runs_and_curves, start, visible

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TRIPLU_RAY_SOAK_SECONDS", "600"))
"""How long things are killed; then the sweep may end in peace."""

ROUND = 30
"""Seeds of two variants each: a sweep that ends before its time gets as many again."""

SETTINGS = {
    "grid": {"seed": [1], "variant": ["swiglu", "triplu"]},
    "num_steps": 2000,
    "eval_interval": 500,
    "checkpoint_seconds": 0.5,
    "max_failures": 20,
}
KINDS = {"worker": 6, "raylet": 1, "driver": 2}
"""What is killed, and how often of nine times."""

SECONDS_A_DEAL = 300.0
"""In which nine things are killed at the least: a start of Ray takes its time, and a driver whose
raylet is gone may hang for a minute."""


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


def dealt(choice: random.Random) -> Iterator[str]:
    """What is killed next: in no order, but in their proportion whenever it ends."""
    while True:
        yield from choice.sample(list(KINDS), sum(KINDS.values()), counts=list(KINDS.values()))


def kill_one(
    process: subprocess.Popen[str], kind: str, choice: random.Random
) -> list[psutil.Process] | None:
    """Kill a process of a kind, once there is one; all of the sweep's, or None if it has ended."""
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
            if found := victims(process, kind):
                choice.choice(found).kill()
                return family
        time.sleep(0.1)
    return None


def test_nothing_is_lost_or_doubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space, store = write_space(tmp_path, **SETTINGS), tmp_path / "store"
    trainings = Trainings(tmp_path / "trainings")
    counting = injected(tmp_path / "faults", raytune__trainable=trainings.patch)
    choice, killed, counts = random.Random(1), Counter[str](), Counter[str](rounds=1)
    kinds = dealt(choice)
    until = time.monotonic() + SECONDS
    while True:
        seeds = f"seed={list(range(1, ROUND * counts['rounds'] + 1))}"
        process, family = start(space, store, seeds, **counting), None
        counts["commands"] += 1
        is_dead = False
        while time.monotonic() < until and not is_dead:
            time.sleep(choice.uniform(1.0, 8.0))
            kind = next(kinds)
            family = kill_one(process, kind, choice)
            if family is None:
                break
            killed[kind] += 1
            is_dead = kind != "worker"
        if is_dead:
            # A driver whose raylet is gone may see so late, or not at all.
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                counts["drivers that hung"] += 1
        _, stderr = process.communicate(timeout=TIMEOUT + SECONDS)
        for child in psutil.wait_procs(family or [], timeout=60)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        counts["retries by Ray"] += stderr.count("\nagain ")
        assert is_dead or process.returncode in (0, 1), stderr
        if process.returncode == 0 and time.monotonic() >= until:
            break
        counts["rounds"] += process.returncode == 0
        assert time.monotonic() < until + TIMEOUT, "it comes to no end"
    runs, curves = runs_and_curves(store)
    begun, written = trainings.begun(), trainings.ended()
    counts["runs"], counts["resumes"] = len(runs), int(runs["resumes"].sum())
    counts["killed while written"] = begun.total() - written.total()
    counts["doubled"] = written.total() - len(written)
    counts["lost"] = 2 * ROUND * counts["rounds"] - len(runs)
    with capsys.disabled():
        counted = {f"{kind}s killed": n for kind, n in killed.items()} | counts
        sys.stdout.write("\n" + ", ".join(f"{n} {name}" for name, n in counted.items()) + "\n")
    deals = int(SECONDS / SECONDS_A_DEAL)
    assert all(killed[kind] >= deals * of_nine for kind, of_nine in KINDS.items())
    assert counts["lost"] == counts["doubled"] == 0
    assert set(begun) == set(runs["run_id"])
    # Each kill may meet both workers: whatever else is trained again was lost on the way.
    assert counts["killed while written"] <= 2 * killed.total()
    assert checkpoints(store) == []
    assert visible(store, "running") == []
    process = start(space, tmp_path / "undisturbed", seeds)
    _, stderr = process.communicate(timeout=TIMEOUT + SECONDS)
    assert process.returncode == 0, stderr
    pd.testing.assert_frame_equal(curves, runs_and_curves(tmp_path / "undisturbed")[1])
