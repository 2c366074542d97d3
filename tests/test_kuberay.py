"""The KubeRay file: as Kubernetes, as KubeRay and as Ray's autoscaler read it; no cluster."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.util import validate_config

ROOT = Path(__file__).parents[1]
FILE = ROOT / "clusters" / "kuberay.yaml"
DOCKERFILE = ROOT / "clusters" / "Dockerfile"

# KubeRay's rules for the parts that are used: ray-operator/apis/ray/v1/raycluster_types.go, as of
# KubeRay 1.5.1. Keys that must be there, and all keys that may be; others are refused or dropped.
GROUP = "template labels resources rayStartParams"
RULES: dict[str, tuple[str, str]] = {
    "": ("apiVersion kind metadata spec", ""),
    "spec": (
        "headGroupSpec",
        "upgradeStrategy authOptions suspend managedBy autoscalerOptions headServiceAnnotations "
        "enableInTreeAutoscaling gcsFaultToleranceOptions rayVersion workerGroupSpecs",
    ),
    "spec.authOptions": ("", "mode"),
    "spec.autoscalerOptions": (
        "",
        "resources image imagePullPolicy securityContext idleTimeoutSeconds upscalingMode version "
        "env envFrom volumeMounts",
    ),
    "spec.headGroupSpec": ("template", f"{GROUP} headService enableIngress serviceType"),
    "spec.workerGroupSpecs": (
        "groupName minReplicas maxReplicas template",
        f"{GROUP} suspend replicas idleTimeoutSeconds scaleStrategy numOfHosts",
    ),
}


def documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


@pytest.fixture
def cluster() -> dict[str, Any]:
    return documents()["RayCluster"]


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod specifications, the head's first."""
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def containers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [container for pod in pods(cluster) for container in pod["containers"]]


def breaches(cluster: dict[str, Any]) -> list[str]:
    """What breaks a rule of KubeRay's."""
    found = []
    for path, (required, optional) in RULES.items():
        part: Any = cluster
        for key in filter(None, path.split(".")):
            part = part.get(key, {})
        for one in part if isinstance(part, list) else [part]:
            needed, allowed = set(required.split()), set(f"{required} {optional}".split())
            found += [f"{path}: {key} is missing" for key in sorted(needed - one.keys())]
            found += [f"{path}: {key} is unknown" for key in sorted(one.keys() - allowed)]
    return found


def test_keeps_the_rules_of_kuberay(cluster: dict[str, Any]) -> None:
    assert cluster["apiVersion"] == "ray.io/v1"
    assert breaches(cluster) == []


def test_breaches_of_the_rules_are_seen(cluster: dict[str, Any]) -> None:
    cluster["spec"]["authOption"] = cluster["spec"].pop("authOptions")
    del cluster["spec"]["workerGroupSpecs"][0]["maxReplicas"]
    assert breaches(cluster) == [
        "spec: authOption is unknown",
        "spec.workerGroupSpecs: maxReplicas is missing",
    ]


def test_kubernetes_accepts_its_pods_and_the_other_objects(cluster: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
    built_in = [document for kind, document in documents().items() if kind != "RayCluster"]
    for document in [*built_in, *({**pod, "spec": spec} for spec in pods(cluster))]:
        kubernetes_validate.validate(document, "1.30", strict=True)
    wrong = {**pod, "spec": {**pods(cluster)[0], "toleration": []}}
    with pytest.raises(kubernetes_validate.ValidationError, match="toleration"):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_the_autoscaler_reads_gpu_workers_from_0_and_a_head_without_cpus(
    cluster: dict[str, Any],
) -> None:
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    cluster["metadata"]["namespace"] = "default"
    config = _derive_autoscaling_config_from_ray_cr(copy.deepcopy(cluster))
    validate_config(config)
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    assert types["gpu"]["resources"] == {"CPU": 4, "GPU": 1, "memory": 16 * 2**30}
    assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"]) == (0, 4)
    assert cluster["spec"]["workerGroupSpecs"][0]["replicas"] == 0
    assert config["idle_timeout_minutes"] == 5


def test_opens_with_up_submit_and_down() -> None:
    header = re.match(r"(?:#.*\n)+", FILE.read_text())
    assert header
    submit = (
        "kubectl exec service/triplu-ray-head-svc -c ray-head -- ray job submit -- "
        "triplu-ray sweep /home/ray/triplu-ray/search_spaces/main_1m.yaml resources.gpu=1"
    )
    assert (
        "#   up       kubectl apply -f clusters/kuberay.yaml\n"
        f"#   submit   {submit}\n"
        "#   down     kubectl delete -f clusters/kuberay.yaml\n"
    ) in header[0]


def test_only_holders_of_the_token_get_in(cluster: dict[str, Any]) -> None:
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    assert cluster["spec"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    hook = {
        "name": "RAY_START_HOOK",
        "value": "triplu_ray.environment.without_ray_client",
    }
    assert all(hook in container["env"] for container in containers(cluster))


def test_only_its_own_pods_reach_its_ports(cluster: dict[str, Any]) -> None:
    policy = documents()["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }


def test_nothing_runs_as_root(cluster: dict[str, Any]) -> None:
    for pod in pods(cluster):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
    contexts = [container["securityContext"] for container in containers(cluster)]
    for context in [*contexts, cluster["spec"]["autoscalerOptions"]["securityContext"]]:
        assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_pods_get_what_they_ask_for_and_no_more(cluster: dict[str, Any]) -> None:
    options = cluster["spec"]["autoscalerOptions"]["resources"]
    for resources in [options, *(one["resources"] for one in containers(cluster))]:
        assert resources["requests"] == resources["limits"]
    assert "nvidia.com/gpu" not in containers(cluster)[0]["resources"]["limits"]


def test_results_go_where_all_pods_see_them(cluster: dict[str, Any]) -> None:
    store = {"name": "TRIPLU_RAY_STORE", "value": "s3://my-bucket/triplu-ray"}
    assert all(store in container["env"] for container in containers(cluster))
    account = documents()["ServiceAccount"]["metadata"]["name"]
    assert all(pod["serviceAccountName"] == account for pod in pods(cluster))


def test_the_image_is_rays_own_with_the_checkout_as_constrained(cluster: dict[str, Any]) -> None:
    assert cluster["spec"]["rayVersion"] == ray.__version__
    lines = DOCKERFILE.read_text().splitlines()
    assert f"FROM rayproject/ray:{ray.__version__}-py311-gpu" in lines
    (install,) = [line for line in lines if "pip install" in line]
    assert install.endswith("--constraint constraints.txt --editable .")
    (image,) = {container["image"] for container in containers(cluster)}
    assert f"docker build -f clusters/Dockerfile -t {image} ." in FILE.read_text()


def test_the_image_holds_what_the_install_needs_and_no_results() -> None:
    ignored, *kept = [
        line
        for line in (ROOT / "clusters" / "Dockerfile.dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert ignored == "*"
    assert {line[1:] for line in kept if line.startswith("!")} == {
        "constraints.txt",
        "pyproject.toml",
        "README.md",
        "search_spaces",
        "triplu_ray",
    }
