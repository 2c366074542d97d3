"""Real sweeps on clusters of several raylets: nodes that die, are drained, or are others."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cohorts import write_space
from faults import injected
from ray.cluster_utils import Cluster
from sweeps import (
    LONG,
    assert_complete_and_equal,
    checkpoints,
    ended,
    run,
    start,
    wait_until,
)

from triplu_ray.leases import claims
from triplu_ray.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head that trains nothing."""
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


def add_node(cluster: Cluster, **environment: str) -> Any:
    return cluster.add_node(num_cpus=1, env_vars=environment)


def kill(cluster: Cluster, node: Any) -> None:
    cluster.remove_node(node, allow_graceful=False)


def all_train(store: Path, num: int) -> bool:
    """Whether so many workers have a checkpoint each."""
    return len(claims(Store(str(store)))) == num and len(checkpoints(store)) >= num


def test_the_cohorts_of_a_dead_node_move(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    nodes = [add_node(cluster), add_node(cluster)]
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), process)
    kill(cluster, nodes[0])
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert stderr.count("again ") == 1
    assert assert_complete_and_equal(store, reference)["resumes"].max() == 1


def test_the_cohorts_of_a_drained_node_move_at_no_cost(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    """As when a spot instance is about to be taken back: no failure counts, so none is allowed."""
    space, reference = undisturbed
    store = tmp_path / "store"
    nodes = [add_node(cluster), add_node(cluster)]
    process = start(space, store, "max_failures=0", RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), process)
    drained = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "drain-node",
         "--address", cluster.address, "--node-id", nodes[0].node_id,
         "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot",
         "--deadline-remaining-seconds", "2"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert drained.returncode == 0, drained.stderr
    time.sleep(2.0)
    kill(cluster, nodes[0])
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert_complete_and_equal(store, reference)


PRETENDED_GPUS = """
_abilities = abilities

def abilities(precisions, device):
    return dataclasses.replace(_abilities(precisions, "cpu"), gpu_bytes=2**34)
"""

NOTING = """
_write_runs = CohortTrainable._write_runs

def write_runs(self, cohort, trainer):
    import ray
    with open({path!r}, "a") as file:
        file.writelines(f"{{run.config.seed}} {{ray.get_gpu_ids()}}\\n" for run in cohort.runs)
    _write_runs(self, cohort, trainer)

CohortTrainable._write_runs = write_runs
"""


def test_cores_help_where_others_have_gpus(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    """Ray believes in a GPU that a node says it has; the cohorts on it are trained on its core."""
    space, reference = undisturbed
    store, noted = tmp_path / "store", tmp_path / "noted"
    pretended = injected(
        tmp_path / "faults",
        space='Granted.device = property(lambda self: "cpu")',
        execution="import dataclasses" + PRETENDED_GPUS,
        raytune__trainable=NOTING.format(path=str(noted)),
    )
    for num_gpus in (1, 0):
        cluster.add_node(num_cpus=1, num_gpus=num_gpus, env_vars=pretended)
    address = {"RAY_ADDRESS": cluster.address}
    code, _, stderr = run(space, store, "cpu_share=0.5", **pretended, **address)
    assert code == 0, stderr
    assert_complete_and_equal(store, reference)
    assert sorted(noted.read_text().splitlines()) == ["1 []", "1 []", "2 [0]", "2 [0]"]


def test_a_cluster_without_nodes_is_asked_for_no_guess(cluster: Cluster, tmp_path: Path) -> None:
    space, store = write_space(tmp_path), tmp_path / "store"
    code, _, stderr = run(space, store, RAY_ADDRESS=cluster.address)
    assert code == 2
    assert f"{space}: resources.gpu: auto: the cluster has no node yet that could train" in stderr


def test_a_killed_driver_of_a_cluster_is_continued(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    for _ in range(2):
        add_node(cluster)
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), process)
    process.kill()
    process.communicate()
    code, _, stderr = run(space, store, RAY_ADDRESS=cluster.address)
    assert code == 0, stderr
    assert_complete_and_equal(store, reference)


OTHER_TORCH = """
_versions = versions

def versions():
    return {**_versions(), "torch": "1.13.1"}
"""

ANOTHER_FOLDER = """
_init = Files.__init__

def init(self, location, tell):
    _init(self, location + "-of-this-node", tell)

Files.__init__ = init
"""


@pytest.mark.parametrize(
    ("module", "patch", "told"),
    [
        ("provenance", OTHER_TORCH, "torch: expected 2."),
        ("files", ANOTHER_FOLDER, "nodes need shared storage, or a bucket"),
        ("errors", "raise ImportError('no such package here')", "no such package here"),
    ],
)
def test_a_node_that_is_not_as_expected_is_refused(
    cluster: Cluster, tmp_path: Path, module: str, patch: str, told: str
) -> None:
    space, store = write_space(tmp_path), tmp_path / "store"
    add_node(cluster)
    add_node(cluster, **injected(tmp_path / "faults", **{module: patch}))
    code, summary, stderr = run(space, store, RAY_ADDRESS=cluster.address)
    assert code == 2, stderr
    assert "triplu-ray: error: node " in stderr
    assert told in stderr
    assert "Traceback" not in stderr
    assert summary == {}
    assert not list(store.glob("runs/*"))


def test_a_node_that_joins_later_ends_the_sweep(cluster: Cluster, tmp_path: Path) -> None:
    space, store = write_space(tmp_path, **LONG), tmp_path / "store"
    add_node(cluster)
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 1), process)
    add_node(cluster, **injected(tmp_path / "faults", provenance=OTHER_TORCH))
    code, _, stderr = ended(process)
    assert code == 2, stderr
    assert "torch: expected 2." in stderr
    assert stderr.splitlines()[-1].endswith("; what was running is kept in checkpoints")
    assert "Traceback" not in stderr
    assert checkpoints(store)
