"""Whether the nodes of a cluster run this code on this store: asked before anything is trained."""

from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from triplu_ray import provenance
from triplu_ray.errors import UserError
from triplu_ray.space import Granted
from triplu_ray.store import Store

ANSWER_SECONDS = 120.0
"""In which a node must have started a worker and imported this package."""


def check_nodes(
    store: Store, marker: str, code: Mapping[str, str], granted: Iterable[Granted]
) -> None:
    """Raise UserError if a node that could train has other code, or does not see the store.

    `granted` are the kinds of shares that cohorts get.

    Each is asked by a task of its own. Nodes that join later are asked by their workers: whether
    those that are yet to be rented will see a folder cannot be known, for what is a disk of this
    machine may be shared with them under the same name.
    """
    ask, shares = ray.remote(_complaint_at), [*granted]
    asked: list[tuple[str, Any]] = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        cpus, gpus = (node["Resources"].get(key, 0) for key in ("CPU", "GPU"))
        if node["Alive"] and any(cpus >= cpu and gpus >= gpu for cpu, gpu in shares):
            on_it = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ask.options(num_cpus=0, scheduling_strategy=on_it)
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            asked.append((name, task.remote(store.location, marker, code)))
    for name, answer in asked:
        try:
            why = ray.get(answer, timeout=ANSWER_SECONDS)
        except GetTimeoutError:
            why = f"it does not answer within {ANSWER_SECONDS:.0f} s"
        except (RayError, RuntimeError) as error:
            why = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
        if why:
            raise UserError(f"node {name}: {why}")


def _complaint_at(location: str, marker: str, code: Mapping[str, str]) -> str | None:
    try:
        return complaint(Store(location), marker, code)
    except UserError as error:
        return str(error)


def complaint(store: Store, marker: str, code: Mapping[str, str]) -> str | None:
    """What is wrong with this process as a worker of a sweep: its code, its store."""
    own = provenance.code()
    for name, expected in code.items():
        if own.get(name) != expected:
            return (
                f"{name}: expected {expected} as where the sweep was started, got {own.get(name)}"
            )
    if store.files.find(marker) == [None]:
        return (
            f"store {store.location!r}: expected the folder that the sweep was started with, found "
            "another one of that name or none; nodes need shared storage, or a bucket"
        )
    return None
