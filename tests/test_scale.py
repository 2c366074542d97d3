"""A thousand runs through Ray, ten thousand in a store: what it costs beside the training."""

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from cohorts import plan, write_space
from fabricate import curve, stored_run
from sweeps import start

from triplu_ray.store import SCHEMAS, Store, parquet_bytes
from triplu_ray.upkeep import merge

pytestmark = pytest.mark.slow

MANY: dict[str, Any] = {
    "grid": {
        "seed": list(range(1, 501)),
        "variant": ["swiglu", "triplu"],
        "learning_rate": [1e-3 * 1.1**n for n in range(10)],
    }
}


MOST_OVERHEAD = float(os.environ.get("TRIPLU_RAY_SCALE_OVERHEAD", "0.14"))
"""What Ray publishes of ten thousand runs of a second: 715 s in 16 workers, where 625 are ideal.

It is for idle machines: whatever else runs there slows what is not training too.
"""


@dataclass(frozen=True)
class Cost:
    """What a process took, and of CPU time those that it waited for, too."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def watched(process: subprocess.Popen[str]) -> Cost:
    """What a process takes until it ends; nothing else may be waited for meanwhile."""
    began, cpu_before, peak = time.monotonic(), cpu_seconds(), 0
    watcher = psutil.Process(process.pid)
    output = threading.Thread(target=process.communicate)
    output.start()
    while output.is_alive():
        with contextlib.suppress(psutil.NoSuchProcess):
            peak = max(peak, watcher.memory_info().rss)
        time.sleep(0.1)
    return Cost(time.monotonic() - began, cpu_seconds() - cpu_before, peak / (1 << 20))


def cpu_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_thousand_runs_through_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of about a second each, as Ray's own: the shorter the runs, the more there is beside them."""
    grid = {"seed": list(range(1, 501)), "variant": ["swiglu", "triplu"]}
    space = write_space(tmp_path, grid=grid, cohort=20, num_steps=1000, eval_interval=500)
    location = tmp_path / "store"
    process = start(space, location)
    cost = watched(process)
    assert process.returncode == 0
    store = Store(str(location))
    assert store.read_runs().num_rows == 1000
    (sweep,) = store.read_records("sweeps")
    worked = cost.seconds * sweep["workers"]
    training = sum(store.read_runs()["seconds"].to_pylist())
    overhead = worked / training - 1
    num_files = sum(path.is_file() for path in location.rglob("*"))
    with capsys.disabled():
        sys.stdout.write(
            f"\n1,000 runs: {cost.seconds:.0f} s of wall time in {sweep['workers']} workers, "
            f"{training:.0f} s of training: overhead {overhead:.1%}; workers busy "
            f"{sweep['busy_seconds'] / worked:.1%}; driver {cost.peak_mib:.0f} MiB; "
            f"{num_files} files\n"
        )
    assert overhead < MOST_OVERHEAD
    assert cost.peak_mib < 1024
    assert num_files < 20


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A space of so many runs, and a store that has them all, in files of their own."""
    folder = tmp_path_factory.mktemp("ten_thousand")
    space, store = write_space(folder, **MANY), Store(str(folder / "store"))
    planned = plan(folder, **MANY)
    store.write_record("spaces/tiny/plan", planned.record())
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for index, run in enumerate(planned.runs):
        row = stored_run(run.row(), 2.0 + index % 97 / 1000, finished_at=at)
        for table, rows in (("runs", [row]), ("evals", curve(row, 2))):
            content = parquet_bytes(pa.Table.from_pylist(rows, SCHEMAS[table]))
            store.files.write(f"{table}/{run.run_id}.parquet", content, durable=False)
    return space, Path(store.location)


@pytest.mark.parametrize(
    ("merged", "most_cpu_seconds", "most_mib"), [(False, 60, 3072), (True, 10, 1024)]
)
def test_ten_thousand_stored_runs(
    ten_thousand: tuple[Path, Path],
    merged: bool,
    most_cpu_seconds: float,
    most_mib: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Single files, which a sweep would have merged, take their time; merged ones do not."""
    space, location = ten_thousand
    if merged:
        began = time.monotonic()
        assert merge(Store(str(location))) == 10_000
        told = f"merged in {time.monotonic() - began:.1f} s"
    else:
        told = "in files of their own"
    for words in (["plan", str(space)], ["status"], ["report", "tiny"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "triplu_ray.cli", *words, "--store", str(location), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        cost = watched(process)
        with capsys.disabled():
            sys.stdout.write(
                f"\n{words[0]} of 10,000 runs {told}: {cost.cpu_seconds:.1f} s of CPU time, "
                f"{cost.seconds:.1f} s, {cost.peak_mib:.0f} MiB"
            )
        assert process.returncode == 0
        # Not wall time: that is what else runs on the machine, too.
        assert cost.cpu_seconds < most_cpu_seconds
        assert cost.peak_mib < most_mib
