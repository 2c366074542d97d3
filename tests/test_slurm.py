"""The Slurm script, with stand-ins for Slurm; slow: with a real Ray, on one node and on two."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cohorts import write_space
from faults import injected, slow_while_there
from hosts import Host, hosts, needs_hosts

from triplu_ray.store import Store

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "clusters" / "slurm.sh"

SCONTROL = """#!/usr/bin/env bash
[[ "$1 $2 $3" == "show hostnames $SLURM_JOB_NODELIST" ]] && printf '%s\\n' $SLURM_JOB_NODELIST
"""
# A step: the command behind the options, here and on the other nodes, to the end of all.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
shopt -s nullglob
others=("$SLURM_SUBMIT_DIR"/*.step)
for node in "${others[@]}"; do { export -p; printf '%q ' "$@"; } >"$node"; done
"$@"
code=$?
for node in "${others[@]}"; do read -r < "${node%.step}.end"; done
exit $code
"""
# Another node, waiting for steps.
NODE = 'while true; do bash -c "$(cat "$1.step")" &>>"$1.log"; echo end >"$1.end"; done'
# What symmetric-run does, without Ray.
RAY = """#!/usr/bin/env bash
env >"$SLURM_SUBMIT_DIR/environment"
printf '%s\\n' "$@" >"$SLURM_SUBMIT_DIR/arguments"
while [[ $1 != -- ]]; do shift; done
shift
"$@"
"""


def write_program(folder: Path, name: str, content: str) -> None:
    path = folder / ".venv" / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def job(folder: Path, *nodes: str) -> dict[str, str]:
    """What Slurm tells a job that was submitted from a folder."""
    write_program(folder, "scontrol", SCONTROL)
    write_program(folder, "srun", SRUN)
    return {
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": " ".join(nodes),
        "SLURM_CPUS_PER_TASK": "1",
    }


def submit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script on this machine alone, with a Ray that is none."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TRIPLU_"))}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={**inherited, **job(folder, "localhost")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_script_is_clean() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def test_asks_for_whole_nodes_with_gpus_and_one_task_on_each() -> None:
    asked = re.findall(r"^#SBATCH (--\S+)$", SCRIPT.read_text(), re.M)
    assert {"--exclusive", "--ntasks-per-node=1", "--gpus-per-node=1"} <= set(asked)
    assert len(asked) == SCRIPT.read_text().count("#SBATCH")


def test_starts_a_sweep_with_what_follows_the_script(tmp_path: Path) -> None:
    write_program(tmp_path, "ray", RAY)
    sweep = 'printf "%s\\n" "$RAY_ADDRESS" "$@" >"$SLURM_SUBMIT_DIR/swept"'
    write_program(tmp_path, "triplu-ray", f"#!/usr/bin/env bash\n{sweep}\n")
    done = submit(tmp_path, "my space.yaml", "seed=[1, 2]")
    assert done.returncode == 0, done.stderr
    address, *swept = (tmp_path / "swept").read_text().splitlines()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert swept == ["sweep", "my space.yaml", "seed=[1, 2]"]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:5] == ["symmetric-run", "--address", address, "--min-nodes", "1"]
    assert "--dashboard-host=127.0.0.1" in arguments
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "RAY_AUTH_MODE=token" in environment
    assert "RAY_START_HOOK=triplu_ray.environment.without_ray_client" in environment
    assert f"TRIPLU_RAY_STORE={tmp_path}/results" in environment
    assert not any(line.startswith("RAY_ADDRESS=") for line in environment)


def test_every_job_has_a_token_of_its_own(tmp_path: Path) -> None:
    write_program(tmp_path, "ray", RAY)
    write_program(tmp_path, "triplu-ray", "#!/bin/sh\n")
    tokens = set()
    for _ in range(2):
        assert submit(tmp_path).returncode == 0
        tokens.update(
            re.findall(r"^RAY_AUTH_TOKEN=(\w+)$", (tmp_path / "environment").read_text(), re.M)
        )
    assert [len(token) for token in tokens] == [64, 64]


def test_ends_as_the_sweep_does(tmp_path: Path) -> None:
    write_program(tmp_path, "ray", RAY)
    write_program(tmp_path, "triplu-ray", "#!/bin/sh\nexit 2\n")
    assert submit(tmp_path).returncode == 2


def test_fails_if_ray_did_not_start(tmp_path: Path) -> None:
    write_program(tmp_path, "ray", "#!/bin/sh\nexit 0\n")  # as symmetric-run does then
    done = submit(tmp_path)
    assert done.returncode == 1
    assert "Ray did not start, so nothing was swept" in done.stderr


@pytest.mark.slow
@needs_hosts
@pytest.mark.parametrize("count", [1, 2])
def test_sweeps_on_every_node(tmp_path: Path, count: int) -> None:
    # Ten seconds a run: a cold node is there before the first one has done them all.
    space = write_space(tmp_path, num_steps=100, eval_interval=50)
    slowed = injected(tmp_path / "faults", train=slow_while_there(tmp_path / "slow"))
    with hosts(tmp_path / "hosts", count) as nodes:
        variables = job(tmp_path, *(node.address for node in nodes))
        others = [start_node(node, tmp_path) for node in nodes[1:]]
        done = nodes[0].run("bash", SCRIPT, space, timeout=600, **variables, **slowed)
        logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert done.returncode == 0, done.stdout + logs
        for node in nodes:
            assert "raylet" not in node.processes()
            assert "triplu-ray" not in node.run("ls", "/tmp").stdout
        for process in others:
            process.kill()
            process.wait()
    store = Store(str(tmp_path / "results"))
    assert len(store.finished_run_ids()) == 4
    (record,) = (tmp_path / "results" / "sweeps").glob("*.json")
    # One CPU a node and one a run: as many at a time as there are nodes.
    assert json.loads(record.read_text())["workers"] == count


def start_node(node: Host, folder: Path) -> subprocess.Popen[bytes]:
    fifo = folder / node.address
    for end in ("step", "end"):
        os.mkfifo(f"{fifo}.{end}")
    return subprocess.Popen(node.command("bash", "-c", NODE, "node", fifo))
