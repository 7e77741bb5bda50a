"""Test limits on the money of all clusters, defaults of new clusters, and `cost`, with both clouds."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from clouds import KINDS, CloudGpuctl, Clouds, Kind

from provision.pricing.ledger import month_of
from tests.fakes.client import FakeCloud

pytestmark = pytest.mark.slow

UNCONFIGURED = {"AWS_EC2_METADATA_DISABLED": "true"}
HOURLY = {"oci": 4.0, "aws": 5.672}
"""List price of a machine."""


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def gpuctl(kind: Kind, clouds: Clouds, tmp_path: Path) -> CloudGpuctl:
    """gpuctl with an account of one cloud."""
    return clouds.as_new(kind, tmp_path)


def up(gpuctl: CloudGpuctl, *words: str) -> tuple[str, ...]:
    """Return the words of `up` with one machine."""
    base = ("up", "--shape", gpuctl.kind.shape, "--ssh-cidr", "127.0.0.1/32", "--no-wait", "--yes", "--json")
    return (*base, *words)


def test_up_refuses_above_the_hourly_limit_with_what_runs_also_without_files(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("config", "set", "max_hourly_usd", str(HOURLY[gpuctl.kind.provider] * 1.5))
    gpuctl.ok(*up(gpuctl))
    (gpuctl.home / "clusters").rename(gpuctl.home / "lost")
    refused = gpuctl(*up(gpuctl, "--cluster", "second"))
    assert refused.status == 2, refused.err
    assert "more than max_hourly_usd" in refused.err
    assert f"default: {gpuctl.kind.provider} " in refused.err
    assert "Nothing was created." in refused.err
    assert len(gpuctl.cloud.live_instances()) == 1
    assert not (gpuctl.home / "clusters" / "second").exists()
    dry = gpuctl(*up(gpuctl, "--cluster", "second", "--dry-run"))
    assert (dry.status, "more than max_hourly_usd" in dry.err) == (2, True)


def test_up_refuses_if_a_place_does_not_answer(oci: CloudGpuctl, aws: FakeCloud) -> None:
    oci.ok("config", "set", "max_hourly_usd", "1000")
    aws.fault(operation="*", times=0, status=403, code="UnauthorizedOperation", message="No.")
    refused = oci(*up(oci), env=aws.env)
    assert refused.status == 2, refused.err
    assert "max_hourly_usd 1000" in refused.err
    assert "can't be shown to hold. aws: GetCallerIdentity in us-east-1: " in refused.err
    assert "gpuctl config unset max_hourly_usd" in refused.err
    assert oci.cloud.owned() == []
    aws.clear_faults()
    oci.ok(*up(oci), env=aws.env)


def test_two_launches_at_once_do_not_break_the_limit(oci: CloudGpuctl) -> None:
    oci.ok("config", "set", "max_hourly_usd", str(HOURLY["oci"] * 1.5))
    commands = [oci.fork(*up(oci, "--cluster", name)) for name in ("one", "two")]
    ends = [(*command.communicate(timeout=300), command.returncode) for command in commands]
    assert sorted(status for _, _, status in ends) == [0, 2], ends
    assert len(oci.cloud.live_instances()) == 1


def test_up_refuses_above_the_limit_of_the_month_and_names_a_shorter_time(oci: CloudGpuctl) -> None:
    now = datetime.now(UTC)
    if month_of(now)[1] - now < timedelta(hours=1):
        pytest.skip("the month ends soon")
    oci.ok("config", "set", "max_usd_per_month", "1")
    refused = oci(*up(oci))
    assert refused.status == 2, refused.err
    assert "more than max_usd_per_month 1 in" in refused.err
    assert "Add --ttl" in refused.err
    oci.ok(*up(oci, "--ttl", "10m"))
    second = oci(*up(oci, "--ttl", "10m", "--cluster", "second"))
    assert second.status == 2, second.err
    assert "by other clusters until they end" in second.err
    assert len(oci.cloud.live_instances()) == 1


@pytest.fixture
def oci(clouds: Clouds, tmp_path: Path) -> CloudGpuctl:
    return clouds.as_new(KINDS["oci"], tmp_path)


@pytest.fixture
def aws(clouds: Clouds, tmp_path: Path) -> FakeCloud:
    return clouds.as_new(KINDS["aws"], tmp_path / "aws").cloud


def test_defaults_hold_for_new_clusters_and_the_plan_names_them(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("config", "set", "ttl", "8h")
    plan = gpuctl.ok(*up(gpuctl, "--dry-run")).json
    assert plan["until_s"] == 8 * 3600
    assert any("--ttl 8h: the default in " in note for note in plan["notes"])
    typed = gpuctl.ok(*up(gpuctl, "--dry-run", "--ttl", "2h")).json
    assert typed["until_s"] == 2 * 3600
    assert gpuctl.ok(*up(gpuctl, "--dry-run", "--ttl", "none")).json["until_s"] is None
    gpuctl.ok(*up(gpuctl))
    gpuctl.ok("config", "set", "ttl", "3h")
    kept = gpuctl(*up(gpuctl, "--ttl", "none"))
    assert (kept.status, "were made with --ttl 8h" in kept.err) == (2, True), kept.err
    again = gpuctl.ok(*up(gpuctl, "--count", "2", "--dry-run")).json
    assert 7 * 3600 < again["until_s"] <= 8 * 3600


def test_cost_has_running_and_removed_clusters(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*up(gpuctl))
    running = gpuctl.ok("cost", "--json").json
    (cluster,) = running["clusters"]
    assert (cluster["cluster"], cluster["to"], cluster["unknown"]) == ("default", None, None)
    assert running["usd"] == cluster["usd"] > 0
    gpuctl.ok("down", "--yes")
    gone = gpuctl.ok("cost", "--json").json
    (cluster,) = gone["clusters"]
    assert cluster["to"] is not None
    assert cluster["usd"] >= running["usd"]
    assert sum(day["usd"] for day in gone["days"]) == pytest.approx(gone["usd"])
    assert gpuctl.ok("cost", "--since", "2030-01-01", "--json").json["clusters"] == []
    text = gpuctl.ok("cost").out
    assert f"default  {gpuctl.kind.provider}" in text
    assert text.splitlines()[0].split() == ["cluster", "where", "from", "to", "cost"]
