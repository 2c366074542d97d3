"""Workers that go on from what others have reached, however cohorts were cut before."""

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cohorts import cohort, corpus
from workers import curves, finish, left, marked_store, out_of_memory, worker

from triplu_ray.plan import Cohort
from triplu_ray.resumption import drop_useless
from triplu_ray.selected import examine_selected
from triplu_ray.store import Store
from triplu_ray.train import CohortTrainer

Table = pd.DataFrame


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return marked_store(tmp_path / "store")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Cohort:
    grid = {"seed": [1, 2], "learning_rate": [1e-3, 1e-2]}
    # The probe `similarity` is noted along training.
    return cohort(
        tmp_path_factory.mktemp("four"), grid=grid, variant="untied_squared_relu", hidden=12
    )


def tables(store: Store) -> tuple[Table, Table, Table]:
    """Without what clocks, and who was trained beside whom, decide."""
    runs = store.read_runs(columns=["seed", "learning_rate", "best_val_loss", "tokens", "status"])
    return runs.to_pandas(), curves(store), store.read_probes().to_pandas()


@pytest.fixture(scope="module")
def expected(four: Cohort, tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Table, Table]:
    """Those of an undisturbed worker."""
    store = marked_store(tmp_path_factory.mktemp("undisturbed"))
    assert finish(worker(store, four))[0]["failed"] == []
    assert len({*store.read_runs()["best_val_loss"].to_pylist()}) == 4
    return tables(store)


def assert_as_undisturbed(store: Store, expected: tuple[Table, Table, Table]) -> None:
    for mine, table in zip(tables(store), expected, strict=True):
        pd.testing.assert_frame_equal(mine, table)
    assert left(store) == []


def interrupt(store: Store, planned: Cohort, step: int) -> None:
    """A worker is stopped after so many steps."""
    interrupted = worker(store, planned)
    while interrupted.step()["step"] < step:
        pass
    interrupted.cleanup()


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Members and step of each step that is taken from now on."""
    steps: list[tuple[int, int]] = []

    def note(trainer: CohortTrainer) -> bool:
        steps.append((len(trainer.members), trainer.step))
        return False

    out_of_memory(monkeypatch, note)
    return steps


def some(four: Cohort, *places: int) -> Cohort:
    return Cohort(tuple(four.runs[place] for place in places))


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))][1::5])
def test_each_run_keeps_its_result_when_members_come_in_another_order(
    store: Store, four: Cohort, expected: tuple[Table, Table, Table], order: tuple[int, ...]
) -> None:
    interrupt(store, four, step=10)
    finish(worker(store, some(four, *order)))
    assert store.read_runs()["resumes"].to_pylist() == [1] * 4
    assert_as_undisturbed(store, expected)


@pytest.mark.parametrize(
    "cut", [[(0, 1), (2, 3)], [(0,), (1, 2, 3)], [(3, 1), (2,), (0,)], [(2, 0, 1), (3,)]]
)
def test_cohorts_that_are_cut_anew_go_on_where_the_old_ones_were(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
    cut: list[tuple[int, ...]],
) -> None:
    interrupt(store, four, step=10)
    steps = count_steps(monkeypatch)
    for places in cut:
        finish(worker(store, some(four, *places)))
    assert steps == [(len(places), step) for places in cut for step in range(10, 20)]
    assert_as_undisturbed(store, expected)


def test_a_cohort_of_what_came_to_different_steps_goes_on_in_parts(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt(store, some(four, 0, 2), step=10)
    interrupt(store, some(four, 1), step=15)
    steps = count_steps(monkeypatch)
    assert finish(worker(store, four))[0]["written"] == [four.runs[i].run_id for i in (1, 0, 2, 3)]
    # The newest checkpoint's first; what has none, last.
    assert steps == [
        *((1, step) for step in range(15, 20)),
        *((2, step) for step in range(10, 20)),
        *((1, step) for step in range(20)),
    ]
    assert_as_undisturbed(store, expected)


def test_a_checkpoint_without_a_record_is_its_own_cohorts(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a version that wrote none."""
    interrupt(store, four, step=10)
    store.files.delete(f"checkpoints/{four.cohort_id}.json")
    steps = count_steps(monkeypatch)
    finish(worker(store, four))
    assert len(steps) == 10
    assert_as_undisturbed(store, expected)


