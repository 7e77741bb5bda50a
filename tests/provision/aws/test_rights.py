"""The rights in docs/clouds.md allow each call that a cluster on AWS makes, from its first `up` to its `down`."""

import json
import re
from pathlib import Path

import boto3
import pytest

from provision.aws import checks
from provision.records import CloudCluster
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import User, a_cluster, running

PAGE = Path(__file__).parents[3] / "docs" / "clouds.md"
CODE = Path(__file__).parents[3] / "provision" / "aws"
SERVICES = {
    "DescribeKey": "kms",
    "GetCallerIdentity": "sts",
    "GetParameter": "ssm",
    "GetServiceQuota": "servicequotas",
}
"""Services of operations that are not EC2's."""
FREE = {"sts:GetCallerIdentity"}
"""No permission is needed: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html"""
TAGGING = re.compile(r"ec2:(Create(?!Tags|Route$)|RunInstances|ImportKeyPair|AllocateAddress)")
"""Calls that tag what they create: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/supported-iam-actions-tagging.html"""


def statements() -> dict[str, set[str]]:
    """Return the actions of the page's IAM policy by the statement's Sid."""
    (block,) = re.findall(r"```json\n(\{\n  \"Version\".*?)```", PAGE.read_text(), re.S)
    result = {load["Sid"]: set(load["Action"]) for load in json.loads(block)["Statement"]}
    assert set(result) == {"Read", "Machines", "Tags", "Network", "PrivateNetwork"}
    return result


def needed(fake: FakeCloud) -> set[str]:
    """Return the actions that the calls of the log need."""
    called = {f"{SERVICES.get(name, 'ec2')}:{name}" for name in {call["operation"] for call in fake.calls()}}
    tags = {"ec2:CreateTags"} if any(TAGGING.match(action) for action in called) else set()
    return (called | tags) - FREE


def up_and_down(user: User, cluster: CloudCluster) -> None:
    """Look at the account as `doctor` does, create two machines, then a third, and remove everything."""
    user.cloud.check(cluster, 2)
    user.launch(cluster)
    user.launch(cluster, 1, token="u" * 32)
    (first, *_) = running(user, 3)
    user.cloud.console(first.id)
    user.remove_all()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, {"Network"}),
        ({"spot": True}, {"Network"}),
        ({"public_ip": False, "shape": "p4d.24xlarge"}, {"Network", "PrivateNetwork"}),
        ({"subnet_id": "the default"}, set[str]()),
    ],
)
def test_page_allows_all_calls_of_a_cluster(
    user: User, fake: FakeCloud, changes: dict[str, object], parts: set[str]
) -> None:
    if "subnet_id" in changes:
        changes = {"subnet_id": boto3.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]}
    fake.forget_calls()
    up_and_down(user, a_cluster(**changes))  # type: ignore[arg-type]
    result = statements()
    allowed = set.union(*(result[sid] for sid in ("Read", "Machines", "Tags", *parts)))
    assert needed(fake) - allowed == set()
    assert "ec2:RunInstances" in needed(fake)


def test_page_allows_all_operations_in_the_code() -> None:
    """Includes operations of rare cases, such as a repaired route or an open spot request."""
    operations = boto3.client("ec2", region_name="us-east-1").meta.method_to_api_mapping
    sources = "".join(path.read_text() for path in CODE.rglob("*.py"))
    named = {operations[name] for name in re.findall(r'"([a-z]+_[a-z_]+)"', sources) if name in operations}
    assert {f"ec2:{name}" for name in named} <= set.union(*statements().values())


def test_dry_runs_of_doctor_try_the_actions_of_the_page() -> None:
    tried = {checks._action(name) for name, _ in checks._dry_runs(a_cluster(public_ip=False), None)}
    tried |= {"ec2:RunInstances", "ec2:AuthorizeSecurityGroupEgress"}
    result = statements()
    changing = result["Machines"] | result["Network"] | result["PrivateNetwork"]
    assert tried <= changing
