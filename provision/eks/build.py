"""Making a Kubernetes cluster, in its order: network, roles, control plane, add-ons, node groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.aws.api import Api
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.eks import ends, names, requests
from provision.eks.infrastructure import control_plane as planes
from provision.eks.infrastructure import network
from provision.eks.infrastructure import node_groups as groups
from provision.eks.infrastructure.roles import ensure_role
from provision.eks.resources import deletion, listing
from provision.errors import CreateFailed, Quota
from provision.records import Infrastructure, Resource
from provision.rented.managed_kubernetes.service import Work
from provision.rented.managed_kubernetes.zones import end_machines, in_first_zone
from provision.rented.teardown import BLOCKED_TIMEOUT_S
from provision.waiting import Clock, once_unblocked


@dataclass(frozen=True, kw_only=True)
class Building(Work):
    """What every step needs."""

    api: Api
    maker: ResourceMaker
    clock: Clock


def control_plane(work: Building) -> Mapping[str, Any]:
    """What EKS says of the control plane once it works, with its add-ons asked for."""
    api, cluster, ensure = work.api, work.cluster, work.ensure
    with work.network():
        ids = network.prepare(work.maker, cluster, work.offer, ensure)
    role = ensure_role(api, cluster, names.CLUSTER_ROLE, ensure)
    subnets = [ids[f"subnet {zone}"] for zone in work.offer.facts["control_zones"]]
    work.say(f"control plane {names.cluster_name(cluster)} …")
    planes.ensure_control_plane(api, work.clock, cluster, role, subnets, ids["security_group"], ensure)
    told = planes.wait_active(api, work.clock, cluster, work.say)
    told = planes.let_in(api, work.clock, cluster, told, work.say)
    planes.ensure_access(api, cluster, ensure)
    planes.ensure_addons(api, cluster, ensure)
    return told


def node_groups(work: Building, told: Mapping[str, Any], count: int) -> None:
    """Both node groups with their machines, and add-ons that work. Raises NoCapacity where no zone has them."""
    api, cluster = work.api, work.cluster
    ends.arm(api, cluster, work.say)
    role = ensure_role(api, cluster, names.NODE_ROLE, work.ensure)
    subnets = list(told["resourcesVpcConfig"]["subnetIds"])
    _prepare(work, names.CPU_GROUP)
    earlier = groups.earlier_failures(api, cluster, names.CPU_GROUP)
    _cpu_group(work, role, subnets)
    wanted = {"role": role, "cluster_group": told["resourcesVpcConfig"]["clusterSecurityGroupId"]}
    _gpu_group(work, count, wanted)
    groups.wait_group(api, work.clock, cluster, names.CPU_GROUP, 1, work.say, earlier=earlier)
    planes.wait_addons(api, work.clock, cluster, work.say)


def _cpu_group(work: Building, role: str, subnets: list[str]) -> None:
    template = groups.ensure_template(
        work.api,
        work.cluster,
        names.CPU_GROUP,
        work.ensure,
        requests.template_data(work.cluster, names.CPU_GROUP, disk_gb=requests.CPU_DISK_GB),
    )
    groups.ensure_group(
        work.api,
        work.clock,
        work.cluster,
        names.CPU_GROUP,
        work.ensure,
        lambda token: requests.cpu_group(work.cluster, role, subnets, template, token),
    )


def end_nodes(work: Building, count: int) -> None:
    """Leave so many machines with GPUs, and wait until the others have gone."""
    api, clock, cluster, say = work.api, work.clock, work.cluster, work.say
    end_machines(
        _sizes(work),
        count,
        scale=lambda group, few: _leave(work, group, few, timeout_s=groups.GROUP_WITHIN_S),
        wait_gone=lambda group, few: groups.wait_gone(api, clock, cluster, group, few, say),
    )


def _gpu_group(work: Building, count: int, wanted: Mapping[str, str]) -> None:
    """The group of machines with GPUs, all in one zone: where there are some, else the first that has them."""
    in_first_zone(
        work,
        _sizes(work),
        names.gpu_group,
        count,
        make=lambda zone: _in_zone(work, count, zone, wanted),
        scale=lambda group, few: _leave(work, group, few, timeout_s=BLOCKED_TIMEOUT_S),
        remove=lambda group: _remove_group(work, group),
        what=f"AWS has not {count} {work.offer.shape}",
        everywhere=(Quota,),
    )


def _sizes(work: Building) -> dict[str, int]:
    """How many machines each group of those with GPUs wants, by its name."""
    found = {
        name: groups.describe(work.api, work.cluster, name)
        for name in groups.gpu_groups(work.api, work.cluster)
    }
    return {name: groups.size(work.api, told) for name, told in found.items() if told is not None}


def _in_zone(work: Building, count: int, zone: str, wanted: Mapping[str, str]) -> None:
    api, cluster, offer = work.api, work.cluster, work.offer
    group = names.gpu_group(zone)
    with work.network():
        ids = network.prepare(work.maker, cluster, offer, work.ensure)
        infrastructure = Infrastructure(ids=ids)
        subnet = network.subnet(work.maker, cluster, offer, infrastructure, zone, work.ensure)
        placement = network.placement_group(work.maker, cluster, offer, infrastructure, zone, work.ensure)
    among = [wanted["cluster_group"], ids["security_group"]]
    template = groups.ensure_template(
        api,
        cluster,
        group,
        work.ensure,
        requests.template_data(
            cluster,
            group,
            disk_gb=offer.disk_gb,
            facts=offer.facts,
            groups=among,
            placement_group=placement,
        ),
    )
    own = {"role": wanted["role"], "subnet": subnet, "template": template}
    _prepare(work, group)
    earlier = groups.earlier_failures(api, cluster, group)
    groups.ensure_group(
        api,
        work.clock,
        cluster,
        group,
        work.ensure,
        lambda token: requests.gpu_group(cluster, offer, count, zone, own, token),
    )
    groups.scale(api, work.clock, cluster, group, count, work.say, stay=work.stay, grows=True)
    groups.wait_group(api, work.clock, cluster, group, count, work.say, earlier=earlier)
    groups.wait_gone(api, work.clock, cluster, group, count, work.say)


def _leave(work: Building, group: str, count: int, *, timeout_s: float) -> None:
    """Leave so many machines of the group. One that EKS could not make goes as a whole."""
    groups.scale(
        work.api, work.clock, work.cluster, group, count, work.say, stay=work.stay, timeout_s=timeout_s
    )
    found = groups.describe(work.api, work.cluster, group)
    if found is not None and found["status"] in groups.FAILED and not count:
        _remove_group(work, group)


def _prepare(work: Building, group: str) -> None:
    """Remove a group that EKS could not make, so that it is made anew; with machines at work, it is left.

    One that is going has to be gone first. Raises CreateFailed where a new one would have no end.
    """
    found = groups.describe(work.api, work.cluster, group)
    status = None if found is None else found["status"]
    if status == "DELETING" or (status in groups.FAILED and not work.kept):
        why = "is being removed" if status == "DELETING" else "could not be made before"
        work.say(f"the node group {group} {why}: it is made anew")
        _remove_group(work, group)
        found = None
    if found is None and groups.is_over(work.cluster):
        raise CreateFailed(
            "The cluster's time (--ttl) was over before it was made: nothing would end its machines. "
            f"`gpuctl down --cluster {work.cluster.name}` removes it; give it more time."
        )


def _remove_group(work: Building, group: str) -> None:
    """Remove a node group that can't have its machines, so that they come in another zone or not at all."""
    resource = Resource(
        kind=listing.NODE_GROUP,
        id=f"{names.cluster_name(work.cluster)}/{group}",
        name=group,
        tags=names.own_tags(work.cluster),
        stage=listing.STAGES[listing.NODE_GROUP],
    )

    once_unblocked(
        f"the end of node group {group}",
        lambda: deletion.delete(work.api, work.clock, resource),
        timeout_s=listing.ENDS_WITHIN_S + BLOCKED_TIMEOUT_S,
        clock=work.clock,
        say=work.say,
    )
