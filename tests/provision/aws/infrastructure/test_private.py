"""Private subnets on AWS: a NAT gateway, its address and an endpoint for S3, made once and gone with the last."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from clocks import StepClock

from inventories.threads import run_all, values
from provision import errors
from provision.aws.cloud import AwsCloud
from provision.aws.infrastructure import nat
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker
from provision.aws.resources.resource_types import KINDS
from provision.records import CloudCluster, Infrastructure, Zone
from provision.rented import teardown
from provision.rented.state import NETWORK_LOCK_WAIT_S
from provision.waiting import quiet
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import NEW, User, a_cluster, operations, running
from tests.provision.aws.infrastructure.test_network import INFRASTRUCTURE, kinds

PRIVATE = Counter(
    {"natgateway": 1, "elastic-ip": 1, "vpc-endpoint": 1, "subnet": 1, "route-table": 1},
)
"""Resources of a private cluster that a public cluster does not have."""


def a_private(name: str = "demo", **changes: Any) -> Any:
    return a_cluster(name=name, id=(name * 16)[:16], public_ip=False, **changes)


def state_of(fake: FakeCloud, kind: str) -> list[str]:
    return [entry["state"] for entry in fake.state()["resources"] if entry["kind"] == kind]


def tables(vpc_id: str) -> dict[str, Any]:
    """Return gpuctl's route tables by their subnet."""
    ours: Any = [{"Name": "vpc-id", "Values": [vpc_id]}, {"Name": "tag-key", "Values": ["gpuctl"]}]
    result = boto3.client("ec2").describe_route_tables(Filters=ours)["RouteTables"]
    return {
        link["SubnetId"]: table for table in result for link in table["Associations"] if "SubnetId" in link
    }


def test_private_launch_has_no_public_ip_and_routes_through_nat(user: User, fake: FakeCloud) -> None:
    fake.settings(nat_ready_s=90)
    cluster = a_private(shape="p4d.24xlarge")
    user.launch(cluster)
    machines = running(user, 2)
    assert all(machine.private_ip and machine.public_ip is None for machine in machines)
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE + Counter({"instance": 2})
    assert state_of(fake, "natgateway") == ["available"]
    (reservation,) = boto3.client("ec2").describe_instances(
        Filters=[{"Name": "instance-id", "Values": [machines[0].id]}]
    )["Reservations"]
    (instance,) = reservation["Instances"]
    types = sorted(interface["InterfaceType"] for interface in instance["NetworkInterfaces"])
    assert types == ["efa-only"] * 4 + ["interface"], "all EFA interfaces of its type"
    of = tables(instance["VpcId"])
    private = of.pop(instance["SubnetId"])
    ways = {(route.get("DestinationCidrBlock"), route.get("State")) for route in private["Routes"]}
    (gateway,) = boto3.client("ec2").describe_nat_gateways()["NatGateways"]
    assert gateway["SubnetId"] in of, "it stands in a public subnet"
    assert ("0.0.0.0/0", "active") in ways
    targets = {route.get("NatGatewayId") or route.get("GatewayId", "")[:5] for route in private["Routes"]}
    assert targets == {"local", gateway["NatGatewayId"], "vpce-"}


def test_prepare_creates_private_network_once(user: User, fake: FakeCloud) -> None:
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    first = user.infrastructure(cluster, offer)
    fake.forget_calls()
    assert user.infrastructure(cluster, offer) == first
    assert operations(fake) == []


def test_private_preview_lists_exactly_the_calls_launch_makes(user: User, fake: FakeCloud) -> None:
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    shown = user.cloud.preview(cluster, offer, NEW, ()).requests
    user.launch(cluster)
    assert Counter(request.operation for request in shown) == Counter(operations(fake))
    assert any("$0.045" in note for note in offer.notes)
    again = user.cloud.preview(cluster, offer, NEW, user.cloud.resources(), cluster.ssh_cidrs)
    assert [request.operation for request in again.requests] == ["RunInstances"]
    assert {resource.action for resource in again.resources} == {"use"}
    billed = {resource.kind: resource.hourly_usd for resource in again.resources if resource.hourly_usd}
    assert billed == {"elastic-ip": 0.005, "nat-gateway": 0.045}


