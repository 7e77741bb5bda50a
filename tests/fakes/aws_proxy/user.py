"""A user of the fake EC2 with boto3, and helpers for tests: a network, a launch, its termination."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.fakes.client import FakeCloud, start_fake

DEEP_LEARNING = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
ONCE = Config(retries={"total_max_attempts": 1})


@dataclass(frozen=True)
class Net:
    vpc: str
    subnet: str
    group: str


class Aws:
    """boto3 with the fake's environment, and never a second try."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        env = cloud.env
        self.session = boto3.Session(
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
            region_name=env["AWS_DEFAULT_REGION"],
        )
        self.ec2 = self.client("ec2")

    def client(self, name: Any, **kwargs: Any) -> Any:
        return self.session.client(name, endpoint_url=self.cloud.url, config=ONCE, **kwargs)

    @cached_property
    def image(self) -> str:
        return self.client("ssm").get_parameter(Name=DEEP_LEARNING)["Parameter"]["Value"]

    def net(self, zone: str = "us-east-1a", cidr: str = "10.7.0.0/24") -> Net:
        vpc = self.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
        group = self.ec2.create_security_group(VpcId=vpc, GroupName="nodes", Description="nodes")["GroupId"]
        return Net(vpc, self.subnet(vpc, zone, cidr), group)

    def subnet(self, vpc: str, zone: str, cidr: str) -> str:
        made = self.ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)
        return made["Subnet"]["SubnetId"]

    def run(self, net: Net | None = None, count: int = 1, **params: Any) -> list[dict[str, Any]]:
        """Instances of a new launch."""
        request: dict[str, Any] = {
            "ImageId": self.image,
            "InstanceType": "g5.12xlarge",
            "MinCount": count,
            "MaxCount": count,
        }
        if net:
            request |= {"SubnetId": net.subnet, "SecurityGroupIds": [net.group]}
        request |= params
        reply = self.ec2.run_instances(**{key: value for key, value in request.items() if value is not None})
        return reply["Instances"]

    def instances(self, *ids: str, **params: Any) -> list[dict[str, Any]]:
        reply = self.ec2.describe_instances(**({"InstanceIds": list(ids)} if ids else {}), **params)
        return [entry for result in reply["Reservations"] for entry in result["Instances"]]

    def instance(self, name: str) -> dict[str, Any]:
        return self.instances(name)[0]

    def state(self, name: str) -> str:
        return self.instance(name)["State"]["Name"]

    def end(self, *ids: str) -> None:
        """Terminate, and wait until it is so."""
        self.ec2.terminate_instances(InstanceIds=list(ids))
        until(lambda: all(self.state(name) == "terminated" for name in ids))


def until(done: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@contextmanager
def refused(code: str, status: int = 400, text: str = "") -> Iterator[None]:
    """Expect that the service refuses the body's call, with this code, status, and part of the message."""
    with pytest.raises(ClientError) as caught:
        yield
    error = caught.value.response["Error"]
    assert (error["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status), (
        error
    )
    assert text in error["Message"]


@contextmanager
def fake_aws(home: Path, *, hosts: bool = False) -> Iterator[Aws]:
    with start_fake("aws_proxy", home, hosts=hosts) as cloud:
        yield Aws(cloud)
