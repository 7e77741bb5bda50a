"""VNICs and their addresses. They come with instances, and go a while after them."""

import secrets
from collections.abc import Iterator

from tests.fakes.oci.api import Handler, View
from tests.fakes.oci.common import Network, getter, network, of_vcn
from tests.fakes.oci.errors import invalid, missing
from tests.fakes.oci.store import Cloud, Resource, must_be_live

MAX_GROUPS = 5


def check_vnic(cloud: Cloud, body: View, domain: str) -> Resource:
    """Check the VNIC that a launch requests; return the subnet."""
    request = body.get("createVnicDetails") or {}
    identifier = request.get("subnetId") or body.get("subnetId")
    if identifier is None:
        raise missing("createVnicDetails.subnetId is required")
    subnet = cloud.get("subnet", identifier)
    must_be_live(subnet, "The Subnet")
    if subnet.view.get("availabilityDomain", domain) != domain:
        raise invalid(f"Subnet {subnet.id} is not in availability domain {domain}")
    if request.get("assignPublicIp") and subnet.view["prohibitPublicIpOnVnic"]:
        raise invalid(f"createVnicDetails.assignPublicIp: Subnet {subnet.id} prohibits public IP addresses")
    groups = request.get("nsgIds") or []
    if len(groups) > MAX_GROUPS:
        raise invalid(f"createVnicDetails.nsgIds has {len(groups)} entries; at most {MAX_GROUPS} are allowed")
    for group in groups:
        of_vcn(cloud, "networksecuritygroup", group, subnet.view["vcnId"])
    label = request.get("hostnameLabel") or body.get("hostnameLabel")
    if label:
        if not subnet.view.get("dnsLabel"):
            raise invalid(f"hostnameLabel: Subnet {subnet.id} has no dnsLabel")
        if any(cloud.where("vnic", subnetId=subnet.id, hostnameLabel=label)):
            raise invalid(f"hostnameLabel {label} is in use in Subnet {subnet.id}")
    _pick_address(cloud, subnet, request.get("privateIp"))
    return subnet


def add_vnic(cloud: Cloud, instance: Resource, subnet: Resource, body: View, address: str | None) -> Resource:
    """Make the VNIC of an instance. `address` is a real one; `None`: addresses that lead nowhere."""
    request = body.get("createVnicDetails") or {}
    public = request.get("assignPublicIp")
    if public is None:
        public = not subnet.view["prohibitPublicIpOnVnic"]
    private_ip = address or _pick_address(cloud, subnet, request.get("privateIp"))
    public_ip = (address or cloud.public_address()) if public else None
    return cloud.add(
        "vnic",
        {
            "availabilityDomain": instance.view["availabilityDomain"],
            "compartmentId": instance.view["compartmentId"],
            "subnetId": subnet.id,
            "displayName": request.get("displayName") or instance.view["displayName"],
            "freeformTags": request.get("freeformTags") or {},
            "definedTags": request.get("definedTags") or {},
            "hostnameLabel": request.get("hostnameLabel") or body.get("hostnameLabel"),
            "isPrimary": True,
            "macAddress": "02:00:17:" + ":".join(f"{byte:02X}" for byte in secrets.token_bytes(3)),
            "nsgIds": request.get("nsgIds") or [],
            "privateIp": private_ip,
            "publicIp": public_ip,
            "skipSourceDestCheck": bool(request.get("skipSourceDestCheck")),
        },
        state="PROVISIONING",
        own={"instance": instance.id},
    )


def remove_vnic(cloud: Cloud, vnic: Resource) -> None:
    """Remove the VNIC."""
    cloud.become(vnic, "TERMINATED")
    cloud.forget(vnic)


def _pick_address(cloud: Cloud, subnet: Resource, asked: str | None) -> str:
    block = network(subnet.view["cidrBlock"], "cidrBlock")
    values = {vnic.view["privateIp"] for vnic in cloud.where("vnic", subnetId=subnet.id)}
    if asked is None:
        free = next((item for item in _usable(block) if item not in values), None)
        if free is None:
            raise invalid(f"Subnet {subnet.id} has no free private IP address")
        return free
    if asked in values:
        raise invalid(f"privateIp {asked} is in use in Subnet {subnet.id}")
    if asked not in _usable(block):
        raise invalid(f"privateIp {asked} is no address of Subnet {subnet.id} that can be given")
    return asked


def _usable(block: Network) -> Iterator[str]:
    """Iterate over a block's addresses without the first two and the last, which the service reserves."""
    return (str(block[at]) for at in range(2, block.num_addresses - 1))


HANDLERS: dict[str, Handler] = {
    "GetVnic": getter("vnic"),
}
