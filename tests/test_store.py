import math
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabricate import curve, planned_run, stored_run
from hypothesis import given, settings
from hypothesis import strategies as st

from triplu_ray.errors import UserError
from triplu_ray.store import EVAL_COLUMNS, RUN_COLUMNS, SCHEMAS, Store, parquet_bytes


def a_run(seed: int, loss: float = 1.5, **row: Any) -> dict[str, Any]:
    return stored_run(planned_run("triplu", seed), loss, **row)


def write(store: Store, *runs: dict[str, Any]) -> None:
    for run in runs:
        store.write_run(run, curve(run, num_evals=4))


def report_folder(store: Store, folder: Path) -> None:
    """A report's folder: both tables, each in one file."""
    folder.mkdir(exist_ok=True)
    for name, table in (("runs", store.read_runs()), ("evals", store.read_evals())):
        (folder / f"{name}.parquet").write_bytes(parquet_bytes(table))


def test_what_is_written_is_read(store: Store) -> None:
    runs = [a_run(seed) for seed in (3, 1, 2)]
    write(store, *runs)
    assert store.finished_run_ids() == {run["run_id"] for run in runs}
    by_id = sorted(runs, key=lambda run: str(run["run_id"]))
    assert store.read_runs().to_pylist() == by_id
    assert store.read_evals().to_pylist() == [row for run in by_id for row in curve(run, 4)]


def test_an_empty_store_has_the_tables_with_no_rows(store: Store) -> None:
    assert store.finished_run_ids() == set()
    assert store.read_runs().schema.names == list(RUN_COLUMNS)
    assert store.read_evals().schema.names == list(EVAL_COLUMNS)
    assert store.read_runs().num_rows == store.read_evals().num_rows == 0
    assert store.read_records("spaces") == []
    assert not Path(store.location).exists()


def test_reading_takes_only_the_runs_that_are_asked_for(store: Store) -> None:
    first, second = a_run(1), a_run(2)
    write(store, first, second)
    ids = [first["run_id"], "not there"]
    assert store.read_runs(ids)["run_id"].to_pylist() == [first["run_id"]]
    assert set(store.read_evals(ids)["run_id"].to_pylist()) == {first["run_id"]}
    assert store.read_runs([]).num_rows == store.read_evals([]).num_rows == 0


def test_reading_takes_only_the_columns_that_are_asked_for(store: Store, tmp_path: Path) -> None:
    first, second = sorted((a_run(1, loss=1.25), a_run(2)), key=lambda run: str(run["run_id"]))
    write(store, first, second)
    report_folder(store, tmp_path / "folder")
    for place in (store, Store(str(tmp_path / "folder"))):
        table = place.read_runs(columns=["seed", "best_val_loss"])
        assert table.column_names == ["run_id", "seed", "best_val_loss"]
        assert table["run_id"].to_pylist() == [first["run_id"], second["run_id"]]
        assert table["seed"].to_pylist() == [first["seed"], second["seed"]]
    (row,) = store.read_runs([first["run_id"]], ["run_id", "seed"]).to_pylist()
    assert row == {"run_id": first["run_id"], "seed": first["seed"]}


def test_a_result_is_the_best_loss_of_a_run_that_did_not_diverge(store: Store) -> None:
    never = {"best_val_loss": None, "perplexity": None, "best_step": None}
    runs = [a_run(1, 1.5), a_run(2, 1.2, status="diverged"), a_run(3, status="diverged") | never]
    write(store, *runs[:2])
    store.write_run(runs[2], [])
    ids = [run["run_id"] for run in runs]
    assert store.results() == dict(zip(ids, [1.5, None, None], strict=True))


def test_a_run_that_is_stored_stays_as_it_is(store: Store) -> None:
    write(store, a_run(1, loss=1.5))
    write(store, a_run(1, loss=9.9))
    (row,) = store.read_runs().to_pylist()
    assert row["best_val_loss"] == 1.5
    assert min(store.read_evals()["loss"].to_pylist()) == 1.5


