# mypy: allow-untyped-calls
"""`ray up` of the AWS file, for real against a stand-in for AWS on this machine: moto.

It goes as far as the launched head, whose SSH never answers. The stand-in heeds the actions of the
policies, so that one which a policy forgot is refused, as it would be there; it knows neither their
resources nor their conditions.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

boto3 = pytest.importorskip("boto3")
botocore = pytest.importorskip("botocore")
pytest.importorskip("moto.server")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:boto")]

ROOT = Path(__file__).parents[1]
FILE = ROOT / "clusters" / "aws.yaml"
POLICIES = ROOT / "clusters" / "aws-policies"
REGION = "us-east-1"


@dataclass(frozen=True)
class Account:
    """An account of the stand-in, with what create.py makes in it."""

    address: str
    home: Path

    def environment(self, key: str = "testing", secret: str = "testing") -> dict[str, str]:
        """That of a process which sees no other AWS; by default the administrator's."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RAY_"))}
        return {
            **inherited,
            "PATH": f"{self.home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "AWS_ENDPOINT_URL": self.address,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def client(self, service: str, key: str = "testing", secret: str = "testing") -> Any:
        """By default the administrator's."""
        return boto3.client(
            service,
            REGION,
            endpoint_url=self.address,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    @contextlib.contextmanager
    def policies_in_force(self) -> Iterator[None]:
        """Requests are refused that no policy allows; the administrator's too."""
        self._free_requests("0")
        try:
            yield
        finally:
            self._free_requests("inf")

    def _free_requests(self, number: str) -> None:
        reset = urllib.request.Request(
            f"{self.address}/moto-api/reset-auth",
            data=number.encode(),
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(reset).close()

    def instances(self) -> list[dict[str, Any]]:
        found = self.client("ec2").describe_instances()["Reservations"]
        return [instance for reservation in found for instance in reservation["Instances"]]


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Account(f"http://127.0.0.1:{port}", home)
    log = home / "moto.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env=made.environment() | {"INITIAL_NO_AUTH_ACTION_COUNT": "inf"},
            stdout=output,
            stderr=output,
        ) as server,
    ):
        try:

            def answers() -> bool:
                with contextlib.suppress(OSError):
                    return bool(urllib.request.urlopen(f"{made.address}/moto-api/data.json"))
                return False

            wait_until(answers, server, log)
            create = [sys.executable, str(POLICIES / "create.py"), "my-bucket", REGION]
            subprocess.run(create, env=made.environment(), check=True)
            # As if it had broken off between the head's profile and its role: again changes that.
            role = "triplu-ray-head"
            made.client("iam").remove_role_from_instance_profile(
                InstanceProfileName=role, RoleName=role
            )
            subprocess.run(create, env=made.environment(), check=True)
            yield made
        finally:
            server.kill()


def user_with(account: Account, name: str) -> tuple[str, str]:
    """Credentials of a user who may do what a policy says, if there is one of this name.

    The stand-in knows a policy's actions only, so they are allowed on whatever.
    """
    iam = account.client("iam")
    iam.create_user(UserName=name)
    if (file := POLICIES / f"{name}.json").exists():
        policy = json.loads(file.read_text())
        for statement in policy["Statement"]:
            statement.pop("Condition", None)
            statement["Resource"] = "*"
        document = json.dumps(policy)
        iam.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=document)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