def test_private_clusters_in_two_zones_share_one_nat_gateway(user: User, fake: FakeCloud) -> None:
    item, two = a_private(), a_private("other")
    user.infrastructure(item, user.cloud.offer(item))
    before = kinds(fake)
    user.infrastructure(two, user.cloud.offer(two), Zone(name="us-east-1b"))
    new = Counter({"subnet": 1, "security-group": 1, "key-pair": 1, "placement-group": 1})
    assert kinds(fake) == before + new


def remove(user: User, *clusters: Any) -> teardown.Removed:
    return teardown.remove(user.cloud, {cluster.id for cluster in clusters}, clock=user.clock, say=quiet)


def test_nat_gateway_is_removed_with_the_last_private_cluster(user: User, fake: FakeCloud) -> None:
    """Billed resources are deleted with the last private cluster, even if public clusters remain."""
    public, private, second = a_cluster(), a_private("private"), a_private("second")
    prepared = [
        user.infrastructure(cluster, user.cloud.offer(cluster)) for cluster in (public, private, second)
    ]
    assert len({infrastructure.ids["vpc"] for infrastructure in prepared}) == 1
    assert prepared[0].ids["subnet"] != prepared[1].ids["subnet"] == prepared[2].ids["subnet"]
    removed = remove(user, private)
    assert removed == teardown.Removed(leftovers=(), network_users=("demo", "second"))
    assert kinds(fake) & PRIVATE == PRIVATE
    fake.settings(nat_gone_s=120)
    assert remove(user, second) == teardown.Removed(leftovers=(), network_users=("demo",))
    assert kinds(fake) == INFRASTRUCTURE
    fake.forget_calls()
    assert user.infrastructure(public, user.cloud.offer(public)) == prepared[0]
    assert operations(fake) == []
    assert remove(user, public) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_public_cluster_removal_keeps_network_for_private_cluster(user: User, fake: FakeCloud) -> None:
    public, private = a_cluster(), a_private("private")
    for cluster in (public, private):
        user.infrastructure(cluster, user.cloud.offer(cluster))
    assert remove(user, public).network_users == ("private",)
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE
    assert remove(user, private) == teardown.Removed(leftovers=())
    assert not fake.owned()


@pytest.mark.parametrize(
    ("operation", "nth"),
    [
        ("AllocateAddress", 1),
        ("CreateNatGateway", 1),
        ("CreateVpcEndpoint", 1),
        ("CreateRouteTable", 2),
        ("CreateSubnet", 2),
        ("AssociateRouteTable", 2),
        ("CreateRoute", 2),
    ],
)
@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "error", "duplicate"])
def test_private_launch_with_a_lost_reply_creates_nothing_twice(
    user: User, fake: FakeCloud, operation: str, nth: int, kind: str
) -> None:
    fake.fault(operation=operation, kind=kind, nth=nth)
    user.launch(a_private())
    # The reply to a request without a token is lost and the network repeats it; `down` finds the extra resource.
    stray = Counter({"elastic-ip": 1} if (operation, kind) == ("AllocateAddress", "duplicate") else {})
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE + stray + Counter({"instance": 2})
    running(user, 2)
    assert teardown.remove(user.cloud, None, clock=user.clock, say=quiet) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_private_launch_with_lagging_lists_creates_nothing_twice(user: User, fake: FakeCloud) -> None:
    fake.settings(list_lag_s=3, use_lag_s=2)
    user.launch(a_private())
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE + Counter({"instance": 2})


