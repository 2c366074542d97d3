"""What a store of many runs needs now and then: damaged files set aside, small ones merged."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from triplu_ray.store import MERGED, SCHEMAS, Store, is_merged, parquet_bytes

MERGE_FROM = 1000
"""Files of single runs from which on one file of many is read noticeably faster."""


LITTER_SECONDS = 3600.0
"""After which no process is still about to rename what it has written."""


def clear_litter(store: Store) -> None:
    """Delete the hidden files of processes that were killed while they wrote."""
    others = ("checkpoints", "models", "running", "searches", "spaces", "sweeps")
    folders = [*SCHEMAS, *others]
    hidden = [file for folder in folders for file in store.files.listed(folder, hidden=True)]
    now = store.files.now() if hidden else 0.0
    for file in hidden:
        if now - file.modified > LITTER_SECONDS:
            store.files.delete(file.path)


def set_aside_damaged(store: Store, run_ids: Iterable[str]) -> bool:
    """Read the files of some runs, and all merged ones; rename what cannot be read.

    A run that has lost a part is missing again: its other parts are set aside too. Returns whether
    there was any. A thousand runs take about a second on a disk.
    """
    wanted = frozenset(run_ids)
    files = [file for table in SCHEMAS for file in store.table_files(table, wanted)]
    damaged = store.damaged(file.path for file in files)
    # A run is missing first, and then loses its other parts.
    for path in sorted(_siblings(damaged), key=lambda path: not path.startswith("runs")):
        if store.files.find(path) != [None]:
            store.set_aside(path, damaged.get(path, "belongs to what is damaged"))
    return bool(damaged)


def merge(store: Store) -> int:
    """Put the runs that have files of their own into files of many; returns how many runs.

    A merged file is whole before the first of its single ones is deleted: whatever ends this leaves
    every run there, some of them twice, which readers do not mind. What is damaged, and what
    belongs to a run that is not finished, stays as it is.
    """
    single = {
        table: {Path(file.path).stem: file.path for file in store.table_files(table, None)}
        for table in SCHEMAS
    }
    run_ids = [name for name, path in single["runs"].items() if not is_merged(path)]
    return sum(
        _merge(store, single, run_ids[first : first + MERGE_FROM])
        for first in range(0, len(run_ids), MERGE_FROM)
    )


def _merge(store: Store, single: Mapping[str, Mapping[str, str]], run_ids: Sequence[str]) -> int:
    loaded = {
        table: store.load(paths[run_id] for run_id in run_ids if run_id in paths)
        for table, paths in single.items()
    }
    spoilt = {
        Path(path).stem
        for found in loaded.values()
        for path, rows in found.items()
        if isinstance(rows, str)
    }
    name = f"{MERGED}{uuid.uuid4().hex[:12]}"
    merged: list[str] = []
    # As with a single run: finished once it is in `runs`.
    for table, found in reversed(loaded.items()):
        sound = {path: rows for path, rows in found.items() if Path(path).stem not in spoilt}
        if sound:
            empty = SCHEMAS[table].empty_table()
            rows = pa.concat_tables([empty, *sound.values()], promote_options="default")
            store.files.write(f"{table}/{name}.parquet", parquet_bytes(rows))
            merged += sound
    with ThreadPoolExecutor(store.files.threads) as pool:
        list(pool.map(store.files.delete, merged))
    return len(run_ids) - len(spoilt)


def merge_many(store: Store) -> int:
    """`merge` where it pays; returns how many runs were merged."""
    try:
        singles = (f for f in store.table_files("runs", None) if not is_merged(f.path))
        return merge(store) if sum(1 for _ in singles) >= MERGE_FROM else 0
    except FileNotFoundError:  # another sweep is merging the same files
        return 0


def _siblings(paths: Iterable[str]) -> set[str]:
    """The files of all tables that hold the same runs as some."""
    pairs = [(path.partition("/")[0].removesuffix(".parquet"), path) for path in paths]
    return {path.replace(own, table, 1) for own, path in pairs for table in SCHEMAS}
