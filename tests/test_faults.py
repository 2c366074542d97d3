"""Real sweeps under faults: the store's, the GPU's, other sweeps."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from cohorts import write_space
from faults import Trainings, injected, serve_bucket, slow_while_there
from hosts import needs_hosts
from sweeps import (
    LONG,
    TIMEOUT,
    assert_complete_and_equal,
    checkpoints,
    command,
    ended,
    finished_files,
    run,
    runs_and_curves,
    start,
    wait_until,
)

from triplu_ray.leases import LAPSE_SECONDS, RENEW_SECONDS, claims
from triplu_ray.store import Store

pytestmark = pytest.mark.slow


# The store


def test_what_is_damaged_is_left_out_told_and_trained_again(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    shutil.copytree(reference, store)
    first, second, *_ = sorted(Store(str(store)).finished_run_ids())
    broken = [store / "runs" / f"{first}.parquet", store / "evals" / f"{second}.parquet"]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-20])
    for words in (["report", "tiny"], ["status", "tiny"]):
        done = command(*words, "--store", str(store))
        assert done.returncode == 0
        assert f"{broken[0]}: damaged, left out: " in done.stderr
        assert "Traceback" not in done.stderr
    assert "3 of 4" in done.stdout
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    assert summary["trained"] == 2
    for path in broken:
        assert f"{path}: damaged: " in stderr
        assert len(list(path.parent.glob(f"{path.stem}.damaged-*"))) == 1
    assert_complete_and_equal(store, reference)
    assert command("report", "tiny", "--store", str(store)).stderr == ""


def test_a_damaged_checkpoint_is_set_aside(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    process = start(space, store)
    wait_until(lambda: checkpoints(store), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=60)
    for path in checkpoints(store):
        path.write_bytes(path.read_bytes()[:-20])
    names = [path.stem for path in checkpoints(store)]
    code, _, stderr = run(space, store)
    assert code == 0, stderr
    aside = checkpoints(store)
    assert sorted(path.name.partition(".damaged-")[0] for path in aside) == sorted(names)
    for path in aside:
        assert f"set aside as {path.name}" in stderr
        path.unlink()
    assert (assert_complete_and_equal(store, reference)["resumes"] == 0).all()


FAILING = """
_write, _left = write_atomically, [{times}]

def write_atomically(path, content, **rest):
    if path.parent.name == "runs" and _left[0]:
        _left[0] -= 1
        raise OSError({number}, os.strerror({number}))
    _write(path, content, **rest)
"""


def test_a_disk_that_is_full_for_a_while_is_waited_for(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    full = injected(tmp_path / "faults", files=FAILING.format(times=2, number=28))
    code, _, stderr = run(space, store, **full)
    assert code == 0, stderr
    assert f"note: store {store}: No space left on device; again in 2 s" in stderr
    assert (assert_complete_and_equal(store, reference)["resumes"] == 0).all()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of four megabytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Write until there is no room."""
    with file.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


