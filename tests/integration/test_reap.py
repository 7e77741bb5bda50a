"""Test `reap` over both clouds at once, its reports on failed lists and deletions, and the machines' costs."""

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import oci as oci_sdk
import pytest
from clouds import COUNT, KINDS, PRIVATE, CloudGpuctl, Clouds, Kind
from support import Done

from inventories.disk import lock
from tests.fakes.client import FakeCloud

pytestmark = pytest.mark.slow

DENIED = {
    "oci": {"status": 404, "code": "NotAuthorizedOrNotFound", "message": "Authorization failed."},
    "aws": {"status": 403, "code": "UnauthorizedOperation", "message": "You are not authorized."},
}
UNCONFIGURED = {"AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def gpuctl(kind: Kind, clouds: Clouds, tmp_path: Path) -> Iterator[CloudGpuctl]:
    """gpuctl with an account of one cloud, and no other cloud set up; nothing may be left in it at the end."""
    command = clouds.as_new(kind, tmp_path)
    yield command
    command.cloud.clear_faults()
    command("reap", "--yes", env=alone(command))
    assert command.cloud.owned() == []


@pytest.fixture
def oci(clouds: Clouds, tmp_path: Path) -> CloudGpuctl:
    """gpuctl with an OCI account."""
    return clouds.as_new(KINDS["oci"], tmp_path)


@pytest.fixture
def aws(clouds: Clouds, tmp_path: Path) -> FakeCloud:
    """Return an AWS account as the second cloud."""
    return clouds.as_new(KINDS["aws"], tmp_path / "aws").cloud


def alone(gpuctl: CloudGpuctl) -> dict[str, str]:
    """A person who has set up nothing but the one cloud."""
    return {"HOME": str(gpuctl.cwd)} | UNCONFIGURED


def reaped(gpuctl: CloudGpuctl, *words: str, **options: Any) -> Done:
    return gpuctl("reap", "--yes", "--json", *words, **options)


def client(cloud: FakeCloud) -> Any:
    """Return Amazon's client, as another user of the account."""
    return boto3.client(
        "ec2",
        endpoint_url=cloud.url,
        region_name=cloud.env["AWS_DEFAULT_REGION"],
        aws_access_key_id=cloud.env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=cloud.env["AWS_SECRET_ACCESS_KEY"],
    )


def test_reap_reports_cloud_it_could_not_check(oci: CloudGpuctl, aws: FakeCloud) -> None:
    """OCI has two machines, and its credentials have expired; AWS has nothing."""
    oci.ok(*oci.up_words)
    oci.cloud.fault(operation="*", times=0, status=401, code="NotAuthenticated", message="Expired.")
    looked = oci("reap", "--dry-run", env=aws.env)
    assert looked.status == 4, looked.err
    assert "no cluster of ours in aws us-east-1" in looked.err
    assert "error: not looked at: oci eu-frankfurt-1: OCI refused" in looked.err
    assert len(oci.cloud.live_instances()) == COUNT
    both = oci("reap", "--dry-run", env=aws.env | {"AWS_ACCESS_KEY_ID": "AKIAWRONG"})
    assert both.status == 1
    assert "oci eu-frankfurt-1" in both.err
    assert "aws: " in both.err


def test_reap_cleans_one_cloud_if_the_other_is_unusable(oci: CloudGpuctl, aws: FakeCloud) -> None:
    oci.ok("up", "--shape", "g5.12xlarge", "--ssh-cidr", "127.0.0.1/32", "--no-wait", "--yes", env=aws.env)
    nowhere = {"OCI_CONFIG_FILE": "/nowhere", "OCI_CLI_CONFIG_FILE": "/nowhere"}
    done = reaped(oci, env=aws.env | nowhere)
    assert done.status == 4, done.err
    assert len(done.json["removed"]) == 1
    (hidden,) = done.json["not_looked_at"]
    assert (hidden["provider"], "/nowhere" in hidden["reason"]) == ("oci", True)
    assert aws.owned() == []
    assert not (oci.home / "clusters" / "default").exists()


def test_reap_continues_if_one_cloud_refuses_removal(oci: CloudGpuctl, aws: FakeCloud) -> None:
    oci.ok(*oci.up_words)
    words = ("--shape", "g5.12xlarge", "--ssh-cidr", "127.0.0.1/32", "--no-wait", "--yes", "--cluster", "two")
    oci.ok("up", *words, env=aws.env)
    oci.cloud.fault(operation="TerminateInstance", times=0, **DENIED["oci"])
    assert reaped(oci, "--cluster", "three", env=aws.env).status == 2, (
        "and no other one is removed in its place"
    )
    assert len(aws.live_instances()) == 1
    done = reaped(oci, env=aws.env)
    assert done.status == 4, done.err
    assert aws.owned() == []
    assert [folder.name for folder in (oci.home / "clusters").iterdir()] == ["default"]
    for instance in oci.cloud.live_instances():
        assert instance["id"] in done.err
    oci.cloud.clear_faults()
    again = reaped(oci, "--cluster", "default", env=aws.env)
    assert (again.status, len(again.json["removed"])) == (0, 1)
    assert oci.cloud.owned() == []
    assert list((oci.home / "clusters").iterdir()) == []


def test_reap_leaves_cluster_that_is_in_use(gpuctl: CloudGpuctl) -> None:
    launch = {"oci": "LaunchInstance", "aws": "RunInstances"}[gpuctl.kind.provider]
    gpuctl.ok(*gpuctl.up_words, "--cluster", "second")
    gpuctl.cloud.fault(operation=launch, nth=1, kind="hold_after")
    up = gpuctl.start(*gpuctl.up_words)
    try:
        assert gpuctl.cloud.held(wait_s=30)
        done = reaped(gpuctl, env=alone(gpuctl))
        assert done.status == 4, done.err
        assert "Cluster 'default' is in use by `up`" in done.err
        assert len(done.json["removed"]) == 1, "the other one is gone"
        assert [failed["provider"] for failed in done.json["failed"]] == [gpuctl.kind.provider]
    finally:
        gpuctl.cloud.release()
        _, errors = up.communicate(timeout=60)
    assert up.returncode == 0, errors
    assert len(gpuctl.cloud.live_instances()) == COUNT
    assert [folder.name for folder in (gpuctl.home / "clusters").iterdir()] == ["default"]
    assert reaped(gpuctl, env=alone(gpuctl)).status == 0
    assert list((gpuctl.home / "clusters").iterdir()) == []


def test_reap_waits_for_lock_of_shared_network(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    (path,) = (gpuctl.home / "networks").glob("*.lock")
    with lock.hold(path, subject="the network", command="up"):
        process = gpuctl.start("reap", "--yes", env=alone(gpuctl))
        assert process.stderr
        report = next((line for line in process.stderr if "Waiting" in line), "it did not wait")
        assert "`up`" in report
        assert "which works on the network" in report
        assert gpuctl.cloud.live_instances() == [], "they cost the most"
        assert {"vcn", "vpc"} & {part.get("kind") for part in gpuctl.cloud.owned()}
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert gpuctl.cloud.owned() == []


def test_reap_removes_only_clusters_it_listed(gpuctl: CloudGpuctl) -> None:
    """A cluster that comes up between the question and the answer stays, as does its network."""
    gpuctl.ok(*gpuctl.up_words)
    end = {"oci": "TerminateInstance", "aws": "TerminateInstances"}[gpuctl.kind.provider]
    gpuctl.cloud.fault(operation=end, nth=1, kind="hold_before")
    process = gpuctl.start("reap", "--yes", "--json", env=alone(gpuctl))
    assert gpuctl.cloud.held(wait_s=30)
    gpuctl.ok(*gpuctl.up_words, "--cluster", "second")
    gpuctl.cloud.release()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert len(gpuctl.cloud.live_instances()) == COUNT
    assert [folder.name for folder in (gpuctl.home / "clusters").iterdir()] == ["second"]
    assert len([part for part in gpuctl.cloud.owned() if part.get("kind") in ("vcn", "vpc")]) == 1


def test_reap_interrupted_leaves_cluster_for_down(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    end = {"oci": "TerminateInstance", "aws": "TerminateInstances"}[gpuctl.kind.provider]
    gpuctl.cloud.fault(operation=end, nth=1, kind="hold_after")
    process = gpuctl.start("reap", "--yes", env=alone(gpuctl))
    assert gpuctl.cloud.held(wait_s=30)
    process.send_signal(signal.SIGINT)
    gpuctl.cloud.release()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert (gpuctl.home / "clusters" / "default").exists()
    gpuctl.ok("down", "--yes")


def test_reap_tolerates_foreign_and_edited_tags(clouds: Clouds, tmp_path: Path) -> None:
    gpuctl = clouds.as_new(KINDS["aws"], tmp_path)
    made = gpuctl.ok(*gpuctl.up_words, "--ttl", "4h").json["machines"]
    ec2 = client(gpuctl.cloud)
    tag = {"ResourceType": "vpc", "Tags": [{"Key": "gpuctl", "Value": "my-bastion"}]}
    theirs = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=[tag])["Vpc"]["VpcId"]
    edited = [{"Key": "gpuctl-expires", "Value": "next friday"}]
    ec2.create_tags(Resources=[made[0]["id"]], Tags=edited)
    looked = gpuctl.ok("reap", "--expired", "--dry-run", "--json", env=alone(gpuctl)).json
    (result,) = looked["clusters"]
    assert (result["expires_at"], result["expired"], result["left_s"]) == (None, False, None)
    assert not any(theirs in part for part in (*result["parts"], *looked["networks"]))
    assert reaped(gpuctl, env=alone(gpuctl)).status == 0
    assert gpuctl.cloud.live_instances() == []
    left = {vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"]}
    assert theirs in left
    assert {part["id"] for part in gpuctl.cloud.owned()} == {theirs}, "nothing else has the tag now"


def test_up_prints_cron_command_that_finds_the_cluster(oci: CloudGpuctl) -> None:
    up = oci.ok(*oci.up_words, "--spot", "--ttl", "4h", "--profile", "TOKEN")
    (line,) = (words for words in up.err.split("`") if re.match(r"\*/10 \* \* \* \* \S*gpuctl reap", words))
    command = line.removeprefix("*/10 * * * * ")
    assert "--provider oci --region eu-frankfurt-1" in command
    assert command.endswith("--profile TOKEN")
    result = oci.ok(*command.split()[1:], "--dry-run", "--json").json
    assert len(result["clusters"]) == 1
    assert oci("reap", "--yes", "--provider", "oci").status == 0


def test_reap_expired_removes_network_without_cluster(clouds: Clouds, tmp_path: Path) -> None:
    """`down` was killed after it removed the machines: the rest is billed and has no time limit."""
    gpuctl = clouds.as_new(replace(KINDS["aws"], up_options=PRIVATE), tmp_path)
    gpuctl.ok(*gpuctl.up_words)
    gpuctl.cloud.fault(operation="DeleteNatGateway", nth=1, kind="hold_before")
    process = gpuctl.start("down", "--yes")
    try:
        assert gpuctl.cloud.held(wait_s=30)
    finally:
        process.kill()
        process.communicate(timeout=10)
    gpuctl.cloud.release()
    gpuctl.cloud.clear_faults()
    assert "natgateway" in {part.get("kind") for part in gpuctl.cloud.owned()}
    done = reaped(gpuctl, "--expired", env=alone(gpuctl))
    assert (done.status, done.json["clusters"]) == (0, [])
    assert gpuctl.cloud.owned() == []


def test_reap_expired_keeps_network_of_live_cluster(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    before = gpuctl.cloud.owned()
    assert reaped(gpuctl, "--expired", env=alone(gpuctl)).status == 0
    assert gpuctl.cloud.owned() == before


def test_reap_finds_and_removes_cluster_in_compartment(oci: CloudGpuctl) -> None:
    compartment = inner_compartment(oci.cloud)
    oci.ok(*oci.up_words, "--compartment", compartment)
    (result,) = oci.ok("reap", "--provider", "oci", "--dry-run", "--json").json["clusters"]
    assert result["compartment"] == compartment
    done = reaped(oci, "--provider", "oci")
    assert (done.status, len(done.json["removed"])) == (0, 1), done.err
    assert f"the shared network in oci eu-frankfurt-1 {compartment}" in done.err
    assert oci.cloud.owned() == []
    assert list((oci.home / "clusters").iterdir()) == []
    wrong = oci("reap", "--provider", "oci", "--compartment", f"{compartment}x")
    assert wrong.status == 1, "a compartment that was asked for has to be seen"
    assert compartment in wrong.err


def inner_compartment(cloud: FakeCloud) -> str:
    """Return a compartment below the tenancy's root, as Oracle's own client lists it."""
    config = oci_sdk.config.from_file(cloud.env["OCI_CONFIG_FILE"])
    identity = oci_sdk.identity.IdentityClient(config, service_endpoint=cloud.url)
    return next(
        str(item.id) for item in identity.list_compartments(config["tenancy"]).data if item.name == "gpu"
    )
