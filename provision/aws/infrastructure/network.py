"""The network: the VPC that all clusters of a region share, and the resources of a cluster in one zone.

AWS takes no token for most of these, so each is found again by its tags. All reads are made at once; changes are made
one after the other.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Read, ResourceMaker, lowest, named
from provision.aws.infrastructure.nat import (
    ADDRESS_TAKEN,
    agree,
    ensure_endpoint,
    ensure_nat,
    usable,
    wait_available,
)
from provision.aws.infrastructure.security_group import ensure_group, ensure_key
from provision.aws.infrastructure.subnets import associate, ensure_subnet, ensure_table, leads_to, route
from provision.aws.requests import filters, gateway_field, tagged
from provision.errors import CloudError, Exists
from provision.parallel import run_all, values
from provision.records import CloudCluster, Infrastructure, Offer, Zone
from provision.rented import tags
from provision.rented.interface import Ensure

Lists = Mapping[str, Sequence[Item]]
"""The first answer of each list, by the names of the reads."""


def prepare(
    maker: ResourceMaker, cluster: CloudCluster, offer: Offer, public_key: str | None, ensure: Ensure
) -> Infrastructure:
    """Make network, group and key: see `Cloud.prepare`. Without a public key no key pair is made."""
    of_cluster = tagged(tags.CLUSTER_ID, cluster.id)
    shared = tagged(tags.CLUSTER, tags.NETWORK)
    reads = {
        "groups": maker.reader("describe_security_groups", "SecurityGroups", of_cluster),
    }
    if public_key is not None:
        reads["keys"] = maker.reader("describe_key_pairs", "KeyPairs", of_cluster, IncludePublicKey=True)
    if cluster.subnet_id is None:
        reads |= {
            "vpcs": maker.reader("describe_vpcs", "Vpcs", shared),
            "gateways": maker.reader("describe_internet_gateways", "InternetGateways", shared),
            "tables": maker.reader("describe_route_tables", "RouteTables", shared),
        }
    lists = _read_all(reads)
    if cluster.subnet_id is None:
        ids = _shared_network(maker, cluster, ensure, lists, reads)
    else:
        ids = {"vpc": str(offer.facts["subnet"]["vpc"])}
    group = ensure_group(
        maker,
        cluster,
        ids["vpc"],
        ensure,
        lists["groups"],
        read=reads["groups"],
        efa=bool(offer.facts["efa_cards"]),
    )
    ids |= {"security_group": group}
    if public_key is not None:
        ids["key"] = ensure_key(maker, cluster, public_key, ensure, lists["keys"], read=reads["keys"])
    return Infrastructure(ids=ids)


def prepare_zone(
    maker: ResourceMaker,
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: Zone,
    ensure: Ensure,
) -> Infrastructure:
    """Make the zone's subnet with its route, and a placement group if the cluster has one."""
    reads: dict[str, Read] = {}
    grouped = requests.in_placement_group(cluster, offer.facts)
    if grouped:
        usable = [*tagged(tags.CLUSTER_ID, cluster.id), *filters(state=["pending", "available"])]
        reads["groups"] = maker.reader("describe_placement_groups", "PlacementGroups", usable)
    if cluster.subnet_id is None:
        reads |= _subnet_reads(maker, cluster)
    lists = _read_all(reads)
    ids = dict(infrastructure.ids) | {"subnet": cluster.subnet_id or ""}
    if cluster.subnet_id is None:
        make = _private_subnet if requests.is_private(cluster) else _public_subnet
        zones = (zone, *(other for other in offer.zones if other != zone))
        ids["subnet"] = make(maker, cluster, ids, zones, ensure, lists, reads)
    if grouped:
        ids["placement_group"] = _ensure_placement_group(
            maker, cluster, zone, ensure, lists["groups"], read=reads["groups"]
        )
    return Infrastructure(ids=ids)


def _read_all(reads: Mapping[str, Read]) -> Lists:
    answers = values(run_all(lambda read: read(), list(reads.values())))
    return dict(zip(reads, answers, strict=True))


def _subnet_reads(maker: ResourceMaker, cluster: CloudCluster) -> dict[str, Read]:
    shared = tagged(tags.CLUSTER, tags.NETWORK)
    reads = {
        "subnets": maker.reader("describe_subnets", "Subnets", shared),
        "tables": maker.reader("describe_route_tables", "RouteTables", shared),
    }
    if requests.is_private(cluster):
        reads["nats"] = maker.reader("describe_nat_gateways", "NatGateways", shared)
        reads["endpoints"] = maker.reader("describe_vpc_endpoints", "VpcEndpoints", shared)
    return reads


def _public_subnet(
    maker: ResourceMaker,
    cluster: CloudCluster,
    ids: Mapping[str, str],
    zones: Sequence[Zone],
    ensure: Ensure,
    lists: Lists,
    reads: Mapping[str, Read],
) -> str:
    """Make the first zone's subnet with its route to the internet gateway."""
    subnet = ensure_subnet(
        maker, cluster, ids["vpc"], zones[0], ensure, lists["subnets"], read=reads["subnets"]
    )
    had = associate(maker, subnet, ids["route_table"], lists["tables"], read=reads["tables"])
    if had is not None:  # `prepare` has checked the route of the other table
        route(maker, str(had["RouteTableId"]), gateway_field(ids["internet_gateway"]), [had])
    return subnet


