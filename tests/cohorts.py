"""Tiny planned cohorts over the generated stories, for tests of training and sweeps."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from triplu_ray.corpus import Corpus, CorpusSource, load_corpus
from triplu_ray.execution import missing_compiler, missing_units
from triplu_ray.plan import Cohort, CorpusFacts, Plan, make_plan
from triplu_ray.space import load_space

needs_compiler = pytest.mark.skipif(
    missing_compiler("cpu") is not None, reason=f"needs {missing_compiler('cpu')}"
)
needs_bf16 = pytest.mark.skipif(
    missing_units("bf16", "cpu") is not None, reason=f"needs {missing_units('bf16', 'cpu')}"
)

TINY: dict[str, Any] = {
    "name": "tiny",
    "corpus": "tinystories_lite",
    "train_bytes": 20_000,
    "validation_bytes": 5_000,
    "baseline": {"variant": "swiglu", "hidden": 12},
    "hidden": "match",
    "targets": [3.0],
    "d_model": 16,
    "num_layers": 1,
    "num_heads": 2,
    "context_length": 16,
    "batch_size": 4,
    "num_steps": 20,
    "eval_interval": 5,
    "eval_batches": 2,
    "learning_rate": 1e-3,
    "grid": {"seed": [1, 2], "variant": ["swiglu", "triplu"]},
}


@cache
def corpus(train_bytes: int = 20_000, validation_bytes: int = 5_000) -> Corpus:
    return load_corpus(CorpusSource("tinystories_lite", train_bytes, validation_bytes))


def write_space(folder: Path, **changes: Any) -> Path:
    """A space file with changed keys; an axis or `select` takes the place of the plain key."""
    content = {**TINY, **changes}
    taken = {*content["grid"], content.get("select", {}).get("key")}
    taken |= content.get("search", {}).get("keys", {}).keys()
    content = {key: value for key, value in content.items() if key not in taken}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def plan(
    folder: Path,
    finished: frozenset[str] = frozenset(),
    results: Mapping[str, float] | None = None,
    **changes: Any,
) -> Plan:
    facts = CorpusFacts(corpus().vocab_size, corpus().sha256)
    space = load_space(write_space(folder, **changes))
    return make_plan(space, lambda _: facts, finished, results)


def cohort(folder: Path, **changes: Any) -> Cohort:
    """The only cohort of a space."""
    (only,) = plan(folder, **{"cohort": 100, **changes}).cohorts
    return only
