"""Test the checks of `doctor` on AWS: all passing, and each failing alone."""

from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from provision.aws import checks, quotas
from provision.aws.api import Api
from provision.aws.cloud import AwsCloud
from provision.errors import CloudError
from provision.findings import Finding
from provision.records import CloudCluster
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import a_cluster

QUOTA = "quota for 2 g5.12xlarge"


def check(account: AwsCloud, cluster: CloudCluster | None = None) -> dict[str, Finding]:
    return {finding.what: finding for finding in account.check(cluster or a_cluster(), 2)}


def test_check_of_a_working_account_finds_no_problem(account: AwsCloud, fake: FakeCloud) -> None:
    result = check(account)
    assert [subject for subject, finding in result.items() if finding.ok] == [
        "SDK",
        "credentials file",
        "credentials",
        "shape and image",
        "clock",
        "permissions to read",
        "key of disks",
        "VPCs",
        QUOTA,
    ]
    assert [subject for subject, finding in result.items() if finding.ok is False] == []
    assert boto3.__version__ in result["SDK"].detail
    assert "us-east-1a" in result["shape and image"].detail
    assert fake.owned() == []
    assert fake.live_instances() == []


def test_check_compares_vcpu_quota_with_usage(account: AwsCloud, fake: FakeCloud) -> None:
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


def test_check_reports_an_unreadable_quota_as_unknown(account: AwsCloud, fake: FakeCloud) -> None:
    fake.fault(operation="GetServiceQuota", times=0, status=400, code="AccessDeniedException")
    assert check(account)[QUOTA].ok is None


@pytest.mark.parametrize("shape", ["p6-b200.48xlarge", "p6-b300.48xlarge"])
def test_check_of_spot_machines_without_a_documented_quota_names_no_code(
    account: AwsCloud, fake: FakeCloud, shape: str
) -> None:
    finding = checks._quota(account.api, a_cluster(shape, spot=True), 2)
    assert finding.ok is None
    assert "AWS documents no quota for spot machines of p6" in finding.detail
    assert "L-" not in finding.detail
    assert checks._quota(account.api, a_cluster(shape), 2).detail.startswith(
        "'Running On-Demand P instances'"
    )


def test_check_counts_all_families_of_an_on_demand_quota(account: AwsCloud, fake: FakeCloud) -> None:
    image = account.offer(a_cluster()).image_id
    boto3.client("ec2").run_instances(ImageId=image, InstanceType="p3.2xlarge", MinCount=1, MaxCount=1)
    finding = checks._quota(account.api, a_cluster("p5.48xlarge"), 1)
    assert "of which 8 are used; 192 are needed" in finding.detail


def test_check_names_the_rights_that_a_customer_managed_key_has_to_grant(
    account: AwsCloud, fake: FakeCloud
) -> None:
    kms = boto3.client("kms")
    key = kms.create_key()["KeyMetadata"]
    fake.settings(ebs_key=key["Arn"])
    finding = checks.disk_key(account.api)
    assert finding.ok is None
    assert key["Arn"] in finding.detail
    assert "allow you kms:CreateGrant" in finding.fix
    assert (
        "allow the role AWSServiceRoleForAutoScaling kms:CreateGrant"
        in checks.disk_key(account.api, scaling=True).fix
    )
    fake.settings(denied=["DescribeKey"])
    assert "may use it is not known. DescribeKey in" in checks.disk_key(account.api).detail
    fake.settings(denied=[])
    kms.disable_key(KeyId=key["KeyId"])
    assert checks.disk_key(account.api).ok is False
    fake.settings(denied=["GetEbsDefaultKmsKeyId"])
    assert check(account)["key of disks"].ok is None


def test_check_names_missing_permissions(account: AwsCloud, fake: FakeCloud) -> None:
    fake.settings(denied=["RunInstances", "CreateVpc", "DescribeVolumes"])
    result = check(account)
    changing = result["permissions to change"]
    assert changing.detail.startswith("Not allowed: ec2:CreateVpc, ec2:RunInstances. Not known of ")
    assert (changing.ok, "to allow ec2:CreateVpc, ec2:RunInstances." in changing.fix) == (False, True)
    assert result["permissions to read"].fix == ("Ask whoever runs the account to allow ec2:DescribeVolumes.")


