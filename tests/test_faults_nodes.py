"""Real sweeps on clusters of several raylets: nodes that die, are drained, or are others."""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cohorts import write_space
from faults import Trainings, injected, slow_while_there
from ray.cluster_utils import Cluster
from sweeps import (
    LONG,
    all_train,
    assert_complete_and_equal,
    checkpoints,
    ended,
    run,
    start,
    wait_until,
)

from triplu_ray import provenance
from triplu_ray.raytune.sweep import POLL_SECONDS
from triplu_ray.store import Store

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def new_cluster() -> Iterator[Cluster]:
    """A head that trains nothing."""
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with new_cluster() as cluster:
        yield cluster


def add_node(cluster: Cluster, **environment: str) -> Any:
    return cluster.add_node(num_cpus=1, env_vars=environment)


def kill(cluster: Cluster, node: Any) -> None:
    cluster.remove_node(node, allow_graceful=False)


def test_the_cohorts_of_a_dead_node_move(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    nodes = [add_node(cluster, **slowed) for _ in range(2)]
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), process)
    kill(cluster, nodes[0])
    slow.unlink()
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert stderr.count("again ") == 1
    runs = assert_complete_and_equal(store, reference)
    assert sorted(runs["resumes"]) == [0, 0, 0, 1]


def test_the_cohorts_of_a_drained_node_move_at_no_cost(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    """As when a spot instance is about to be taken back: no failure counts, so none is allowed."""
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    nodes = [add_node(cluster, **slowed) for _ in range(2)]
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
    slow.unlink()
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert stderr.count("again ") == 1
    runs = assert_complete_and_equal(store, reference)
    assert sorted(runs["resumes"]) == [0, 0, 0, 1]


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


def test_the_first_node_may_join_after_the_sweep(cluster: Cluster, tmp_path: Path) -> None:
    """As after `ray up`, which does not wait for the machines."""
    process = start(write_space(tmp_path), tmp_path / "store", RAY_ADDRESS=cluster.address)
    assert process.stderr is not None
    told = iter(process.stderr.readline, "")
    assert any("waits up to 60 s for a node that could train" in line for line in told)
    add_node(cluster)
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert summary["trained"] == 4


def test_a_killed_driver_of_a_cluster_is_continued(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    for _ in range(2):
        add_node(cluster, **slowed)
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), process)
    process.kill()
    process.communicate()
    slow.unlink()
    code, _, stderr = run(space, store, RAY_ADDRESS=cluster.address)
    assert code == 0, stderr
    runs = assert_complete_and_equal(store, reference)
    assert sorted(runs["resumes"]) == [0, 0, 1, 1]


@pytest.mark.parametrize("what", ["the head", "its global control service"])
def test_a_sweep_whose_head_died_is_continued_on_a_new_cluster(
    undisturbed: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """The nodes of the old cluster stay a while, and so does what trains on them."""
    space, reference = undisturbed
    store, slow = tmp_path / "store", tmp_path / "slow"
    slowed = injected(tmp_path / "faults", train=slow_while_there(slow))
    # A minute by default; after it, whoever has lost the head ends.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    with new_cluster() as old, new_cluster() as new:
        for _ in range(2):
            add_node(old, **slowed)
        head: Any = old.head_node
        process = start(space, store, RAY_ADDRESS=old.address)
        wait_until(lambda: all_train(store, 2), process)
        if what == "the head":
            kill(old, head)
        else:
            head.kill_gcs_server(check_alive=False)
        code, _, stderr = ended(process)
        assert code not in (0, 2), stderr
        slow.unlink()
        for _ in range(2):
            add_node(new)
        code, summary, stderr = run(space, store, RAY_ADDRESS=new.address)
    assert code == 0, stderr
    assert summary["failed"] == []
    runs = assert_complete_and_equal(store, reference)
    assert runs["resumes"].sum() >= 1


WRONG_CLOCK = """
import time
_time = time.time
time.time = lambda: _time() + 3600
"""


def test_a_node_whose_clock_is_an_hour_ahead_is_like_any_other(
    cluster: Cluster, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    """It does not take the claims of another sweep for lapsed, and nobody does its own."""
    space, reference = undisturbed
    store, trainings = tmp_path / "store", Trainings(tmp_path / "trainings")
    slow = [tmp_path / "slow1", tmp_path / "slow2"]
    faults = [
        {"train": slow_while_there(file), "raytune__trainable": trainings.patch} for file in slow
    ]
    add_node(cluster, **injected(tmp_path / "right", **faults[0]))
    add_node(cluster, **injected(tmp_path / "wrong", errors=WRONG_CLOCK, **faults[0]))
    first = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 2), first)
    second = start(space, store, **injected(tmp_path / "second", **faults[1]))
    wait_until(lambda: all_train(store, 4), second)
    slow[0].unlink()
    # Its nodes are free now, and both meet the claims of the second.
    wait_until(lambda: len(Store(str(store)).finished_run_ids()) == 2, first)
    time.sleep(3 * POLL_SECONDS)
    slow[1].unlink()
    for process in (first, second):
        code, summary, stderr = ended(process)
        assert code == 0, stderr
        assert (summary["trained"], summary["failed"]) == (2, [])
        assert "in another sweep" in stderr
    runs = assert_complete_and_equal(store, reference)
    assert trainings.begun() == trainings.ended() == Counter(runs["run_id"])
    assert runs["resumes"].max() == 0


def other_version(name: str) -> str:
    """For `provenance`: another version of Python, the project or a library."""
    return f"""
_versions = versions

def versions():
    return {{**_versions(), {name!r}: "1.13.1"}}
"""


OTHER_SOURCES = """
_code = code

def code():
    return _code() | {"sources of triplu_ray": "0123456789ab"}
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
        *(
            (
                "provenance",
                other_version(name),
                f"{name}: expected {provenance.code()[name]} as where the sweep was started, got 1",
            )
            for name in ("python", "torch", "triplu_ray")
        ),
        ("provenance", OTHER_SOURCES, "sources of triplu_ray: expected "),
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
    slow = slow_while_there(tmp_path / "slow")
    add_node(cluster, **injected(tmp_path / "slowed", train=slow))
    process = start(space, store, RAY_ADDRESS=cluster.address)
    wait_until(lambda: all_train(store, 1), process)
    add_node(cluster, **injected(tmp_path / "faults", provenance=other_version("torch")))
    code, _, stderr = ended(process)
    assert code == 2, stderr
    assert "torch: expected 2." in stderr
    assert stderr.splitlines()[-1].endswith("; what was running is kept in checkpoints")
    assert "Traceback" not in stderr
    assert checkpoints(store)
