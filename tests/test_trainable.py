"""Workers without Ray, when the store, the GPU or another sweep is in the way."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cohorts import cohort
from workers import curves, finish, left, marked_store, out_of_memory, worker

from triplu_ray import provenance
from triplu_ray.files import PAUSES, Files, write_atomically
from triplu_ray.leases import Lease, claims
from triplu_ray.plan import Cohort
from triplu_ray.selected import examine_selected
from triplu_ray.store import Store
from triplu_ray.train import CohortTrainer


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return marked_store(tmp_path / "store")


@pytest.fixture
def four(tmp_path: Path) -> Cohort:
    return cohort(tmp_path, grid={"seed": [1, 2, 3, 4], "variant": ["triplu"]})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.fixture
def expected(tmp_path: Path, four: Cohort) -> pd.DataFrame:
    """The curves of an undisturbed worker."""
    store = marked_store(tmp_path / "undisturbed")
    result, notes = finish(worker(store, four))
    assert (result["failed"], result["elsewhere"], notes) == ([], None, [])
    return curves(store)


# GPU memory


@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_a_cohort_that_is_too_large_is_halved(
    store: Store,
    four: Cohort,
    expected: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    fitting: int,
) -> None:
    out_of_memory(monkeypatch, lambda trainer: len(trainer.members) > fitting)
    result, notes = finish(worker(store, four))
    assert result["failed"] == []
    assert len(notes) == (3 if fitting == 1 else 1)
    assert "out of GPU memory with 4 members; going on with 2 and 2" in notes[0]
    pd.testing.assert_frame_equal(curves(store), expected)
    assert left(store) == []
    hardware = store.read_runs().to_pandas()["hardware"]
    assert hardware.str.endswith(f"cohort of {min(fitting, 2)}, eager").all()


def test_halves_go_on_where_the_whole_was(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []

    def is_full(trainer: CohortTrainer) -> bool:
        steps.append((len(trainer.members), trainer.step))
        return len(trainer.members) > 2 and trainer.step == 13

    out_of_memory(monkeypatch, is_full)
    # A checkpoint after every step: the last before the fault is exact.
    result, _ = finish(worker(store, four, checkpoint_seconds=1e-9))
    assert result["failed"] == []
    assert [step for members, step in steps if members == 2] == [*range(13, 20)] * 2
    pd.testing.assert_frame_equal(curves(store), expected)
    assert left(store) == []
    assert store.read_runs()["resumes"].to_pylist() == [1] * 4


def test_one_that_does_not_fit_fails_and_the_others_do_not(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_memory(monkeypatch, lambda trainer: any(c.seed == 3 for c in trainer.configs))
    result, _ = finish(worker(store, four))
    (failed,) = result["failed"]
    assert failed["run_ids"] == [four.runs[2].run_id]
    assert failed["reason"] == (
        "out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"
    )
    others = expected[expected["run_id"] != four.runs[2].run_id].reset_index(drop=True)
    pd.testing.assert_frame_equal(curves(store), others)


def test_a_run_whose_batch_is_too_large_goes_on_with_it_in_parts(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[int, int]] = []

    def is_full(trainer: CohortTrainer) -> bool:
        used.append((len(trainer.members), trainer.micro_batches))
        return trainer.micro_batches == 1

    out_of_memory(monkeypatch, is_full)
    result, notes = finish(worker(store, four))
    assert result["failed"] == []
    # What is known of one run's batch holds for those after it.
    assert list(dict.fromkeys(used)) == [(4, 1), (2, 1), (1, 1), (1, 2), (2, 2)]
    assert notes[-1].endswith("out of GPU memory; going on with its batch in 2 parts")
    hardware = store.read_runs().to_pandas()["hardware"]
    assert hardware.str.endswith(", batch in 2 parts, eager").all()
    found = curves(store)
    assert found["loss"].to_numpy() == pytest.approx(expected["loss"].to_numpy(), abs=1e-4)


def test_a_batch_in_parts_goes_on_where_the_whole_one_was(
    store: Store, four: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the cohort was that it was once a member of."""
    steps: list[int] = []

    def is_full(trainer: CohortTrainer) -> bool:
        if trainer.micro_batches == 2:
            steps.append(trainer.step)
        alone = len(trainer.members) == 1
        return trainer.micro_batches == 1 and trainer.step == (13 if alone else 5)

    out_of_memory(monkeypatch, is_full)
    result, _ = finish(worker(store, four, checkpoint_seconds=1e-9))
    assert result["failed"] == []
    assert steps[0] == 13
    assert left(store) == []


