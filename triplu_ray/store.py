"""Results on disk or in a bucket: Parquet that DuckDB, Polars and pandas open without this project.

    <store>/runs/<run_id>.parquet        one row: the run and its summary
    <store>/evals/<run_id>.parquet       one row an evaluation and split
    <store>/probes/<run_id>.parquet      one row a probe and group; no file where there is none
    <store>/models/<run_id>.safetensors  the best checkpoint, where the space keeps models
    <store>/spaces/<space>/<id>.json     what was planned under a space's name: run ids and labels
    <store>/searches/<space>/<study>/<number>.json   a suggestion, written before it is trained
    <store>/sweeps/<id>.json             wall time, workers and failures of each `sweep` command
    <store>/running/<id>.json            who trains what at the moment: see leases
    <store>/checkpoints/<cohort_id>.safetensors   where an unfinished cohort goes on; beside it, as
                                         .json, the runs that it holds: see resumption

A file is immutable, named after its run and appears whole: it is written under a hidden name and
renamed (objects of a bucket appear whole by themselves). So no run can be stored twice, and what is
done is known from names and sizes alone. All else is written before `runs`: a run is finished when,
and only when, its row is in `runs`. A thousand files of single runs are merged into one of the same
row format, `merged-<id>.parquet` beside them. `runs.parquet`, `evals.parquet` and `probes.parquet`
directly under the store are read too: a report's folder, which holds them, is a store that can be
reported. Columns that a file of an older version lacks are read as null.

What cannot be read is left out and told; `sweep` sets it aside, as `<id>.damaged-<time>`, and
trains the run again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triplu_ray.errors import UserError, reason
from triplu_ray.files import Files, Found, to_stderr

RUN_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (pa.string(), "hash of the resolved configuration and the corpus"),
    "cohort_id": (pa.string(), "the cohort that trained it"),
    "space": (pa.string(), "the space under whose name it was trained first"),
    "variant": (pa.string(), "feed-forward variant"),
    "seed": (pa.int64(), "seed of initial weights and data order"),
    "learning_rate": (pa.float64(), "peak learning rate"),
    "gain": (pa.float64(), "branch gain, or its initial value where it is learned; null without"),
    "degree": (pa.int64(), "number of multiplied streams; null for other variants"),
    "num_layers": (pa.int64(), "decoder layers"),
    "hidden": (pa.int64(), "feed-forward width"),
    "params": (pa.int64(), "trainable parameters of the whole model"),
    "ffn_flops_per_token": (
        pa.int64(),
        "forward FLOPs of one feed-forward layer a token; multiply-add = 2, projections only",
    ),
    "flops_per_token": (pa.int64(), "forward FLOPs of the whole model a token, likewise"),
    "tokens": (pa.int64(), "token positions trained on"),
    "best_val_loss": (pa.float64(), "lowest validation loss, nats a token; null if never finite"),
    "best_step": (pa.int64(), "the step of best_val_loss"),
    "final_val_loss": (pa.float64(), "validation loss after the last step; null if diverged"),
    "best_bits_per_byte": (
        pa.float64(),
        "best_val_loss in bits per UTF-8 byte of the text that was scored; null where unknown",
    ),
    "final_bits_per_byte": (pa.float64(), "final_val_loss, likewise"),
    "heldout_loss": (pa.float64(), "loss on the heldout text at best_step; null without such text"),
    "heldout_bits_per_byte": (pa.float64(), "heldout_loss, likewise"),
    "perplexity": (pa.float64(), "exp(best_val_loss)"),
    "seconds": (pa.float64(), "training time, evaluations excluded, over the cohort's members"),
    "tokens_per_second": (pa.float64(), "tokens / seconds"),
    "start_seconds": (pa.float64(), "worker process (or reuse) to the cohort's first step"),
    "peak_memory_mib": (pa.float64(), "peak resident memory of the worker process"),
    "resumes": (pa.int64(), "times the cohort went on from a checkpoint"),
    "status": (pa.string(), "finished or diverged"),
    "diverged_step": (pa.int64(), "the step of the first non-finite loss or gradient, or null"),
    "stopped_step": (pa.int64(), "the step at which patience ended the run, or null"),
    "config": (pa.string(), "the whole resolved configuration, JSON"),
    "corpus_sha256": (pa.string(), "fingerprint of tokenizer, training and validation text"),
    "git_sha": (pa.string(), "commit of the code, with + if the tree was changed; or null"),
    "versions": (pa.string(), "versions of project, Python and libraries, JSON"),
    "hardware": (pa.string(), "device, threads, members of the cohort, compiled or eager"),
    "finished_at": (pa.timestamp("us", tz="UTC"), "when the row was written"),
}

EVAL_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (pa.string(), "the run"),
    "step": (pa.int64(), "optimizer steps taken"),
    "tokens": (pa.int64(), "token positions trained on so far"),
    "split": (pa.string(), "validation; heldout once, with the best checkpoint"),
    "loss": (pa.float64(), "mean cross-entropy on the split, nats a token"),
    "bits_per_byte": (pa.float64(), "the same in bits per UTF-8 byte; null where unknown"),
    "train_loss": (pa.float64(), "mean training loss since the last evaluation; null at step 0"),
    "seconds": (pa.float64(), "training time so far, as in runs"),
}

PROBE_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (pa.string(), "the run"),
    "probe": (pa.string(), "minimal_pairs, pmi, arithmetic, routing or similarity"),
    "group": (pa.string(), "what part of it: a category, a slice, a layer"),
    "step": (pa.int64(), "the step whose parameters were probed, mostly best_step"),
    "value": (pa.float64(), "accuracy, loss in bits a token, cosine, ...: see triplu_ray.probes"),
    "count": (pa.int64(), "items or tokens behind the value, or null"),
}


def _schema(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    return pa.schema(
        pa.field(name, kind, metadata={"description": text})
        for name, (kind, text) in columns.items()
    )


SCHEMAS = {
    "runs": _schema(RUN_COLUMNS),
    "evals": _schema(EVAL_COLUMNS),
    "probes": _schema(PROBE_COLUMNS),
}

MERGED = "merged-"
"""What the names of files begin with that hold many runs."""

_LEAST_BYTES = 12
"""Of a Parquet file: its mark twice, and the length of its footer."""

_SMALL_FILE = 200
"""Rows up to which a file is that of a single run, rather than of many."""


class Store:
    """A folder or bucket of results, given as a path or a URI such as `s3://bucket/sweeps`.

    `location` means the same store from any directory: an absolute path, or the URI. `tell`
    receives a line about everything that is damaged or has to be tried again.
    """

    def __init__(self, location: str, tell: Callable[[str], None] = to_stderr) -> None:
        self.files = Files(location, tell)
        self.location, self.is_local = self.files.location, self.files.is_local
        self._tell = tell
        self._told: set[str] = set()

    # Tables

    def write_run(
        self,
        run: Mapping[str, Any],
        evals: Sequence[Mapping[str, Any]],
        probes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Store a finished run and what belongs to it; what is stored already stays as it is."""
        run_id = run["run_id"]
        if self.files.find(f"runs/{run_id}.parquet") != [None]:
            return
        if probes:
            self._write_table("probes", run_id, probes)
        self._write_table("evals", run_id, evals)
        self._write_table("runs", run_id, [run])

    def finished_run_ids(self) -> set[str]:
        """Ids of all runs in the store."""
        paths = self._paths("runs")
        ids = {_stem(path) for path in paths if not is_merged(path)}
        if any(map(is_merged, paths)):
            ids.update(self._rows("runs", frozenset(), ["run_id"])["run_id"].to_pylist())
        return ids

    def finished_among(self, run_ids: Sequence[str]) -> set[str]:
        """Which of a few runs are in the store."""
        files = self.files.find(*(f"runs/{run_id}.parquet" for run_id in run_ids))
        found = {run_id for run_id, file in zip(run_ids, files, strict=True) if file}
        missing = set(run_ids) - found
        return found | set(self.read_runs(missing, [])["run_id"].to_pylist()) if missing else found

    def read_runs(
        self, run_ids: Iterable[str] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The table `runs`, in order of run id; optionally only some of them, or some columns.

        The run id is always among the columns.
        """
        return self._read_table("runs", run_ids, ["run_id"], columns)

    def results(self, run_ids: Iterable[str] | None = None) -> dict[str, float | None]:
        """Best validation loss of all runs, or of some; None if one diverged."""
        rows = self.read_runs(run_ids, columns=["status", "best_val_loss"]).to_pylist()
        return {
            row["run_id"]: row["best_val_loss"] if row["status"] == "finished" else None
            for row in rows
        }

    def read_evals(self, run_ids: Iterable[str] | None = None) -> pa.Table:
        """The table `evals` of finished runs, in order of run, split and step."""
        return self._read_table("evals", self._finished(run_ids), ["run_id", "split", "step"])

    def read_probes(self, run_ids: Iterable[str] | None = None) -> pa.Table:
        """The table `probes` of finished runs, in order of run, probe, group and step."""
        key = ["run_id", "probe", "group", "step"]
        return self._read_table("probes", self._finished(run_ids), key)

    def _finished(self, run_ids: Iterable[str] | None) -> frozenset[str]:
        finished = frozenset(self.finished_run_ids())
        return finished if run_ids is None else finished & frozenset(run_ids)

    def _read_table(
        self,
        table: str,
        run_ids: Iterable[str] | None,
        key: list[str],
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows sorted by a key, each key once: a merged table may repeat a run's own file."""
        wanted = None if run_ids is None else frozenset(run_ids)
        wanted_columns = None if columns is None else list(dict.fromkeys([*key, *columns]))
        rows = self._rows(table, wanted, wanted_columns)
        if wanted is not None:
            rows = rows.filter(pc.is_in(rows["run_id"], pa.array(wanted, pa.string())))
        keys = rows.select(key).to_pandas().drop_duplicates().sort_values(key)
        return rows.take(keys.index.to_numpy())

    def _rows(
        self, table: str, run_ids: frozenset[str] | None, columns: Sequence[str] | None
    ) -> pa.Table:
        """All rows of the files of some runs, or of all, and of all merged files.

        Without files that are damaged, which are told.
        """
        while True:
            paths = self._paths(table, run_ids)
            loaded = self.load(paths, columns)
            if len(loaded) == len(paths):
                break  # else some were merged into another one since the listing
        for path, found in loaded.items():
            if isinstance(found, str):
                self._leave_out(path, found)
        schema = SCHEMAS[table]
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        tables = [found for found in loaded.values() if isinstance(found, pa.Table)]
        try:
            rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
            return rows.select(schema.names).cast(schema).combine_chunks()
        except pa.ArrowException as error:
            raise UserError(
                f"store {self.location!r}: cannot read {table}: {reason(error)}"
            ) from error

    def _paths(self, table: str, run_ids: frozenset[str] | None = None) -> list[str]:
        """The table's files of some runs, or of all, after all merged ones.

        Files too short to be a table are left out, and told.
        """
        paths = []
        for file in self.table_files(table, run_ids):
            if file.size < _LEAST_BYTES:
                self._leave_out(file.path, f"{file.size} bytes are no table")
            else:
                paths.append(file.path)
        return sorted(paths, key=lambda path: (not is_merged(path), path))

    def table_files(self, table: str, run_ids: frozenset[str] | None) -> list[Found]:
        """The table's files of some runs, or of all, and all merged ones, damaged or not."""
        whole = [file for file in self.files.find(f"{table}.parquet") if file]
        return [
            file
            for file in [*whole, *self.files.listed(table, ".parquet")]
            if run_ids is None or is_merged(file.path) or _stem(file.path) in run_ids
        ]

    def _write_table(self, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        content = parquet_bytes(pa.Table.from_pylist(list(rows), SCHEMAS[table]))
        self.files.write(f"{table}/{name}.parquet", content)

    # Damage

    def damaged(self, paths: Iterable[str]) -> dict[str, str]:
        """What cannot be read, and why."""
        return {p: why for p, why in self.load(paths).items() if isinstance(why, str)}

    def load(
        self, paths: Iterable[str], columns: Sequence[str] | None = None
    ) -> dict[str, pa.Table | str]:
        """Each file's rows, or some of their columns, or why it cannot be read.

        A file that is gone, merged into another one since it was listed, is not among them.
        """
        wanted = None if columns is None else list(columns)

        def load_one(path: str) -> pa.Table | str | None:
            try:
                content = pa.BufferReader(self.files.read(path))
                file = pq.ParquetFile(content, page_checksum_verification=True)
                return file.read(wanted, use_threads=False)
            except FileNotFoundError:
                return None
            except (OSError, pa.ArrowException) as error:
                return reason(error)

        paths = list(paths)
        with ThreadPoolExecutor(self.files.threads) as pool:
            found = zip(paths, pool.map(load_one, paths), strict=True)
            return {path: rows for path, rows in found if rows is not None}

    def set_aside(self, path: str, why: str) -> None:
        """Rename a file; a table's ending goes, so that no reader of the folder meets it."""
        pure = PurePosixPath(path)
        ending = "" if pure.suffix == ".parquet" else pure.suffix
        new = pure.with_name(f"{pure.stem}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}{ending}")
        self.files.move(path, str(new))
        self._tell(f"{self.files.root}/{path}: damaged: {why}; set aside as {new.name}")

    def _leave_out(self, path: str, why: str) -> None:
        if path not in self._told:
            self._told.add(path)
            self._tell(f"{self.files.root}/{path}: damaged, left out: {why}")

    # Small JSON records

    def write_record(self, path: str, record: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write `<store>/<path>.json`; the same path is the same content, or newer."""
        content = json.dumps(record, indent=1).encode()
        self.files.write(f"{path}.json", content, durable=durable)

    def read_records(self, folder: str) -> list[dict[str, Any]]:
        """All JSON records below a folder that can be read, in order of their paths."""
        records = []
        for file in self.files.listed(folder, ".json"):
            try:
                records.append(json.loads(self.files.read(file.path)))
            except FileNotFoundError:
                continue
            except ValueError as error:
                self._leave_out(file.path, f"expected JSON: {reason(error)}")
        return records

    # Models and checkpoints

    def write_model(self, run_id: str, content: bytes) -> None:
        """Keep a run's best checkpoint."""
        self.files.write(f"models/{run_id}.safetensors", content)

    def read_model(self, run_id: str) -> bytes:
        """A run's best checkpoint; UserError if it was not kept."""
        try:
            return self.files.read(f"models/{run_id}.safetensors")
        except OSError as error:
            raise UserError(
                f"store {self.location!r}: no model of run {run_id}: {reason(error)}; "
                "a space keeps them with keep_models: true"
            ) from error

    def write_checkpoint(self, cohort_id: str, content: bytes) -> None:
        """Replace a cohort's checkpoint, atomically."""
        self.files.write(_checkpoint(cohort_id), content)

    def read_checkpoint(self, cohort_id: str) -> bytes | None:
        """A cohort's checkpoint, or None."""
        try:
            return self.files.read(_checkpoint(cohort_id))
        except FileNotFoundError:
            return None

    def set_aside_checkpoint(self, cohort_id: str, why: str) -> None:
        """Rename a cohort's checkpoint that cannot be gone on from."""
        self.set_aside(_checkpoint(cohort_id), why)

    def delete_checkpoint(self, cohort_id: str) -> None:
        """Drop a cohort's checkpoint, if there is one."""
        self.files.delete(_checkpoint(cohort_id))


def _checkpoint(cohort_id: str) -> str:
    return f"checkpoints/{cohort_id}.safetensors"


def _stem(path: str) -> str:
    return PurePosixPath(path).stem


def is_merged(path: str) -> bool:
    """Whether a file holds many runs: one of a report's folder has no folder of its own."""
    return "/" not in path or _stem(path).startswith(MERGED)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    # A page of distinct values for every column would be most of a small file, and of reading it.
    has_repeats = table.num_rows > _SMALL_FILE
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=has_repeats, write_page_checksum=True
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content
