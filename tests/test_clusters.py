"""Every cluster file, held against Ray's own schema and against what it promises; no network."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "clusters").glob("*.yaml"))
CONSTRAINTS = ROOT / "constraints.txt"

SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN|secret_access_key|RAY_AUTH_TOKEN=|\b[0-9a-fA-F]{32,}\b"
)


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def file(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def cluster(file: Path) -> dict[str, Any]:
    config = yaml.safe_load(file.read_text())
    assert isinstance(config, dict)
    return config


def workers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    types = cluster["available_node_types"]
    return [types[name] for name in types if name != cluster["head_node_type"]]


def test_there_is_a_file_for_aws() -> None:
    assert ROOT / "clusters" / "aws.yaml" in FILES


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(cluster)))


def test_ray_would_refuse_a_wrong_key(cluster: dict[str, Any]) -> None:
    workers(cluster)[0]["min_worker"] = 0
    with pytest.raises(Exception, match="'min_worker' was unexpected"):
        validate_config(prepare_config(cluster))


def test_opens_with_up_submit_and_down(file: Path) -> None:
    header = re.match(r"(?:#.*\n)+", file.read_text())
    assert header
    path = re.escape(f"clusters/{file.name}")
    commands = rf"up +ray up -y {path}\n.*submit +ray .+\n.*down +ray down -y {path}\n"
    assert re.search(commands, header[0])


def test_gpus_are_rented_only_while_needed(cluster: dict[str, Any]) -> None:
    head = cluster["available_node_types"][cluster["head_node_type"]]
    assert head["resources"] == {"CPU": 0}
    assert all(node["resources"]["GPU"] >= 1 for node in workers(cluster))
    assert all(node["min_workers"] == 0 for node in workers(cluster))
    assert sum(node["max_workers"] for node in workers(cluster)) == cluster["max_workers"]
    assert 0 < cluster["idle_timeout_minutes"] <= 10


def test_spot_has_an_on_demand_node_beside_it(cluster: dict[str, Any]) -> None:
    def is_spot(node: dict[str, Any]) -> bool:
        return "InstanceMarketOptions" in node["node_config"]

    spot = [node["priority"] for node in workers(cluster) if is_spot(node)]
    on_demand = [node["priority"] for node in workers(cluster) if not is_spot(node)]
    assert max(on_demand) > max(spot)


def test_carries_the_checkout_without_results_and_environments(cluster: dict[str, Any]) -> None:
    assert cluster["file_mounts"]["~/triplu-ray"] == "."
    assert ".git" in cluster["rsync_exclude"]
    assert cluster["rsync_filter"] == [".gitignore"]
    assert {"/results/", ".venv/"} <= set((ROOT / ".gitignore").read_text().split())


def test_installs_the_checkout_as_constrained(cluster: dict[str, Any]) -> None:
    (install,) = [line for line in cluster["setup_commands"] if "pip install" in line]
    assert "--constraint ~/triplu-ray/constraints.txt" in install
    assert "--editable ~/triplu-ray" in install
    assert '"ray[default]"' in install
    assert "==" not in install  # versions stand in one place


@pytest.mark.skipif(not CONSTRAINTS.exists(), reason="no constraints.txt yet")
def test_constraints_pin_this_ray_and_leave_the_build_of_torch_open() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", CONSTRAINTS.read_text(), re.M))
    assert pins["ray"] == ray.__version__
    # `2.x+cpu` could not be had from PyPI, and would be the wrong build on a GPU.
    assert "+" not in pins["torch"]


def test_only_holders_of_the_token_get_in(cluster: dict[str, Any]) -> None:
    assert any("RAY_AUTH_MODE=token" in line for line in cluster["setup_commands"])
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    (start,) = [line for line in cluster["head_start_ray_commands"] if "ray start" in line]
    assert "--dashboard-host=127.0.0.1" in start


def test_results_go_to_a_bucket(cluster: dict[str, Any]) -> None:
    assert any("TRIPLU_RAY_STORE=s3://" in line for line in cluster["setup_commands"])


def test_holds_no_secret(file: Path) -> None:
    assert not SECRET.search(file.read_text())


@pytest.mark.parametrize(
    "text",
    ["AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key: x", "export RAY_AUTH_TOKEN=" + "a" * 64],
)
def test_a_secret_would_be_seen(text: str) -> None:
    assert SECRET.search(text)
