"""Workers without Ray, over the cohorts of `cohorts.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cohorts import corpus

from triplu_ray import provenance
from triplu_ray.plan import Cohort
from triplu_ray.raytune.trainable import CohortTrainable, SweepJob
from triplu_ray.store import Store
from triplu_ray.train import CohortTrainer

MARKER = "sweeps/here.json"
Result = dict[str, Any]


def marked_store(folder: Path) -> Store:
    """One that workers take for that of their sweep."""
    store = Store(str(folder))
    store.files.write(MARKER, b"{}")
    return store


def worker(store: Store, trained: Cohort, **changes: Any) -> CohortTrainable:
    job = SweepJob(
        **{
            "cohorts": {trained.cohort_id: trained},
            "corpora": {corpus().sha256: corpus()},
            "space": "tiny",
            "store_location": store.location,
            "num_threads": 1,
            "device": "cpu",
            "compiled": frozenset(),
            "git_sha": None,
            "checkpoint_seconds": 1000.0,
            "keep_models": False,
            "sweep_id": "this",
            "marker": MARKER,
            "code": provenance.code(),
            **changes,
        }
    )

    class WithJob(CohortTrainable):
        def setup(self, config: dict[str, Any], _: SweepJob | None = None) -> None:
            super().setup(config, job)

    return WithJob({"cohort_id": trained.cohort_id})


def finish(trainable: CohortTrainable) -> tuple[Result, list[str]]:
    """The last result, and all notes."""
    notes = []
    while True:
        result = trainable.step()
        notes += result["notes"]
        if result["done"]:
            return result, notes


def curves(store: Store) -> pd.DataFrame:
    evals: pd.DataFrame = store.read_evals().to_pandas()
    return evals.drop(columns="seconds")


def left(store: Store) -> list[str]:
    """Names of what a worker may leave behind, but for the records beside its checkpoints."""
    paths = [*Path(store.location).glob("checkpoints/*"), *Path(store.location).glob("running/*")]
    records = {path.with_suffix(".json") for path in paths if path.suffix == ".safetensors"}
    return sorted(path.name for path in paths if path not in records)


def out_of_memory(monkeypatch: pytest.MonkeyPatch, when: Callable[[CohortTrainer], bool]) -> None:
    original = CohortTrainer.train_step

    def train_step(self: CohortTrainer) -> None:
        if when(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\n GPU 0")
        original(self)

    monkeypatch.setattr(CohortTrainer, "train_step", train_step)
