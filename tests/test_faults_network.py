"""A sweep over a real network: three machines, one of which is cut off or dies in the middle.

The first machine is the head, which trains nothing. Ray asks a node for its health every 3 s, waits
10 s for the answer and takes it for dead after 5 without one: a minute after a cable was pulled.
These tests do not wait that long.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import injected, slow_while_there
from hosts import Host, hosts, needs_hosts
from sweeps import all_train, assert_complete_and_equal, ended, start_on, wait_until

from triplu_ray.leases import claims
from triplu_ray.store import Store

pytestmark = [pytest.mark.slow, needs_hosts]

RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-these-machines-alone-" * 2,
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Host]]:
    with hosts(tmp_path / "hosts", 3) as machines:
        yield machines


def start_ray(host: Host, *words: str, **variables: str) -> None:
    address = ["--node-ip-address", host.address]
    done = host.run("ray", "start", *words, *address, timeout=120, **RAY, **variables)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("fate", ["cut off", "killed", "taken back after notice"])
def test_the_cohorts_of_a_machine_that_is_gone_move(
    machines: list[Host], undisturbed: tuple[Path, Path], tmp_path: Path, fate: str
) -> None:
    space, reference = undisturbed
    store = tmp_path / "store"
    head, lost, other = machines
    start_ray(head, "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
    slow = {host.address: tmp_path / f"slow-{host.address}" for host in (lost, other)}
    for host in (lost, other):
        faults = injected(tmp_path / host.address, train=slow_while_there(slow[host.address]))
        start_ray(host, "--address", f"{head.address}:6379", "--num-cpus=1", **faults)
    has_notice = fate == "taken back after notice"
    process = start_on(
        head,
        space,
        store,
        f"max_failures={0 if has_notice else 1}",
        **RAY,
        RAY_ADDRESS=f"{head.address}:6379",
    )
    wait_until(lambda: all_train(store, 2), process)
    if has_notice:
        give_notice(lost)
        time.sleep(2.0)  # longer than the deadline that the script names
        assert len(claims(Store(str(store)))) == 2
    if fate == "cut off":
        lost.cut_off(store)
    else:
        lost.kill()
    # Whoever was cut off trains on, all by itself, and stays slow.
    slow[other.address].unlink()
    code, summary, stderr = ended(process)
    assert code == 0, stderr
    assert (summary["trained"], summary["failed"]) == (4, [])
    assert stderr.count("again ") == 1
    runs = assert_complete_and_equal(store, reference)
    assert sorted(runs["resumes"]) == [0, 0, 0, 1]


def give_notice(host: Host) -> None:
    """As Google Cloud's metadata do, to the script that waits for it."""
    page = host.home / "computeMetadata" / "v1" / "instance" / "preempted"
    page.parent.mkdir(parents=True)
    page.write_text("TRUE")
    serve = host.command("python", "-m", "http.server", "80", "--directory", host.home)
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        script = ["bash", "clusters/spot_notice.sh", "gcp"]
        told = host.run(*script, timeout=120, **RAY, TRIPLU_RAY_METADATA="http://127.0.0.1")
        server.kill()
    assert told.returncode == 0, told.stdout