@needs_hosts
def test_a_disk_that_stays_full_costs_no_run(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    with small_disk(store):
        slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
        process = start(space, store, "checkpoint_seconds=60", **slowed)
        wait_until(lambda: claims(Store(str(store))), process)
        fill(store / "ballast")
        slow.unlink()
        code, summary, stderr = ended(process)
        assert code == 1, stderr
        assert all("No space left on device" in failed["reason"] for failed in summary["failed"])
        assert "Traceback" not in stderr
        failed = {run_id for failure in summary["failed"] for run_id in failure["run_ids"]}
        assert len(failed) == 4 - summary["trained"]
        (store / "ballast").unlink()
        code, summary, stderr = run(space, store)
        assert code == 0, stderr
        assert summary["trained"] == len(failed)
        assert_complete_and_equal(store, reference)


def test_runs_that_may_not_be_stored_fail_with_the_reason_and_are_not_lost(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    forbidden = injected(tmp_path / "faults", files=FAILING.format(times=1, number=13))
    code, summary, stderr = run(space, store, "resources.cpu=1", **forbidden)
    assert code == 1, stderr
    # Each worker was turned away once, and went on with its next cohort.
    failed = {run_id for failure in summary["failed"] for run_id in failure["run_ids"]}
    assert 1 <= len(failed) == 4 - summary["trained"]
    assert all("Permission denied" in failure["reason"] for failure in summary["failed"])
    assert "Traceback" not in stderr
    assert "again " not in stderr
    status = json.loads(command("status", "--store", str(store), "--json").stdout)["spaces"][0]
    assert (status["done"], status["missing"]) == (4 - len(failed), 0)
    assert {run_id for row in status["failed"] for run_id in row["run_ids"]} == failed
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    assert summary["trained"] == len(failed)
    runs = assert_complete_and_equal(store, reference)
    assert set(runs.loc[runs["resumes"] == 1, "run_id"]) == failed


def test_a_sweep_into_a_bucket_that_is_often_busy(
    undisturbed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    space, reference = undisturbed
    bucket, server = serve_bucket(monkeypatch)
    process = start(space, bucket.uri)
    reader = Store(bucket.uri)
    wait_until(lambda: reader.files.listed("checkpoints", ""), process)
    for _ in range(5):
        bucket.fail(3, "PUT POST", 503, "SlowDown")
        bucket.fail(1, "GET HEAD PUT", 500, "InternalError")
        bucket.fail(1, "GET HEAD", 0, seconds=2.0)
    wait_until(lambda: reader.finished_run_ids(), process)
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert summary["trained"] == 4
    assert bucket.faults_left == 0
    runs, curves = runs_and_curves(bucket.uri)
    pd.testing.assert_frame_equal(curves, runs_and_curves(reference)[1])
    assert list(runs["run_id"]) == list(runs_and_curves(reference)[0]["run_id"])
    assert reader.files.listed("running", "") == reader.files.listed("checkpoints", "") == []
    server.shutdown()
    server.server_close()


# The GPU

FULL = """
_train_step = CohortTrainer.train_step

def train_step(self):
    if len(self.members) > 1 and self.step == 600:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    _train_step(self)

CohortTrainer.train_step = train_step
"""


def test_a_cohort_that_outgrows_the_gpu_goes_on_in_halves(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    full = injected(tmp_path / "faults", train=FULL)
    code, summary, stderr = run(space, store, "cohort=2", "checkpoint_seconds=0.01", **full)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert stderr.count("out of GPU memory with 2 members; going on with 1 and 1") == 2
    assert (assert_complete_and_equal(store, reference)["resumes"] == 1).all()


# Other sweeps


def test_two_sweeps_at_once_share_the_work(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store, trainings = tmp_path / "store", Trainings(tmp_path / "trainings")
    counting = injected(tmp_path / "faults", raytune__trainable=trainings.patch)
    # The second cuts its cohorts otherwise: runs, not cohorts, must not be trained twice.
    first = start(space, store, **counting)
    second = start(space, store, "cohort=2", "name=other", **counting)
    outcomes = [ended(process) for process in (first, second)]
    for code, summary, stderr in outcomes:
        assert code == 0, stderr
        assert summary["failed"] == []
    assert sum(summary["trained"] for _, summary, _ in outcomes) == 4
    runs = assert_complete_and_equal(store, reference)
    assert trainings.begun() == trainings.ended() == Counter(runs["run_id"])
    assert any("in another sweep" in stderr for _, _, stderr in outcomes)


def test_two_sweeps_at_once_share_a_search(tmp_path: Path) -> None:
    search = {
        "keys": {"gain": {"low": 0.5, "high": 60, "log": True}},
        "num_suggestions": 6,
        "confirm_seeds": [11],
    }
    grid = {"seed": [1, 2], "variant": ["swiglu", "triplu"]}
    space = write_space(tmp_path, grid=grid, search=search, **{**LONG, "num_steps": 400})
    reference, store = tmp_path / "reference", tmp_path / "store"
    trainings = Trainings(tmp_path / "trainings")
    code, _, stderr = run(space, reference)
    assert code == 0, stderr
    counting = injected(tmp_path / "faults", raytune__trainable=trainings.patch)
    outcomes = [ended(one) for one in [start(space, store, **counting) for _ in range(2)]]
    for code, summary, stderr in outcomes:
        assert code == 0, stderr
        assert (summary["failed"], summary["pending"]) == ([], 0)
    # The study goes as if one sweep had made it: a suggestion waits for what the others came to.
    runs = assert_complete_and_equal(store, reference)
    assert trainings.begun() == trainings.ended() == Counter(runs["run_id"])
    assert sum(summary["trained"] for _, summary, _ in outcomes) == len(runs)


def test_a_lease_of_a_machine_that_is_gone_lapses(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    run_id = sorted(Store(str(reference)).finished_run_ids())[0]
    claim = {
        "space": "tiny",
        "sweep_id": "gone",
        "run_ids": [run_id],
        "description": "a run",
        "step": 120,
        "num_steps": 1000,
        "settled": True,
        "host": "spot-7",
        "process": {"machine": "another", "pid": 1, "created": 0.0},
    }
    lease = store / "running" / "cohort-gone.json"
    lease.parent.mkdir(parents=True)
    lease.write_text(json.dumps(claim))

    def is_waiting() -> bool:
        os.utime(lease) if lease.exists() else None  # the other machine lives
        return len(Store(str(store)).finished_run_ids()) == 3

    process = start(space, store)
    wait_until(is_waiting, process)
    time.sleep(2 * RENEW_SECONDS)
    assert run_id not in Store(str(store)).finished_run_ids()
    assert process.poll() is None
    status = json.loads(command("status", "--store", str(store), "--json").stdout)["spaces"][0]
    assert (status["done"], status["missing"], status["num_running"]) == (3, 0, 1)
    assert (status["running"][0]["host"], status["running"][0]["step"]) == ("spot-7", 120)
    past = time.time() - LAPSE_SECONDS - 1
    os.utime(lease, (past, past))
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert summary["trained"] == 4
    assert "in another sweep: a run: step 120 of 1,000 on spot-7, seen " in stderr
    assert_complete_and_equal(store, reference)


def test_what_a_killed_sweep_trained_is_taken_up_at_once(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    """On the same machine a process is known to be gone before its lease lapses."""
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    process = start(space, store, **slowed)
    wait_until(lambda: list(store.glob("running/*.json")) and checkpoints(store), process)
    process.kill()
    process.communicate()
    left = list(store.glob("running/*.json"))
    trainers = [json.loads(path.read_text())["process"]["pid"] for path in left]
    gone_by = time.monotonic() + LAPSE_SECONDS
    while any(psutil.pid_exists(pid) for pid in trainers):
        assert time.monotonic() < gone_by
        time.sleep(0.1)
    slow.unlink()
    left = [path for path in left if path.exists()]
    assert left
    done = finished_files(store)
    # However long a start takes: by their age alone these would hold until after any patience.
    fresh = time.time() + 10 * TIMEOUT
    for path in left:
        os.utime(path, (fresh, fresh))
    process = start(space, store)
    wait_until(lambda: not any(path.exists() for path in left), process)
    code, _, stderr = ended(process)
    assert code == 0, stderr
    assert_complete_and_equal(store, reference)
    assert {name: finished_files(store)[name] for name in done} == done
