"""Test the checks of `doctor` on OCI."""

from dataclasses import replace
from pathlib import Path

import pytest

from provision.findings import Finding
from provision.oci import checks
from provision.oci.cloud import OciCloud, connect
from provision.oci.quotas import machine_limit
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, FastClock, operations


def test_check_of_a_working_account_finds_no_problem(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    result = cloud.check(builder.cluster, 2)
    assert [finding.what for finding in result if finding.ok is False] == []
    assert {"OCI SDK", "credentials", "clock", "region", "permission to read", "service limits"} <= {
        finding.what for finding in result if finding.ok
    }
    (image,) = [finding.detail for finding in result if finding.what == "shape and image"]
    assert "NVIDIA GPU-Optimized VMI 26.04.1 (it brings the driver)" in image
    assert "--accept-terms" in image
    assert operations(fake, mutating=True) == []


def test_check_names_missing_permission_and_service_limit(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    fake.fault(operation="ListNetworkSecurityGroups", **fault)
    fake.settings(quota={"VM.GPU.A10.2": 1})
    bad = {finding.what: finding for finding in cloud.check(builder.cluster, 2) if finding.ok is False}
    assert set(bad) == {"permission to list network security groups", "service limits"}
    assert "manage network-security-groups" in bad["permission to list network security groups"].fix
    assert "gpu-a10-count" in bad["service limits"].fix
    assert "Stopped machines count" in bad["service limits"].fix


def test_check_asks_for_the_limit_of_ocpus_of_a_flexible_shape(
    cloud: OciCloud, tmp_path: Path, fake: FakeCloud
) -> None:
    shape = "VM.Standard.E4.Flex"
    fake.settings(quota={shape: 3})
    finding = {f.what: f for f in cloud.check(Builder(cloud, tmp_path, shape=shape).cluster, 1)}[
        "service limits"
    ]
    assert finding.ok
    assert finding.detail.startswith("2 of standard-e4-core-count are needed in one availability domain")
    assert "not known" not in finding.detail


@pytest.mark.parametrize(
    ("names", "limit"),
    [
        (["gpu-a10-count"], "gpu-a10-count"),
        (["standard-e4-memory-count", "standard-e4-core-count"], "standard-e4-core-count"),
        (
            [
                "standard-a1-memory-count",
                "standard-a1-core-regional-count",
                "standard-a1-core-count",
            ],
            "standard-a1-core-count",
        ),
        (["standard-a1-core-regional-count"], "standard-a1-core-regional-count"),
        (["standard-e4-memory-count"], None),
        ([], None),
    ],
)
def test_machine_limit_is_the_one_of_gpus_or_ocpus(names: list[str], limit: str | None) -> None:
    assert machine_limit(names) == limit


def statements_of(finding: Finding) -> list[str]:
    return [line.strip() for line in finding.detail.splitlines() if line.startswith("    ")]


def test_check_lists_one_policy_per_line(builder: Builder, cloud: OciCloud) -> None:
    (finding,) = [item for item in cloud.check(builder.cluster, 2) if item.what == "permission to create"]
    statements = statements_of(finding)
    assert len(statements) == len((*checks.SHARED_NETWORK, *checks.TIME_LIMIT, *checks.HINTS))
    assert all(line.lower().startswith("allow group") for line in statements)


def test_check_of_a_given_subnet_names_its_compartment(
    builder: Builder, cloud: OciCloud, tmp_path: Path
) -> None:
    subnet = builder.infrastructure().ids["subnet"]
    guest = Builder(cloud, tmp_path, name="guest", subnet_id=subnet)
    (finding,) = [item for item in cloud.check(guest.cluster, 2) if item.what == "permission to create"]
    root = cloud.api.compartment
    for policy in (
        "manage vcns",
        "manage network-security-groups",
        "use subnets",
        "read virtual-network-family",
    ):
        assert f"Allow group <your group> to {policy} in compartment id {root}" in statements_of(finding)
    elsewhere = cloud.api.listed("identity.list_compartments")[0]["id"]
    other = connect(replace(cloud.target, compartment=elsewhere), clock=FastClock())
    statements = statements_of(
        next(item for item in other.check(guest.cluster, 2) if item.what == "permission to create")
    )
    assert f"Allow group <your group> to manage vcns in compartment id {root}" in statements
    assert f"Allow group <your group> to use subnets in compartment id {root}" in statements
    assert (
        f"Allow group <your group> to manage network-security-groups in compartment id {elsewhere}"
        in statements
    )


@pytest.mark.parametrize(("ttl_s", "ok"), [(3600.0, False), (None, None)])
def test_check_says_that_nothing_would_end_the_machines(
    builder: Builder, cloud: OciCloud, fake: FakeCloud, ttl_s: float | None, ok: bool | None
) -> None:
    cluster = replace(builder.cluster, ttl_s=ttl_s)
    result = {finding.what: finding for finding in cloud.check(cluster, 2)}
    assert result["permission for --ttl"].ok is None
    assert "can be read" in result["permission for --ttl"].detail
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    for operation in ("ListInstancePools", "ListInstanceConfigurations", "ListAutoScalingConfigurations"):
        fake.fault(operation=operation, **fault)
    result = {finding.what: finding for finding in cloud.check(cluster, 2)}
    finding = result["permission for --ttl"]
    assert finding.ok is ok
    assert "nothing in the cloud would end the machines" in finding.detail
    assert finding.fix.count("manage compute-management-family in compartment id") == 1
    assert "manage auto-scaling-configurations in compartment id" in finding.fix
    assert result["permission to read"].ok


def test_check_says_where_oci_has_no_autoscaling(builder: Builder, cloud: OciCloud) -> None:
    """Realms of the US Government have no autoscaling."""
    government = connect(replace(cloud.target, region="us-gov-ashburn-1"), clock=FastClock())
    result = {
        finding.what: finding for finding in government.check(replace(builder.cluster, ttl_s=3600.0), 2)
    }
    assert result["permission for --ttl"].ok is None
    assert "OCI has no autoscaling in us-gov-ashburn-1" in result["permission for --ttl"].detail


def test_check_stops_at_bad_credentials(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    fake.fault(kind="error", status=401, code="NotAuthenticated", message="The clock is off", times=0)
    result = {finding.what: finding for finding in cloud.check(builder.cluster, 2)}
    assert result["credentials"].ok is False
    assert result["clock"].ok is True  # the refusal includes the server's time as well
    assert "service limits" not in result


@pytest.mark.parametrize(("status", "code"), [(503, "ServiceUnavailable"), (400, "InvalidParameter")])
def test_check_reports_unanswered_lists_as_unknown(
    builder: Builder,
    cloud: OciCloud,
    fake: FakeCloud,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
) -> None:
    monkeypatch.setattr(cloud.api, "_retry", replace(cloud.api._retry, unclear_for_s=0.0))
    fault = {"kind": "error", "status": status, "code": code, "message": "no", "times": 0}
    lists = ("ListVcns", "ListImages", "ListAppCatalogListings", "ListRegionSubscriptions")
    for operation in (*lists, "GetResourceAvailability"):
        fake.fault(operation=operation, **fault)
    result = {finding.what: finding.ok for finding in cloud.check(builder.cluster, 2)}
    assert result == {
        **{subject: ok for subject, ok in result.items() if subject.startswith("file ")},
        "OCI SDK": True,
        "credentials": True,
        "clock": True,
        "region": None,
        "permission to list vcns": None,
        "permission to list images": None,
        "permission to create": None,
        "permission for --ttl": None,
        "shape and image": None,
    }
    fake.clear_faults()
    fake.fault(operation="ListAvailabilityDomains", **fault)
    result = {finding.what: finding.ok for finding in cloud.check(builder.cluster, 2)}
    assert result["credentials"] is None
    assert "permission to read" not in result


def test_check_without_any_permission_lists_the_policies(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    fake.fault(**fault)
    result = {finding.what: finding for finding in cloud.check(builder.cluster, 2)}
    assert result["credentials"].ok is None
    assert "inspect compartments in tenancy" in result["credentials"].fix
    assert [
        finding.what for finding in result.values() if finding.what.startswith("permission") and finding.ok
    ] == []
    assert "manage volume-family" in result["permission to create"].detail


def test_check_names_an_unknown_shape(cloud: OciCloud, tmp_path: Path) -> None:
    result = {f.what: f for f in cloud.check(Builder(cloud, tmp_path, shape="VM.GPU.A10.3").cluster, 2)}
    assert result["shape and image"].ok is False
    assert "VM.GPU.A10" in result["shape and image"].detail
