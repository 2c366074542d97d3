"""What a store of many runs needs now and then: damaged files set aside, small ones merged."""

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from triplu_ray.store import MERGED, SCHEMAS, THREADS, Store, is_merged, parquet_bytes

MERGE_FROM = 1000
"""Files of single runs from which on one file of many is read noticeably faster."""


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
    """Put the runs that have files of their own into one file a table; returns how many.

    The merged files are whole before the first single one is deleted: whatever ends this leaves
    every run there, some of them twice, which readers do not mind. What is damaged, and what
    belongs to a run that is not finished, stays as it is.
    """
    single = {
        table: {Path(file.path).stem: file.path for file in store.table_files(table, None)}
        for table in SCHEMAS
    }
    damaged = store.damaged(path for paths in single.values() for path in paths.values())
    spoilt = {Path(path).stem for path in damaged}
    run_ids = {name for name, path in single["runs"].items() if not is_merged(path)} - spoilt
    merged = {
        table: [path for name, path in paths.items() if name in run_ids]
        for table, paths in single.items()
    }
    name = f"{MERGED}{uuid.uuid4().hex[:12]}"
    # As with a single run: finished once it is in `runs`.
    for table, paths in reversed(merged.items()):
        if paths:
            store.files.write(f"{table}/{name}.parquet", parquet_bytes(store.scan(table, paths)))
    with ThreadPoolExecutor(THREADS) as pool:
        for paths in merged.values():
            list(pool.map(store.files.delete, paths))
    return len(run_ids)


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
