"""Test the plan for rented machines: prices that add up, machines grouped by action, their scheduled end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provision.pricing.plan_price import PlanPrice
from provision.provider import PlannedMachine
from provision.records import CloudCluster, Instance, Offer, PlannedResource, Preview, Target, Zone
from provision.rented.planning import planned_resources

OCI = CloudCluster(
    name="demo",
    id="0123456789abcdef",
    owner="me@here",
    created_at="2026-11-21T08:00:00+00:00",
    target=Target(provider="oci", region="eu-frankfurt-1"),
    shape="VM.GPU.A10.2",
)
AWS = replace(OCI, target=Target(provider="aws", region="us-east-1"), shape="g5.12xlarge")
OFFER = Offer(
    shape="VM.GPU.A10.2",
    gpus=2,
    image_id="image-1",
    image_name="image",
    user="ubuntu",
    disk_gb=365,
    zones=(Zone(name="a"),),
    hourly_usd=4.0,
)
IN_IRELAND = replace(AWS, target=Target(provider="aws", region="eu-west-1"))


@pytest.mark.parametrize(
    ("cluster", "offer", "each_usd", "parts"),
    [
        (OCI, OFFER, 4.0, (8.0, 2 * 365 * 0.0425 / 730, 0.0, 0.0)),
        (AWS, OFFER, 5.672, (11.344, 0.08, 0.01, 0.0)),
        (replace(AWS, public_ip=False), replace(OFFER, network_hourly_usd=0.05), 5.672, (11.344, 0.08, 0.0, 0.05)),
        (AWS, replace(OFFER, facts={"other_disks_gb": 365}), 5.672, (11.344, 0.16, 0.01, 0.0)),
        (AWS, OFFER, None, (None, 0.08, 0.01, 0.0)),
        (IN_IRELAND, OFFER, 6.0, (12.0, None, 0.01, 0.0)),
    ],
)  # fmt: skip
def test_price_of_includes_machines_disks_addresses_and_network(
    cluster: CloudCluster, offer: Offer, each_usd: float | None, parts: tuple[float | None, ...]
) -> None:
    price = planned_resources.price_of(cluster, offer, 2, each_usd)
    result = (price.machines_usd, price.disks_usd, price.addresses_usd, price.network_usd)
    assert result == pytest.approx(parts)
    known = None not in parts
    assert price.hourly_usd == (pytest.approx(sum(part or 0 for part in parts)) if known else None)


def test_price_of_is_complete_with_a_given_disk_price() -> None:
    price = planned_resources.price_of(IN_IRELAND, OFFER, 2, 6.0, disk_usd_per_gb_month=0.088)
    assert price.hourly_usd == pytest.approx(12.0 + 0.088 + 0.01)


def test_price_of_spot_machines_has_an_upper_bound() -> None:
    price = planned_resources.price_of(AWS, OFFER, 2, 2.0, varies=True, most_usd=5.672)
    assert (price.hourly_usd, price.most_hourly_usd) == pytest.approx((4.09, 11.434))
    unknown = planned_resources.price_of(AWS, OFFER, 2, None, varies=True, most_usd=5.672)
    assert (unknown.hourly_usd, unknown.most_hourly_usd) == (None, pytest.approx(11.434))
    endless = planned_resources.price_of(AWS, OFFER, 2, 2.0, varies=True)
    assert (endless.hourly_usd, endless.most_hourly_usd) == (pytest.approx(4.09), None)


def a_machine(rank: int, machine_id: str) -> Instance:
    return Instance(
        id=machine_id,
        tags={},
        rank=rank,
        state="ended",
        shape=OCI.shape,
        zone=Zone(name="a"),
        launched_at="2026-11-21T08:00:00+00:00",
    )


def test_resources_lists_machines_by_create_use_and_end() -> None:
    create = planned_resources.to_create(OCI, (a_machine(1, "i-dead"),), {2, 1})
    assert create == (
        PlannedMachine(name="demo-1", rank=1, shape="VM.GPU.A10.2", replaces="i-dead"),
        PlannedMachine(name="demo-2", rank=2, shape="VM.GPU.A10.2"),
    )
    price = PlanPrice(machines_usd=12.0, disks_usd=0.03)
    result = planned_resources.resources(OCI, OFFER, price, create=create, keep=("i-0",), end=("i-9",))
    assert [(item.action, item.kind, item.count, item.hourly_usd) for item in result] == [
        ("create", "instance", 2, pytest.approx(8.0)),
        ("create", "boot-volume", 2, pytest.approx(0.02)),
        ("create", "public-address", 2, 0.0),
        ("use", "instance", 1, pytest.approx(4.0)),
        ("use", "boot-volume", 1, pytest.approx(0.01)),
        ("use", "public-address", 1, 0.0),
        ("end", "instance", 1, 0.0),
    ]
    assert result[0].detail == "VM.GPU.A10.2, 2 x A10 24 GB, for i-dead"
    hidden = replace(OCI, public_ip=False)
    result = planned_resources.resources(
        hidden, OFFER, PlanPrice(machines_usd=None), create=create[:1], keep=(), end=()
    )
    assert [(item.kind, item.name, item.hourly_usd) for item in result] == [
        ("instance", "demo-1", None),
        ("boot-volume", "", 0.0),
    ]


@pytest.mark.parametrize(
    ("provider", "operations"),
    [("aws", ["TerminateInstances"]), ("oci", ["TerminateInstance", "TerminateInstance"])],
)
def test_ending_requests_names_every_machine_to_end(provider: str, operations: list[str]) -> None:
    result = planned_resources.ending_requests(provider, ("i-1", "i-2"))
    assert [item.operation for item in result] == operations
    assert all(any(machine in str(item.body) for item in result) for machine in ("i-1", "i-2"))
    assert planned_resources.ending_requests(provider, ()) == ()


def test_until_s_reports_the_seconds_until_machines_end() -> None:
    assert planned_resources.until_s(OCI, lives=False) is None
    now = datetime.now(UTC)
    ends = replace(OCI, ttl_s=14400.0, expires_at=(now + timedelta(hours=1)).isoformat())
    assert planned_resources.until_s(ends, lives=False) == 14400.0
    left_s = planned_resources.until_s(ends, lives=True)
    assert left_s == pytest.approx(3600.0, abs=30)
    over = replace(ends, expires_at=(now - timedelta(hours=1)).isoformat())
    assert planned_resources.until_s(over, lives=True) == 0.0


def test_disk_hourly_usd_is_none_for_a_region_without_price() -> None:
    assert planned_resources.disk_hourly_usd("oci", "eu-frankfurt-1", 200) == pytest.approx(
        200 * 0.0425 / 730
    )
    assert planned_resources.disk_hourly_usd("aws", "us-east-1", 200) == pytest.approx(200 * 0.08 / 730)
    assert planned_resources.disk_hourly_usd("aws", "eu-west-1", 200) is None
    assert planned_resources.disk_hourly_usd(
        "aws", "eu-west-1", 730, usd_per_gb_month=0.088
    ) == pytest.approx(0.088)


def test_network_without_changes_is_what_is_used_and_billed() -> None:
    used = PlannedResource(action="use", kind="vpc", id="vpc-1")
    missing = PlannedResource(action="create", kind="key-pair")
    preview = Preview(requests=(), resources=(used, missing))
    assert planned_resources.network(preview, OFFER, changes=True) == (used, missing)
    assert planned_resources.network(preview, OFFER, changes=False) == (used,)
    billed = planned_resources.network(preview, replace(OFFER, network_hourly_usd=0.05), changes=False)
    assert [(item.kind, item.action, item.hourly_usd) for item in billed] == [
        ("vpc", "use", 0.0),
        ("nat-gateway", "use", 0.05),
    ]
