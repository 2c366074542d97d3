import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fabricate import curve, planned_run, probe, stored_run

from triplu_ray import store as store_module
from triplu_ray.files import Files
from triplu_ray.store import SCHEMAS, Store
from triplu_ray.upkeep import LITTER_SECONDS, clear_litter, merge, set_aside_damaged


def a_run(seed: int) -> dict[str, Any]:
    return stored_run(planned_run("triplu", seed), 1.5)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three runs with evaluations and probes."""
    store = Store(str(tmp_path / "results"))
    for seed in (1, 2, 3):
        planned = planned_run("triplu", seed)
        run = stored_run(planned, 1.5)
        store.write_run(run, curve(run, num_evals=4), probe(planned, "pmi", {"all": 0.5}))
    return store


def ids(*seeds: int) -> list[str]:
    return [str(a_run(seed)["run_id"]) for seed in seeds]


def tables(store: Store) -> list[Any]:
    return [store.read_runs(), store.read_evals(), store.read_probes()]


def names(store: Store, table: str) -> list[str]:
    return sorted(path.name for path in Path(store.location, table).iterdir())


# Damage


@pytest.mark.parametrize("table", SCHEMAS)
def test_a_run_that_lost_a_part_is_missing_again(
    store: Store, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tables(store)
    first, second, third = ids(1, 2, 3)
    broken = Path(store.location, table, f"{second}.parquet")
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-5])
    assert set_aside_damaged(store, [first, second])
    assert store.finished_run_ids() == {first, third}
    for name in SCHEMAS:
        aside = {name for name in names(store, name) if ".damaged-" in name}
        assert {name.partition(".damaged-")[0] for name in aside} == {second}
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert sum(f"{broken}: damaged: " in line and "set aside as" in line for line in told) == 1
    assert sum("belongs to what is damaged" in line for line in told) == 2
    # Nothing is told of what lies aside, and `runs/*.parquet` does not meet it.
    assert len(list(Path(store.location, "runs").glob("*.parquet"))) == 2
    assert not set_aside_damaged(store, [first, second])
    run = a_run(2)
    store.write_run(run, curve(run, 4), probe(run | {"config": {"num_steps": 1000}}, "pmi", {}))
    assert capsys.readouterr().err == ""
    assert store.read_runs().num_columns == expected[0].num_columns
    assert store.finished_run_ids() == {first, second, third}
    assert store.read_evals().equals(expected[1])


def test_only_the_runs_that_are_asked_for_are_looked_at(store: Store) -> None:
    first, second, _ = ids(1, 2, 3)
    Path(store.location, "runs", f"{second}.parquet").write_bytes(b"PAR1 is no table PAR1")
    assert not set_aside_damaged(store, [first])
    assert second in store.finished_run_ids()


def test_an_empty_file_is_no_finished_run(store: Store) -> None:
    first, second, third = ids(1, 2, 3)
    Path(store.location, "runs", f"{second}.parquet").write_bytes(b"")
    assert store.finished_run_ids() == {first, third}
    assert set_aside_damaged(store, [second])
    assert not set_aside_damaged(store, [second])


def test_a_sound_store_stays_as_it_is(store: Store) -> None:
    before = {path: path.read_bytes() for path in Path(store.location).rglob("*.parquet")}
    assert not set_aside_damaged(store, ids(1, 2, 3))
    assert before == {path: path.read_bytes() for path in Path(store.location).rglob("*.parquet")}


@pytest.mark.parametrize("table", SCHEMAS)
def test_the_runs_of_a_damaged_merged_file_are_missing_again(store: Store, table: str) -> None:
    merge(store)
    run = a_run(4)
    store.write_run(run, curve(run, 4))
    (merged,) = Path(store.location, table).glob("merged-*.parquet")
    merged.write_bytes(merged.read_bytes()[:-1])
    assert set_aside_damaged(store, [])
    assert store.finished_run_ids() == {*ids(4)}


# Litter


def test_what_killed_processes_left_is_cleared_once_it_is_old(store: Store) -> None:
    before = sorted(Path(store.location).rglob("*.parquet"))
    old, new = (Path(store.location, "runs", f".writing-{name}") for name in ("old", "new"))
    for path, age in ((old, 2 * LITTER_SECONDS), (new, 0.0)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    clear_litter(store)
    assert (old.exists(), new.exists()) == (False, True)
    assert sorted(Path(store.location).rglob("[!.]*.parquet")) == before
    assert not Path(store.location, "running").exists() or not any(
        Path(store.location, "running").iterdir()
    )


FOLDERS = sorted(set(re.findall(r"<store>/(\w+)/", store_module.__doc__ or "")))
"""All that the store says it has."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_litter_is_cleared_wherever_the_store_writes(folder: str, store: Store) -> None:
    litter = Path(store.location, folder, "of_a_space", ".writing-x")
    litter.parent.mkdir(parents=True)
    litter.write_bytes(b"half")
    long_ago = time.time() - 2 * LITTER_SECONDS
    os.utime(litter, (long_ago, long_ago))
    clear_litter(store)
    assert not litter.exists()