@pytest.mark.slow
def test_prepare_private_survives_lost_replies_with_lagging_lists(
    fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors of repeated calls cannot be explained by the lists yet."""
    monkeypatch.setenv("GPUCTL_CONSISTENCY_S", "60")
    user = User(tmp_path / "home")
    fake.settings(list_lag_s=40)
    for operation in ("AttachInternetGateway", "AssociateRouteTable", "CreateRoute"):
        fake.fault(operation=operation, kind="drop_after", times=3)
    for operation in ("AllocateAddress", "CreateNatGateway", "CreateVpcEndpoint"):
        fake.fault(operation=operation, kind="drop_after")
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    made = Counter(operations(fake))
    assert [made[name] for name in ("AllocateAddress", "CreateInternetGateway", "CreateSubnet")] == [1, 1, 2]


@pytest.mark.slow
def test_private_launch_by_two_users_at_once_is_removable(fake: FakeCloud, tmp_path: Path) -> None:
    """Only the account is shared: both users get a working network, and both are removed."""
    users = [User(tmp_path / name) for name in ("one", "two")]
    clusters = [a_private("aaa"), a_private("bbb")]
    fake.settings(nat_ready_s=20)

    def launch(number: int) -> tuple[str, ...]:
        return users[number].launch(clusters[number], token=str(number) * 32)

    assert [len(ids) for ids in values(run_all(launch, (0, 1)))] == [2, 2]
    running(users[0], 4)
    assert teardown.remove(users[0].cloud, None, clock=users[0].clock, say=quiet).leftovers == ()
    assert not fake.owned()


def test_prepare_takes_another_address_when_the_first_is_taken(
    user: User, fake: FakeCloud, tmp_path: Path
) -> None:
    """A process with a separate VPC saw the address free, too: its gateway gets it, and this one fails."""
    cluster = a_private()
    theirs = a_cluster(name="ccc", id="c" * 16)
    infrastructure = user.infrastructure(theirs, user.cloud.offer(theirs))
    output: list[str] = []
    other = User(tmp_path / "other", user.cloud, say=output.append)
    fake.fault(operation="CreateNatGateway", nth=1, kind="hold_before")
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(other.infrastructure, cluster, user.cloud.offer(cluster))
        assert fake.held(wait_s=30)
        (address,) = boto3.client("ec2").describe_addresses()["Addresses"]
        elsewhere = a_gateway_elsewhere(address["AllocationId"])
        fake.release()
        assert coming.result(timeout=30).ids["vpc"] == infrastructure.ids["vpc"]
    assert "took the address at the same time" in "".join(output)
    assert {g["VpcId"] for g in usable_gateways()} == {elsewhere, infrastructure.ids["vpc"]}
    assert kinds(fake)["elastic-ip"] == 2


def a_gateway_elsewhere(address: str) -> str:
    """Create a NAT gateway in a foreign VPC. Returns the VPC's id."""
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    internet = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=internet, VpcId=vpc)
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.99.0.0/24")["Subnet"]["SubnetId"]
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)
    return vpc


def usable_gateways() -> list[Any]:
    return [
        g for g in boto3.client("ec2").describe_nat_gateways()["NatGateways"] if g["State"] == "available"
    ]


def way_out_of(infrastructure: Infrastructure) -> Any:
    """Return the default route of the machines' subnet."""
    routes = tables(infrastructure.ids["vpc"])[infrastructure.ids["subnet"]]["Routes"]
    (out,) = [route for route in routes if route.get("DestinationCidrBlock") == "0.0.0.0/0"]
    return out


def test_prepare_by_two_users_at_once_keeps_one_nat_gateway(
    user: User, fake: FakeCloud, tmp_path: Path
) -> None:
    """One looked before the other created its gateway; machines use that gateway when the slower user continues."""
    early, late = a_private("aaa"), a_private("bbb")
    offer = user.cloud.offer(early)
    public = a_cluster(name="ccc", id="c" * 16)
    user.infrastructure(public, offer)
    output: list[str] = []
    other = User(tmp_path / "other", user.cloud, say=output.append)
    fake.fault(operation="AllocateAddress", nth=1, kind="hold_before")
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(other.infrastructure, late, offer)
        assert fake.held(wait_s=30)
        infrastructure = user.infrastructure(early, offer)
        (first,) = usable_gateways()
        fake.release()
        assert coming.result(timeout=30).ids["subnet"] == infrastructure.ids["subnet"]
    assert usable_gateways() == [first]
    assert kinds(fake)["elastic-ip"] == 1, "the other one's address went with it"
    out = way_out_of(infrastructure)
    assert (out["NatGatewayId"], out["State"]) == (first["NatGatewayId"], "active")
    assert "another NAT gateway was made at the same time" in output[-1]
    assert remove(user, early, late, public) == teardown.Removed(leftovers=())
    assert not fake.owned()


