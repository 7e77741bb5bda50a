"""The fake EC2: the life of an instance, from its launch to when it is forgotten."""

from typing import Any

import pytest

from tests.fakes.aws_proxy.user import Aws, Net, refused, until

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


def ids(instances: list[dict[str, Any]]) -> list[str]:
    return [instance["InstanceId"] for instance in instances]


class TestLife:
    def test_instance_goes_from_pending_to_terminated(self, aws: Aws, net: Net) -> None:
        aws.cloud.settings(launch_s=0.3, terminate_s=0.3)
        nic = {
            "DeviceIndex": 0,
            "SubnetId": net.subnet,
            "Groups": [net.group],
            "AssociatePublicIpAddress": True,
        }
        (made,) = aws.run(NetworkInterfaces=[nic])
        name = made["InstanceId"]
        assert made["State"]["Name"] == "pending"
        assert made["PrivateIpAddress"] == "10.7.0.4" and "PublicIpAddress" not in made
        until(lambda: aws.state(name) == "running")
        assert aws.instance(name)["PublicIpAddress"].startswith(("203.0.113.", "198.51.100.", "192.0.2."))
        assert aws.instance(name)["StateTransitionReason"] == ""
        (change,) = aws.ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
        assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == (
            "running",
            "shutting-down",
        )
        assert "PublicIpAddress" not in aws.instance(name)
        assert aws.cloud.live_instances() == [] and len(aws.cloud.owned()) == 1
        until(lambda: aws.state(name) == "terminated")
        result = aws.instance(name)
        assert result["StateTransitionReason"].startswith("User initiated (20")
        assert result["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
        assert result["NetworkInterfaces"] == [] and "SubnetId" not in result and "VpcId" not in result
        (change,) = aws.ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
        assert change["CurrentState"]["Name"] == "terminated"
        assert aws.ec2.describe_volumes()["Volumes"] == []

    def test_instance_is_forgotten_after_termination(self, aws: Aws, net: Net) -> None:
        aws.cloud.settings(forget_s=0.05)
        (name,) = ids(aws.run(net))
        aws.ec2.terminate_instances(InstanceIds=[name])
        until(lambda: not aws.instances())
        with refused("InvalidInstanceID.NotFound", text=f"The instance ID '{name}' does not exist"):
            aws.instance(name)
        assert [entry["state"] for entry in aws.cloud.state()["instances"]] == ["terminated"]

    def test_terminate_with_an_unknown_id_ends_nothing(self, aws: Aws, net: Net) -> None:
        (name,) = ids(aws.run(net))
        with refused("InvalidInstanceID.NotFound"):
            aws.ec2.terminate_instances(InstanceIds=[name, "i-0123456789abcdef0"])
        with refused("InvalidInstanceID.NotFound", text="IDs 'i-01, i-02' do not exist"):
            aws.ec2.describe_instances(InstanceIds=["i-01", name, "i-02"])
        with refused("InvalidInstanceID.Malformed"):
            aws.ec2.describe_instances(InstanceIds=["x"])
        assert aws.state(name) in ("pending", "running")

    def test_terminate_refuses_a_protected_instance(self, aws: Aws, net: Net) -> None:
        (name,) = ids(aws.run(net, DisableApiTermination=True))
        with refused("OperationNotPermitted", text=name):
            aws.ec2.terminate_instances(InstanceIds=[name])
        aws.ec2.modify_instance_attribute(InstanceId=name, DisableApiTermination={"Value": False})
        aws.end(name)

    def test_interrupted_spot_instance_is_terminated(self, aws: Aws, net: Net) -> None:
        (made,) = aws.run(net, InstanceMarketOptions={"MarketType": "spot"})
        name, request = made["InstanceId"], made["SpotInstanceRequestId"]
        assert made["InstanceLifecycle"] == "spot"
        assert _spot(aws, request) == ("active", "fulfilled")
        aws.cloud._ask("POST", "interrupt", {"ids": [name]})
        until(lambda: aws.state(name) == "terminated")
        assert aws.instance(name)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
        assert _spot(aws, request) == ("closed", "instance-terminated-by-price")

    @pytest.mark.parametrize(("behaviour", "end"), [("terminate", "terminated"), ("stop", "stopped")])
    def test_shutdown_from_inside_stops_or_terminates_the_instance(
        self, aws: Aws, net: Net, behaviour: str, end: str
    ) -> None:
        (name,) = ids(aws.run(net, InstanceInitiatedShutdownBehavior=behaviour))
        until(lambda: aws.state(name) == "running")
        aws.cloud._ask("POST", "shutdown", {"ids": [name]})
        until(lambda: aws.state(name) == end)
        assert aws.instance(name)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"

    def test_list_lag_hides_new_instances(self, aws: Aws, net: Net) -> None:
        aws.cloud.settings(list_lag_s=600)
        (name,) = ids(aws.run(net))
        assert aws.instances() == []
        assert aws.ec2.describe_network_interfaces()["NetworkInterfaces"] == []
        with refused("InvalidInstanceID.NotFound"):
            aws.instance(name)
        assert len(aws.cloud.state()["instances"]) == 1
        aws.cloud.settings(speed=10_000)
        until(lambda: ids(aws.instances()) == [name])
        assert aws.state(name) == "running"


def _spot(aws: Aws, request: str) -> tuple[str, str]:
    result = aws.ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request])["SpotInstanceRequests"]
    return result[0]["State"], result[0]["Status"]["Code"]