class Killed(BaseException):
    """Nothing in the process has time for anything."""


@pytest.mark.parametrize("stored", range(5))
def test_who_is_killed_while_runs_are_stored_has_trained_for_the_others_too(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
    stored: int,
) -> None:
    write = Store.write_run
    written: list[Any] = []

    def write_run(self: Store, *rows: Any) -> None:
        if len(written) == stored:
            raise Killed
        written.append(rows)
        write(self, *rows)

    def delete_checkpoint(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(Store, "write_run", write_run)
        killing.setattr(Store, "delete_checkpoint", delete_checkpoint)
        with pytest.raises(Killed):
            finish(worker(store, four, checkpoint_seconds=1e-9))
    assert len(store.finished_run_ids()) == stored
    steps = count_steps(monkeypatch)
    result, _ = finish(worker(store, four))
    assert steps == []
    assert len(result["written"]) == 4 - stored
    drop_useless(store)
    assert_as_undisturbed(store, expected)


@pytest.mark.parametrize("method", ["begin_evaluation", "_measured", "_record_evaluation"])
@pytest.mark.parametrize("at", [0, 5, 10, 20])
def test_what_fails_at_an_evaluation_is_not_missing_afterwards(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    at: int,
) -> None:
    original = getattr(CohortTrainer, method)

    def failing(self: CohortTrainer, *rest: Any) -> Any:
        if self.step == at:
            raise RuntimeError("a fault of the machine")
        return original(self, *rest)

    with monkeypatch.context() as fault:
        fault.setattr(CohortTrainer, method, failing)
        failed = worker(store, four)
        with pytest.raises(RuntimeError, match="a fault of the machine"):
            finish(failed)
        failed.cleanup()
    finish(worker(store, four))
    assert_as_undisturbed(store, expected)


def test_what_fails_after_training_costs_none_and_is_told_once(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def examine(trainer: CohortTrainer, *rest: Any) -> None:
        examine_selected(trainer, *rest)
        raise RuntimeError("a probe that cannot be")

    with monkeypatch.context() as fault:
        fault.setattr("triplu_ray.raytune.trainable.examine_selected", examine)
        failed = worker(store, four)
        with pytest.raises(RuntimeError, match="a probe that cannot be"):
            finish(failed)
        failed.cleanup()
    steps = count_steps(monkeypatch)
    finish(worker(store, four))
    assert steps == []
    assert_as_undisturbed(store, expected)


def test_an_update_that_fails_half_way_is_not_kept(
    store: Store,
    four: Cohort,
    expected: tuple[Table, Table, Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = worker(store, four)
    while failed.step()["step"] < 10:
        pass
    trainer = failed._trainer
    assert trainer is not None

    def half_an_update() -> None:
        trainer.optimizer.values.mul_(1.5)
        raise RuntimeError("a fault of the machine")

    monkeypatch.setattr(trainer, "_run_update", half_an_update)
    with pytest.raises(RuntimeError, match="a fault of the machine"):
        failed.step()
    failed.cleanup()
    finish(worker(store, four))
    assert_as_undisturbed(store, expected)


def test_runs_are_stored_by_their_ids(store: Store, four: Cohort) -> None:
    """Whatever order the trainer has its members in."""
    trainer = CohortTrainer(some(four, 2, 0, 3, 1), corpus())
    for place, run in enumerate(four.runs):
        next(m for m in trainer.members if m.run_id == run.run_id).best_val_loss = float(place)
    trainer.seconds = 1.0
    trained = worker(store, four)
    trained._write_runs(four, trainer)
    found = store.results()
    assert [found[run.run_id] for run in four.runs] == [0.0, 1.0, 2.0, 3.0]