@pytest.mark.parametrize("made", ["lower", "higher"])
def test_nat_agree_keeps_the_lower_id_of_two_unused_gateways(user: User, fake: FakeCloud, made: str) -> None:
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    (first,) = usable_gateways()
    a_second_gateway(first)
    user.wait(lambda: len(usable_gateways()) == 2)
    low, high = sorted(gateway["NatGatewayId"] for gateway in usable_gateways())
    local = low if made == "lower" else high
    maker, nats = a_maker(user, cluster)
    assert nat.agree(maker, local, first["VpcId"], None, nats, made=True) == low
    assert len(usable_gateways()) == kinds(fake)["elastic-ip"] == (2 if made == "lower" else 1)


def a_maker(user: User, cluster: CloudCluster) -> tuple[ResourceMaker, Listing]:
    """With the list of all NAT gateways."""
    maker = user.cloud.maker(cluster, user.ensure)
    return maker, maker.listing("describe_nat_gateways", "NatGateways", [])


def a_second_gateway(first: Any) -> str:
    """Create another gpuctl gateway in the same VPC."""
    ec2 = boto3.client("ec2")
    tag: Any = [{"Key": "gpuctl", "Value": "@network"}, {"Key": "gpuctl-tier", "Value": "private"}]
    address = ec2.allocate_address(TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tag}])
    made = ec2.create_nat_gateway(
        SubnetId=first["SubnetId"],
        AllocationId=address["AllocationId"],
        TagSpecifications=[{"ResourceType": "natgateway", "Tags": tag}],
    )
    return str(made["NatGateway"]["NatGatewayId"])


def test_prepare_keeps_a_working_route_despite_a_lower_gateway_id(user: User, fake: FakeCloud) -> None:
    """Whichever of two gateways is the lower one: machines have connections through the one that is used."""
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    (first,) = usable_gateways()
    second = a_second_gateway(first)
    user.wait(lambda: "pending" not in state_of(fake, "natgateway"))
    used = max(first["NatGatewayId"], second)
    table = tables(infrastructure.ids["vpc"])[infrastructure.ids["subnet"]]["RouteTableId"]
    way = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": used}
    boto3.client("ec2").replace_route(RouteTableId=table, **way)
    fake.forget_calls()
    assert user.infrastructure(cluster, offer) == infrastructure
    assert operations(fake) == []
    assert way_out_of(infrastructure)["NatGatewayId"] == used


def test_nat_agree_warns_of_a_gateway_it_may_not_delete(fake: FakeCloud, tmp_path: Path) -> None:
    output: list[str] = []
    user = User(tmp_path / "one", say=output.append)
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    (used,) = usable_gateways()
    made = a_second_gateway(used)
    user.wait(lambda: len(usable_gateways()) == 2)
    fake.settings(denied=["DeleteNatGateway"])
    maker, nats = a_maker(user, cluster)
    vpc = used["VpcId"]
    table = {"Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": used["NatGatewayId"]}]}
    assert nat.agree(maker, made, vpc, table, nats, made=False) == used["NatGatewayId"]
    assert output[1:] == []
    result = nat.agree(maker, made, vpc, table, nats, made=True)
    assert result == used["NatGatewayId"]
    assert f"removing {made}" in output[-2]
    assert "is billed until the last private cluster is removed" in output[-1]


def test_prepare_creates_nat_gateway_in_the_next_available_zone(user: User, fake: FakeCloud) -> None:
    fake.settings(nat_unavailable_zones=["us-east-1a"])
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer, Zone(name="us-east-1a"))
    (gateway,) = usable_gateways()
    subnets = {
        s["SubnetId"]: s["AvailabilityZone"] for s in boto3.client("ec2").describe_subnets()["Subnets"]
    }
    assert (subnets[infrastructure.ids["subnet"]], subnets[gateway["SubnetId"]]) == (
        "us-east-1a",
        "us-east-1b",
    )
    assert way_out_of(infrastructure)["State"] == "active"
    assert kinds(fake)["elastic-ip"] == 1
    fake.forget_calls()
    assert user.infrastructure(cluster, offer, Zone(name="us-east-1a")) == infrastructure
    assert operations(fake) == []
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_prepare_without_any_nat_zone_suggests_region_or_subnet(user: User, fake: FakeCloud) -> None:
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    fake.settings(nat_unavailable_zones=[zone.name for zone in offer.zones])
    with pytest.raises(
        errors.CloudError, match=r"NotAvailableInZone\).*another --region, or give --subnet-id"
    ):
        user.infrastructure(cluster, offer)
    assert kinds(fake)["elastic-ip"] == 1


