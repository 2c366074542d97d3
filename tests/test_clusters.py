"""Every file of `ray up`, held against Ray's own schema and what it promises; no network."""

import copy
import importlib.metadata
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from ray.autoscaler._private.util import prepare_config, validate_config

from triplu_ray.environment import without_ray_client

ROOT = Path(__file__).parents[1]
CLUSTERS = ROOT / "clusters"
CONSTRAINTS = ROOT / "constraints.txt"
# The store of each, and what nodes need there beside Ray and the checkout.
FILES = {
    "aws.yaml": ("s3://my-bucket/triplu-ray", "boto3"),
    "gcp.yaml": ("gs://my-bucket/triplu-ray", "google-api-python-client"),
    "onprem.yaml": ("/mnt/triplu-ray", ""),
}
CLOUDS = ["aws.yaml", "gcp.yaml"]

SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN|secret_access_key|private_key_id|\b[0-9a-fA-F]{32,}\b"
    r"|RAY_AUTH_TOKEN=(?!\"\$\()"
)


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest) -> Path:
    return CLUSTERS / str(request.param)


@pytest.fixture
def cluster(file: Path) -> dict[str, Any]:
    return read(file.name)


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(str(request.param))


def read(name: str) -> dict[str, Any]:
    config = yaml.safe_load((CLUSTERS / name).read_text())
    assert isinstance(config, dict)
    return config


def workers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    types = cluster["available_node_types"]
    return [types[name] for name in types if name != cluster["head_node_type"]]


def is_spot(node: dict[str, Any]) -> bool:
    config = node["node_config"]
    return bool(
        config.get("InstanceMarketOptions") == {"MarketType": "spot"}
        or config.get("scheduling", {}).get("provisioningModel") == "SPOT"
    )


def machine(node: dict[str, Any]) -> str:
    config = node["node_config"]
    return str(config.get("InstanceType") or config.get("machineType"))


def test_every_file_is_of_a_kind_that_is_tested() -> None:
    assert {path.name for path in CLUSTERS.glob("*.yaml")} == {*FILES, "kuberay.yaml"}


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(cluster)))


def test_ray_would_refuse_a_wrong_key(cluster: dict[str, Any]) -> None:
    cluster["min_worker"] = 0
    with pytest.raises(Exception, match="'min_worker' was unexpected"):
        validate_config(prepare_config(cluster))


def test_opens_with_up_submit_and_down(file: Path) -> None:
    header = re.match(r"(?:#.*\n)+", file.read_text())
    assert header
    path = f"clusters/{file.name}"
    job = "ray job submit -- triplu-ray sweep ~/triplu-ray/search_spaces/main_1m.yaml"
    # Without a worker yet, `resources: auto` would see no GPU.
    job += " resources.gpu=1" * (file.name != "onprem.yaml")
    commands = (
        f"#   up       ray up -y {path}\n"
        f'#   submit   ray exec {path} "{job}"\n'
        f"#   down     ray down -y {path}\n"
    )
    assert commands in header[0]


def test_gpus_are_rented_only_while_needed(cloud: dict[str, Any]) -> None:
    head = cloud["available_node_types"][cloud["head_node_type"]]
    assert head["resources"] == {"CPU": 0}
    assert all(node["resources"]["GPU"] >= 1 for node in workers(cloud))
    assert all(node["min_workers"] == 0 for node in workers(cloud))
    assert sum(node["max_workers"] for node in workers(cloud)) == cloud["max_workers"]
    assert 0 < cloud["idle_timeout_minutes"] <= 10
    assert cloud["provider"]["cache_stopped_nodes"] is False


def test_every_machine_is_had_on_demand_first_and_then_as_spot(cloud: dict[str, Any]) -> None:
    nodes = sorted(workers(cloud), key=lambda node: -int(node["priority"]))
    assert len({node["priority"] for node in nodes}) == len(nodes)
    assert [is_spot(node) for node in nodes] == [False, True] * 2
    small, small_spot, large, large_spot = map(machine, nodes)
    assert small == small_spot != large == large_spot
    assert all(node["max_workers"] == 1 for node in nodes if not is_spot(node))


def test_a_large_gpu_is_the_last_that_a_cohort_gets(cloud: dict[str, Any]) -> None:
    """Ray takes what a demand fills best, then the higher priority."""
    nodes = sorted(workers(cloud), key=lambda node: -int(node["priority"]))
    cpus = [node["resources"]["CPU"] for node in nodes]
    assert cpus == sorted(cpus)


def test_a_spot_machine_that_google_takes_back_is_not_kept() -> None:
    nodes = workers(read("gcp.yaml"))
    for node in nodes:
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["onHostMaintenance"] == "TERMINATE"
        if is_spot(node):
            assert scheduling["instanceTerminationAction"] == "DELETE"
            assert scheduling["automaticRestart"] is False


def test_workers_run_as_an_account_that_sees_the_bucket_only() -> None:
    types = read("gcp.yaml")["available_node_types"]
    for name, node in types.items():
        (account,) = node["node_config"]["serviceAccounts"]
        role = "head" if name == "head" else "worker"
        assert account["email"].startswith(f"triplu-ray-{role}@")
        scopes = {scope.rpartition("/")[2] for scope in account["scopes"]}
        assert scopes == {"devstorage.read_write"} | ({"compute"} if role == "head" else set())


