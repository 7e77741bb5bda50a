"""The network that clusters share, as EKS needs it: names in DNS, public addresses of nodes, two zones."""

from collections.abc import Mapping
from dataclasses import replace

from provision.aws.infrastructure import network
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.records import CloudCluster, Infrastructure, Offer, Zone
from provision.rented.interface import Ensure


def prepare(maker: ResourceMaker, cluster: CloudCluster, offer: Offer, ensure: Ensure) -> Mapping[str, str]:
    """Ids: `vpc`, `security_group`, and `subnet <zone>` of the control plane's zones."""
    plain = _for_network(offer)
    inside = replace(cluster, ssh_cidrs=())  # nodes have no SSH: the group is for traffic among them
    infrastructure = network.prepare(maker, inside, offer, None, ensure)
    _resolve_names(maker, infrastructure.ids["vpc"])
    ids = dict(infrastructure.ids)
    for zone in offer.facts["control_zones"]:
        ids[f"subnet {zone}"] = subnet(maker, inside, plain, infrastructure, zone, ensure)
    return ids


def subnet(
    maker: ResourceMaker,
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: str,
    ensure: Ensure,
) -> str:
    """The zone's subnet, with its way out; in a public one nodes need a public address to join."""
    made = network.prepare_zone(maker, cluster, _for_network(offer), infrastructure, Zone(name=zone), ensure)
    found = made.ids["subnet"]
    if cluster.public_ip:
        (item,) = maker.api.pages("describe_subnets", "Subnets", SubnetIds=[found])
        if not item.get("MapPublicIpOnLaunch"):
            maker.api.call(
                "modify_subnet_attribute",
                again=True,
                settle=True,
                SubnetId=found,
                MapPublicIpOnLaunch={"Value": True},
            )
    return found


def placement_group(
    maker: ResourceMaker,
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: str,
    ensure: Ensure,
) -> str | None:
    """The name of the placement group in the zone, where the shape takes one and is worth it: with EFA."""
    if not (offer.facts["placement_group"] and offer.facts["efa_cards"]):
        return None
    made = network.prepare_zone(maker, cluster, offer, infrastructure, Zone(name=zone), ensure)
    return made.ids["placement_group"]


def _for_network(offer: Offer) -> Offer:
    return replace(offer, facts={**offer.facts, "placement_group": False})


def _resolve_names(maker: ResourceMaker, vpc: str) -> None:
    """Nodes look for the API server's private address by its name."""
    answer = maker.api.call("describe_vpc_attribute", settle=True, VpcId=vpc, Attribute="enableDnsHostnames")
    if not answer["EnableDnsHostnames"]["Value"]:
        maker.api.call(
            "modify_vpc_attribute", again=True, settle=True, VpcId=vpc, EnableDnsHostnames={"Value": True}
        )
