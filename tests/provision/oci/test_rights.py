"""The policies that `doctor` names allow each call that a cluster makes, from its first `up` to its `down`."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from provision.oci import checks
from provision.oci.cloud import OciCloud
from provision.oci.errors import _SEVERAL, policy_for
from provision.rented.teardown import remove
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, FastClock, operations
from tests.provision.oci.permissions import NEEDED, OPTIONAL, granted, missing
from tests.provision.oci.test_scheduled_end import Scene

PAGE = Path(__file__).parents[3] / "docs" / "clouds.md"


def up_and_down(cloud: OciCloud, home: Path, **fields: Any) -> None:
    """Create two machines, then a third one, and remove everything."""
    builder = Builder(cloud, home, **fields)
    cloud.with_addresses(builder.machines(2))
    cloud.with_addresses(builder.machines(1, launch="b" * 32))
    for machine in cloud.instances(builder.cluster.id):
        cloud.failure(machine)
    assert remove(cloud, {builder.cluster.id}, clock=FastClock(), say=lambda _: None).leftovers == ()


def necessary(called: Collection[str]) -> set[str]:
    """Return the operations that OCI may not refuse."""
    return set(called) - OPTIONAL


def test_policies_allow_a_cluster_in_a_given_subnet(cloud: OciCloud, fake: FakeCloud, tmp_path: Path) -> None:
    subnet = Builder(cloud, tmp_path, name="other").infrastructure().ids["subnet"]
    fake.forget_calls()
    up_and_down(cloud, tmp_path, subnet_id=subnet)
    called = operations(fake)
    assert {"CreateNetworkSecurityGroup", "DeleteNetworkSecurityGroup", "LaunchInstance"} <= set(called)
    assert missing(necessary(called), checks.GIVEN_SUBNET) == {}
    assert missing(called, (*checks.GIVEN_SUBNET, *checks.TIME_LIMIT, *checks.HINTS)) == {}
    without = [policy for policy in checks.GIVEN_SUBNET if "vcns" not in policy]
    assert missing(necessary(called), without) == {
        "CreateNetworkSecurityGroup": ["VCN_ATTACH"],
        "DeleteNetworkSecurityGroup": ["VCN_DETACH"],
    }


@pytest.mark.parametrize("public_ip", [True, False])
def test_policies_allow_a_cluster_in_the_shared_network(
    cloud: OciCloud, fake: FakeCloud, tmp_path: Path, public_ip: bool
) -> None:
    up_and_down(cloud, tmp_path, public_ip=public_ip)
    called = operations(fake)
    assert {"CreateVcn", "DeleteVcn", "LaunchInstance"} <= set(called)
    assert ("CreateNatGateway" in called) is not public_ip
    assert missing(necessary(called), checks.SHARED_NETWORK) == {}


def test_policies_allow_machines_with_rdma(cloud: OciCloud, fake: FakeCloud, tmp_path: Path) -> None:
    up_and_down(cloud, tmp_path, shape="BM.GPU4.8")
    called = operations(fake)
    assert "CreateComputeCluster" in called
    assert missing(necessary(called), checks.SHARED_NETWORK) == {}
    assert "COMPUTE_CLUSTER_LAUNCH_INSTANCE" in granted("manage compute-clusters in compartment id x")


@pytest.mark.parametrize("given_subnet", [True, False])
def test_policies_allow_a_cluster_with_a_time_limit(
    cloud: OciCloud, fake: FakeCloud, tmp_path: Path, given_subnet: bool
) -> None:
    subnet = Builder(cloud, tmp_path, name="other").infrastructure().ids["subnet"]
    fake.forget_calls()
    scene = Scene(home=tmp_path, fake=fake)
    fields = {"subnet_id": subnet} if given_subnet else {}
    scene.up(2, **fields)
    scene.up(3, **fields)
    assert scene.provider.destroy() == ()
    called = operations(fake)
    assert {"AttachInstancePoolInstance", "CreateAutoScalingConfiguration", "TerminateInstancePool"} <= set(
        called
    )
    policies = checks.GIVEN_SUBNET if given_subnet else checks.SHARED_NETWORK
    assert missing(called, (*policies, *checks.TIME_LIMIT, *checks.HINTS)) == {}


def test_policies_for_a_time_limit_allow_pools_and_schedules() -> None:
    """With the policies of machines, as a pool is created and terminated with the rights to launch."""
    called = [
        name for name in NEEDED if "InstancePool" in name or "AutoScaling" in name or "Configuration" in name
    ]
    for policies in (checks.GIVEN_SUBNET, checks.SHARED_NETWORK):
        assert missing(called, (*policies, *checks.TIME_LIMIT)) == {}
        assert missing(called, policies) != {}


@pytest.mark.parametrize("operation", sorted(_SEVERAL))
def test_error_of_an_operation_names_all_policies_that_it_needs(operation: str) -> None:
    name = "".join(word.capitalize() for word in operation.split("_"))
    policies = [policy.format(compartment="x") for policy in _SEVERAL[operation]]
    assert missing([name], [policy.replace("<compartment of the VCN>", "y") for policy in policies]) == {}


def test_policy_that_an_error_names_grants_a_right_of_the_operation() -> None:
    for name, permissions in NEEDED.items():
        method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
        policy = policy_for(method, "x").removeprefix("Allow group <your group> to ")
        assert not permissions or granted(policy) & permissions, f"{name}: {policy}"


def test_page_lists_the_policies() -> None:
    at = {"compartment": "COMPARTMENT", "subnet": "SUBNET-COMPARTMENT", "vcn": "VCN-COMPARTMENT"}
    listed = re.findall(r"^Allow group GROUP to (.*)$", PAGE.read_text(), re.M)
    adopt = "manage instance-agent-command-family in compartment id {compartment}"
    needed = (*checks.SHARED_NETWORK, *checks.GIVEN_SUBNET, *checks.TIME_LIMIT, adopt, *checks.HINTS)
    assert listed == list(dict.fromkeys(policy.format(**at) for policy in needed))
    kubernetes = PAGE.with_name("kubernetes.md").read_text()
    more = checks.KUBERNETES[len(checks.SHARED_NETWORK) :]
    assert re.findall(r"^Allow group GROUP to (.*)$", kubernetes, re.M) == [
        item.format(**at) for item in more
    ]
