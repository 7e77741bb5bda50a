"""The requests of a dry run, one line each, made by the functions that make the real ones.

Ids that the cloud would give stand in <…>. Nothing is asked of it: parts of the shared network that are there
already are shown as well.
"""

import json
from collections.abc import Iterator
from typing import Any

from provision.catalog import SHAPES
from provision.cloud import CloudCluster, Ground, NewMachine, Offer, Place
from provision.oci import choice, requests
from provision.oci.images import DEFAULT_DISK_GB


def lines(cluster: CloudCluster, offer: Offer, count: int, compartment: str) -> tuple[str, ...]:
    """As `Cloud.preview` says."""
    return tuple(_lines(cluster, offer, count, compartment))


def outline(cluster: CloudCluster, count: int) -> tuple[str, ...]:
    """`lines` without an account: what the catalog does not tell stands in <…>."""
    shape = SHAPES.get(cluster.shape)
    virtual = cluster.shape.startswith("VM.")
    offer = Offer(
        shape=cluster.shape,
        gpus=shape.gpus if shape else 0,
        image_id=choice.unknown(cluster),
        image_name="",
        user="ubuntu",
        disk_gb=cluster.disk_gb or DEFAULT_DISK_GB,
        places=(Place(zone="<availability domain>"),),
        hourly_usd=None,
        billed_when_stopped=not virtual,
        facts={
            "compute_cluster": bool(shape and shape.compute_cluster) and not virtual,
            "encrypts_in_transit": virtual,
        },
    )
    return lines(cluster, offer, count, cluster.target.compartment or "<compartment>")


def _lines(cluster: CloudCluster, offer: Offer, count: int, compartment: str) -> Iterator[str]:
    vcn, subnet, nsg = "<vcn>", "<subnet>", "<nsg>"
    if offer.terms is not None:
        listing, version = offer.facts["listing"]
        terms = {"listingId": listing, "listingResourceVersion": version, "signature": "<signature>"}
        yield _line("CreateAppCatalogSubscription", requests.subscription(compartment, terms))
    if cluster.subnet_id:
        subnet = cluster.subnet_id
    else:
        yield from _network(cluster, compartment, vcn)
    yield _line("CreateNetworkSecurityGroup", requests.nsg(cluster, compartment, vcn))
    rules = requests.nsg_rules(nsg, cluster.ssh_cidrs, cluster.ssh_port)
    yield _line("AddNetworkSecurityGroupSecurityRules", {"securityRules": rules})
    ids = {"vcn": vcn, "subnet": subnet, "nsg": nsg, "public_key": "<public key>"}
    place = offer.places[0]
    if offer.facts.get("compute_cluster"):
        ids["compute_cluster"] = "<compute cluster>"
        yield _line("CreateComputeCluster", requests.compute_cluster(cluster, compartment, place.zone))
    for rank in range(count):
        machine = NewMachine(name=f"{cluster.name}-{rank}", rank=rank, user_data="")
        request = requests.launch(cluster, offer, Ground(ids=ids), place, "<launch>", machine, compartment)
        request["details"]["metadata"]["user_data"] = "<user data>"
        yield _line("LaunchInstance", request["details"])


def _network(cluster: CloudCluster, compartment: str, vcn: str) -> Iterator[str]:
    owner = cluster.owner
    kind = "public" if cluster.public_ip else "private"
    yield _line("CreateVcn", requests.vcn(owner, compartment))
    if cluster.public_ip:
        routes = requests.public_routes("<internet gateway>")
        yield _line("CreateInternetGateway", requests.internet_gateway(owner, compartment, vcn))
    else:
        routes = requests.private_routes("<nat gateway>", "<service gateway>", "<all services>")
        yield _line("CreateNatGateway", requests.nat_gateway(owner, compartment, vcn))
        yield _line(
            "CreateServiceGateway", requests.service_gateway(owner, compartment, vcn, "<all services>")
        )
    yield _line("CreateSecurityList", requests.security_list(owner, compartment, vcn))
    yield _line("CreateRouteTable", requests.route_table(owner, compartment, vcn, kind, routes))
    subnet = requests.subnet(owner, compartment, vcn, kind, "<route table>", "<security list>")
    yield _line("CreateSubnet", subnet)


def _line(operation: str, body: dict[str, Any]) -> str:
    return f"{operation} {json.dumps(body, ensure_ascii=False)}"
