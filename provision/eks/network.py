"""The shared network with the additions of EKS: names in DNS, public addresses of nodes, two zones."""

from collections.abc import Mapping
from dataclasses import replace

from provision.aws.infrastructure import network
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.eks.cloud import EksCloud
from provision.records import CloudCluster, Infrastructure, Offer, Zone
from provision.rented.interface import Ensure


def maker(cloud: EksCloud, cluster: CloudCluster, ensure: Ensure) -> ResourceMaker:
    """Return the maker of the network. Nodes have no SSH: the group is for traffic among them."""
    return cloud.maker(replace(cluster, ssh_cidrs=()), ensure)


def prepare(maker: ResourceMaker, offer: Offer) -> Mapping[str, str]:
    """Make the network. Returns the ids `vpc`, `security_group`, and `subnet <zone>` of the control plane's zones."""
    infrastructure = network.prepare(maker, offer, None)
    _resolve_names(maker, infrastructure.ids["vpc"])
    ids = dict(infrastructure.ids)
    for zone in offer.facts["control_zones"]:
        ids[f"subnet {zone}"] = subnet(maker, offer, infrastructure, zone)
    return ids


def subnet(maker: ResourceMaker, offer: Offer, infrastructure: Infrastructure, zone: str) -> str:
    """Make the zone's subnet with its route. In a public subnet, nodes need a public address to join."""
    without_group = replace(offer, facts={**offer.facts, "placement_group": False})
    made = network.prepare_zone(maker, without_group, infrastructure, Zone(name=zone))
    subnet_id = made.ids["subnet"]
    if maker.cluster.public_ip:
        (item,) = maker.api.pages("describe_subnets", "Subnets", SubnetIds=[subnet_id])
        if not item.get("MapPublicIpOnLaunch"):
            maker.api.call(
                "modify_subnet_attribute",
                again=True,
                settle=True,
                SubnetId=subnet_id,
                MapPublicIpOnLaunch={"Value": True},
            )
    return subnet_id


def placement_group(
    maker: ResourceMaker, offer: Offer, infrastructure: Infrastructure, zone: str
) -> str | None:
    """Make the zone's placement group, and return its name. `None`: not possible for the shape, or it has no EFA."""
    if not (offer.facts["placement_group"] and offer.facts["efa_cards"]):
        return None
    made = network.prepare_zone(maker, offer, infrastructure, Zone(name=zone))
    return made.ids["placement_group"]


def _resolve_names(maker: ResourceMaker, vpc: str) -> None:
    """Switch DNS names on in the VPC: nodes look up the API server's private address."""
    answer = maker.api.call("describe_vpc_attribute", settle=True, VpcId=vpc, Attribute="enableDnsHostnames")
    if not answer["EnableDnsHostnames"]["Value"]:
        maker.api.call(
            "modify_vpc_attribute", again=True, settle=True, VpcId=vpc, EnableDnsHostnames={"Value": True}
        )
