"""`ray up` of the file for machines of one's own, for real: three machines in namespaces, over SSH.

What is changed in the file are the lines that it marks so, and where the packages come from: the
environment of these tests stands in for the one that uv would install.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from cohorts import write_space
from hosts import Host, hosts, needs_hosts

from triplu_ray.store import Store

ROOT = Path(__file__).parents[1]
FILE = ROOT / "clusters" / "onprem.yaml"
SSHD = "/usr/sbin/sshd"
MISSING = [
    *(program for program in (SSHD, "ssh", "ssh-keygen", "rsync") if not shutil.which(program)),
    *(module for module in ("aiohttp", "grpc") if not importlib.util.find_spec(module)),
]

pytestmark = [
    pytest.mark.slow,
    needs_hosts,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


@dataclass(frozen=True)
class Cluster:
    """Where the file was brought up from, and what it brought up."""

    laptop: Host
    head: Host
    worker: Host
    file: Path
    store: Path

    def ray(self, *words: str, timeout: float = 300) -> str:
        """A `ray` command on the laptop that succeeds, and what it said."""
        done = self.laptop.run("ray", *words, timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("onprem")
    with hosts(folder, 3) as (laptop, head, worker):
        key = laptop.home / ".ssh" / "triplu-ray"
        key.parent.mkdir()
        laptop.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        servers = [ssh_server(host, key.with_suffix(".pub")) for host in (head, worker)]
        laptop.run("ray", "get-auth-token", "--generate")
        file = folder / "onprem.yaml"
        file.write_text(adapted(head, worker, key, folder / "store"))
        running = Cluster(laptop, head, worker, file, folder / "store")
        up = laptop.run("ray", "up", "-y", file, "--no-config-cache", timeout=400)
        assert up.returncode == 0, up.stdout
        yield running
        for server in servers:
            server.kill()
            server.wait()


def ssh_server(host: Host, authorized: Path) -> subprocess.Popen[bytes]:
    """An SSH server of a host, with a key of its own, that lets in the holder of another."""
    folder = host.home.parent / f"{host.home.name}.sshd"
    folder.mkdir()
    host.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    (folder / "config").write_text(
        f"ListenAddress {host.address}\nHostKey {folder}/key\nAuthorizedKeysFile {authorized}\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    return subprocess.Popen(host.command(SSHD, "-D", "-f", folder / "config"))


def adapted(head: Host, worker: Host, key: Path, store: Path) -> str:
    text = FILE.read_text()
    for old, new in {
        "head_ip: 10.0.0.1": f"head_ip: {head.address}",
        "[10.0.0.2, 10.0.0.3]": f"[{worker.address}]",
        "ssh_user: triplu-ray": "ssh_user: root",
        "~/.ssh/triplu-ray": str(key),
        "min_workers: 2": "min_workers: 1",
        "max_workers: 2": "max_workers: 1",
        "/mnt/triplu-ray": str(store),
    }.items():
        assert old in text
        text = text.replace(old, new)
    config = yaml.safe_load(text)
    install = [line for line in config["setup_commands"] if "uv" in line]
    assert len(install) == 3
    config["setup_commands"] = [
        f"ln -sfn {sys.prefix} ~/venv",
        "echo 'export PYTHONPATH=$HOME/triplu-ray' >> ~/.bashrc",
        *(line for line in config["setup_commands"] if line not in install),
    ]
    return yaml.safe_dump(config)


def reachable(host: Host, address: str, port: int) -> bool:
    probe = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    return host.run("python", "-c", probe, address, str(port)).returncode == 0


def test_a_sweep_is_submitted_with_ray_exec(cluster: Cluster, tmp_path: Path) -> None:
    space = write_space(tmp_path)
    cluster.ray("exec", str(cluster.file), f"ray job submit -- triplu-ray sweep {space}")
    assert len(Store(str(cluster.store)).finished_run_ids()) == 4
    # The head has no CPUs, so the runs were the worker's.
    (record,) = (cluster.store / "sweeps").glob("*.json")
    assert json.loads(record.read_text())["trained"] == 4
    nodes = cluster.ray("exec", str(cluster.file), "ray list nodes --format json")
    assert cluster.worker.address in nodes


def test_the_checkout_arrived_without_history_and_results(cluster: Cluster) -> None:
    for host in (cluster.head, cluster.worker):
        copied = host.home / "triplu-ray"
        assert (copied / "triplu_ray" / "cli.py").exists()
        assert not any((copied / name).exists() for name in (".git", "results", ".venv"))
        token = host.home / ".ray" / "auth_token"
        assert token.read_bytes() == (cluster.laptop.home / ".ray" / "auth_token").read_bytes()


def test_from_outside_only_ssh_and_rays_own_ports_are_there(cluster: Cluster) -> None:
    head = cluster.head.address
    assert reachable(cluster.laptop, head, 22)
    assert reachable(cluster.laptop, head, 6379)
    assert not reachable(cluster.laptop, head, 8265)
    assert not reachable(cluster.laptop, head, 10001)
    listens = cluster.head.listens()
    assert "127.0.0.1:8265" in listens
    assert not any(one.endswith(":10001") for one in listens)


def test_the_checkout_is_submitted_through_the_tunnel_with_the_token(
    cluster: Cluster, tmp_path: Path
) -> None:
    grid = {"seed": [3, 4], "variant": ["swiglu", "triplu"]}
    space = write_space(tmp_path, grid=grid)
    done_before = Store(str(cluster.store)).finished_run_ids()
    address = "http://127.0.0.1:8265"
    submit = ["ray", "job", "submit", "--address", address, "--working-dir", str(ROOT), "--"]
    sweep = ["triplu-ray", "sweep", str(space)]
    tunnel = subprocess.Popen(
        cluster.laptop.command("ray", "dashboard", cluster.file),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not reachable(cluster.laptop, "127.0.0.1", 8265):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        done = cluster.laptop.run(*submit, *sweep, RAY_AUTH_MODE="token")
        assert done.returncode == 0, done.stdout
        assert "4 runs trained" in done.stdout
        assert len(Store(str(cluster.store)).finished_run_ids() - done_before) == 4
        refused = cluster.laptop.run(*submit, *sweep, RAY_AUTH_MODE="disabled")
        assert refused.returncode != 0
        assert "Authentication required" in refused.stdout
    finally:
        tunnel.kill()
        tunnel.wait()


def test_who_has_no_token_is_refused_by_the_cluster_itself(cluster: Cluster) -> None:
    connect = "import ray, sys; ray.init(address=sys.argv[1])"
    address = f"{cluster.head.address}:6379"
    refused = cluster.worker.run(
        "python", "-c", connect, address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong" * 8
    )
    assert refused.returncode != 0
    assert "uthenticat" in refused.stdout


def test_ray_down_ends_it_everywhere(cluster: Cluster) -> None:
    assert "raylet" in cluster.worker.processes()
    cluster.ray("down", "-y", str(cluster.file))
    assert "raylet" not in cluster.head.processes()
    deadline = time.monotonic() + 180  # workers notice by themselves that the head is gone
    while "raylet" in cluster.worker.processes():
        assert time.monotonic() < deadline
        time.sleep(1)
