"""EKS, as far as it is known without an account: a `ServiceTraits`, notes on EFA, the requests of a plan. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inventories.specs.gpu_driver import DriverPlan
from provision.aws import preview as aws_preview
from provision.aws.requests import efa_layout
from provision.eks import requests
from provision.eks.description import CONTROL_PLANE_HOURLY_USD, CPU_MACHINE_USD
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Offer, PlannedRequest, Resource
from provision.rented.managed_kubernetes.service import FixedCosts

DISK_GB = 200
IMAGE_WHY = "EKS's image with NVIDIA's driver, of the control plane's version"
TOKEN = "<token>"  # noqa: S105 - a placeholder
OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
"""Prefixes of regions whose accounts can't read the image of AWS's device plug-in."""


class EksTraits:
    """A `ServiceTraits`."""

    name = requests.PROVIDER
    cluster_kind = requests.CLUSTER
    nodes_kind = requests.NODE_GROUP
    own_plugin = True
    cpu_machine = f"{requests.CPU_TYPE} with {requests.CPU_DISK_GB} GB"
    network = ("vpc", "shared by all clusters of the region, with subnets in two zones")
    roles = "of the control plane, of nodes"
    replacement = (
        "EKS tries to start another spot machine for one that AWS takes back or is likely to: both may be billed "
        "for a while, and the pods of the first are evicted"
    )
    """https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html, 2026-11."""

    def outline(self, cluster: CloudCluster) -> Offer:
        """Return an offer for a plan without an account."""
        offer = aws_preview.outline(cluster)
        region = cluster.target.region or "<region>"
        return replace(
            offer,
            image_id=requests.GPU_AMI,
            image_name=requests.GPU_AMI,
            image_why=IMAGE_WHY,
            driver=DriverPlan(source="image"),
            user="ray",
            disk_gb=cluster.disk_gb or DISK_GB,
            notes=efa_notes(cluster, offer.facts),
            facts={**offer.facts, "control_zones": [f"{region}a", f"{region}b"]},
        )

    def fixed_costs(self, prices: Prices, region: str | None) -> FixedCosts:
        """Return the costs of the control plane and the machine without GPUs."""
        price = prices.of(requests.CPU_TYPE, region)
        shipped = CPU_MACHINE_USD if region in (None, "us-east-1") else None
        return FixedCosts(
            cpu_usd=price.usd_per_hour if price is not None else shipped,
            cpu_disk_gb=requests.CPU_DISK_GB,
            control_plane_usd=CONTROL_PLANE_HOURLY_USD,
        )

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, existing: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """Return the requests for missing resources."""
        kinds = {resource.kind for resource in existing}
        zone = offer.zones[0].name
        subnets = [f"<subnet {name}>" for name in offer.facts["control_zones"]]
        planned: list[tuple[str, requests.Request]] = []
        if requests.ROLE not in kinds:
            planned += [("CreateRole", requests.role(cluster, role)) for role in requests.ROLES]
        if requests.CLUSTER not in kinds:
            role = f"<role {requests.CLUSTER_ROLE}>"
            body = requests.control_plane(cluster, role, subnets, "<security-group>", TOKEN)
            planned.append(("CreateCluster", body))
            planned += [("CreateAddon", requests.addon(cluster, name, TOKEN)) for name in requests.ADDONS]
        if requests.NODE_GROUP not in kinds:
            gpu, cpu = requests.gpu_group_name(zone), requests.CPU_GROUP
            for group, disk_gb, facts in (
                (cpu, requests.CPU_DISK_GB, None),
                (gpu, offer.disk_gb, offer.facts),
            ):
                data = requests.template_data(cluster, group, disk_gb=disk_gb, facts=facts)
                name = requests.template_name(cluster, group, "<digest>")
                body = requests.launch_template(cluster, name, data, TOKEN)
                planned.append(("CreateLaunchTemplate", body))
            role = f"<role {requests.NODE_ROLE}>"
            body = requests.cpu_group(cluster, role, subnets, f"<launch-template {cpu}>", TOKEN)
            ids = {"role": role, "subnet": f"<subnet {zone}>", "template": f"<launch-template {gpu}>"}
            planned.append(("CreateNodegroup", body))
            planned.append(("CreateNodegroup", requests.gpu_group(cluster, offer, count, zone, ids, TOKEN)))
        return tuple(PlannedRequest(operation=operation, body=body) for operation, body in planned)


TRAITS = EksTraits()


def efa_in_pods(cluster: CloudCluster, facts: Mapping[str, Any]) -> int:
    """Return the EFA interfaces of each pod: all of its machine, for an image of the user's own.

    Ray's public image lacks the libraries that NCCL needs to use them.
    """
    if not cluster.image or (cluster.target.region or "").startswith(OTHER_PARTITIONS):
        return 0
    return _efa_of_machine(cluster, facts)


def efa_notes(cluster: CloudCluster, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the plan's notes on a type that has EFA."""
    used, total = _efa_of_machine(cluster, facts), len(facts["efa_cards"])
    notes = []
    if total and not cluster.image:
        notes.append(
            "NCCL goes over TCP between the pods: Ray's public image lacks libfabric and AWS's plug-in for NCCL "
            "(aws-ofi-nccl). The pods of an --image that has them get EFA"
        )
    if used < total:
        notes.append(
            f"{used} of the {total} EFA interfaces of {cluster.shape} will be used: AWS gives a public address only "
            "to a machine with a single interface. With --no-public-ip it has all of them"
        )
    return tuple(notes)


def _efa_of_machine(cluster: CloudCluster, facts: Mapping[str, Any]) -> int:
    layout = efa_layout(facts, public=cluster.public_ip)
    return sum("InterfaceType" in interface for interface in layout)