@pytest.fixture(scope="module")
def launched(account: Account) -> str:
    """The log of a `ray up` by a user with the launcher's policy, ended where it waits for SSH."""
    environment = account.environment(*user_with(account, "launcher"))
    # An ssh that reaches nobody: the stand-in's machines have addresses of the world outside.
    ssh, calls, log = account.home / "bin" / "ssh", account.home / "calls", account.home / "up.log"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexit 255\n')
    ssh.chmod(0o755)
    token = ["ray", "get-auth-token", "--generate"]
    subprocess.run(token, env=environment, check=True, capture_output=True)
    command = ["ray", "up", "-y", str(FILE.relative_to(ROOT)), "--no-config-cache"]
    with (
        account.policies_in_force(),
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until(lambda: calls.exists() and "ubuntu@" in calls.read_text(), process, log)
        finally:
            process.kill()
    return log.read_text()


def profile_of(instance: dict[str, Any]) -> str:
    return str(instance["IamInstanceProfile"]["Arn"]).rpartition("/")[2]


def tags_of(instance: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def test_create_py_makes_the_bucket_and_the_roles(account: Account) -> None:
    assert [one["Name"] for one in account.client("s3").list_buckets()["Buckets"]] == ["my-bucket"]
    iam = account.client("iam")
    for name, policies in {"head": ["store", "autoscaler"], "worker": ["store"]}.items():
        role = f"triplu-ray-{name}"
        profile = iam.get_instance_profile(InstanceProfileName=role)["InstanceProfile"]
        assert [one["RoleName"] for one in profile["Roles"]] == [role]
        assert iam.list_role_policies(RoleName=role)["PolicyNames"] == policies


def test_launches_the_head_and_nothing_else(account: Account, launched: str) -> None:
    (head,) = account.instances()
    assert head["InstanceType"] == "m7i.xlarge"
    assert profile_of(head) == "triplu-ray-head"
    assert tags_of(head)["ray-cluster-name"] == "triplu-ray"
    assert tags_of(head)["ray-node-type"] == "head"
    assert "InstanceLifecycle" not in head
    assert "AccessDenied" not in launched


def test_makes_the_key_and_a_security_group_that_lets_in_ssh_only(
    account: Account, launched: str
) -> None:
    del launched
    (head,) = account.instances()
    (key,) = account.client("ec2").describe_key_pairs()["KeyPairs"]
    assert head["KeyName"] == key["KeyName"] == f"ray-autoscaler_{REGION}"
    pem = account.home / ".ssh" / f"{key['KeyName']}.pem"
    assert pem.stat().st_mode & 0o777 == 0o600
    (group,) = account.client("ec2").describe_security_groups(
        GroupIds=[one["GroupId"] for one in head["SecurityGroups"]]
    )["SecurityGroups"]
    from_outside = [rule for rule in group["IpPermissions"] if rule["IpRanges"]]
    assert [(rule["FromPort"], rule["ToPort"]) for rule in from_outside] == [(22, 22)]
    (inside,) = [rule for rule in group["IpPermissions"] if not rule["IpRanges"]]
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group["GroupId"]]


def test_the_head_may_launch_and_end_every_type_of_worker(
    account: Account, launched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.aws.utils import resource_cache
    from ray.autoscaler._private.util import prepare_config

    def become(environment: dict[str, str]) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        resource_cache.cache_clear()

    del launched
    become(account.environment())
    config = bootstrap_aws(prepare_config(yaml.safe_load(FILE.read_text())))
    become(account.environment(*user_with(account, "head")))
    types = {name: node for name, node in config["available_node_types"].items() if name != "head"}
    with account.policies_in_force():
        provider = AWSNodeProvider(config["provider"], config["cluster_name"])
        for name, node in types.items():
            tags = {"ray-node-type": "worker", "ray-user-node-type": name}
            provider.create_node(node["node_config"], tags, 1)
        nodes = provider.non_terminated_nodes({"ray-node-type": "worker"})
        provider.set_node_tags(nodes[0], {"ray-node-status": "up-to-date"})
    found = [(tags_of(instance), instance) for instance in account.instances()]
    launched_types = {
        tags["ray-user-node-type"]: instance
        for tags, instance in found
        if tags["ray-node-type"] == "worker"
    }
    assert launched_types.keys() == types.keys()
    for name, instance in launched_types.items():
        assert instance["InstanceType"] == types[name]["node_config"]["InstanceType"]
        assert profile_of(instance) == "triplu-ray-worker"
        assert (instance.get("InstanceLifecycle") == "spot") == name.endswith("spot")
    with account.policies_in_force():
        provider.terminate_nodes(nodes)
    states = {one["InstanceId"]: one["State"]["Name"] for one in account.instances()}
    assert {states[node] for node in nodes} <= {"shutting-down", "terminated"}


def test_the_policies_are_in_force(account: Account, launched: str) -> None:
    """A user without any policy is refused, so that the tests above cannot pass by accident."""
    del launched
    ec2 = account.client("ec2", *user_with(account, "nobody"))
    with (
        account.policies_in_force(),
        pytest.raises(botocore.exceptions.ClientError, match="AccessDenied"),
    ):
        ec2.describe_instances()