@pytest.mark.slow
def test_teardown_removes_nat_though_a_foreign_interface_remains(user: User, fake: FakeCloud) -> None:
    """Billed resources are deleted although the security group is used by a foreign interface that remains."""
    cluster = a_private()
    infrastructure = user.infrastructure(cluster, user.cloud.offer(cluster))
    ec2 = boto3.client("ec2")
    made = ec2.create_network_interface(
        SubnetId=infrastructure.ids["subnet"], Groups=[infrastructure.ids["security_group"]]
    )
    removed = teardown.remove(user.cloud, {cluster.id}, clock=user.clock, say=quiet, blocked_timeout_s=20)
    assert {left.kind for left in removed.leftovers} == {"security-group", "subnet", "route-table"}
    assert usable_gateways() == []
    assert "elastic-ip" not in kinds(fake)
    ec2.delete_network_interface(NetworkInterfaceId=made["NetworkInterface"]["NetworkInterfaceId"])
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_teardown_ignores_private_clusters_in_another_vpc(
    user: User, fake: FakeCloud, tmp_path: Path
) -> None:
    """Two users created a VPC each: each VPC is removed with its user's clusters."""
    mine, theirs = a_private("aaa"), a_private("bbb")
    offer = user.cloud.offer(mine)
    user.infrastructure(mine, offer)
    (first,) = usable_gateways()
    hidden = [resource for resource in user.cloud.resources() if resource.network == first["VpcId"]]
    assert {resource.kind for resource in hidden} >= {
        "vpc",
        "nat-gateway",
        "elastic-ip",
        "internet-gateway",
        "subnet",
    }
    ec2 = boto3.client("ec2")
    shared = [resource.id for resource in hidden if resource.kind != "security-group"]
    network: Any = [{"Key": "gpuctl", "Value": "@network"}]
    ec2.delete_tags(Resources=shared, Tags=network)
    other = User(tmp_path / "other", user.cloud)
    other.infrastructure(theirs, offer)
    ec2.create_tags(Resources=shared, Tags=network)
    assert len(usable_gateways()) == 2
    removed = remove(user, mine)
    assert removed == teardown.Removed(leftovers=(), network_users=("bbb",))
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE, "of mine there is nothing left, of theirs all"
    assert [gateway["NatGatewayId"] for gateway in usable_gateways()] != [first["NatGatewayId"]]


def test_delete_of_a_nat_gateway_reports_deletion_in_progress(user: User, fake: FakeCloud) -> None:
    fake.settings(nat_gone_s=100)
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    (resource,) = [resource for resource in user.cloud.resources() if resource.kind == "nat-gateway"]
    with pytest.raises(errors.Blocked, match="is being deleted, which can take 10 minutes"):
        user.cloud.delete(resource)


def test_prepare_reports_and_replaces_a_failed_nat_gateway(user: User, fake: FakeCloud) -> None:
    fake.settings(nat_failure="InsufficientFreeAddressesInSubnet: Subnet has insufficient free addresses.")
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    with pytest.raises(errors.CloudError, match="did not come up: Subnet has insufficient free") as report:
        user.infrastructure(cluster, offer)
    assert report.value.code == "InsufficientFreeAddressesInSubnet"
    fake.settings(nat_failure="")
    user.infrastructure(cluster, offer)
    assert sorted(state_of(fake, "natgateway")) == ["available", "failed"]
    assert kinds(fake)["elastic-ip"] == 1
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_wait_available_uses_the_other_gateway_when_one_failed(user: User, fake: FakeCloud) -> None:
    """Two processes took the same address; the process whose gateway failed uses the other gateway."""
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    ec2 = boto3.client("ec2")
    (good,) = ec2.describe_nat_gateways()["NatGateways"]
    made = ec2.create_nat_gateway(
        SubnetId=good["SubnetId"], AllocationId=good["NatGatewayAddresses"][0]["AllocationId"]
    )["NatGateway"]
    maker, nats = a_maker(user, cluster)
    vpc = good["VpcId"]
    assert nat.wait_available(maker, made["NatGatewayId"], vpc, nats) == good["NatGatewayId"]
    assert nat.wait_available(maker, good["NatGatewayId"], vpc, nats) == good["NatGatewayId"]
    with pytest.raises(errors.CloudError, match="nat-gone did not come up: it is gone"):
        nat.wait_available(maker, "nat-gone", "vpc-other", nats)


