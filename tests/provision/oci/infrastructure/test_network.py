"""The shared network, a private one, a given subnet: made once, mended, whatever is lost on the way."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from inventories.errors import InvalidInput
from provision.errors import Gone
from provision.oci import requests
from provision.oci.cloud import OciCloud
from provision.rented import tags
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import PUBLIC_KEY, Builder, delete_all, group_rules, kinds, operations


def test_prepare_creates_the_network_once_and_shares_it(
    builder: Builder, fake: FakeCloud, tmp_path: Path
) -> None:
    first = builder.infrastructure()
    made = operations(fake, mutating=True)
    assert sorted(made) == [
        "AddNetworkSecurityGroupSecurityRules",
        "CreateInternetGateway",
        "CreateNetworkSecurityGroup",
        "CreateRouteTable",
        "CreateSecurityList",
        "CreateSubnet",
        "CreateVcn",
    ]
    assert builder.infrastructure() == first
    other = Builder(builder.cloud, tmp_path, name="other").infrastructure()
    assert (other.ids["vcn"], other.ids["subnet"]) == (first.ids["vcn"], first.ids["subnet"])
    assert other.ids["nsg"] != first.ids["nsg"]
    assert len(operations(fake, mutating=True)) == len(made) + 2
    assert {resource.kind for resource in builder.cloud.resources() if tags.is_shared(resource.tags)} == {
        "internet-gateway",
        "route-table",
        "security-list",
        "subnet",
        "vcn",
    }
    delete_all(builder.cloud)
    assert fake.owned() == []


def test_prepare_private_shares_the_vcn_and_uses_its_own_subnet(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    builder = Builder(cloud, tmp_path, public_ip=False)
    (machine,) = cloud.with_addresses(builder.machines())
    assert machine.public_ip is None
    assert (machine.private_ip or "").startswith("10.78.128.")
    assert sorted(kinds(cloud)) == [
        "boot-volume",
        "nat-gateway",
        "nsg",
        "route-table",
        "security-list",
        "service-gateway",
        "subnet",
        "vcn",
    ]
    # A public cluster in the same account uses the same VCN, with a separate subnet.
    extra = Builder(cloud, tmp_path, name="beside").infrastructure()
    assert kinds(cloud).count("vcn") == 1
    assert kinds(cloud).count("subnet") == 2
    assert kinds(cloud).count("security-list") == 1
    assert extra.ids["subnet"] != builder.infrastructure().ids["subnet"]


def test_prepare_uses_a_given_subnet(
    builder: Builder, cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    subnet = builder.infrastructure().ids["subnet"]
    fake.forget_calls()
    guest = Builder(cloud, tmp_path, name="guest", subnet_id=subnet)
    assert guest.infrastructure().ids["subnet"] == subnet
    assert guest.infrastructure().ids["peer_cidr"] == "10.78.0.0/17"
    assert sorted(operations(fake, mutating=True)) == [
        "AddNetworkSecurityGroupSecurityRules",
        "CreateNetworkSecurityGroup",
    ]
    with pytest.raises(InvalidInput, match="no subnet"):
        Builder(cloud, tmp_path, subnet_id="ocid1.subnet.oc1..none").offer()
    private = Builder(cloud, tmp_path, name="private", public_ip=False).infrastructure().ids["subnet"]
    with pytest.raises(InvalidInput, match="private one"):
        Builder(cloud, tmp_path, subnet_id=private).offer()


def test_prepare_takes_peer_cidr_from_the_subnet(builder: Builder, cloud: OciCloud, tmp_path: Path) -> None:
    assert builder.infrastructure().ids["peer_cidr"] == "10.78.0.0/17"
    private = Builder(cloud, tmp_path, name="private", public_ip=False).infrastructure()
    assert private.ids["peer_cidr"] == "10.78.128.0/17"
    # A subnet of the user: its range is read, whatever its name.
    where = cloud.target.compartment
    vcn = cloud.api.call("network.create_vcn", {"compartmentId": where, "cidrBlocks": ["172.16.0.0/20"]})
    body = {"compartmentId": where, "vcnId": vcn["id"], "cidrBlock": "172.16.8.0/24"}
    theirs = cloud.api.settled(lambda: cloud.api.call("network.create_subnet", body))
    guest = Builder(cloud, tmp_path, name="guest", subnet_id=theirs["id"])
    assert guest.infrastructure().ids["peer_cidr"] == "172.16.8.0/24"


def test_prepare_sets_exactly_the_requested_ssh_rules(
    builder: Builder, cloud: OciCloud, tmp_path: Path
) -> None:
    nsg = builder.infrastructure().ids["nsg"]
    moved = Builder(cloud, tmp_path, ssh_cidrs=("198.51.100.0/24", "2001:db8::/64"), ssh_port=2222)
    assert moved.infrastructure().ids["nsg"] == nsg
    assert group_rules(cloud, nsg) == [
        ("EGRESS", "0.0.0.0/0", None),
        ("INGRESS", "198.51.100.0/24", 2222),
        ("INGRESS", nsg, None),
    ]
    with pytest.raises(InvalidInput, match="IPv4"):
        Builder(cloud, tmp_path, ssh_cidrs=("2001:db8::/64",)).infrastructure()


def test_prepare_accepts_60_ssh_cidrs(cloud: OciCloud, tmp_path: Path) -> None:
    cidrs = tuple(f"203.0.113.{host}/32" for host in range(60))
    infrastructure = Builder(cloud, tmp_path, ssh_cidrs=cidrs).infrastructure()
    assert len(group_rules(cloud, infrastructure.ids["nsg"])) == 62


def test_prepare_with_a_lost_reply_adds_no_rules_twice(builder: Builder, fake: FakeCloud) -> None:
    fake.fault(operation="AddNetworkSecurityGroupSecurityRules", kind="drop_after")
    nsg = builder.infrastructure().ids["nsg"]
    assert len(group_rules(builder.cloud, nsg)) == 3
    fake.fault(operation="AddNetworkSecurityGroupSecurityRules", kind="duplicate")
    other = replace(builder.cluster, ssh_cidrs=("198.51.100.0/24",))
    builder.cloud.prepare(other, builder.offer(), PUBLIC_KEY, builder.ensure)
    builder.cloud.prepare(other, builder.offer(), PUBLIC_KEY, builder.ensure)
    assert len(group_rules(builder.cloud, nsg)) == 3


def test_prepare_restores_a_missing_default_route(builder: Builder, fake: FakeCloud) -> None:
    builder.infrastructure()
    table = next(resource for resource in builder.cloud.resources() if resource.kind == "route-table")
    builder.cloud.api.call("network.update_route_table", table.id, {"routeRules": []}, again=True)
    builder.infrastructure()
    view = builder.cloud.api.call("network.get_route_table", table.id)
    assert [route["destination"] for route in view["routeRules"]] == ["0.0.0.0/0"]


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "duplicate"])
def test_prepare_survives_a_fault_at_every_changing_call(
    builder: Builder, fake: FakeCloud, kind: str
) -> None:
    for nth in range(1, 8):
        fake.fault(mutating=True, nth=nth, kind=kind)
    builder.infrastructure()
    assert sorted(kinds(builder.cloud)) == [
        "internet-gateway",
        "nsg",
        "route-table",
        "security-list",
        "subnet",
        "vcn",
    ]


def test_prepare_with_lagging_lists_creates_one_vcn(builder: Builder, fake: FakeCloud) -> None:
    fake.settings(list_lag_s=0.5)
    first = builder.infrastructure()
    assert operations(fake).count("CreateVcn") == 1
    time.sleep(0.5)
    assert builder.infrastructure() == first


def test_prepare_stays_in_the_vcn_of_the_clusters_nsg(
    builder: Builder, cloud: OciCloud, tmp_path: Path
) -> None:
    vcn = requests.vcn(builder.cluster)
    made = [cloud.api.call("network.create_vcn", vcn)["id"] for _ in range(2)]
    nsg = requests.nsg(builder.cluster, max(made))
    cloud.api.call("network.create_network_security_group", nsg)
    assert builder.infrastructure().ids["vcn"] == max(made)
    # Another one takes the lowest, as everybody does.
    assert Builder(cloud, tmp_path, name="other").infrastructure().ids["vcn"] == min(made)


def test_prepare_retries_while_a_resource_is_busy(builder: Builder, fake: FakeCloud) -> None:
    for operation in ("CreateSubnet", "CreateInternetGateway", "AddNetworkSecurityGroupSecurityRules"):
        fake.fault(
            operation=operation, kind="error", status=409, code="IncorrectState", message="busy", times=2
        )
    builder.infrastructure()
    assert operations(fake).count("CreateSubnet") == 3


def test_prepare_retries_not_found_after_create(builder: Builder, fake: FakeCloud) -> None:
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no VCN"}
    fake.fault(operation="CreateSubnet", times=2, **fault)
    builder.infrastructure()
    fake.fault(operation="CreateNetworkSecurityGroup", times=0, **fault)
    with pytest.raises(Gone, match="manage network-security-groups"):
        Builder(builder.cloud, builder.home, name="other").infrastructure()


def test_prepare_and_delete_ignore_foreign_vcns(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    body = {"compartmentId": cloud.target.compartment, "cidrBlocks": ["10.0.0.0/16"], "displayName": "gpuctl"}
    stranger = cloud.api.call("network.create_vcn", body)
    assert cloud.resources() == ()
    assert builder.infrastructure().ids["vcn"] != stranger["id"]
    delete_all(cloud)
    assert [
        item["id"]
        for item in fake.state()["resources"]
        if item["kind"] == "vcn" and item["state"] == "AVAILABLE"
    ] == [stranger["id"]]
