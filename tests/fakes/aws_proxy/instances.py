"""Instances: their states from launch to termination, and their view."""

import datetime as dt
import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.aws_proxy import images, interfaces, volumes
from tests.fakes.aws_proxy.interfaces import Interface
from tests.fakes.aws_proxy.launch import LaunchPlan
from tests.fakes.aws_proxy.world import Thing, World, tag_list, utc_now

CLUSTER_ID = "gpuctl-cluster-id"

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}

_public_numbers = itertools.count()


@dataclass(kw_only=True, eq=False)
class Instance(Thing):
    """An instance; `body` has the fields that never change."""

    reservation_id: str
    plan: LaunchPlan
    request: dict[str, Any]
    """The parameters of its launch."""
    nics: list[Interface]
    address: str | None
    """Address of its real SSH server, if any."""
    state: str = "pending"
    launched_at: float = field(default_factory=lambda: dt.datetime.now(dt.UTC).timestamp())
    running_at: float | None = None
    """In simulated time."""
    ended_at: float | None = None
    reason: str = ""
    state_reason: dict[str, str] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of DescribeInstanceAttribute and ModifyInstanceAttribute."""
    metadata: dict[str, Any] = field(default_factory=dict)
    spot_request_id: str | None = None

    @property
    def token(self) -> str | None:
        """Return the client token of its launch."""
        return self.request.get("ClientToken")

    @property
    def gone(self) -> bool:
        """Return whether the instance has ended."""
        return self.state == "terminated"

    def shown(self) -> dict[str, Any]:
        """Return the view of DescribeInstances."""
        fields = self.body | {
            "State": {"Code": CODES[self.state], "Name": self.state},
            "StateTransitionReason": self.reason,
            "StateReason": self.state_reason,
            "Tags": tag_list(self.tags),
            "PrivateDnsName": "",
            "PublicDnsName": "",
            "MetadataOptions": self.metadata,
        }
        return fields | ({"BlockDeviceMappings": []} if self.gone else self._network())

    def _network(self) -> dict[str, Any]:
        primary = self.nics[0]
        association = primary.association or {}
        return {
            "PrivateIpAddress": primary.body["PrivateIpAddress"],
            "PrivateDnsName": primary.body["PrivateDnsName"],
            "PublicIpAddress": association.get("PublicIp"),
            "PublicDnsName": association.get("PublicDnsName", ""),
            "SubnetId": primary.body["SubnetId"],
            "VpcId": primary.body["VpcId"],
            "SecurityGroups": primary.body["Groups"],
            "SourceDestCheck": self.attributes["SourceDestCheck"],
            "NetworkInterfaces": [_nic_shown(nic) for nic in self.nics if nic.attachment],
        }


NIC_FIELDS = (
    "Description",
    "Groups",
    "InterfaceType",
    "Ipv6Addresses",
    "MacAddress",
    "NetworkInterfaceId",
    "OwnerId",
    "PrivateDnsName",
    "PrivateIpAddress",
    "SourceDestCheck",
    "Status",
    "SubnetId",
    "VpcId",
)
"""Fields of an interface that DescribeInstances shows exactly as DescribeNetworkInterfaces does."""


def _nic_shown(nic: Interface) -> dict[str, Any]:
    full = nic.shown()
    attachment = {
        key: value
        for key, value in full["Attachment"].items()
        if key not in ("InstanceId", "InstanceOwnerId")
    }
    association = nic.association
    addresses = [
        entry | ({"Association": association} if entry["Primary"] and association else {})
        for entry in nic.body["PrivateIpAddresses"]
    ]
    shown = {key: full[key] for key in NIC_FIELDS} | {"PrivateIpAddresses": addresses}
    return shown | {"Attachment": attachment, "Association": association}


def start(world: World, instance: Instance) -> None:
    """Schedule the accepted instance's start or failure."""
    world.add(instance)
    world.control.launched(instance.id, instance.tags.get(CLUSTER_ID))
    _boot(world, instance)
    failure = world.control.settings.late_failure_at(instance.plan.zone)
    if failure is None:
        world.after(world.control.settings.launch_s, lambda: _runs(world, instance))
    else:
        world.after(world.control.settings.launch_s, lambda: _fails(world, instance, failure))