def test_every_machine_of_ones_own_is_kept() -> None:
    cluster = read("onprem.yaml")
    provider = cluster["provider"]
    assert cluster["min_workers"] == cluster["max_workers"] == len(provider["worker_ips"])
    assert provider["head_ip"] not in provider["worker_ips"]


def test_ones_own_machines_are_started_by_the_autoscaler_that_can() -> None:
    """The second version, Ray's default, waits for ever for the head of a local cluster."""
    (start,) = [line for line in read("onprem.yaml")["head_start_ray_commands"] if "--head" in line]
    assert "RAY_enable_autoscaler_v2=0 ray start --head" in start


def test_carries_the_checkout_without_results_and_environments(cluster: dict[str, Any]) -> None:
    assert cluster["file_mounts"]["~/triplu-ray"] == "."
    assert ".git" in cluster["rsync_exclude"]
    assert cluster["rsync_filter"] == [".gitignore"]


def test_a_submitted_checkout_has_no_results_and_no_data(tmp_path: Path) -> None:
    """`--working-dir .`, packed by Ray itself."""
    ignored = ["results/runs/a.parquet", "data/text.txt", ".venv/bin/python", ".git/config"]
    for name in [*ignored, "triplu_ray/cli.py", "triplu_ray/__pycache__/cli.pyc"]:
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text(name)
    (tmp_path / "checkout" / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    create_package(
        str(tmp_path / "checkout"),
        tmp_path / "package.zip",
        include_gitignore=True,
        excludes=get_runtime_env_default_excludes(),
    )
    packed = zipfile.ZipFile(tmp_path / "package.zip").namelist()
    assert {name for name in packed if not name.endswith("/")} == {
        ".gitignore",
        f"triplu_ray{os.sep}cli.py",
    }


def test_installs_the_checkout_as_constrained(file: Path, cluster: dict[str, Any]) -> None:
    (install,) = [line for line in cluster["setup_commands"] if "pip install" in line]
    assert "--constraint ~/triplu-ray/constraints.txt" in install
    assert install.endswith(f'--editable ~/triplu-ray "ray[default]" {FILES[file.name][1]}'.strip())
    assert "==" not in install  # versions stand in one place
    assert f'"ray[default]" {FILES[file.name][1]}'.strip() in file.read_text().partition("\n\n")[0]


def pins() -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text(), re.M)
    return {canonicalize_name(name): version for name, version in found}


def test_constraints_pin_this_ray_and_leave_the_build_of_torch_open() -> None:
    assert pins()["ray"] == ray.__version__
    # `2.x+cpu` could not be had from PyPI, and would be the wrong build on a GPU.
    assert "+" not in pins()["torch"]


def test_constraints_can_be_met_together() -> None:
    """As far as the packages are here: what each asks of another is met by that one's pin."""
    unmet = []
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name)
        if pins().get(name) != distribution.version:
            continue
        for requirement in map(Requirement, distribution.requires or []):
            pin = pins().get(canonicalize_name(requirement.name))
            asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if asked and pin and not requirement.specifier.contains(pin, prereleases=True):
                unmet.append(f"{name} asks for {requirement}, not {pin}")
    assert unmet == []


def test_only_holders_of_the_token_get_in(cluster: dict[str, Any]) -> None:
    (exported,) = [line for line in cluster["setup_commands"] if "RAY_AUTH_MODE=token" in line]
    hook = f"{without_ray_client.__module__}.{without_ray_client.__name__}"
    assert f"RAY_START_HOOK={hook}" in exported
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    (start,) = [line for line in cluster["head_start_ray_commands"] if "ray start" in line]
    assert "--dashboard-host=127.0.0.1" in start


def test_the_head_trains_nothing(cluster: dict[str, Any]) -> None:
    (start,) = [line for line in cluster["head_start_ray_commands"] if "ray start" in line]
    head = cluster.get("available_node_types", {}).get("head", {"resources": {}})["resources"]
    assert head.get("CPU") == 0 or "--num-cpus=0" in start


def test_results_go_where_all_nodes_see_them(file: Path, cluster: dict[str, Any]) -> None:
    store = FILES[file.name][0]
    assert f"echo 'export TRIPLU_RAY_STORE={store}' >> ~/.bashrc" in cluster["setup_commands"]
    assert f"TRIPLU_RAY_STORE={store} triplu-ray report" in file.read_text()


@pytest.mark.parametrize(
    "path", [path for path in sorted(CLUSTERS.rglob("*")) if path.is_file()], ids=lambda p: p.name
)
def test_holds_no_secret(path: Path) -> None:
    assert not SECRET.search(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "aws_secret_access_key: x",
        '"private_key_id": "x"',
        "export RAY_AUTH_TOKEN=" + "a" * 64,
        "RAY_AUTH_TOKEN=$TOKEN",
    ],
)
def test_a_secret_would_be_seen(text: str) -> None:
    assert SECRET.search(text)