def test_wait_available_times_out_after_10_minutes(user: User) -> None:
    clock = StepClock()
    pending = {"NatGatewayId": "nat-1", "VpcId": "vpc-1", "State": "pending"}
    with pytest.raises(errors.CloudError, match=r"nat-1 was still pending after 10 minutes.*`gpuctl down`"):
        maker = ResourceMaker(user.cloud.api, clock, 5.0, a_private(), user.ensure)
        nat.wait_available(maker, "nat-1", "vpc-1", Listing(lambda: [pending]))
    assert nat.READY_TIMEOUT_S < clock.time < 1.1 * nat.READY_TIMEOUT_S


def test_wait_available_logs_progress(tmp_path: Path, account: AwsCloud) -> None:
    clock = StepClock()
    output: list[str] = []
    user = User(tmp_path / "teller", account, say=output.append)
    maker = ResourceMaker(account.api, clock, 5.0, a_private(), user.ensure)

    def read() -> list[dict[str, str]]:
        state = "available" if clock.time > 100 else "pending"
        return [{"NatGatewayId": "nat-1", "VpcId": "vpc-1", "State": state}]

    for _ in range(2):  # the second time it exists
        nat.wait_available(maker, "nat-1", "vpc-1", Listing(read))
    first, *more = output
    assert first == "waiting for the NAT gateway nat-1, which takes AWS one to three minutes …"
    assert len(more) == 3
    assert all(re.fullmatch(r"waiting for the NAT gateway nat-1 … \(\d+ s\)", line) for line in more)


def test_prepare_logs_the_wait_for_the_nat_gateway(
    tmp_path: Path, account: AwsCloud, fake: FakeCloud
) -> None:
    fake.settings(nat_ready_s=15)
    output: list[str] = []
    user = User(tmp_path / "teller", account, say=output.append)
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    assert [line.partition(" nat-")[0] for line in output] == ["waiting for the NAT gateway"]


def test_prepare_replaces_a_deleted_nat_gateway_and_its_route(user: User, fake: FakeCloud) -> None:
    """Its route leads nowhere then and is changed to the new gateway, which reuses the address."""
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    ec2 = boto3.client("ec2")
    (old,) = ec2.describe_nat_gateways()["NatGateways"]
    ec2.delete_nat_gateway(NatGatewayId=old["NatGatewayId"])
    user.wait(lambda: state_of(fake, "natgateway") == ["deleted"])
    assert user.infrastructure(cluster, offer) == infrastructure
    usable: Any = [{"Name": "state", "Values": ["available"]}]
    (new,) = ec2.describe_nat_gateways(Filter=usable)["NatGateways"]
    routes = tables(infrastructure.ids["vpc"])[infrastructure.ids["subnet"]]["Routes"]
    (out,) = [route for route in routes if route.get("DestinationCidrBlock") == "0.0.0.0/0"]
    assert (out["NatGatewayId"], out["State"]) == (new["NatGatewayId"], "active")
    assert kinds(fake) == INFRASTRUCTURE + PRIVATE


def test_prepare_reattaches_the_s3_endpoint_to_the_route_table(user: User, fake: FakeCloud) -> None:
    cluster = a_private()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    table = tables(infrastructure.ids["vpc"])[infrastructure.ids["subnet"]]["RouteTableId"]
    ec2 = boto3.client("ec2")
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    ec2.modify_vpc_endpoint(VpcEndpointId=endpoint["VpcEndpointId"], RemoveRouteTableIds=[table])
    fake.forget_calls()
    user.infrastructure(cluster, offer)
    assert operations(fake) == ["ModifyVpcEndpoint"]
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    assert endpoint["RouteTableIds"] == [table]


def test_private_launch_at_the_address_limit_suggests_subnet_id(user: User, fake: FakeCloud) -> None:
    fake.settings(address_limit=0)
    cluster = a_private()
    with pytest.raises(errors.Quota, match=r"Release one, .* --subnet-id\."):
        user.launch(cluster)
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert not fake.owned()


# The end