def test_memory_that_is_full_at_the_very_end_costs_no_training(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heldout text or a probe, not a step, is what does not fit."""
    steps = 0

    def examine(trainer: CohortTrainer, *rest: Any) -> None:
        if len(trainer.members) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        examine_selected(trainer, *rest)

    def count(trainer: CohortTrainer) -> bool:
        nonlocal steps
        steps += len(trainer.members)
        return False

    monkeypatch.setattr("triplu_ray.raytune.trainable.examine_selected", examine)
    out_of_memory(monkeypatch, count)
    result, _ = finish(worker(store, four))
    assert result["failed"] == []
    assert steps == 4 * 20
    pd.testing.assert_frame_equal(curves(store), expected)
    assert left(store) == []


# The store


def failing_writes(
    monkeypatch: pytest.MonkeyPatch, folder: str, number: int, times: int
) -> list[str]:
    """The first attempts to write below a folder fail; the paths that were tried."""
    tried = []

    def write(path: Path, content: bytes, **rest: Any) -> None:
        if path.parent.name == folder:
            tried.append(path.name)
            if len(tried) <= times:
                raise OSError(number, os.strerror(number))
        write_atomically(path, content, **rest)

    monkeypatch.setattr("triplu_ray.files.write_atomically", write)
    return tried


def test_a_disk_that_is_full_for_a_while_is_waited_for(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = failing_writes(monkeypatch, "runs", errno.ENOSPC, len(PAUSES))
    result, notes = finish(worker(store, four))
    assert result["failed"] == []
    assert len(tried) == len(PAUSES) + 4
    assert [note.partition(": ")[2] for note in notes] == [
        f"No space left on device; again in {pause:g} s" for pause in PAUSES
    ]
    pd.testing.assert_frame_equal(curves(store), expected)


@pytest.mark.parametrize(
    ("number", "attempts"), [(errno.ENOSPC, len(PAUSES) + 1), (errno.EACCES, 1)]
)
def test_runs_that_cannot_be_stored_are_stored_the_next_time(
    store: Store,
    four: Cohort,
    expected: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    attempts: int,
) -> None:
    with monkeypatch.context() as full:
        tried = failing_writes(full, "runs", number, 99)
        result, _ = finish(worker(store, four))
        assert len(tried) == attempts
        (failed,) = result["failed"]
        assert failed["run_ids"] == [run.run_id for run in four.runs]
        assert failed["reason"] == (
            f"store {store.location!r}: cannot write runs/{four.runs[0].run_id}.parquet: "
            f"{os.strerror(number)}"
        )
        assert store.finished_run_ids() == set()
        assert left(store) == [f"{four.cohort_id}.safetensors"]
    out_of_memory(monkeypatch, lambda _: True)  # nothing is left to train
    result, _ = finish(worker(store, four))
    assert result["failed"] == []
    pd.testing.assert_frame_equal(curves(store), expected)
    assert left(store) == []


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_writes(monkeypatch, "checkpoints", errno.EACCES, 99)
    result, notes = finish(worker(store, four, checkpoint_seconds=1e-9))
    assert result["failed"] == []
    assert "cannot write checkpoints/" in notes[0]
    pd.testing.assert_frame_equal(curves(store), expected)


def test_a_store_that_cannot_be_claimed_in_fails_the_cohort(
    store: Store, four: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_writes(monkeypatch, "running", errno.EACCES, 99)
    result, _ = finish(worker(store, four))
    assert "cannot write running/" in result["failed"][0]["reason"]


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:-1] + b"\x99", lambda _: b""])
def test_a_damaged_checkpoint_is_set_aside_and_told(
    store: Store,
    four: Cohort,
    expected: pd.DataFrame,
    damage: Callable[[bytes], bytes],
) -> None:
    interrupted = worker(store, four)
    while interrupted.step()["step"] < 10:
        pass
    interrupted.cleanup()
    content = store.read_checkpoint(four.cohort_id)
    assert content is not None
    store.write_checkpoint(four.cohort_id, damage(content))
    result, notes = finish(worker(store, four))
    assert result["failed"] == []
    (name,) = left(store)
    assert name.startswith(f"{four.cohort_id}.damaged-")
    assert len(notes) == 1
    assert notes[0].endswith(f"set aside as {name}")
    pd.testing.assert_frame_equal(curves(store), expected)
    assert store.read_runs()["resumes"].to_pylist() == [0] * 4


# Other sweeps, other nodes


def test_what_another_sweep_trains_is_left_to_it(store: Store, four: Cohort) -> None:
    other = Lease(store, "other", "tiny", Cohort(four.runs[1:2]))
    assert other.acquire() is None
    result, _ = finish(worker(store, four))
    assert result["elsewhere"].startswith("triplu L1 lr 0.001 seed 2: step 0 of 20 on ")
    assert store.finished_run_ids() == set()
    assert [claim.sweep_id for claim in claims(store)] == ["other"]
    other.release()
    assert finish(worker(store, four))[0]["elsewhere"] is None
    assert len(store.finished_run_ids()) == 4


def test_what_another_sweep_has_finished_is_not_trained_again(
    store: Store, four: Cohort, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(worker(store, Cohort(four.runs[:2])))
    before = {path: path.read_bytes() for path in Path(store.location).glob("*/*.parquet")}
    sizes = []

    def note(trainer: CohortTrainer) -> bool:
        sizes.append(len(trainer.members))
        return False

    out_of_memory(monkeypatch, note)
    for trained in (four, Cohort(four.runs[:2])):
        assert finish(worker(store, trained))[0]["failed"] == []
    assert set(sizes) == {2}
    assert len(sizes) == 20
    pd.testing.assert_frame_equal(curves(store), expected)
    assert before == {path: path.read_bytes() for path in before}


def test_a_worker_that_was_suspended_leaves_its_cohort_to_who_took_over(
    store: Store, four: Cohort
) -> None:
    suspended = worker(store, four)
    suspended.step()
    assert suspended._lease is not None
    Files.delete(store.files, f"running/{four.cohort_id}-this.json")
    other = Lease(store, "other", "tiny", four)
    assert other.acquire() is None
    suspended._lease.lost_to = claims(store, without="this")[0]
    result, _ = finish(suspended)
    assert result["elsewhere"] is not None
    assert store.finished_run_ids() == set()
    other.release()


def test_a_node_with_other_code_trains_nothing(store: Store, four: Cohort) -> None:
    result, _ = finish(worker(store, four, code={**provenance.code(), "torch": "1.0.0"}))
    assert "torch: expected 1.0.0 as where the sweep was started, got 2." in result["unfit"]
    assert (result["failed"], left(store)) == ([], [])


def test_a_node_with_another_store_trains_nothing(store: Store, four: Cohort) -> None:
    result, _ = finish(worker(store, four, marker="sweeps/elsewhere.json"))
    assert "nodes need shared storage, or a bucket" in result["unfit"]
    assert (result["failed"], left(store)) == ([], [])


def test_an_interrupted_cohort_keeps_what_it_has_reached(
    store: Store, four: Cohort, expected: pd.DataFrame
) -> None:
    interrupted = worker(store, four)
    while interrupted.step()["step"] < 10:
        pass
    interrupted.cleanup()
    assert left(store) == [f"{four.cohort_id}.safetensors"]
    finish(worker(store, four))
    pd.testing.assert_frame_equal(curves(store), expected)
    assert store.read_runs()["resumes"].to_pylist() == [1] * 4