def test_plain_pyarrow_reads_the_files(store: Store) -> None:
    run = a_run(1)
    write(store, run)
    file = Path(store.location, "runs", f"{run['run_id']}.parquet")
    assert pq.read_table(file).to_pylist() == [run]
    folder = pq.read_table(Path(store.location, "evals"))
    assert folder.to_pylist() == curve(run, 4)


def test_every_column_says_what_it_is(store: Store) -> None:
    run = a_run(1)
    write(store, run)
    for table, columns in (("runs", RUN_COLUMNS), ("evals", EVAL_COLUMNS)):
        written = pq.read_schema(Path(store.location, table, f"{run['run_id']}.parquet"))
        assert written.equals(SCHEMAS[table], check_metadata=True)
        for name, (kind, text) in columns.items():
            assert written.field(name).type == kind
            assert written.field(name).metadata == {b"description": text.encode()}
            assert len(text) > 5


def test_columns_that_are_promised_are_there() -> None:
    runs = """run_id cohort_id space variant seed learning_rate gain degree num_layers hidden params
        ffn_flops_per_token tokens best_val_loss best_step final_val_loss perplexity seconds
        tokens_per_second status config corpus_sha256 git_sha versions hardware"""
    assert set(runs.split()) <= RUN_COLUMNS.keys()
    assert {"run_id", "step", "tokens", "split", "loss", "train_loss"} <= EVAL_COLUMNS.keys()


def test_evaluations_of_an_unfinished_run_are_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(1)
    with monkeypatch.context() as dying:
        original = Store._write_table

        def write_table(self: Store, table: str, *rest: Any) -> None:
            if table == "runs":
                raise KeyboardInterrupt
            original(self, table, *rest)

        dying.setattr(Store, "_write_table", write_table)
        with pytest.raises(KeyboardInterrupt):
            write(store, run)
    assert len(list(Path(store.location, "evals").iterdir())) == 1
    assert store.finished_run_ids() == set()
    assert store.read_evals().num_rows == 0
    write(store, run)
    assert store.read_evals().to_pylist() == curve(run, 4)


def test_a_process_that_dies_while_writing_leaves_nothing_to_be_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(1)
    with monkeypatch.context() as dying:

        def die(*_: Any, **__: Any) -> None:
            raise SystemExit

        dying.setattr(os, "fsync", die)
        dying.setattr(Path, "unlink", lambda *_, **__: None)  # nobody is left to clean up
        with pytest.raises(SystemExit):
            store.write_run(run, curve(run))
        with pytest.raises(SystemExit):
            store.write_record("spaces/x/1", {"a": 1})
    assert [p.name[:9] for p in Path(store.location, "evals").iterdir()] == [".writing-"]
    assert store.finished_run_ids() == set()
    assert store.read_evals().num_rows == 0
    assert store.read_records("spaces") == []
    write(store, run)
    assert store.read_evals().num_rows == 5
    assert pq.read_table(Path(store.location, "evals")).num_rows == 5


def test_files_of_others_are_not_taken_for_runs(store: Store) -> None:
    run = a_run(1)
    write(store, run)
    for name in (".hidden.parquet", "README.md", "x.parquet.tmp"):
        Path(store.location, "runs", name).write_text("not parquet")
    assert store.finished_run_ids() == {run["run_id"]}
    assert store.read_runs().num_rows == 1


def test_the_folder_of_a_report_is_a_store(store: Store, tmp_path: Path) -> None:
    first, second = a_run(1), a_run(2)
    write(store, first, second)
    report_folder(store, tmp_path / "report")
    report = Store(str(tmp_path / "report"))
    assert report.finished_run_ids() == store.finished_run_ids()
    assert report.read_runs().equals(store.read_runs())
    assert report.read_evals().equals(store.read_evals())
    assert report.read_runs([first["run_id"]])["run_id"].to_pylist() == [first["run_id"]]


