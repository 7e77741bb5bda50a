"""The network of a cluster: the region's shared one, made with its first cluster, or a given subnet.

The chain of dependent calls is short: one read of all kinds, then independent resources side by side.
"""

from collections.abc import Callable, Sequence
from functools import partial

from inventories.threads import together
from provision.errors import CloudError
from provision.oci import requests
from provision.oci.api import Api, Json
from provision.oci.infrastructure.find_or_create import ResourceMaker
from provision.oci.infrastructure.security_group import ensure_group, ssh_cidrs
from provision.oci.resources.resource_types import KINDS
from provision.records import CloudCluster, Infrastructure
from provision.rented.find_or_create import Ensure

_SHARED_KINDS = [
    "vcn",
    "nsg",
    "subnet",
    "route-table",
    "security-list",
    "internet-gateway",
    "nat-gateway",
    "service-gateway",
]


def prepare(api: Api, cluster: CloudCluster, public_key: str, ensure: Ensure) -> Infrastructure:
    """Make the network and the cluster's group: see `Cloud.prepare`."""
    cidrs = ssh_cidrs(cluster)
    if cluster.subnet_id:
        subnet, maker = together(
            lambda: api.call(KINDS["subnet"].operation("get"), cluster.subnet_id),
            lambda: ResourceMaker(api, cluster, ensure, ("nsg",)),
        )
        requests.check_subnet(cluster, subnet)
        vcn_id, subnet_id, peer_cidr = subnet["vcnId"], subnet["id"], subnet["cidrBlock"]
        nsg_id = ensure_group(maker, vcn_id, cidrs)
    else:
        shared = _SharedNetwork(api, cluster, ensure)
        vcn_id, peer_cidr = shared.vcn(), shared.cidr
        subnet_id, nsg_id = together(
            partial(shared.subnet, vcn_id), partial(ensure_group, shared, vcn_id, cidrs)
        )
    return Infrastructure(
        ids={
            "vcn": vcn_id,
            "subnet": subnet_id,
            "nsg": nsg_id,
            "public_key": public_key.strip(),
            # The images' own firewall has to admit it, whatever the groups allow.
            "peer_cidr": peer_cidr,
        }
    )


def compute_cluster(api: Api, cluster: CloudCluster, zone: str, ensure: Ensure) -> str:
    """Find or create the RDMA network of the cluster in one availability domain."""
    maker = ResourceMaker(api, cluster, ensure)
    cluster_id = maker.ensure(
        "compute-cluster",
        f"compute-cluster {zone}",
        requests.compute_cluster(cluster, zone),
        fits=lambda view: view["availabilityDomain"] == zone,
    )
    return maker.wait_ready("compute-cluster", cluster_id)


class _SharedNetwork(ResourceMaker):
    """The region's shared network, public or private."""

    def __init__(self, api: Api, cluster: CloudCluster, ensure: Ensure) -> None:
        super().__init__(api, cluster, ensure, _SHARED_KINDS)
        self.cidr = requests.SUBNET_CIDRS[requests.tier(cluster)]

    def vcn(self) -> str:
        """Find or create the VCN, and wait until it is ready."""
        # After two commands have made one each, a cluster stays in the VCN that it began with.
        begun = {view["vcnId"] for view in self.views("nsg", shared=False)}
        ours = {view["id"] for view in self.views("vcn", shared=True)}
        vcn_id = self.ensure(
            "vcn",
            "vcn",
            requests.vcn(self.cluster),
            fits=lambda view: not begun & ours or view["id"] in begun,
            shared=True,
        )
        return self.wait_ready("vcn", vcn_id)

    def subnet(self, vcn_id: str) -> str:
        """Find or create the subnet, and add missing routes."""
        body = requests.security_list(self.cluster, vcn_id)
        table, security = together(
            partial(self._route_table, vcn_id), partial(self._resource, "security-list", vcn_id, body)
        )
        subnet_id = self._resource(
            "subnet",
            vcn_id,
            requests.subnet(self.cluster, vcn_id, table, security),
            fits=lambda view: view.get("cidrBlock") == self.cidr,
        )
        return self.wait_ready("subnet", subnet_id)

    def _route_table(self, vcn_id: str) -> str:
        if self.cluster.public_ip:
            routes = requests.public_routes(
                self._gateway("internet-gateway", requests.internet_gateway, vcn_id)
            )
        else:
            service = all_services(self.api.list_all("network.list_services"))
            nat, services = together(
                partial(self._gateway, "nat-gateway", requests.nat_gateway, vcn_id),
                partial(
                    self._gateway,
                    "service-gateway",
                    partial(requests.service_gateway, service_id=service["id"]),
                    vcn_id,
                ),
            )
            routes = requests.private_routes(nat, services, service["cidrBlock"])
        body = requests.route_table(self.cluster, vcn_id, routes)
        name = body["displayName"]
        used = {
            view.get("routeTableId")
            for view in self.views("subnet", shared=True)
            if view.get("cidrBlock") == self.cidr and view["vcnId"] == vcn_id
        }
        table = self._resource(
            "route-table",
            vcn_id,
            body,
            fits=lambda view: view["id"] in used if used else view.get("displayName") == name,
        )
        latest = self.latest(table)
        if (
            latest is not None
            and (mended := mended_routes(latest.get("routeRules") or (), routes)) is not None
        ):
            body = {"routeRules": mended}
            self.api.settled(lambda: self.api.call("network.update_route_table", table, body, again=True))
        return table

    def _gateway(self, kind: str, body: Callable[..., Json], vcn_id: str) -> str:
        gateway = self._resource(kind, vcn_id, body(self.cluster, vcn_id))
        return self.wait_ready(kind, gateway)

    def _resource(
        self, kind: str, vcn_id: str, body: Json, *, fits: Callable[[Json], bool] = lambda _: True
    ) -> str:
        # The public and the private subnet have a table and a name each.
        title = f"{requests.tier(self.cluster)} {kind}" if kind in ("subnet", "route-table") else kind
        return self.ensure(
            kind,
            f"{title} of {vcn_id}",
            body,
            fits=lambda view: view["vcnId"] == vcn_id and fits(view),
            shared=True,
        )


def mended_routes(existing: Sequence[Json], needed: Sequence[Json]) -> list[Json] | None:
    """Return the routes of a table with the missing ones added. `None`: no route is missing. Other routes stay."""
    have = {(route.get("destination"), route["networkEntityId"]) for route in existing}
    if all((route["destination"], route["networkEntityId"]) in have for route in needed):
        return None
    replaced = {route["destination"] for route in needed}
    kept = [
        # OCI shows both `cidrBlock` and `destination`, and refuses both in a request.
        {key: value for key, value in route.items() if key not in ("cidrBlock", "routeType")}
        for route in existing
        if route.get("destination") not in replaced and route.get("routeType") != "LOCAL"
    ]
    return kept + list(needed)


def all_services(services: Sequence[Json]) -> Json:
    """Return the entry for all of Oracle's services in the region."""
    for service in services:
        if service["cidrBlock"].startswith("all-"):
            return service
    raise CloudError("OCI lists no entry for all of its services in this region.", operation="list_services")
