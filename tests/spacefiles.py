"""Space files written, read and planned, for the tests of everything that stands on them."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from triplu_ray.plan import CorpusFacts, Plan, make_plan
from triplu_ray.search import Suggestion
from triplu_ray.space import Space, load_space

FACTS = CorpusFacts(79, "5eed" * 16)
"""A corpus that nobody reads."""

SMALL: dict[str, Any] = {
    "name": "small",
    "baseline": {"variant": "swiglu", "hidden": 322},
    "hidden": "match",
    "grid": {"seed": [1, 2, 3], "variant": ["swiglu", "triplu"]},
}

Content = str | bytes | Mapping[str, Any]


RUNS: dict[str, Any] = {
    "name": "runs",
    "hidden": 8,
    "cohort": 3,
    "grid": {
        "seed": [1, 2],
        "learning_rate": [1e-3, 3e-3],
        "variant": ["swiglu", "triplu", "quad_prod"],
        "gain": {"values": [1, 5, 7], "when": {"variant": "triplu"}},
        "num_layers": [1, 2],
    },
}


def write(path: Path, content: Content) -> Path:
    """A file with this content; a mapping is written as YAML, in its order."""
    if isinstance(content, Mapping):
        content = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def space_of(
    content: Content, *overrides: str, beside: Mapping[str, Content] | None = None
) -> Space:
    """The space of a file, with others `beside` it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, other in (beside or {}).items():
            write(Path(folder, name), other)
        return load_space(write(Path(folder, "space.yaml"), content), overrides)


def plan_of(
    content: Content,
    *overrides: str,
    finished: frozenset[str] = frozenset(),
    results: Mapping[str, float | None] | None = None,
    suggestions: Mapping[str, Sequence[Suggestion]] | None = None,
    facts: CorpusFacts = FACTS,
    beside: Mapping[str, Content] | None = None,
) -> Plan:
    """The plan of a space file over a corpus that nobody reads."""
    space = space_of(content, *overrides, beside=beside)
    return make_plan(space, lambda _: facts, finished, results, suggestions)


def run_ids(plan: Plan) -> set[str]:
    """Ids of all its runs."""
    return {run.run_id for run in plan.runs}