def test_check_reports_permissions_it_cannot_try_as_unknown(account: AwsCloud, fake: FakeCloud) -> None:
    result = check(account)["permissions to change"]
    assert (result.ok, result.fix) == (None, "")
    absent = result.detail.removeprefix("Not known of ").partition(": there is nothing to try that on.")
    assert absent[1:] == (": there is nothing to try that on.", "")
    assert {
        "ec2:TerminateInstances",
        "ec2:DeleteSecurityGroup",
        "ec2:AttachInternetGateway",
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:AssociateRouteTable",
    } <= set(absent[0].split(", "))
    assert not {"ec2:CreateVpc", "ec2:RunInstances", "ec2:ImportKeyPair"} & set(absent[0].split(", "))
    fake.settings(denied=["DeleteSecurityGroup", "TerminateInstances"])
    refused = check(account)["permissions to change"]
    assert refused.ok is False
    assert refused.detail.startswith("Not allowed: ec2:TerminateInstances, ec2:DeleteSecurityGroup. ")


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("RequestLimitExceeded", 503, "AWS asks for fewer calls"),
        ("InternalError", 500, "Run the command again in a minute"),
        ("VPCIdNotSpecified", 400, "(VPCIdNotSpecified)"),
    ],
)
def test_check_reports_permissions_as_unknown_after_other_errors(
    account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch, code: str, status: int, text: str
) -> None:
    hasty = replace(account.api._retry, throttled_for_s=1.0, unclear_for_s=1.0)
    monkeypatch.setattr(account.api, "_retry", hasty)
    fake.fault(operation="RunInstances", times=0, status=status, code=code)
    fake.fault(operation="DescribeVolumes", times=0, status=status, code=code)
    result = check(account)
    for subject, action in (("change", "ec2:RunInstances"), ("read", "ec2:DescribeVolumes")):
        finding = result[f"permissions to {subject}"]
        assert finding.ok is None
        assert f"Not found out of {action}: " in finding.detail
        assert text in finding.detail


def test_check_raises_when_a_dry_run_was_not_one(
    account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account.api, "call", lambda *_, **__: {})
    with pytest.raises(CloudError, match="ec2:CreateVpc in us-east-1 was answered as if it were no dry run"):
        checks._dry_run(account.api, "create_vpc", {"CidrBlock": "10.0.0.0/16"})


def test_check_with_subnet_id_tries_permissions_on_that_subnet(account: AwsCloud, fake: FakeCloud) -> None:
    subnet = boto3.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    absent = check(account, a_cluster(subnet_id=subnet))["permissions to change"].detail
    assert not any(name in absent for name in ("CreateSecurityGroup", "RunInstances", "Vpc", "RouteTable"))
    assert fake.owned() == []


def test_check_with_denied_instance_list_reports_the_rest(account: AwsCloud, fake: FakeCloud) -> None:
    fake.settings(denied=["DescribeInstances"])
    result = check(account)
    assert result[QUOTA].ok is None
    assert "ec2:DescribeInstances" in result["permissions to read"].detail
    assert result["clock"].ok


def test_check_reports_a_reached_vpc_limit(
    account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "value", lambda *_: 1.0)
    result = check(account)["VPCs"]
    assert (result.ok, "give --subnet-id" in result.fix) == (False, True)


def test_check_names_an_unknown_shape(account: AwsCloud, fake: FakeCloud) -> None:
    result = check(account, a_cluster("g5.13xlarge"))
    assert not result["shape and image"].ok
    assert "g5.13xlarge" in result["shape and image"].detail


def test_check_stops_at_refused_credentials(account: AwsCloud, fake: FakeCloud) -> None:
    fake.fault(operation="GetCallerIdentity", times=0, status=403, code="InvalidClientTokenId")
    *_, last = account.check(a_cluster(), 2)
    assert (last.what, last.ok) == ("credentials", False)
    assert "aws sso login" in last.fix


def test_check_reports_a_readable_credentials_file(
    account: AwsCloud, fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\n")
    path.chmod(0o644)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    result = check(account)["credentials file"]
    assert (result.ok, result.fix) == (False, f"Run `chmod 600 {path}`.")
    path.chmod(0o600)
    assert check(account)["credentials file"].ok


def test_check_reports_a_wrong_clock(
    account: AwsCloud, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "ahead_s", lambda _: -400.0)
    result = check(account)["clock"]
    assert (result.ok, result.detail) == (False, "This computer's clock is 400 s behind AWS's.")