# Merging


def test_merged_runs_are_the_same_runs(store: Store) -> None:
    before = tables(store)
    assert merge(store) == 3
    assert [table.equals(old) for table, old in zip(tables(store), before, strict=True)] == [
        True
    ] * 3
    assert store.finished_run_ids() == {*ids(1, 2, 3)}
    assert store.finished_among(ids(1, 3, 9)) == {*ids(1, 3)}
    for table in SCHEMAS:
        (name,) = names(store, table)
        assert name.startswith("merged-")
    # The folder is still what DuckDB, Polars and pandas read whole.
    assert pq.read_table(Path(store.location, "evals")).num_rows == 3 * 5
    assert merge(store) == 0
    assert len(names(store, "runs")) == 1


def test_what_comes_later_is_merged_beside(store: Store) -> None:
    merge(store)
    run = a_run(4)
    store.write_run(run, curve(run, 4))
    assert store.finished_run_ids() == {*ids(1, 2, 3, 4)}
    assert merge(store) == 1
    assert store.read_runs()["run_id"].to_pylist() == sorted(ids(1, 2, 3, 4))
    assert len(names(store, "runs")) == 2


def test_an_unfinished_run_is_not_merged(store: Store) -> None:
    run = a_run(4)
    store._write_table("evals", run["run_id"], curve(run, 4))
    assert merge(store) == 3
    assert f"{run['run_id']}.parquet" in names(store, "evals")
    store.write_run(run, curve(run, 4))
    assert store.read_evals().num_rows == 4 * 5


def test_a_damaged_run_is_not_merged(store: Store) -> None:
    first, second, third = ids(1, 2, 3)
    broken = Path(store.location, "evals", f"{second}.parquet")
    broken.write_bytes(broken.read_bytes()[:-1])
    assert merge(store) == 2
    assert set(names(store, "runs")) > {f"{second}.parquet"}
    assert broken.exists()
    assert set_aside_damaged(store, [second])
    assert store.finished_run_ids() == {first, third}


def test_whatever_ends_a_merge_every_run_stays_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of its writes and deletions in turn: 3 files written, 9 deleted."""
    before = tables(store)
    for allowed in range(12):
        copy = Store(str(tmp_path / str(allowed)))
        shutil.copytree(store.location, copy.location)
        left = allowed
        with monkeypatch.context() as dying:
            for verb in ("write", "delete"):
                original = getattr(Files, verb)

                def act(self: Files, *given: Any, original: Any = original, **named: Any) -> None:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                    original(self, *given, **named)

                dying.setattr(Files, verb, act)
            with pytest.raises(KeyboardInterrupt):
                merge(copy)
        for _ in range(2):
            after = tables(copy)
            assert all(table.equals(old) for table, old in zip(after, before, strict=True)), allowed
            merge(copy)