@pytest.mark.slow
def test_teardown_waits_for_a_slow_nat_gateway_deletion(user: User, fake: FakeCloud) -> None:
    fake.settings(nat_gone_s=400)
    cluster = a_private()
    user.launch(cluster)
    running(user, 2)
    fake.forget_calls()
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert not fake.owned()
    done = operations(fake)
    last = max(index for index, name in enumerate(done) if name == "DeleteNatGateway")
    assert last < done.index("ReleaseAddress") < done.index("DetachInternetGateway")


def test_teardown_finds_leftover_nat_by_its_tags(user: User, fake: FakeCloud) -> None:
    """No local file, and no other resource of a cluster: as `reap` looks."""
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    for resource in user.cloud.resources():
        if resource.kind in ("security-group", "key-pair", "placement-group", "vpc-endpoint"):
            user.cloud.delete(resource)
    assert {resource.kind for resource in user.cloud.resources()} >= {"nat-gateway", "elastic-ip"}
    assert teardown.remove(user.cloud, set(), clock=user.clock, say=quiet) == teardown.Removed(leftovers=())
    assert not fake.owned()


def test_delete_of_an_address_in_use_raises_blocked(user: User, fake: FakeCloud) -> None:
    """AWS answers AuthFailure for an address that a NAT gateway uses."""
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    resources = {resource.kind: resource for resource in user.cloud.resources()}
    with pytest.raises(errors.Blocked, match=r"elastic-ip eipalloc-\w+ .* used by network interface eni-"):
        user.cloud.delete(resources["elastic-ip"])
    public = boto3.client("ec2").describe_nat_gateways()["NatGateways"][0]["SubnetId"]
    (subnet,) = [resource for resource in user.cloud.resources() if resource.id == public]
    with pytest.raises(errors.Blocked, match="Interface for NAT Gateway nat-"):
        user.cloud.delete(subnet)


def test_teardown_retries_releasing_an_address_freed_late(user: User, fake: FakeCloud) -> None:
    """AWS shows no association any more, and refuses all the same."""
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    fake.fault(operation="ReleaseAddress", times=3, status=400, code="AuthFailure")
    assert remove(user, cluster) == teardown.Removed(leftovers=())
    assert len(fake.calls("ReleaseAddress")) == 4
    assert not fake.owned()


def test_delete_of_vpc_names_a_foreign_endpoint(user: User) -> None:
    cluster = a_cluster()
    infrastructure = user.infrastructure(cluster, user.cloud.offer(cluster))
    ec2 = boto3.client("ec2")
    made = ec2.create_vpc_endpoint(
        VpcId=infrastructure.ids["vpc"], ServiceName="com.amazonaws.us-east-1.dynamodb"
    )
    name = made["VpcEndpoint"]["VpcEndpointId"]
    (vpc,) = [resource for resource in user.cloud.resources() if resource.kind == "vpc"]
    with pytest.raises(errors.Blocked, match=f"endpoint {name}"):
        user.cloud.delete(vpc)


def test_delete_of_a_vpc_endpoint_twice_succeeds(user: User) -> None:
    cluster = a_private()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    (endpoint,) = [resource for resource in user.cloud.resources() if resource.kind == "vpc-endpoint"]
    user.cloud.delete(endpoint)
    user.cloud.delete(endpoint)  # InvalidVpcEndpointId.NotFound, in an answer with status 200
    assert "vpc-endpoint" not in {resource.kind for resource in user.cloud.resources()}


def test_check_of_a_private_cluster_names_missing_nat_permissions(user: User, fake: FakeCloud) -> None:
    fake.settings(denied=["CreateNatGateway", "AllocateAddress", "DescribeAddresses"])
    result = {finding.what: finding for finding in user.cloud.check(a_private(), 2)}
    assert "Not allowed: ec2:AllocateAddress, ec2:CreateNatGateway." in result["permissions to change"].detail
    assert "ec2:DescribeAddresses" in result["permissions to read"].fix
    public = {finding.what: finding for finding in user.cloud.check(a_cluster(), 2)}
    assert "Nat" not in public["permissions to change"].detail


def test_network_lock_wait_exceeds_the_longest_hold() -> None:
    up = 2 * nat.READY_TIMEOUT_S + 2 * nat.GONE_TIMEOUT_S
    down = teardown.BLOCKED_TIMEOUT_S + max(kind.ends_within_s for kind in KINDS.values())
    assert max(up, down) < NETWORK_LOCK_WAIT_S
