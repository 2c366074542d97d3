"""Real sweeps: the command line in a process of its own, a real Ray."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from triplu_ray.leases import claims
from triplu_ray.store import Store

if TYPE_CHECKING:
    from hosts import Host

# A few seconds a run on one core: time enough to be killed in.
LONG: dict[str, Any] = {"num_steps": 1000, "eval_interval": 200, "checkpoint_seconds": 0.3}
TIMEOUT = 900
"""Seconds that nothing exceeds, not even on a machine that is busy otherwise."""


def start(
    space: Path, store: Path | str, *overrides: str, **variables: str
) -> subprocess.Popen[str]:
    """`triplu-ray sweep`; RAY_ADDRESS only where `variables` name one."""
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return _started(_sweep(space, store, overrides), inherited | variables)


def start_on(
    host: "Host", space: Path, store: Path, *overrides: str, **variables: str
) -> subprocess.Popen[str]:
    """`start`, on another machine."""
    return _started(host.command(*_sweep(space, store, overrides), **variables), os.environ)


def _sweep(space: Path, store: Path | str, overrides: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "triplu_ray.cli", "sweep", str(space), *overrides]
    return [*command, "--store", str(store), "--json"]


def _started(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """A sweep's exit code, its JSON and its stderr, once it has ended."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, json.loads(stdout or "{}"), stderr


def run(
    space: Path, store: Path | str, *overrides: str, **variables: str
) -> tuple[int, dict[str, Any], str]:
    """`start` and `ended`."""
    return ended(start(space, store, *overrides, **variables))


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Any other command of the project."""
    return subprocess.run(
        [sys.executable, "-m", "triplu_ray.cli", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Poll while a sweep runs; fails if it ends before."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        if process.poll() is not None:
            pytest.fail(f"the sweep ended too early: {process.communicate()}")
        time.sleep(0.05)


def finished_files(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.glob("*/*.parquet")}


def visible(store: Path, folder: str) -> list[str]:
    """Names in a folder, save of what a killed process was about to write: upkeep clears it."""
    paths = (store / folder).glob("*")
    return sorted(path.name for path in paths if not path.name.startswith("."))


def checkpoints(store: Path) -> list[Path]:
    return list(store.glob("checkpoints/*.safetensors"))


def all_train(store: Path, num: int) -> bool:
    """Whether so many workers have a checkpoint each."""
    return len(claims(Store(str(store)))) == num and len(checkpoints(store)) >= num


def runs_and_curves(store: Path | str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs, and the evaluations without the one column that clocks decide."""
    reader = Store(str(store))
    return reader.read_runs().to_pandas(), reader.read_evals().to_pandas().drop(columns="seconds")


def assert_complete_and_equal(store: Path, undisturbed: Path) -> pd.DataFrame:
    """Every run once, every curve as if nothing had happened, nothing left over."""
    runs, curves = runs_and_curves(store)
    expected_runs, expected_curves = runs_and_curves(undisturbed)
    assert list(runs["run_id"]) == list(expected_runs["run_id"])
    pd.testing.assert_frame_equal(curves, expected_curves)
    assert checkpoints(store) == []
    assert visible(store, "running") == []
    assert not [p for p in store.glob("*/.*") if not p.name.startswith((".writing-", ".clock-"))]
    return runs
