"""The toy cloud as `provision.rented.interface.Cloud`: each method is a call or two of its account's."""

from collections.abc import Mapping, Sequence
from typing import Any

from provision.errors import UnknownShape
from provision.findings import Finding
from provision.records import (
    CloudCluster,
    Infrastructure,
    Instance,
    NewMachine,
    Offer,
    Preview,
    Resource,
    Target,
    Zone,
)
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.planning.preview import Previewer
from provision.waiting import Clock
from tests.fakes.toy_cloud.account import Account, account
from tests.fakes.toy_cloud.description import SHAPES

REGION = "toyland-north"


def connect(target: Target, *, clock: Clock) -> "ToyCloud":
    """Return the account in the target's region."""
    result = Target(provider="toy", region=target.region or REGION, profile=target.profile, account="toys")
    return ToyCloud(account(), result)


def configured() -> bool:
    """Return True: a toy cloud needs no configuration."""
    return True


def sdk() -> Finding:
    """Return a passed check: a toy cloud has no SDK."""
    return Finding(what="SDK", ok=True, detail="none is needed")


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """Return `offer` and `preview` as for an empty account."""
    offer = _offer(cluster)
    return offer, _preview(cluster, offer, machines, ())


def _offer(cluster: CloudCluster) -> Offer:
    shape = next((shape for shape in SHAPES if shape.name == cluster.shape), None)
    if shape is None:
        raise UnknownShape(f"The toy cloud has no shape '{cluster.shape}'. `gpuctl shapes` lists shapes.")
    return Offer(
        shape=shape.name,
        gpus=shape.gpus,
        image_id="image",
        image_name="the only image",
        user="ubuntu",
        disk_gb=cluster.disk_gb or 20,
        zones=(Zone(name=f"{cluster.target.region or REGION}-1"),),
        hourly_usd=shape.usd_per_hour,
    )


def _preview(
    cluster: CloudCluster, offer: Offer, machines: Sequence[NewMachine], resources: Sequence[Resource]
) -> Preview:
    result = Previewer(cluster, resources)
    result.add("network", result.shared("network"), ("MakeNetwork", {}))
    firewall = result.add(
        "firewall", result.of_cluster("firewall"), ("MakeFirewall", {"ssh_from": list(cluster.ssh_cidrs)})
    )
    for machine in machines:
        body = {"name": machine.name, "shape": offer.shape, "firewall": firewall}
        result.call(("MakeMachine", body))
    return result.preview()


class ToyCloud:
    """A toy implementation of the protocol `Cloud`."""

    name = "toy"
    consistency_s = 0.0
    one_user_data = False

    def __init__(self, account: Account, target: Target) -> None:
        self.target = target
        self._account = account

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        return _offer(cluster)

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        return _preview(cluster, offer, machines, resources)

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        local = tags.of_cluster(cluster.name, cluster.id, cluster.owner)
        network = self._ensure(ensure, "network", tags.of_network(cluster.owner), stage=1)
        firewall = self._ensure(ensure, "firewall", local, stage=0)
        self._account.rules[firewall] = cluster.ssh_cidrs
        return Infrastructure(ids={"network": network, "firewall": firewall})

    def _ensure(self, ensure: Ensure, kind: str, of: dict[str, str], *, stage: int) -> str:
        def find() -> str | None:
            same = (resource for resource in self.resources() if resource.kind == kind)
            cluster_id = of.get(tags.CLUSTER_ID)
            return next((item.id for item in same if item.tags.get(tags.CLUSTER_ID) == cluster_id), None)

        def create(_: str) -> str:
            return self._account.make(kind, of, stage)

        return ensure(kind, find=find, create=create, shared=tags.is_shared(of))

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        return infrastructure

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        of = tags.of_cluster(cluster.name, cluster.id, cluster.owner, cluster.expires_at)
        return tuple(
            {
                "token": f"{launch}-{machine.rank}",
                "name": machine.name,
                "shape": offer.shape,
                "zone": zone.name,
                "firewall": infrastructure.ids["firewall"],
                "user_data": machine.user_data,
                "tags": of | {tags.LAUNCH: launch, tags.RANKS: tags.ranks_text([machine.rank])},
            }
            for machine in machines
        )

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        return (self._account.launch(request),)

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        result = self._account.machines.values()
        return tuple(item for item in result if cluster_id in (None, item.tags[tags.CLUSTER_ID]))

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        return tuple(instances)

    def failure(self, instance: Instance) -> Exception | None:
        return None

    def console(self, instance_id: str) -> str | None:
        return self._account.hosts.said(instance_id) or None

    def terminate(self, ids: Sequence[str]) -> None:
        for item in ids:
            self._account.end(item)

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        return self.instances(), ()

    def resources(self) -> tuple[Resource, ...]:
        return tuple(self._account.resources.values())

    def delete(self, resource: Resource) -> None:
        self._account.resources.pop(resource.id, None)

    def regions(self) -> tuple[str, ...]:
        return (REGION,)

    def compartments(self) -> tuple[str, ...]:
        return ()

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        return (sdk(),)