def _boot(world: World, instance: Instance) -> None:
    if world.hosts and instance.address:
        keys = [instance.plan.public_key] if instance.plan.public_key else []
        world.hosts.start(
            instance.id,
            instance.address,
            instance.plan.user_data,
            name=instance.tags.get("Name", instance.id),
            image=instance.plan.image["Name"],
            authorized_keys=keys,
            image_user=images.login_user(instance.plan.image),
        )


def _runs(world: World, instance: Instance) -> None:
    if instance.state != "pending":
        return
    instance.state = "running"
    instance.running_at = world.control.now()
    primary = instance.nics[0]
    if primary.wants_public and primary.public_ip is None:
        primary.public_ip = instance.address or public_address()


def public_address() -> str:
    """Return an unused address."""
    number = next(_public_numbers)
    return f"{('203.0.113', '198.51.100', '192.0.2')[number // 250 % 3]}.{number % 250 + 1}"


def _fails(world: World, instance: Instance, message: str) -> None:
    if instance.state != "pending":
        return
    code, _, text = message.partition(":")
    if not code.startswith(("Server.", "Client.")):
        code, text = "Server.InternalError", message
    instance.reason = code
    instance.state_reason = {"Code": code, "Message": f"{code}: {text.strip() or 'Failed on launch'}"}
    if world.hosts:
        world.hosts.stop(instance.id)
    _ended(world, instance)


def terminate(world: World, instance: Instance, *, code: str = "Client.UserInitiatedShutdown") -> None:
    """Start to terminate an instance; ignored if this has begun."""
    if instance.state in ("shutting-down", "terminated"):
        return
    instance.state = "shutting-down"
    _note_why(instance, code)
    _lose_public_address(instance)
    if world.hosts:
        world.hosts.stop(instance.id)
    world.after(world.control.settings.terminate_s, lambda: _ended(world, instance))


WHY = {
    "Client.UserInitiatedShutdown": ("User initiated ({})", "User initiated shutdown"),
    "Client.InstanceInitiatedShutdown": ("", "Instance initiated shutdown"),
    "Server.SpotInstanceTermination": ("Service initiated ({})", "Spot instance termination"),
}
"""By code: the reason of a transition, and the words of the code."""


def _note_why(instance: Instance, code: str) -> None:
    reason, text = WHY.get(code, ("Service initiated ({})", "Internal error"))
    instance.reason = reason.format(dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S GMT"))
    instance.state_reason = {"Code": code, "Message": f"{code}: {text}"}


def _lose_public_address(instance: Instance) -> None:
    for nic in instance.nics:
        if nic.allocation_id is None:
            nic.public_ip = None


def _ended(world: World, instance: Instance) -> None:
    if instance.gone:
        return
    instance.state = "terminated"
    instance.ended_at = utc_now().timestamp()
    _lose_public_address(instance)
    world.control.terminated(instance.id)
    volumes.instance_gone(world, instance.id)
    if request := world.things.get(instance.spot_request_id or ""):
        by_user = (instance.state_reason or {}).get("Code") == "Client.UserInitiatedShutdown"
        status = "instance-terminated-by-user" if by_user else "instance-terminated-by-price"
        request.body |= {"State": "closed", "Status": {"Code": status, "Message": status}}
    world.after(world.extra.forget_s, lambda: setattr(instance, "forgotten", True))
    # Interfaces outlive their instance for a while, and keep groups and subnets from being deleted.
    world.after(world.control.settings.terminate_s / 2, lambda: interfaces.instance_gone(world, instance.id))


def shut_down(world: World, instance: Instance) -> None:
    """Handle a shutdown by the instance's own system: terminate or stop, as its attributes say."""
    code = "Client.InstanceInitiatedShutdown"
    if instance.attributes["InstanceInitiatedShutdownBehavior"] == "terminate" or instance.plan.spot:
        terminate(world, instance, code=code)
    elif instance.state == "running":
        stop(world, instance, code=code)


def stop(world: World, instance: Instance, *, code: str = "Client.UserInitiatedShutdown") -> None:
    """Begin to stop a running instance."""
    instance.state = "stopping"
    _note_why(instance, code)
    _lose_public_address(instance)
    if world.hosts:
        # The same address is used again when the instance is started.
        world.hosts.stop(instance.id, wait=True)
    world.after(world.control.settings.terminate_s, lambda: _stopped(instance))


def _stopped(instance: Instance) -> None:
    if instance.state == "stopping":
        instance.state = "stopped"
