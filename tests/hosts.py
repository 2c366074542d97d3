"""Machines of a small network, made of namespaces: what one starts, ends or opens, only it sees.

Ray finds, and `ray stop` ends, every Ray on a machine, and its ports are always the same ones. So
tests that start clusters do it on these machines, whose processes end with them.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Its /tmp is its own; what lay in it before is still found there, save what Ray left. The shell
# stays, because a machine's first process buries the orphans.
_FIRST_PROCESS = """
set -e
ip link set lo up
mount --bind "$1" /etc/passwd
mount --bind /tmp /mnt
mount -t tmpfs tmpfs /tmp
ln -s /mnt/* /tmp
rm -f /tmp/ray* /tmp/triplu-ray*
echo up
sleep infinity &
wait
"""


def _missing() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "root on Linux"
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return program
    tried = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "true"], check=False)
    return "the right to make namespaces" if tried.returncode else None


needs_hosts = pytest.mark.skipif(_missing() is not None, reason=f"needs {_missing()}")


@dataclass(frozen=True)
class Host:
    """A machine: processes, network, /tmp and home of its own; all other files are everybody's."""

    process: int
    """Its first process, as seen from outside."""
    address: str
    home: Path

    def command(self, *words: str | Path, **variables: str) -> list[str]:
        """What runs these words on it, at the project's root."""
        enter = ["nsenter", f"--target={self.process}", "--net", "--pid", "--mount"]
        root = Path(__file__).parents[1]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            **variables,
        }
        settings = [f"{key}={value}" for key, value in environment.items()]
        return [*enter, f"--wd={root}", "env", "-i", *settings, *map(str, words)]

    def run(
        self, *words: str | Path, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run these words on it, to their end; stderr goes into stdout."""
        return subprocess.run(
            self.command(*words, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def cut_off(self, folder: Path) -> None:
        """Take the network away, and a shared folder, which a real machine has from there."""
        _network(self, "ip link set eth0 down")
        hidden = self.run("mount", "-t", "tmpfs", "tmpfs", folder)
        assert hidden.returncode == 0, hidden.stdout

    def kill(self) -> None:
        """End it with all that runs on it."""
        os.kill(self.process, signal.SIGKILL)

    def processes(self) -> str:
        """The command lines of all that runs on it."""
        return self.run("ps", "-e", "-o", "args").stdout

    def listens(self) -> set[str]:
        """The addresses and ports on which something listens, such as `127.0.0.1:8265`."""
        return set(re.findall(r"(\S+:\d+)\s+\S+:\*", self.run("ss", "-Htln").stdout))


@contextlib.contextmanager
def hosts(folder: Path, count: int) -> Iterator[list[Host]]:
    """This many machines in one network; the first is its switch too."""
    with contextlib.ExitStack() as running:
        made: list[Host] = []
        for number in range(1, count + 1):
            home = folder / f"home{number}"
            home.mkdir(parents=True)
            made.append(Host(running.enter_context(_machine(home)), f"10.77.0.{number}", home))
        switch, *others = made
        _network(switch, "ip link add switch type bridge")
        _connect(switch, "switch")
        for number, host in enumerate(others):
            port = f"port{number}"
            _network(switch, f"ip link add {port} type veth peer name eth0 netns {host.process}")
            _network(switch, f"ip link set {port} master switch up")
            _connect(host, "eth0")
        yield made


@contextlib.contextmanager
def _machine(home: Path) -> Iterator[int]:
    user = pwd.getpwuid(os.geteuid()).pw_name
    accounts = home.parent / f"{home.name}.passwd"
    accounts.write_text(
        re.sub(
            rf"^({user}:.*:)[^:]*:[^:]*$",
            rf"\g<1>{home}:/bin/bash",
            Path("/etc/passwd").read_text(),
            flags=re.M,
        )
    )
    unshare = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    with subprocess.Popen(
        [*unshare, "bash", "-c", _FIRST_PROCESS, "machine", accounts],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield int(children)
        finally:
            process.kill()


def _connect(host: Host, device: str) -> None:
    _network(host, f"ip addr add {host.address}/24 dev {device} && ip link set {device} up")
    # Leads nowhere, but Ray takes the address that a machine has on the way to the world.
    _network(host, f"ip route add default dev {device}")


def _network(host: Host, command: str) -> None:
    # In its network alone: the other end of a cable is named by a process that it cannot see.
    subprocess.run(
        ["nsenter", f"--target={host.process}", "--net", "sh", "-ec", command], check=True
    )
