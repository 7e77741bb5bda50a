"""Provider `eks`: Kubernetes on Amazon's EKS, created and removed. A `KubernetesService`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from provision.aws.infrastructure import network
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.eks import checks, offers, requests, tokens
from provision.eks.cloud import EksCloud
from provision.eks.control_plane import WORKING, ControlPlane, ensure_role, public_cidrs
from provision.eks.node_groups import FAILED, NodeGroups, is_over
from provision.eks.traits import TRAITS
from provision.errors import CreateFailed, Quota
from provision.findings import Finding
from provision.records import CloudCluster, EndGuard, Infrastructure, Offer, Target, Zone
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.provider import ManagedKubernetes
from provision.rented.managed_kubernetes.service import CreateContext
from provision.rented.managed_kubernetes.zones import end_machines, in_first_zone
from provision.waiting import Clock

COMMAND = "eks-token"
"""The command of gpuctl that prints a credential."""


class EksService:
    """One account in one region."""

    def __init__(self, cloud: EksCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock

    def offer(self, cluster: CloudCluster) -> Offer:
        """Return the shape and the zones that have it."""
        return offers.find(self.cloud.api, cluster)

    def refuse_over_quota(
        self,
        cluster: CloudCluster,
        offer: Offer,
        count: int,
        running: int,  # noqa: ARG002 - a quota counts all
    ) -> None:
        """Raise NoCapacity if the account may not have that many machines."""
        offers.refuse_over_quota(self.cloud.api, cluster, offer, count)

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """Return the API server. `None`: no working control plane."""
        plane = self._working_plane(cluster)
        return None if plane is None else _server(plane)

    def allowed_cidrs(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """Return the address ranges that reach the API server. `None`: no control plane yet."""
        plane = self._working_plane(cluster)
        return None if plane is None else public_cidrs(plane)

    def make_control_plane(self, context: CreateContext) -> ApiServer:
        """Make the network, the role, the control plane and its add-ons, in this order."""
        cluster, ensure = context.cluster, context.ensure
        plane = self._plane(context)
        with context.network():
            ids = _prepare_network(self._maker(context), context.offer)
        role = ensure_role(self.cloud.api, cluster, requests.CLUSTER_ROLE, ensure)
        subnets = [ids[f"subnet {zone}"] for zone in context.offer.facts["control_zones"]]
        context.say(f"control plane {cluster.kubernetes_name} …")
        plane.ensure(role, subnets, ids["security_group"], ensure)
        described = plane.let_in(plane.wait_active())
        plane.ensure_access(ensure)
        plane.ensure_addons(ensure)
        return _server(described)

    def make_nodes(self, context: CreateContext, count: int) -> None:
        """Make both node groups with their machines, and wait until the add-ons work."""
        cluster = context.cluster
        groups, plane = self._groups(context), self._plane(context)
        described = plane.describe()
        assert described is not None, "it answered a moment ago"
        groups.schedule_ends()
        role = ensure_role(self.cloud.api, cluster, requests.NODE_ROLE, context.ensure)
        subnets = list(described["resourcesVpcConfig"]["subnetIds"])
        self._remove_unusable(context, groups, requests.CPU_GROUP)
        earlier = groups.failures(requests.CPU_GROUP)
        data = requests.template_data(cluster, requests.CPU_GROUP, disk_gb=requests.CPU_DISK_GB)
        template = groups.ensure_template(requests.CPU_GROUP, context.ensure, data)
        groups.ensure(
            requests.CPU_GROUP,
            context.ensure,
            lambda token: requests.cpu_group(cluster, role, subnets, template, token),
        )
        security_group = described["resourcesVpcConfig"]["clusterSecurityGroupId"]
        in_first_zone(
            context,
            groups,
            requests.gpu_group_name,
            count,
            make=lambda zone: self._make_in_zone(context, groups, count, zone, role, security_group),
            lack=f"AWS has not {count} {context.offer.shape}",
            everywhere=(Quota,),
        )
        groups.wait_running(requests.CPU_GROUP, 1, earlier=earlier)
        plane.wait_addons()

    def end_nodes(self, context: CreateContext, count: int) -> None:
        """Scale the groups with GPUs down to `count` machines, and wait until the others have ended."""
        end_machines(context, self._groups(context), count)

    def end_guards(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the machines, with their state."""
        return NodeGroups(api=self.cloud.api, clock=self._clock, cluster=cluster).end_guards()

    def token(self, cluster: CloudCluster) -> str:
        """Return a token for the API server, without a request."""
        region = cluster.target.region
        assert region is not None
        return tokens.make(cluster.kubernetes_name, region, cluster.target.profile)[0]

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """Return the words after `gpuctl` that print a credential."""
        region = cluster.target.region
        assert region is not None
        profile = ["--profile", cluster.target.profile] if cluster.target.profile else []
        return [COMMAND, "--name", cluster.kubernetes_name, "--region", region, *profile]

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings of `doctor`."""
        return checks.check(self.cloud.api, cluster, count)

    def _working_plane(self, cluster: CloudCluster) -> Mapping[str, Any] | None:
        """Return EKS's description of the control plane. `None`: its API server does not answer."""
        plane = ControlPlane(api=self.cloud.api, clock=self._clock, cluster=cluster).describe()
        return None if plane is None or plane["status"] not in WORKING else plane

    def _plane(self, context: CreateContext) -> ControlPlane:
        return ControlPlane(api=self.cloud.api, clock=self._clock, cluster=context.cluster, say=context.say)

    def _maker(self, context: CreateContext) -> ResourceMaker:
        """Return the maker of the network. Nodes have no SSH: the group is for traffic among them."""
        return self.cloud.maker(replace(context.cluster, ssh_cidrs=()), context.ensure)

    def _groups(self, context: CreateContext) -> NodeGroups:
        return NodeGroups(api=self.cloud.api, clock=self._clock, cluster=context.cluster, say=context.say)

    def _make_in_zone(
        self,
        context: CreateContext,
        groups: NodeGroups,
        count: int,
        zone: str,
        role: str,
        security_group: str,
    ) -> None:
        """Make the zone's subnet and its group with `count` machines, and wait for them."""
        cluster, offer, ensure = context.cluster, context.offer, context.ensure
        maker = self._maker(context)
        group = requests.gpu_group_name(zone)
        with context.network():
            ids = _prepare_network(maker, offer)
            infrastructure = Infrastructure(ids=ids)
            subnet = _subnet(maker, offer, infrastructure, zone)
            placement = None
            if offer.facts["placement_group"] and offer.facts["efa_cards"]:
                made = network.prepare_zone(maker, offer, infrastructure, Zone(name=zone))
                placement = made.ids["placement_group"]
        data = requests.template_data(
            cluster,
            group,
            disk_gb=offer.disk_gb,
            facts=offer.facts,
            groups=[security_group, ids["security_group"]],
            placement_group=placement,
        )
        template = groups.ensure_template(group, ensure, data)
        request_ids = {"role": role, "subnet": subnet, "template": template}
        self._remove_unusable(context, groups, group)
        earlier = groups.failures(group)
        groups.ensure(
            group,
            ensure,
            lambda token: requests.gpu_group(cluster, offer, count, zone, request_ids, token),
        )
        groups.scale(group, count, staying_addresses=context.staying_addresses, grows=True)
        groups.wait_running(group, count, earlier=earlier)
        groups.wait_gone(group, count)

    def _remove_unusable(self, context: CreateContext, groups: NodeGroups, group: str) -> None:
        """Remove a group that EKS could not make or is deleting, so that a new one can be made.

        A failed group with running machines stays. Raises CreateFailed if nothing would end a new group.
        """
        described = groups.describe(group)
        status = None if described is None else described["status"]
        if status == "DELETING" or (status in FAILED and not context.staying):
            why = "is being removed" if status == "DELETING" else "could not be made before"
            context.say(f"the node group {group} {why}: it is made anew")
            groups.remove(group)
            described = None
        if described is None and is_over(context.cluster):
            raise CreateFailed(
                "The cluster's time (--ttl) was over before it was made: nothing would end its machines. "
                f"`gpuctl down --cluster {context.cluster.name}` removes it; give it more time."
            )


