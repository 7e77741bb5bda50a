"""What `doctor` finds on AWS: that all is well, and each thing that is not."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from provision.aws import quotas
from provision.aws.api import Api
from provision.aws.cloud import AwsCloud
from provision.cloud import CloudCluster, Finding, Target
from tests.fakes.client import FakeCloud
from tests.provision.aws_support import FastClock, a_cluster, running_fake

QUOTA = "quota for 2 g5.12xlarge"


@pytest.fixture(scope="module")
def fake_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with running_fake(tmp_path_factory.mktemp("aws")) as fake:
        yield fake


@pytest.fixture(scope="module")
def account(fake_process: FakeCloud) -> AwsCloud:
    return AwsCloud(Target(provider="aws"), clock=FastClock())


@pytest.fixture
def fake(fake_process: FakeCloud) -> FakeCloud:
    fake_process.reset()
    return fake_process


def check(account: AwsCloud, cluster: CloudCluster | None = None) -> dict[str, Finding]:
    return {finding.what: finding for finding in account.check(cluster or a_cluster(), 2)}


def test_all_is_well(account: AwsCloud, fake: FakeCloud) -> None:
    found = check(account)
    assert [what for what, finding in found.items() if finding.ok] == [
        "SDK",
        "credentials file",
        "credentials",
        "shape and image",
        "clock",
        "permissions to read",
        "permissions to change",
        "VPCs",
        QUOTA,
    ]
    assert boto3.__version__ in found["SDK"].detail
    assert "us-east-1a" in found["shape and image"].detail
    assert fake.owned() == []
    assert fake.live_instances() == []


def test_the_quota_is_compared_with_what_is_used(account: AwsCloud, fake: FakeCloud) -> None:
    fake.settings(quotas={"L-DB2E81BA": 96})
    assert check(account)[QUOTA].ok
    fake.settings(quotas={"L-DB2E81BA": 95})
    refused = check(account)[QUOTA]
    assert (refused.ok, "quotas/L-DB2E81BA" in refused.fix) == (False, True)
    assert "is 95 vCPUs in us-east-1, of which 0 are used; 96 are needed." in refused.detail
    fake.settings(quotas={"L-DB2E81BA": 99})
    image = account.offer(a_cluster()).image_id
    boto3.client("ec2").run_instances(ImageId=image, InstanceType="g5.xlarge", MinCount=1, MaxCount=1)
    assert not check(account)[QUOTA].ok
    assert check(account, a_cluster(spot=True))[QUOTA].ok


def test_a_quota_that_can_not_be_asked(account: AwsCloud, fake: FakeCloud) -> None:
    fake.fault(operation="GetServiceQuota", times=0, status=400, code="AccessDeniedException")
    assert check(account)[QUOTA].ok is None


def test_permissions_that_lack_are_named(account: AwsCloud, fake: FakeCloud) -> None:
    fake.settings(denied=["RunInstances", "CreateVpc", "DescribeVolumes"])
    found = check(account)
    assert found["permissions to change"].detail == "Not allowed: ec2:CreateVpc, ec2:RunInstances."
    assert found["permissions to read"].fix == ("Ask whoever runs the account to allow ec2:DescribeVolumes.")


def test_a_list_that_is_denied_hides_nothing_else(account: AwsCloud, fake: FakeCloud) -> None:
    fake.settings(denied=["DescribeInstances"])
    found = check(account)
    assert found[QUOTA].ok is None
    assert "ec2:DescribeInstances" in found["permissions to read"].detail
    assert found["clock"].ok


def test_too_many_vpcs(account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "value", lambda *_: 1.0)
    found = check(account)["VPCs"]
    assert (found.ok, "give --subnet-id" in found.fix) == (False, True)


def test_an_unknown_shape(account: AwsCloud, fake: FakeCloud) -> None:
    found = check(account, a_cluster("g5.13xlarge"))
    assert not found["shape and image"].ok
    assert "g5.13xlarge" in found["shape and image"].detail


def test_no_credentials(fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    *_, last = AwsCloud(Target(provider="aws"), clock=FastClock()).check(a_cluster(), 2)
    assert (last.what, last.ok) == ("credentials", False)
    assert "aws sso login" in last.fix


def test_others_can_read_the_credentials(
    account: AwsCloud, fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\n")
    path.chmod(0o644)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    found = check(account)["credentials file"]
    assert (found.ok, found.fix) == (False, f"Run `chmod 600 {path}`.")
    path.chmod(0o600)
    assert check(account)["credentials file"].ok


def test_a_clock_that_is_wrong(account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Api, "ahead_s", lambda _: -400.0)
    found = check(account)["clock"]
    assert (found.ok, found.detail) == (False, "This computer's clock is 400 s behind AWS's.")
