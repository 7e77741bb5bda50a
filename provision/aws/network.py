"""What machines stand on: the VPC that all clusters of a region share, and what a cluster needs in one zone.

AWS takes no token for most of these, so each is found again by its tags. All reads are made at once; what
changes something is done one after the other.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from provision import tags
from provision.aws import requests
from provision.aws.access import ensure_group, ensure_key
from provision.aws.making import Item, Maker, Read, lowest, named
from provision.aws.requests import EVERYWHERE, filters, tagged
from provision.cloud import CloudCluster, Ensure, Ground, Offer, Place
from provision.errors import CloudError, Exists
from provision.parallel import run_all, values


def prepare(maker: Maker, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Ground:
    """Network, group, key: see `Cloud.prepare`."""
    own = tagged(tags.CLUSTER_ID, cluster.id)
    shared = tagged(tags.CLUSTER, tags.NETWORK)
    reads = {
        "groups": maker.reader("describe_security_groups", "SecurityGroups", own),
        "keys": maker.reader("describe_key_pairs", "KeyPairs", own, IncludePublicKey=True),
    }
    if cluster.subnet_id is None:
        reads |= {
            "vpcs": maker.reader("describe_vpcs", "Vpcs", shared),
            "gateways": maker.reader("describe_internet_gateways", "InternetGateways", shared),
            "tables": maker.reader("describe_route_tables", "RouteTables", shared),
        }
    found = _read_all(reads)
    if cluster.subnet_id is None:
        ids = _shared_network(maker, cluster, ensure, found, reads)
    else:
        ids = {"vpc": str(offer.facts["subnet"]["vpc"])}
    group = ensure_group(
        maker,
        cluster,
        ids["vpc"],
        ensure,
        found["groups"],
        read=reads["groups"],
        efa=bool(offer.facts["efa_cards"]),
    )
    key = ensure_key(maker, cluster, public_key, ensure, found["keys"], read=reads["keys"])
    return Ground(ids=ids | {"security_group": group, "key": key})


def prepare_place(
    maker: Maker, cluster: CloudCluster, offer: Offer, ground: Ground, place: Place, ensure: Ensure
) -> Ground:
    """The zone's subnet with its way out, and a placement group where the type takes one."""
    shared = tagged(tags.CLUSTER, tags.NETWORK)
    reads: dict[str, Read] = {}
    if offer.facts["placement_group"]:
        usable = [*tagged(tags.CLUSTER_ID, cluster.id), *filters(state=["pending", "available"])]
        reads["groups"] = maker.reader("describe_placement_groups", "PlacementGroups", usable)
    if cluster.subnet_id is None:
        reads["subnets"] = maker.reader("describe_subnets", "Subnets", shared)
        reads["tables"] = maker.reader("describe_route_tables", "RouteTables", shared)
    found = _read_all(reads)
    ids = dict(ground.ids) | {"subnet": cluster.subnet_id or ""}
    if cluster.subnet_id is None:
        ids["subnet"] = _ensure_subnet(
            maker, cluster, ids["vpc"], place, ensure, found["subnets"], read=reads["subnets"]
        )
        _route_subnet(maker, ids, found["tables"], read=reads["tables"])
    if offer.facts["placement_group"]:
        ids["placement_group"] = _ensure_placement_group(
            maker, cluster, place, ensure, found["groups"], read=reads["groups"]
        )
    return Ground(ids=ids)


def _read_all(reads: dict[str, Read]) -> dict[str, list[Item]]:
    answers = values(run_all(lambda read: read(), list(reads.values())))
    return dict(zip(reads, answers, strict=True))


