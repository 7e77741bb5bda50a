"""The fake EC2: its protocol, its permissions, its faults, its images, and the other services."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import boto3
import botocore.exceptions
import pytest

from tests.fakes.aws_proxy.user import ONCE, Aws, refused

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


class TestProtocol:
    def test_fake_ec2_refuses_another_access_key(self, aws: Aws) -> None:
        stranger = boto3.Session(
            aws_access_key_id="AKIAOTHER", aws_secret_access_key="x", region_name="us-east-1"
        )
        for service, operation, code, status in (
            ("ec2", "describe_vpcs", "AuthFailure", 401),
            ("sts", "get_caller_identity", "InvalidClientTokenId", 403),
            ("ssm", "describe_parameters", "UnrecognizedClientException", 400),
        ):
            client = stranger.client(service, endpoint_url=aws.cloud.url, config=ONCE)  # type: ignore[call-overload]
            with refused(code, status):
                getattr(client, operation)()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{aws.cloud.url}/?Action=DescribeVpcs&Version=2016-11-15")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ("Action=DescribeVpcs&VpcIds.1=vpc-1", "UnknownParameter"),
            ("Action=RunInstances&MinCount=1&MaxCount=1&ImageId=ami-1&Nonsense=1", "UnknownParameter"),
            ("Action=RunInstances&MinCount=1&MaxCount=1&NetworkInterface.1.Nonsense=1", "UnknownParameter"),
            ("Action=RunInstances&MaxCount=1&ImageId=ami-1", "MissingParameter"),
            ("Action=RunInstances&MinCount=one&MaxCount=1", "InvalidParameterValue"),
            ("Action=RunInstances&MinCount=1&MaxCount=1&EbsOptimized=maybe", "InvalidParameterValue"),
            ("Action=RunInstances&MinCount=1&MaxCount=1&InstanceType=z9.huge", "InvalidParameterValue"),
            ("Action=LaunchRocket", "InvalidAction"),
        ],
    )
    def test_fake_ec2_refuses_unknown_and_invalid_parameters(self, aws: Aws, fields: str, code: str) -> None:
        request = urllib.request.Request(f"{aws.cloud.url}/", data=fields.encode(), headers=_signed(aws))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert f"<Code>{code}</Code>" in caught.value.read().decode()

    def test_fake_ec2_serves_16_clients_in_parallel(self, aws: Aws) -> None:
        net = aws.net(cidr="10.7.0.0/20")
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda _: aws.run(net)[0]["InstanceId"], range(48)))
        assert len(set(made)) == 48
        assert aws.cloud.state()["most_instances"] == 48


def _signed(aws: Aws) -> dict[str, str]:
    scope = f"Credential={aws.cloud.env['AWS_ACCESS_KEY_ID']}/20260701/us-east-1/ec2/aws4_request"
    return {
        "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
        "Content-Type": "application/x-www-form-urlencoded",
    }


class TestPermissions:
    def test_dry_run_changes_nothing_and_answers_dry_run_operation(self, aws: Aws) -> None:
        net = aws.net()
        for attempt in (
            lambda: aws.run(net, DryRun=True),
            lambda: aws.ec2.create_vpc(CidrBlock="10.9.0.0/16", DryRun=True),
            lambda: aws.ec2.create_placement_group(GroupName="g", Strategy="cluster", DryRun=True),
            lambda: aws.ec2.describe_instances(DryRun=True),
        ):
            with refused("DryRunOperation", 412, "DryRun flag is set"):
                attempt()
        assert aws.cloud.state()["instances"] == []
        assert [entry["kind"] for entry in aws.cloud.state()["resources"]].count("vpc") == 2
        assert not [call for call in aws.cloud.calls("RunInstances") if call["mutating"]]

    def test_denied_operation_is_refused_with_and_without_dry_run(self, aws: Aws) -> None:
        aws.cloud.settings(denied=["RunInstances", "Delete*", "GetParameter"])
        for dry in (True, False):
            with refused("UnauthorizedOperation", 403, "ec2:RunInstances"):
                aws.ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, DryRun=dry)
        with refused("UnauthorizedOperation", 403):
            aws.ec2.delete_vpc(VpcId="vpc-1")
        with refused("AccessDeniedException"):
            aws.client("ssm").get_parameter(Name="x")
        assert aws.ec2.describe_vpcs()["Vpcs"]

    def test_settings_accept_ec2_fields_and_refuse_unknown_ones(self, aws: Aws) -> None:
        assert aws.cloud.settings(denied=["X"], launch_s=3)["denied"] == ["X"]
        with pytest.raises(AssertionError, match="no nonsense"):
            aws.cloud.settings(nonsense=1)
        aws.cloud.reset()
        assert aws.cloud.settings()["denied"] == []


class TestFaults:
    def test_injected_error_has_the_format_of_each_service(self, aws: Aws) -> None:
        aws.cloud.fault(
            operation="*", times=0, status=400, code="RequestExpired", message="Request has expired."
        )
        for client, operation in (
            ("ec2", "describe_vpcs"),
            ("sts", "get_caller_identity"),
            ("ssm", "describe_parameters"),
        ):
            with refused("RequestExpired", 400, "expired"):
                getattr(aws.client(client), operation)()

    def test_drop_after_performs_the_call_and_drop_before_does_not(self, aws: Aws) -> None:
        aws.cloud.fault(operation="CreateVpc", kind="drop_after")
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            aws.ec2.create_vpc(CidrBlock="10.9.0.0/16")
        aws.cloud.fault(operation="CreateVpc", kind="drop_before")
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            aws.ec2.create_vpc(CidrBlock="10.9.0.0/16")
        assert len(aws.ec2.describe_vpcs()["Vpcs"]) == 2

    def test_calls_log_has_status_and_code(self, aws: Aws) -> None:
        aws.cloud.forget_calls()
        with refused("InvalidVpcID.NotFound"):
            aws.ec2.delete_vpc(VpcId="vpc-0")
        (call,) = aws.cloud.calls()
        assert (call["operation"], call["mutating"], call["status"], call["code"]) == (
            "DeleteVpc",
            True,
            400,
            "InvalidVpcID.NotFound",
        )
