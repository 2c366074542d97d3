"""Real sweeps, undisturbed, killed and interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from cohorts import needs_bf16, needs_compiler, write_space
from faults import injected, slow_while_there
from sweeps import (
    LONG,
    TIMEOUT,
    all_train,
    assert_complete_and_equal,
    checkpoints,
    ended,
    finished_files,
    run,
    runs_and_curves,
    start,
    wait_until,
)

from triplu_ray.store import RUN_COLUMNS, Store


def test_a_sweep_stores_every_run_with_every_column(undisturbed: tuple[Path, Path]) -> None:
    runs, curves = runs_and_curves(undisturbed[1])
    assert sorted(zip(runs["variant"], runs["seed"], strict=True)) == [
        ("swiglu", 1),
        ("swiglu", 2),
        ("triplu", 1),
        ("triplu", 2),
    ]
    nullable = {"gain", "degree", "diverged_step", "stopped_step", "git_sha"}
    # Characters have no known bytes, and the generated stories no held-out text.
    nullable |= {column for column in RUN_COLUMNS if "bits_per_byte" in column} | {"heldout_loss"}
    for column in set(RUN_COLUMNS) - nullable:
        assert runs[column].notna().all(), column
    assert (runs["tokens"] == 1000 * 64).all()
    assert (runs["status"] == "finished").all()
    assert (runs["peak_memory_mib"] < 1536).all()
    assert len(curves) == 4 * 6
    # A model that has learned something: far below the uniform guess over 62 characters (4.13).
    assert (runs["best_val_loss"] < 3.2).all()
    versions = json.loads(runs["versions"][0])
    assert versions["ray"]
    assert versions["torch"]


def test_the_second_time_there_is_nothing_to_train(undisturbed: tuple[Path, Path]) -> None:
    space, store = undisturbed
    before = finished_files(store)
    code, summary, stderr = run(space, store)
    assert code == 0
    assert summary == {
        "space": "tiny",
        "runs": 4,
        "done_before": 4,
        "pending": 0,
        "trained": 0,
        "failed": [],
        "interrupted": False,
    }
    assert "all 4 runs are done" in stderr
    assert finished_files(store) == before


def test_an_overlapping_space_trains_only_what_is_new(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, store = undisturbed[0], tmp_path / "store"
    shutil.copytree(undisturbed[1], store)
    before = finished_files(store)
    code, summary, stderr = run(space, store, "seed=[2,3]", "name=more_seeds", "cohort=2")
    assert code == 0, stderr
    assert (summary["done_before"], summary["trained"]) == (2, 2)
    assert {name: finished_files(store)[name] for name in before} == before
    # The project's own lines and nothing of Ray's.
    for line in stderr.splitlines():
        assert line.startswith(("corpus ", "more_seeds", "finished ")) or "of 2 runs" in line, line


@needs_compiler
@needs_bf16
def test_warm_workers_train_compiled_bf16(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, store = write_space(tmp_path, **LONG), tmp_path / "store"
    grid = ("seed=[1,2,3,4,5]", "variant=triplu")
    code, _, stderr = run(space, store, *grid, "precision=bf16", "compile=on")
    assert code == 0, stderr
    runs = runs_and_curves(store)[0].sort_values("start_seconds")
    assert runs["hardware"].str.endswith("1 thread, cohort of 1, compiled").all()
    # The first cohort of each worker pays for imports and compilation, the others for neither.
    workers = os.cpu_count() or 1
    assert (runs["start_seconds"][: max(0, 5 - workers)] < 1.0).all()
    fp32 = runs_and_curves(undisturbed[1])[0].set_index(["variant", "seed"])["best_val_loss"]
    for _, row in runs[runs["seed"] <= 2].iterrows():
        assert abs(row["best_val_loss"] - fp32["triplu", row["seed"]]) < 0.02


def test_a_failed_cohort_does_not_stop_the_others(tmp_path: Path) -> None:
    space, store = write_space(tmp_path, max_failures=1), tmp_path / "store"
    code = subprocess.run(
        [sys.executable, "-m", "triplu_ray.cli", "plan", str(space), "--json"],
        capture_output=True,
        check=True,
    )
    blocked = json.loads(code.stdout)["runs"][1]["run_id"]
    # A folder where the run's file should go: its worker trains, but cannot store.
    (store / "runs" / f"{blocked}.parquet" / "in_the_way").mkdir(parents=True)
    exit_code, summary, stderr = run(space, store)
    assert exit_code == 1
    assert summary["trained"] == 3
    (failed,) = summary["failed"]
    assert failed["run_ids"] == [blocked]
    assert blocked in failed["reason"]
    assert f"failed: runs {blocked}: " in stderr
    assert "Traceback" not in stderr


def test_each_variant_is_evaluated_at_the_rate_it_chose(tmp_path: Path) -> None:
    select = {"key": "learning_rate", "values": [1e-4, 1e-2], "seeds": [101]}
    space, store = write_space(tmp_path, select=select, num_steps=100), tmp_path / "store"
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    assert {key: summary[key] for key in ("runs", "pending", "trained")} == {
        "runs": 8, "pending": 0, "trained": 8,
    }  # fmt: skip
    runs = runs_and_curves(store)[0]
    is_candidate = runs["seed"].isin(select["seeds"])
    means = runs[is_candidate].groupby(["variant", "learning_rate"])["best_val_loss"].mean()
    for variant, compared in runs[~is_candidate].groupby("variant"):
        best = means[variant].idxmin()
        assert (compared["learning_rate"] == best).all()
        assert sorted(compared["seed"]) == [1, 2]
        assert f"chosen for {variant}: learning_rate {best:g}" in stderr
    # 100 steps at 1e-4 hardly move a model.
    assert (runs.loc[~is_candidate, "learning_rate"] == 1e-2).all()


SEARCH: dict[str, Any] = {
    "search": {
        "keys": {"gain": {"low": 0.5, "high": 60, "log": True}},
        "num_suggestions": 3,
        "confirm_seeds": [11],
    }
}


def suggested(store: Path) -> list[dict[str, float]]:
    """The values that were suggested, in order."""
    records = Store(str(store)).read_records("searches")
    return [record["values"] for record in sorted(records, key=lambda record: record["number"])]


def test_a_search_suggests_trains_and_confirms(tmp_path: Path) -> None:
    space, store = write_space(tmp_path, num_steps=40, **SEARCH), tmp_path / "store"
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    # SwiGLU on three seeds, three suggestions on two, the best and the paper's gain on one.
    assert {key: summary[key] for key in ("runs", "pending", "trained", "failed")} == {
        "runs": 11, "pending": 0, "trained": 11, "failed": [],
    }  # fmt: skip
    runs = runs_and_curves(store)[0]
    gains = [values["gain"] for values in suggested(store)]
    assert len(set(gains)) == 3
    searched = runs[(runs["variant"] == "triplu") & (runs["seed"] < 10)]
    assert sorted(zip(searched["gain"], searched["seed"], strict=True)) == sorted(
        (gain, seed) for gain in gains for seed in (1, 2)
    )
    # The seeds of a suggestion are one cohort, though a CPU gains nothing by it.
    assert searched["hardware"].str.contains("cohort of 2").all()
    assert searched.groupby("gain")["cohort_id"].nunique().tolist() == [1, 1, 1]
    best = float(str(searched.groupby("gain")["best_val_loss"].mean().idxmin()))
    fresh = runs[(runs["variant"] == "triplu") & (runs["seed"] == 11)]
    assert sorted(fresh["gain"]) == sorted([best, 5.0])
    assert f"triplu: 3 of 3 suggestions done; best gain {best:g}" in stderr
    assert f"finished triplu L1 lr 0.001 seed 1, 2 gain {gains[0]:g}; " in stderr
    assert checkpoints(store) == []


@pytest.mark.slow
def test_a_killed_search_is_continued_as_if_it_had_not_been(tmp_path: Path) -> None:
    settings = {**SEARCH["search"], "num_suggestions": 7, "confirm_seeds": []}
    grid = {"seed": [1, 2], "variant": ["triplu"]}
    space = write_space(tmp_path, grid=grid, search=settings, **LONG)
    reference, store = tmp_path / "reference", tmp_path / "store"
    code, _, stderr = run(space, reference)
    assert code == 0, stderr
    for count, ending in ((2, signal.SIGKILL), (6, signal.SIGINT)):
        process = start(space, store)
        wait_until(lambda n=count: len(suggested(store)) >= n and checkpoints(store), process)  # type: ignore[misc]
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(ending)
        stdout, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == (130 if ending == signal.SIGINT else -signal.SIGKILL)
        assert ending == signal.SIGKILL or json.loads(stdout)["interrupted"]
        psutil.wait_procs(workers, timeout=60)
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    assert summary["trained"] < 14
    assert suggested(store) == suggested(reference)
    runs = assert_complete_and_equal(store, reference)
    assert runs["resumes"].max() == 1


@pytest.mark.slow
def test_a_suggestion_that_is_behind_is_stopped(tmp_path: Path) -> None:
    """Learning rates of which most are hopeless."""
    settings = {
        "keys": {"learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}},
        "num_suggestions": 6, "sampler": "random", "pruning": "asha",
    }  # fmt: skip
    grid = {"seed": [1, 2], "variant": ["triplu"]}
    space = write_space(tmp_path, grid=grid, search=settings, **{**LONG, "eval_interval": 50})
    store = tmp_path / "store"
    code, summary, stderr = run(space, store, "checkpoint_seconds=0.05")
    assert code == 0, stderr
    records = Store(str(store)).read_records("searches")
    stopped = [record for record in records if record["pruned"]]
    assert 0 < len(stopped) < 6
    assert all(len(record["pruned"]) < 20 for record in stopped)
    assert stderr.count("stopped early triplu") == len(stopped)
    runs = runs_and_curves(store)[0]
    assert len(runs) == summary["trained"] == 2 * (6 - len(stopped))
    # A mean over seeds stops both of them, or none.
    assert runs.groupby("learning_rate")["seed"].nunique().eq(2).all()
    assert runs["learning_rate"].max() == max(r["values"]["learning_rate"] for r in records)
    assert checkpoints(store) == []


def test_a_killed_driver_is_continued(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    process = start(space, store, **injected(tmp_path / "faults", train=slow_while_there(slow)))
    slow.unlink()
    wait_until(lambda: list(store.glob("runs/*.parquet")), process)
    slow.touch()
    wait_until(lambda: all_train(store, 2), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(workers, timeout=60)
    done = finished_files(store)
    assert 0 < len(Store(str(store)).finished_run_ids()) < 4
    code, summary, stderr = run(space, store)
    assert code == 0, stderr
    assert summary["trained"] == 4 - summary["done_before"]
    runs = assert_complete_and_equal(store, reference)
    assert runs["resumes"].max() == 1
    assert {name: finished_files(store)[name] for name in done} == done


def test_a_killed_worker_is_retried(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    process = start(space, store)
    wait_until(lambda: checkpoints(store), process)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "Trainable" in " ".join(child.cmdline()[:1])
    ]
    workers[0].kill()
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert sum(line.startswith("again ") for line in stderr.splitlines()) == 1
    runs = assert_complete_and_equal(store, reference)
    assert (runs["resumes"] > 0).sum() <= 1


def test_ctrl_c_keeps_what_was_reached(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    process = start(space, store, "checkpoint_seconds=1000", **slowed)

    first_seen: dict[str, float] = {}

    def a_cohort_is_on_its_way() -> bool:
        """A claim is some seconds old: of the 100 s that its steps take at this pace."""
        now, claimed = time.monotonic(), store.glob("running/*.json")
        return any(now - first_seen.setdefault(claim.name, now) > 5 for claim in claimed)

    wait_until(a_cohort_is_on_its_way, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["interrupted"]
    assert f"go on with: triplu-ray sweep {space} " in stderr
    assert "Traceback" not in stderr
    assert checkpoints(store), "a running cohort's progress was dropped"
    code, _, stderr = run(space, store)
    assert code == 0, stderr
    assert assert_complete_and_equal(store, reference)["resumes"].max() == 1


def test_a_second_ctrl_c_ends_it_at_once(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    process = start(space, store, "num_steps=100000", "checkpoint_seconds=1000")
    wait_until(lambda: len(list(store.glob("running/*.json"))) > 0, process)
    # A worker that does not answer: a graceful end would wait for it.
    workers = psutil.Process(process.pid).children(recursive=True)
    stuck = [child for child in workers if "Trainable" in " ".join(child.cmdline()[:1])]
    for worker in stuck:
        worker.suspend()
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, stderr = ended(process)
    assert time.monotonic() - began < 20
    assert code == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    psutil.wait_procs(workers, timeout=60)
    assert not any(worker.is_running() for worker in stuck)
    code, _, stderr = run(space, store)
    assert code == 0, stderr
    assert_complete_and_equal(store, reference)


def test_mistakes_are_told_before_anything_starts(tmp_path: Path) -> None:
    space, store = write_space(tmp_path), tmp_path / "store"
    code, _, stderr = run(space, store, "resources.gpu=64")
    assert code == 2
    assert "resources.gpu: expected at most what this machine has (0), got 64" in stderr
    assert "Traceback" not in stderr
    code, _, stderr = run(space, store, "precision=tf32")
    assert code == 2
    assert f"{space} precision=tf32: precision: tf32 needs a GPU (resources.gpu)" in stderr
    code, _, stderr = run(space, store, "compile=on", CXX="/no/such/compiler")
    assert code == 2
    assert f"{space} compile=on: compile: on needs a C++ compiler" in stderr
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-m", "triplu_ray.cli", "sweep", str(space), "--store", str(store)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 2
    assert "RAY_ADDRESS=127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
