# mypy: allow-untyped-calls
"""What `ray up` of the Google Cloud file asks for, told by Ray's own provider to a recorded Google.

Nothing leaves this machine: the requests are answered here, and the machines they describe are held
against the schema of the Compute API that Google's client brings along.
"""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

httplib2 = pytest.importorskip("httplib2")
pytest.importorskip("googleapiclient")

FILE = Path(__file__).parents[1] / "clusters" / "gcp.yaml"
SUBNET = "projects/my-project/regions/us-central1/subnetworks/default"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Google:
    """Answers what Ray's provider asks, and keeps the machines that it inserts."""

    def __init__(self) -> None:
        self.inserted: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.asked: list[str] = []

    def request(
        self, _http: Any, uri: str, method: str = "GET", body: Any = None, **_: Any
    ) -> tuple[Any, bytes]:
        path = re.sub(r"^https://|\?.*$", "", uri)
        self.asked.append(f"{method} {path}")
        return httplib2.Response({"status": "200"}), json.dumps(
            self.answer(path, method, body)
        ).encode()

    def answer(self, path: str, method: str, body: Any) -> dict[str, Any]:
        if path.endswith("/instances") and method == "POST":
            self.inserted.append(json.loads(body))
        elif path.endswith("/instances"):
            items = [{"status": "RUNNING", **machine} for machine in self.inserted]
            return {"items": [one for one in items if one["name"] not in self.deleted]}
        elif method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
        elif path.endswith("/subnetworks"):
            return {"items": [{"selfLink": SUBNET}]}
        elif path.endswith(":getIamPolicy"):
            return {"bindings": []}
        elif "/serviceAccounts/" in path:
            return {"email": path.rpartition("/")[2], "projectId": "my-project"}
        elif path.startswith("cloudresourcemanager"):
            return {"projectId": "my-project", "lifecycleState": "ACTIVE"}
        return {"name": "done", "status": "DONE", "commonInstanceMetadata": {}}


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Google:
    recorded = Google()
    monkeypatch.setattr(httplib2.Http, "request", lambda *a, **k: recorded.request(*a, **k))
    monkeypatch.setenv("HOME", str(tmp_path))
    return recorded


def bootstrapped() -> dict[str, Any]:
    """The file as `ray up` completes it."""
    from ray.autoscaler._private.gcp.config import bootstrap_gcp
    from ray.autoscaler._private.util import prepare_config

    config = prepare_config(yaml.safe_load(FILE.read_text()))
    config["provider"]["gcp_credentials"] = {"type": "credentials_token", "credentials": "x"}
    done = bootstrap_gcp(config)
    assert isinstance(done, dict)
    return done


def breaches(value: Any, kind: dict[str, Any], schemas: dict[str, Any], at: str = "") -> list[str]:
    """What a value has that its schema, in the words of Google's discovery, does not."""
    kind = schemas[kind["$ref"]] if "$ref" in kind else kind
    if isinstance(value, dict):
        if "additionalProperties" in kind:
            rest = dict.fromkeys(value, kind["additionalProperties"])
            return [b for k, v in value.items() for b in breaches(v, rest[k], schemas, f"{at}.{k}")]
        known = kind.get("properties", {})
        found = [f"{at}.{key} is unknown" for key in value if key not in known]
        for key in value.keys() & known.keys():
            found += breaches(value[key], known[key], schemas, f"{at}.{key}")
        return found
    if isinstance(value, list):
        return [b for one in value for b in breaches(one, kind["items"], schemas, f"{at}[]")]
    if value not in kind.get("enum", [value]):
        return [f"{at} is {value}"]
    types: dict[str, Any] = {
        "string": (str, int),
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }
    return [] if isinstance(value, types[kind["type"]]) else [f"{at} is no {kind['type']}"]


def compute_schemas() -> dict[str, Any]:
    documents = resources.files("googleapiclient.discovery_cache") / "documents"
    schemas = json.loads((documents / "compute.v1.json").read_text())["schemas"]
    assert isinstance(schemas, dict)
    return schemas


def test_every_machine_is_one_that_the_compute_api_knows(google: Google) -> None:
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    config = bootstrapped()
    provider = GCPNodeProvider(config["provider"], config["cluster_name"])
    types = config["available_node_types"]
    for name, node in types.items():
        kind = "head" if name == "head" else "worker"
        tags = {
            "ray-node-name": f"ray-triplu-ray-{kind}",
            "ray-node-type": kind,
            "ray-user-node-type": name,
        }
        provider.create_node({**config["head_node"], **node["node_config"]}, tags, 1)
    machines = {machine["labels"]["ray-user-node-type"]: machine for machine in google.inserted}
    assert machines.keys() == types.keys()
    schemas = compute_schemas()
    zone = "zones/us-central1-a"
    for name, machine in machines.items():
        assert breaches(machine, {"$ref": "Instance"}, schemas) == []
        assert machine["machineType"].startswith(f"{zone}/machineTypes/")
        (account,) = machine["serviceAccounts"]
        role = "head" if name == "head" else "worker"
        assert account["email"] == f"triplu-ray-{role}@my-project.iam.gserviceaccount.com"
        (disk,) = machine["disks"]
        assert disk["autoDelete"]
        assert disk["initializeParams"]["diskType"].startswith(f"{zone}/")
        assert machine["networkInterfaces"][0]["subnetwork"] == SUBNET
        gpus = sum(one["acceleratorCount"] for one in machine.get("guestAccelerators", []))
        assert gpus == types[name]["resources"].get("GPU", 0)
        spot = machine.get("scheduling", {}).get("provisioningModel") == "SPOT"
        assert spot == name.endswith("spot")
    for node in provider.non_terminated_nodes({}):
        provider.terminate_node(node)
    assert provider.non_terminated_nodes({}) == []


def test_a_breach_of_the_schema_is_seen() -> None:
    machine = {"machineType": "x", "scheduling": {"provisioningModel": "SPOTTY", "preempt": True}}
    assert sorted(breaches(machine, {"$ref": "Instance"}, compute_schemas())) == [
        ".scheduling.preempt is unknown",
        ".scheduling.provisioningModel is SPOTTY",
    ]


def test_the_head_asks_for_nothing_but_compute(google: Google) -> None:
    """Its account has the scope `compute` only, beside the bucket's."""
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    config = bootstrapped()
    google.asked.clear()
    provider = GCPNodeProvider(config["provider"], config["cluster_name"])
    tags = {"ray-node-name": "ray-triplu-ray-worker"}
    provider.create_node(config["available_node_types"]["gpu_spot"]["node_config"], tags, 1)
    (node,) = provider.non_terminated_nodes({})
    google.inserted[0]["labelFingerprint"] = "x"
    provider.set_node_tags(node, {"ray-node-status": "up-to-date"})
    provider.terminate_node(node)
    hosts = {request.split()[1].partition("/")[0] for request in google.asked}
    assert hosts == {"compute.googleapis.com"}
