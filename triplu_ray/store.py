"""Results on disk or in a bucket: Parquet that DuckDB, Polars and pandas open without this project.

    <store>/runs/<run_id>.parquet        one row: the run and its summary
    <store>/evals/<run_id>.parquet       one row an evaluation and split
    <store>/probes/<run_id>.parquet      one row a probe and group; no file where there is none
    <store>/models/<run_id>.safetensors  the best checkpoint, where the space keeps models
    <store>/spaces/<space>/<id>.json     what was planned under a space's name: run ids and labels
    <store>/searches/<space>/<study>/<number>.json   a suggestion, written before it is trained
    <store>/sweeps/<id>.json             wall time and workers of each `sweep` command
    <store>/checkpoints/<cohort_id>.safetensors   where an unfinished cohort goes on

A file is immutable, named after its run and appears whole: it is written under a hidden name and
renamed (objects of a bucket appear whole by themselves). So no run can be stored twice, and what is
done is known from names alone. All else is written before `runs`: a run is finished when, and only
when, its file is in `runs`. `runs.parquet`, `evals.parquet` and `probes.parquet` directly under the
store are read too: a report's folder, which holds them, is a store that can be reported. Columns
that a file of an older version lacks are read as null.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from triplu_ray.errors import UserError, reason

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


class Store:
    """A folder or bucket of results, given as a path or a URI such as `s3://bucket/sweeps`.

    `location` means the same store from any directory: an absolute path, or the URI.
    """

    def __init__(self, location: str) -> None:
        try:
            if "://" in location:
                self._files, self._root = pafs.FileSystem.from_uri(location)
                if not self._root:
                    raise ValueError("it names no bucket")
            else:
                self._files, self._root = pafs.LocalFileSystem(), str(Path(location).absolute())
            found = self._files.get_file_info(self._root).type
        except (ValueError, OSError) as error:
            raise UserError(
                f"store {location!r}: expected a folder or a URI: {reason(error)}"
            ) from error
        if found == pafs.FileType.File:
            raise UserError(f"store {location!r}: expected a folder, found a file")
        self.is_local = isinstance(self._files, pafs.LocalFileSystem)
        self.location = self._root if self.is_local else location

    # Tables

    def write_run(
        self,
        run: Mapping[str, Any],
        evals: Sequence[Mapping[str, Any]],
        probes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Store a finished run and what belongs to it; what is stored already stays as it is."""
        if probes:
            self._write_table("probes", run["run_id"], probes)
        self._write_table("evals", run["run_id"], evals)
        self._write_table("runs", run["run_id"], [run])

    def finished_run_ids(self) -> set[str]:
        """Ids of all runs in the store."""
        paths = self._tables("runs")
        merged = [path for path in paths if path.endswith("/runs.parquet")]
        ids = {Path(path).stem for path in paths} - {"runs"}
        if merged:
            ids.update(self._scan("runs", merged, columns=["run_id"])["run_id"].to_pylist())
        return ids

    def read_runs(
        self, run_ids: Iterable[str] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The table `runs`, in order of run id; optionally only some of them, or some columns.

        The run id is always among the columns.
        """
        return self._read_table("runs", run_ids, ["run_id"], columns)

    def results(self, run_ids: Iterable[str] | None = None) -> dict[str, float | None]:
        """Best validation loss of stored runs; None if one diverged, whatever came before.

        Optionally only of some of them.
        """
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

    def _finished(self, run_ids: Iterable[str] | None) -> set[str]:
        finished = self.finished_run_ids()
        return finished if run_ids is None else finished & set(run_ids)

    def _read_table(
        self,
        table: str,
        run_ids: Iterable[str] | None,
        key: list[str],
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows sorted by a key, each key once: a merged table may repeat a run's own file."""
        paths = self._tables(table)
        row_filter = None
        if run_ids is not None:
            wanted = set(run_ids)
            names = {*wanted, table}
            paths = [path for path in paths if Path(path).stem in names]
            row_filter = ds.field("run_id").isin(pa.array(sorted(wanted), pa.string()))
        wanted_columns = None if columns is None else list(dict.fromkeys([*key, *columns]))
        rows = self._scan(table, paths, row_filter, wanted_columns)
        keys = rows.select(key).to_pandas().drop_duplicates().sort_values(key)
        return rows.take(keys.index.to_numpy())

    def _scan(
        self,
        table: str,
        paths: list[str],
        row_filter: Any = None,
        columns: list[str] | None = None,
    ) -> pa.Table:
        try:
            files = ds.dataset(paths, SCHEMAS[table], format="parquet", filesystem=self._files)
            return files.to_table(filter=row_filter, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"store {self.location!r}: cannot read {table}: {reason(error)}"
            ) from error

    def _tables(self, table: str) -> list[str]:
        """Paths of the table's files, the merged one of a report's folder first."""
        merged = f"{self._root}/{table}.parquet"
        found = self._files.get_file_info(merged).type == pafs.FileType.File
        return [merged] * found + self._list(table, ".parquet")

    def _write_table(self, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        path = f"{table}/{name}.parquet"
        if self._files.get_file_info(f"{self._root}/{path}").type == pafs.FileType.File:
            return
        self._write(path, parquet_bytes(pa.Table.from_pylist(list(rows), SCHEMAS[table])))

    # Small JSON records

    def write_record(self, path: str, record: Mapping[str, Any]) -> None:
        """Write `<store>/<path>.json`; the same path is the same content, or newer."""
        self._write(f"{path}.json", json.dumps(record, indent=1).encode())

    def read_records(self, folder: str) -> list[dict[str, Any]]:
        """All JSON records below a folder, in order of their paths."""
        records = []
        for path in self._list(folder, ".json"):
            try:
                records.append(json.loads(self._read(path)))
            except ValueError as error:
                raise UserError(f"store: {path}: expected JSON: {reason(error)}") from error
        return records

    # Models and checkpoints

    def write_model(self, run_id: str, content: bytes) -> None:
        """Keep a run's best checkpoint."""
        self._write(f"models/{run_id}.safetensors", content)

    def read_model(self, run_id: str) -> bytes:
        """A run's best checkpoint; UserError if it was not kept."""
        try:
            return self._read(f"{self._root}/models/{run_id}.safetensors")
        except OSError as error:
            raise UserError(
                f"store {self.location!r}: no model of run {run_id}: {reason(error)}; "
                "a space keeps them with keep_models: true"
            ) from error

    def write_checkpoint(self, cohort_id: str, content: bytes) -> None:
        """Replace a cohort's checkpoint, atomically."""
        self._write(f"checkpoints/{cohort_id}.safetensors", content)

    def read_checkpoint(self, cohort_id: str) -> bytes | None:
        """A cohort's checkpoint, or None."""
        path = f"{self._root}/checkpoints/{cohort_id}.safetensors"
        found = self._files.get_file_info(path).type == pafs.FileType.File
        return self._read(path) if found else None

    def delete_checkpoint(self, cohort_id: str) -> None:
        """Drop a cohort's checkpoint, if there is one."""
        path = f"{self._root}/checkpoints/{cohort_id}.safetensors"
        if self._files.get_file_info(path).type == pafs.FileType.File:
            self._files.delete_file(path)

    # Files

    def _list(self, folder: str, ending: str) -> list[str]:
        """Paths of the visible files below a folder."""
        selector = pafs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        return sorted(
            info.path
            for info in self._files.get_file_info(selector)
            if info.type == pafs.FileType.File
            and info.base_name.endswith(ending)
            and not info.base_name.startswith(".")
        )

    def _read(self, path: str) -> bytes:
        with self._files.open_input_stream(path) as stream:
            content: bytes = stream.read()
        return content

    def _write(self, path: str, content: bytes) -> None:
        try:
            if self.is_local:
                write_atomically(Path(self._root, path), content)
                return
            with self._files.open_output_stream(f"{self._root}/{path}") as stream:
                stream.write(content)
        except OSError as error:
            raise UserError(
                f"store {self.location!r}: cannot write {path}: {reason(error)}"
            ) from error


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Write a local file so that it is either absent, the old one, or whole, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