def test_runs_of_a_report_and_of_their_own_are_counted_once(store: Store) -> None:
    first, second, third = (a_run(seed) for seed in (1, 2, 3))
    write(store, first, second)
    report_folder(store, Path(store.location))
    write(store, third)
    assert store.finished_run_ids() == {run["run_id"] for run in (first, second, third)}
    runs = store.read_runs()["run_id"].to_pylist()
    assert runs == sorted(run["run_id"] for run in (first, second, third))
    evals = store.read_evals()
    assert evals.num_rows == 3 * 5
    keys = [(row["run_id"], row["split"], row["step"]) for row in evals.to_pylist()]
    assert keys == sorted(set(keys))


@settings(max_examples=30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "best_val_loss": st.none() | st.floats(),
                "perplexity": st.floats(),
                "best_step": st.none() | st.integers(-(2**63), 2**63 - 1),
                "status": st.text(st.characters(codec="utf-8")),
                "finished_at": st.datetimes(
                    datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(ZoneInfo("UTC"))
                ).map(lambda time: time.replace(fold=0)),
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_every_value_comes_back(changes: list[dict[str, Any]]) -> None:
    runs = [{**a_run(seed), **change} for seed, change in enumerate(changes)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        for run in runs:
            store.write_run(run, [])
        read = store.read_runs().to_pylist()
    # NaN stays NaN and is not null; it differs from itself.
    written = sorted(runs, key=lambda run: str(run["run_id"]))
    assert repr(read) == repr([{key: run[key] for key in RUN_COLUMNS} for run in written])


def test_nan_is_not_null(store: Store) -> None:
    run = a_run(1, loss=math.nan, final_val_loss=None)
    store.write_run({**run, "final_val_loss": None}, [])
    table = store.read_runs()
    assert math.isnan(table["best_val_loss"][0].as_py())
    assert table["final_val_loss"][0].as_py() is None


def test_a_value_of_the_wrong_type_is_not_stored(store: Store) -> None:
    with pytest.raises(pa.ArrowException):
        store.write_run({**a_run(1), "seed": "one"}, [])
    assert store.finished_run_ids() == set()


def test_records(store: Store) -> None:
    store.write_record("spaces/b/2", {"n": 2})
    store.write_record("spaces/a/1", {"n": 1})
    store.write_record("spaces/a/1", {"n": 1, "newer": "é"})
    assert store.read_records("spaces") == [{"n": 1, "newer": "é"}, {"n": 2}]
    assert store.read_records("spaces/b") == [{"n": 2}]
    assert store.read_records("sweeps") == []


def test_checkpoints_are_replaced_and_deleted(store: Store) -> None:
    assert store.read_checkpoint("c") is None
    store.delete_checkpoint("c")
    store.write_checkpoint("c", b"old")
    store.write_checkpoint("c", b"new")
    store.write_checkpoint("d", b"other")
    assert store.read_checkpoint("c") == b"new"
    store.delete_checkpoint("c")
    assert store.read_checkpoint("c") is None
    assert store.read_checkpoint("d") == b"other"


def test_a_file_uri_is_the_path(store: Store) -> None:
    run = a_run(1)
    write(store, run)
    same = Store(Path(store.location).as_uri())
    assert same.is_local
    assert same.location == store.location
    assert same.read_runs().equals(store.read_runs())
    write(same, a_run(2))
    assert store.finished_run_ids() == same.finished_run_ids()


def test_a_location_means_the_same_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("results")
    assert store.location == str(tmp_path / "results")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write(store, a_run(1))
    assert Store(str(tmp_path / "results")).read_runs().num_rows == 1


@pytest.mark.parametrize("location", ["nonsense://bucket", "s3://", "file://host:80/x"])
def test_an_address_of_nothing_is_a_mistake(location: str) -> None:
    with pytest.raises(UserError, match=rf"store '{location}': expected a folder or a URI: "):
        Store(location)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UserError, match=f"store '{file}': expected a folder, found a file"):
        Store(str(file))


def test_a_folder_that_cannot_be_made_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(str(tmp_path / "file" / "below"))
    assert store.finished_run_ids() == set()
    with pytest.raises(UserError, match=r"file/below': cannot write evals/\w+\.parquet: "):
        write(store, a_run(1))