def _shared_network(
    maker: Maker,
    cluster: CloudCluster,
    ensure: Ensure,
    found: dict[str, list[Item]],
    reads: dict[str, Read],
) -> dict[str, str]:
    vpc = maker.ensure(
        "vpc",
        ensure,
        found["vpcs"],
        read=reads["vpcs"],
        pick=partial(_vpc_for, groups=found["groups"]),
        field="VpcId",
        create=lambda _: maker.create("create_vpc", requests.vpc(cluster), "Vpc", "VpcId"),
        shared=True,
    )
    gateway = maker.ensure(
        "internet-gateway",
        ensure,
        found["gateways"],
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
    gateway = _attach(maker, gateway, vpc, found["gateways"], read=reads["gateways"])
    table = maker.ensure(
        "route-table",
        ensure,
        found["tables"],
        read=reads["tables"],
        pick=lambda items: lowest([item for item in items if item.get("VpcId") == vpc], "RouteTableId"),
        field="RouteTableId",
        create=lambda token: maker.create(
            "create_route_table",
            requests.route_table(cluster, vpc, token),
            "RouteTable",
            "RouteTableId",
            again=True,
        ),
        shared=True,
    )
    _route(maker, table, gateway, found["tables"])
    return {"vpc": vpc, "internet_gateway": gateway, "route_table": table}


def _vpc_for(items: Sequence[Item], groups: Sequence[Item]) -> Item | None:
    """The VPC where the cluster is already, else the one that everybody would choose."""
    there = {group.get("VpcId") for group in groups}
    return lowest([item for item in items if item["VpcId"] in there] or items, "VpcId")


def _attach(maker: Maker, gateway: str, vpc: str, known: Sequence[Item], *, read: Read) -> str:
    """Attach the gateway; returns the one that is attached, which may be another process's."""
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
        attached = lowest([item for item in read() if _is_attached(item, vpc)], "InternetGatewayId")
        if attached is None:
            raise
        return str(attached["InternetGatewayId"])
    return gateway


def _is_attached(gateway: Item, vpc: str) -> bool:
    return any(attachment.get("VpcId") == vpc for attachment in gateway.get("Attachments", []))


def _gateway_for(items: Sequence[Item], vpc: str) -> Item | None:
    """The gateway that is attached to the VPC, else one that is attached to none."""
    attached = [item for item in items if _is_attached(item, vpc)]
    return lowest(attached or [item for item in items if not item.get("Attachments")], "InternetGatewayId")


def _route(maker: Maker, table: str, gateway: str, known: Sequence[Item]) -> None:
    item = named(known, "RouteTableId", table)
    routes = item.get("Routes", []) if item else []
    if any(
        route.get("DestinationCidrBlock") == EVERYWHERE
        and route.get("GatewayId") == gateway
        and route.get("State") != "blackhole"
        for route in routes
    ):
        return
    wanted = requests.default_route(table, gateway)
    try:
        maker.api.call("create_route", again=True, settle=True, **wanted)
    except Exists:
        maker.api.call("replace_route", again=True, **wanted)


def _ensure_subnet(
    maker: Maker,
    cluster: CloudCluster,
    vpc: str,
    place: Place,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
) -> str:
    def in_zone(items: Sequence[Item]) -> Item | None:
        here = [s for s in items if s["VpcId"] == vpc and s["AvailabilityZone"] == place.zone]
        return lowest(here, "SubnetId")

    def create(_: str) -> str:
        taken = [subnet["CidrBlock"] for subnet in known if subnet["VpcId"] == vpc]
        wanted = requests.subnet(cluster, vpc, place.zone, requests.subnet_cidr(place.zone, taken))
        return maker.create("create_subnet", wanted, "Subnet", "SubnetId")

    return maker.ensure(
        f"subnet {place.zone}",
        ensure,
        known,
        read=read,
        pick=in_zone,
        field="SubnetId",
        create=create,
        shared=True,
    )


def _route_subnet(maker: Maker, ids: Mapping[str, str], tables: Sequence[Item], *, read: Read) -> None:
    """Give the subnet a table of ours with a way out.

    A race may have made two tables, and the subnet has the other one: a subnet has one at a time.
    """
    subnet, gateway = ids["subnet"], ids["internet_gateway"]
    associated = _table_of(tables, subnet)
    if associated is None:
        try:
            # Doing it twice gives the same association.
            maker.api.call(
                "associate_route_table",
                again=True,
                settle=True,
                RouteTableId=ids["route_table"],
                SubnetId=subnet,
            )
            return  # `prepare` has seen to that table's route
        except Exists:
            # Another process was faster, or the list lags.
            associated = maker.wait_for(lambda: _table_of(read(), subnet))
            if associated is None:
                raise
    _route(maker, str(associated["RouteTableId"]), gateway, [associated])


def _table_of(tables: Sequence[Item], subnet: str) -> Item | None:
    """The table that the subnet is associated with."""
    for table in tables:
        if any(association.get("SubnetId") == subnet for association in table.get("Associations", [])):
            return table
    return None


def _ensure_placement_group(
    maker: Maker, cluster: CloudCluster, place: Place, ensure: Ensure, known: Sequence[Item], *, read: Read
) -> str:
    wanted = requests.placement_group(cluster, place.zone)
    name = str(wanted["GroupName"])

    def create(_: str) -> str:
        maker.api.call("create_placement_group", again=False, **wanted)
        return name

    return maker.ensure(
        f"placement-group {place.zone}",
        ensure,
        known,
        read=read,
        pick=lambda items: named(items, "GroupName", name),
        field="GroupName",
        create=create,
    )
