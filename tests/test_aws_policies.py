"""The AWS policies: what Ray's provider asks of EC2, and what clusters/aws.yaml names."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import ray.autoscaler
import yaml

POLICIES = Path(__file__).parents[1] / "clusters" / "aws-policies"
PROVIDER = Path(ray.autoscaler.__file__).parent / "_private" / "aws"

# What Ray's source asks for, but not for a cluster like ours, with the reason.
NEVER_ASKED = {
    "DescribeImages": "only for CloudWatch's agent",
    "DescribeLaunchTemplateVersions": "no launch template is named",
    "StartInstances": "nodes are not kept as stopped ones",
    "StopInstances": "nodes are not kept as stopped ones",
    "GetInstanceProfile": "the head's profile is named",
    "CreateInstanceProfile": "the head's profile is named",
    "AddRoleToInstanceProfile": "the head's profile is named",
    "GetRole": "the head's profile is named",
    "CreateRole": "the head's profile is named",
    "AttachRolePolicy": "the head's profile is named",
}
# Names that boto3 has too, but that mean Python's own methods and a profile's list of roles there.
NO_CALLS = {"copy", "update", "roles"}
# What `ray up` and `ray down` do; everything else is the head's too.
LAUNCHER_ALONE = {
    "AuthorizeSecurityGroupIngress",
    "CreateKeyPair",
    "CreateSecurityGroup",
    "DescribeInstanceTypes",
    "DescribeKeyPairs",
    "DescribeSecurityGroups",
    "DescribeSubnets",
}


def statements(name: str) -> list[dict[str, Any]]:
    policy = json.loads((POLICIES / f"{name}.json").read_text())
    assert policy["Version"] == "2012-10-17"
    return list(policy["Statement"])


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def actions(name: str, service: str = "ec2") -> set[str]:
    found = {action for one in statements(name) for action in listed(one["Action"])}
    return {action.partition(":")[2] for action in found if action.startswith(f"{service}:")}


def cluster() -> dict[str, Any]:
    config = yaml.safe_load((POLICIES.parent / "aws.yaml").read_text())
    assert isinstance(config, dict)
    return config


def calls() -> dict[str, set[str]]:
    """What Ray's provider calls, and the operations that boto3 has by that name.

    A name may be shared, as `attach_policy` is by roles, users and groups.
    """
    session = pytest.importorskip("boto3").Session(region_name="us-east-1")
    xform_name = pytest.importorskip("botocore").xform_name
    loader = session._session.get_component("data_loader")
    named: dict[str, set[str]] = {}
    for service in ("ec2", "iam"):
        for operation in session.client(service).meta.service_model.operation_names:
            named.setdefault(xform_name(operation), set()).add(operation)
        resources = loader.load_service_model(service, "resources-1")
        for part in [resources["service"], *resources["resources"].values()]:
            load = {"Load": part["load"]} if "load" in part else {}
            for name, member in {
                **part.get("actions", {}),
                **part.get("hasMany", {}),
                **load,
            }.items():
                named.setdefault(xform_name(name), set()).add(member["request"]["operation"])
    attributes = {
        node.attr
        for path in ("config.py", "node_provider.py", "utils.py")
        for node in ast.walk(ast.parse((PROVIDER / path).read_text()))
        if isinstance(node, ast.Attribute)
    }
    return {name: named[name] for name in attributes & named.keys()}


def test_the_policies_allow_what_rays_provider_calls_and_nothing_else() -> None:
    found = calls()
    assert {"create_instances", "key_pairs", "authorize_ingress", "load"} <= found.keys()
    known = NEVER_ASKED.keys() | actions("launcher")
    assert {name for name, operations in found.items() if not operations & known} == NO_CALLS
    asked = set().union(*found.values()) & known
    assert actions("launcher") == asked - NEVER_ASKED.keys()
    assert actions("head") == actions("launcher") - LAUNCHER_ALONE


def test_each_launches_its_machines_as_nodes_of_this_cluster_only() -> None:
    types = cluster()["available_node_types"]
    head = types.pop("head")["node_config"]["InstanceType"]
    machines = {
        "launcher": {head},
        "head": {t["node_config"]["InstanceType"] for t in types.values()},
    }
    own = cluster()["cluster_name"]
    for name, allowed in machines.items():
        (launch,) = [
            one
            for one in statements(name)
            if "ec2:RunInstances" in listed(one["Action"])
            and any(":instance/" in resource for resource in listed(one["Resource"]))
        ]
        condition = launch["Condition"]["StringEquals"]
        assert set(listed(condition["ec2:InstanceType"])) == allowed
        assert condition["aws:RequestTag/ray-cluster-name"] == own
        (end,) = [one for one in statements(name) if "ec2:TerminateInstances" in one["Action"]]
        assert end["Condition"]["StringEquals"] == {"aws:ResourceTag/ray-cluster-name": own}


def test_each_gives_away_one_role_only() -> None:
    types = cluster()["available_node_types"]
    roles = {
        name: node["node_config"]["IamInstanceProfile"]["Name"] for name, node in types.items()
    }
    given = {"launcher": roles.pop("head"), "head": roles.popitem()[1]}
    assert set(roles.values()) == {given["head"]}
    for name, role in given.items():
        (passed,) = [one for one in statements(name) if one["Action"] == "iam:PassRole"]
        assert passed["Resource"] == f"arn:aws:iam::*:role/{role}"
        assert actions(name, "iam") == {"PassRole"}


def test_each_resolves_the_image_that_is_named() -> None:
    image = cluster()["available_node_types"]["head"]["node_config"]["ImageId"]
    for name in ("launcher", "head"):
        (resolve,) = [one for one in statements(name) if one["Action"] == "ssm:GetParameters"]
        pattern = re.escape(resolve["Resource"].rpartition("parameter")[2]).replace(r"\*", ".*")
        assert re.fullmatch(pattern, image.removeprefix("resolve:ssm:"))


def test_workers_see_the_bucket_of_the_store_only() -> None:
    (store,) = re.findall(r"s3://[\w/-]+", cluster()["setup_commands"][-1])
    bucket = store.removeprefix("s3://").partition("/")[0]
    assert {one["Resource"] for one in statements("worker")} == {
        f"arn:aws:s3:::{bucket}",
        f"arn:aws:s3:::{bucket}/*",
    }
    assert actions("worker", "s3") == {"ListBucket", "GetObject", "PutObject", "DeleteObject"}


@pytest.mark.parametrize("name", ["head", "launcher", "worker"])
def test_only_what_cannot_be_narrowed_is_allowed_everywhere(name: str) -> None:
    for one in statements(name):
        assert one["Effect"] == "Allow"
        assert "*" not in "".join(listed(one["Action"]))
        if one["Resource"] == "*":
            assert all(action.startswith("ec2:Describe") for action in listed(one["Action"]))
