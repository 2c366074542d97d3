"""Where runs go on: the store's checkpoints, found by the runs that they hold.

    <store>/checkpoints/<cohort_id>.json   the runs of the checkpoint beside it

A cohort's id depends on its members, who may change while its checkpoint lies in the store: some
are stored already, or the next sweep has another number of GPUs and cuts its cohorts anew.
Checkpoints of versions that wrote no such record are found by their own cohort alone.
"""

import contextlib
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePosixPath

from triplu_ray.plan import Cohort
from triplu_ray.store import Store


def keep(store: Store, cohort: Cohort, checkpoint: bytes) -> None:
    """Write a cohort's checkpoint, or replace it; its record first, so that none lacks one."""
    record = {"run_ids": [run.run_id for run in cohort.runs]}
    store.write_record(f"checkpoints/{cohort.cohort_id}", record, durable=False)
    store.write_checkpoint(cohort.cohort_id, checkpoint)


def drop(store: Store, cohort_id: str) -> None:
    """Delete a cohort's checkpoint and its record, if they are there."""
    store.delete_checkpoint(cohort_id)
    store.files.delete(f"checkpoints/{cohort_id}.json")


def parts_to_resume(store: Store, cohort: Cohort) -> list[tuple[Cohort, str]]:
    """A cohort in parts that have one checkpoint each to go on from, and that checkpoint's name.

    Each run's is the newest that holds it; those without any are a part under its own name.
    """
    runs_of, written = _listed(store)
    runs_of[cohort.cohort_id] = frozenset(run.run_id for run in cohort.runs)
    parts: list[tuple[Cohort, str]] = []
    left = cohort.runs
    for name in sorted(runs_of.keys() & written, key=written.__getitem__, reverse=True):
        if held := tuple(run for run in left if run.run_id in runs_of[name]):
            parts.append((replace(cohort, runs=held), name))
            left = tuple(run for run in left if run.run_id not in runs_of[name])
    if left:
        fresh = replace(cohort, runs=left)
        parts.append((fresh, fresh.cohort_id))
    return parts


def drop_useless(store: Store, given_up: Collection[str] = ()) -> None:
    """Delete the checkpoints whose runs are all stored, or among those `given_up`."""
    runs_of, _ = _listed(store)
    unfinished = frozenset().union(*runs_of.values()).difference(given_up)
    unfinished -= store.finished_among(sorted(unfinished))
    for name, run_ids in runs_of.items():
        if unfinished.isdisjoint(run_ids):
            drop(store, name)


def _listed(store: Store) -> tuple[dict[str, frozenset[str]], dict[str, float]]:
    """The runs of each checkpoint that has a record, and when each checkpoint was written."""
    runs_of: dict[str, frozenset[str]] = {}
    written: dict[str, float] = {}
    for file in store.files.listed("checkpoints"):
        path = PurePosixPath(file.path)
        if path.suffix == ".safetensors":
            written[path.stem] = file.modified
        elif path.suffix == ".json":
            # Deleted since the listing, or spoilt by a machine that went down.
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                record = json.loads(store.files.read(file.path))
                runs_of[path.stem] = frozenset(record["run_ids"])
    return runs_of, written
