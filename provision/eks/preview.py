"""The requests that a plan shows, made by the functions that make the real ones. Pure."""

from collections.abc import Sequence

from provision.eks import names, requests
from provision.eks.resources import listing
from provision.records import CloudCluster, Offer, PlannedRequest, Resource

TOKEN = "<token>"  # noqa: S105 - what stands for one


def preview(
    cluster: CloudCluster, offer: Offer, count: int, there: Sequence[Resource]
) -> tuple[PlannedRequest, ...]:
    """The requests for what is not there yet, by the functions that make the real ones."""
    kinds = {one.kind for one in there}
    zone = offer.zones[0].name
    subnets = [f"<subnet {name}>" for name in offer.facts["control_zones"]]
    gpu, cpu = names.gpu_group(zone), names.CPU_GROUP
    made: list[tuple[str, requests.Request]] = []
    if listing.ROLE not in kinds:
        made += [("CreateRole", requests.role(cluster, what)) for what in requests.ROLES]
    if listing.CLUSTER not in kinds:
        role = f"<role {names.CLUSTER_ROLE}>"
        made.append(
            ("CreateCluster", requests.control_plane(cluster, role, subnets, "<security-group>", TOKEN))
        )
        made += [("CreateAddon", requests.addon(cluster, name, TOKEN)) for name in requests.ADDONS]
    if listing.NODE_GROUP not in kinds:
        role = f"<role {names.NODE_ROLE}>"
        templates = [(cpu, requests.CPU_DISK_GB, None), (gpu, offer.disk_gb, offer.facts)]
        made += [
            (
                "CreateLaunchTemplate",
                requests.launch_template(
                    cluster,
                    names.template_name(cluster, group, "<digest>"),
                    requests.template_data(cluster, group, disk_gb=disk_gb, facts=facts),
                    TOKEN,
                ),
            )
            for group, disk_gb, facts in templates
        ]
        ids = {"role": role, "subnet": f"<subnet {zone}>", "template": f"<launch-template {gpu}>"}
        made += [
            (
                "CreateNodegroup",
                requests.cpu_group(cluster, role, subnets, f"<launch-template {cpu}>", TOKEN),
            ),
            ("CreateNodegroup", requests.gpu_group(cluster, offer, count, zone, ids, TOKEN)),
        ]
    return tuple(PlannedRequest(operation=operation, body=body) for operation, body in made)