def _private_subnet(
    maker: ResourceMaker,
    cluster: CloudCluster,
    ids: Mapping[str, str],
    zones: Sequence[Zone],
    ensure: Ensure,
    lists: Lists,
    reads: Mapping[str, Read],
) -> str:
    """Make the first zone's private subnet with its routes to the NAT gateway, and to S3 without it.

    The gateway is in that zone, or in the next zone in which AWS can make it.
    """
    vpc = ids["vpc"]

    def gateway(known: Sequence[Item]) -> tuple[str, bool]:
        return ensure_nat(
            maker,
            cluster,
            vpc,
            ensure,
            known,
            read=reads["nats"],
            addresses=maker.reader("describe_addresses", "Addresses", tagged(tags.CLUSTER, tags.NETWORK)),
            public_subnets={
                zone.name: partial(_public_subnet, maker, cluster, ids, [zone], ensure, lists, reads)
                for zone in zones
            },
        )

    nat, made = gateway(lists["nats"])
    tables, subnets = lists["tables"], lists["subnets"]
    table = ensure_table(maker, cluster, vpc, ensure, tables, read=reads["tables"], private=True)
    subnet = ensure_subnet(
        maker, cluster, vpc, zones[0], ensure, subnets, read=reads["subnets"], private=True
    )
    had = associate(maker, subnet, table, tables, read=reads["tables"])
    if had is not None:
        table, tables = str(had["RouteTableId"]), [had]
    ensure_endpoint(maker, cluster, vpc, table, ensure, lists["endpoints"], read=reads["endpoints"])
    # While AWS brings the gateway up, all other resources are made.
    try:
        working = wait_available(maker, nat, vpc, read=reads["nats"], say=ensure.say)
    except CloudError as error:
        if error.code != ADDRESS_TAKEN:
            raise
        # Another process, which made a VPC of its own, used the same free address: the next read shows it as used.
        ensure.say("another NAT gateway took the address at the same time: making one with its own …")
        nat, made = gateway(reads["nats"]())
        working = wait_available(maker, nat, vpc, read=reads["nats"], say=ensure.say)
    made = made and working == nat
    tables = reads["tables"]()
    now = named(tables, "RouteTableId", table)
    nat = agree(maker, working, vpc, now, made=made, read=reads["nats"], say=ensure.say)

    def leads_out() -> bool:
        used_vpcs = named(reads["tables"](), "RouteTableId", table)
        return used_vpcs is not None and leads_to(used_vpcs, usable(reads["nats"](), vpc))

    route(maker, table, gateway_field(nat, private=True), tables, is_good=leads_out)
    return subnet


def _shared_network(
    maker: ResourceMaker,
    cluster: CloudCluster,
    ensure: Ensure,
    lists: Lists,
    reads: Mapping[str, Read],
) -> dict[str, str]:
    vpc = maker.ensure(
        "vpc",
        ensure,
        lists["vpcs"],
        read=reads["vpcs"],
        pick=partial(_vpc_for, groups=lists["groups"]),
        field="VpcId",
        create=lambda _: maker.create("create_vpc", requests.vpc(cluster), "Vpc", "VpcId"),
        shared=True,
    )
    gateway = maker.ensure(
        "internet-gateway",
        ensure,
        lists["gateways"],
        read=reads["gateways"],
        pick=partial(_gateway_for, vpc=vpc),
        field="InternetGatewayId",
        create=lambda _: maker.create(
            "create_internet_gateway",
            requests.internet_gateway(cluster),
            "InternetGateway",
            "InternetGatewayId",
        ),
        shared=True,
    )
    gateway = _attach(maker, gateway, vpc, lists["gateways"], read=reads["gateways"])
    table = ensure_table(maker, cluster, vpc, ensure, lists["tables"], read=reads["tables"])
    route(maker, table, gateway_field(gateway), lists["tables"])
    return {"vpc": vpc, "internet_gateway": gateway, "route_table": table}


def _vpc_for(items: Sequence[Item], groups: Sequence[Item]) -> Item | None:
    """Return the VPC of the cluster's groups, else the VPC that all commands choose."""
    used_vpcs = {group.get("VpcId") for group in groups}
    return lowest([item for item in items if item["VpcId"] in used_vpcs] or items, "VpcId")


def _attach(maker: ResourceMaker, gateway: str, vpc: str, known: Sequence[Item], *, read: Read) -> str:
    """Attach the gateway. Returns the attached gateway, which may be another process's."""
    item = named(known, "InternetGatewayId", gateway)
    if item is not None and _is_attached(item, vpc):
        return gateway
    try:
        maker.api.call(
            "attach_internet_gateway", again=True, settle=True, InternetGatewayId=gateway, VpcId=vpc
        )
    except CloudError as error:
        if not isinstance(error, Exists) and error.code != "InvalidParameterValue":
            raise
        # Another process was faster, or the reply to our own call was lost; the list lags either way.
        attached = maker.wait_for(
            lambda: lowest([item for item in read() if _is_attached(item, vpc)], "InternetGatewayId")
        )
        if attached is None:
            raise
        return str(attached["InternetGatewayId"])
    return gateway


def _is_attached(gateway: Item, vpc: str) -> bool:
    return any(attachment.get("VpcId") == vpc for attachment in gateway.get("Attachments", []))


def _gateway_for(items: Sequence[Item], vpc: str) -> Item | None:
    """Return the gateway that is attached to the VPC, else one that is attached to no VPC."""
    attached = [item for item in items if _is_attached(item, vpc)]
    return lowest(attached or [item for item in items if not item.get("Attachments")], "InternetGatewayId")


def _ensure_placement_group(
    maker: ResourceMaker,
    cluster: CloudCluster,
    zone: Zone,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
) -> str:
    request = requests.placement_group(cluster, zone.name)
    name = str(request["GroupName"])

    def create(_: str) -> str:
        maker.api.call("create_placement_group", again=False, **request)
        return name

    return maker.ensure(
        f"placement-group {zone.name}",
        ensure,
        known,
        read=read,
        pick=lambda items: named(items, "GroupName", name),
        field="GroupName",
        create=create,
    )
