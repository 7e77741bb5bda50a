"""The fake EC2: its protocol, its permissions, its faults, its images, and the other services."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest

from tests.fakes.aws_proxy.user import ONCE, Aws, refused
from tests.fakes.client import ROOT

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


class TestImages:
    def test_ssm_parameter_names_an_existing_image(self, aws: Aws) -> None:
        (image,) = aws.ec2.describe_images(ImageIds=[aws.image])["Images"]
        assert image["Name"].startswith("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 2026")
        assert image["ImageOwnerAlias"] == "amazon"
        elsewhere = aws.client("ssm", region_name="us-west-2").get_parameters(Names=["x", *_names()])
        assert elsewhere["InvalidParameters"] == ["x"]
        assert elsewhere["Parameters"][0]["Value"] != aws.image
        with refused("ParameterNotFound"):
            aws.client("ssm").get_parameter(Name="/aws/service/deeplearning/none")

    def test_describe_images_filters_by_owner_and_name(self, aws: Aws) -> None:
        pattern = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"
        filters = [{"Name": "name", "Values": [pattern]}, {"Name": "state", "Values": ["available"]}]
        result = aws.ec2.describe_images(Owners=["amazon"], Filters=filters)["Images"]
        assert len(result) == 3
        assert max(result, key=lambda image: image["CreationDate"])["ImageId"] == aws.image
        # Anybody can give an image this name.
        assert len(aws.ec2.describe_images(Filters=filters)["Images"]) == 4
        ubuntu = aws.ec2.describe_images(Owners=["099720109477"])["Images"]
        assert len(ubuntu) == 2

    def test_describe_images_refuses_an_unknown_image(self, aws: Aws) -> None:
        with refused("InvalidAMIID.NotFound", text="The image id '[ami-0123]' does not exist"):
            aws.ec2.describe_images(ImageIds=["ami-0123"])


def _names() -> list[str]:
    return ["/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"]


class TestOtherServices:
    def test_service_quotas_are_returned_and_enforced(self, aws: Aws) -> None:
        quotas = aws.client("service-quotas")
        aws.cloud.settings(quotas={"L-DB2E81BA": 96})
        result = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]
        assert (result["QuotaName"], result["Value"]) == ("Running On-Demand G and VT instances", 96.0)
        for code in ("L-417A185B", "L-3819A6DF", "L-7212CCBC"):
            assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"] > 96
        with refused("NoSuchResourceException"):
            quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-0")
        with refused("VcpuLimitExceeded", text="limit of 96"):
            aws.run(count=3)
        assert len(aws.run(count=2)) == 2


class TestCommandLine:
    def test_aws_cli_launches_lists_and_terminates(self, aws: Aws) -> None:
        folder = os.environ.get("GPUCTL_CLOUD_CLIENTS", "")
        program = shutil.which(
            "aws", path=os.pathsep.join(filter(None, [folder, os.environ.get("PATH", "")]))
        )
        if program is None:
            pytest.skip("there is no `aws` on PATH or in $GPUCTL_CLOUD_CLIENTS")
        net = aws.net()
        launch = f"run-instances --image-id {aws.image} --instance-type g5.xlarge --subnet-id {net.subnet}"
        tags = "ResourceType=instance,Tags=[{Key=gpuctl,Value=c}]"
        made = _aws(aws, program, *launch.split(), "--count", "2", "--tag-specifications", tags)
        ids = [entry["InstanceId"] for entry in made["Instances"]]
        result = _aws(aws, program, "describe-instances", "--filters", "Name=tag:gpuctl,Values=c")
        assert {entry["InstanceId"] for entry in result["Reservations"][0]["Instances"]} == set(ids)
        ended = _aws(aws, program, "terminate-instances", "--instance-ids", *ids)
        assert {entry["CurrentState"]["Name"] for entry in ended["TerminatingInstances"]} == {"shutting-down"}


def _aws(aws: Aws, program: str, *words: str) -> Any:
    command = [program, "ec2", *words, "--output", "json", "--endpoint-url", aws.cloud.url]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | aws.cloud.env
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fake_ec2_exits_0_on_sigterm(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.fakes.aws_proxy", "--home", str(tmp_path), "--die-with-stdin"]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ready = json.loads(process.stdout.readline())
    assert ready["pid"] == process.pid
    process.terminate()
    assert process.wait(60) == 0
    process.stdin.close()
    process.stdout.close()