def _prepare_network(maker: ResourceMaker, offer: Offer) -> Mapping[str, str]:
    """Make the network. Returns the ids `vpc`, `security_group`, and `subnet <zone>` of the control plane's zones."""
    infrastructure = network.prepare(maker, offer, None)
    # Nodes look up, by DNS names in the VPC, the API server's private address.
    vpc = infrastructure.ids["vpc"]
    answer = maker.api.call("describe_vpc_attribute", settle=True, VpcId=vpc, Attribute="enableDnsHostnames")
    if not answer["EnableDnsHostnames"]["Value"]:
        maker.api.call(
            "modify_vpc_attribute", again=True, settle=True, VpcId=vpc, EnableDnsHostnames={"Value": True}
        )
    ids = dict(infrastructure.ids)
    for zone in offer.facts["control_zones"]:
        ids[f"subnet {zone}"] = _subnet(maker, offer, infrastructure, zone)
    return ids


def _subnet(maker: ResourceMaker, offer: Offer, infrastructure: Infrastructure, zone: str) -> str:
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


def _server(plane: Mapping[str, Any]) -> ApiServer:
    authority = plane.get("certificateAuthority", {}).get("data") or ""
    return ApiServer(url=plane["endpoint"], authority=authority)


def connect(target: Target, clock: Clock) -> EksService:
    """Return the account and region of `target`."""
    return EksService(EksCloud(target, clock=clock), clock)


provider = partial(ManagedKubernetes, traits=TRAITS, connect=connect)
"""Returns the provider for one cluster."""
