"""The offer of OCI for a cluster, before anything is made: shape, image, price, and domains.

Reports of capacity and of limits are hints: they order the zones, and their failure changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from inventories.errors import InvalidInput
from inventories.text import nearest
from inventories.threads import run_all, together, values
from provision.errors import BadCredentials, CloudError, Gone, Throttled, Unclear, UnknownShape
from provision.oci import requests, run_command
from provision.oci.api import Api, Json
from provision.oci.catalog import hourly_usd, last_driver_branch, refuse_not_launched
from provision.oci.images import choice, lookup
from provision.oci.images.lookup import Image
from provision.oci.quotas import available, machine_limit
from provision.pricing.catalog import SHAPES, nvidia_by_name
from provision.records import CloudCluster, Offer, Zone
from provision.rented.planning.drivers import driver_plan

FLEXIBLE_OCPUS = 2.0
"""OCPUs of flexible shapes, which have no GPUs."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One availability domain, with its state for a shape."""

    name: str
    fault_domains: tuple[str, ...]
    shape: Json | None
    """The domain's view of the shape. `None`: the domain has no such shape."""
    capacity: bool | None
    """Whether the capacity report shows machines. `None`: no report."""
    left: int | None
    """GPUs that the account's limit leaves. `None`: not known."""
    unknown: str = ""
    """Reason for the missing report."""


def find(api: Api, cluster: CloudCluster, *, terms: bool, refused: str | None = None) -> Offer:
    """Return the offer: see `Cloud.offer`. `refused`: see `choice.find`."""
    refuse_not_launched(cluster.shape)
    domains, image_if_any, subnet = together(
        partial(find_domains, api, cluster.shape),
        partial(_image, api, cluster, terms=terms, refused=refused),
        partial(_subnet, api, cluster),
    )
    shape = usable_shape(api, cluster, domains)
    image = image_if_any()  # only now, as no image fits a missing shape
    if subnet is not None:
        requests.check_subnet(cluster, subnet)
        only = subnet.get("availabilityDomain")
        domains = [domain for domain in domains if only in (None, domain.name)]
    zones = ordered_zones(domains)
    if not zones:
        raise InvalidInput(
            f"Subnet '{cluster.subnet_id}' is in an availability domain that has no {cluster.shape}. Give a "
            "regional subnet, or another shape."
        )
    facts = facts_of(cluster.shape, shape, image)
    notes = _rdma_notes(cluster, facts, choice.rdma_note(image.name, default=cluster.image is None))
    return Offer(
        shape=cluster.shape,
        gpus=int(shape.get("gpus") or 0),
        image_id=image.id,
        image_name=image.name,
        image_why=image.why,
        driver=driver_plan(
            cluster.driver,
            image.system,
            shape=cluster.shape,
            nvidia=nvidia_by_name(cluster.shape) and bool(shape.get("gpus")),
            last=last_driver_branch(cluster.shape),
        ),
        terms=image.terms,
        from_marketplace=image.listing is not None,
        image_there=image.exists,
        boot_commands=(*image.boot_commands, run_command.boot_command(image.user)),
        user=image.user,
        disk_gb=lookup.disk_gb(cluster.disk_gb, image),
        zones=zones,
        hourly_usd=hourly_usd(cluster.shape, spot=cluster.spot),
        room={domain.name: domain.left for domain in domains if domain.shape},
        notes=notes,
        facts=facts
        | {"no_capacity_report": next((domain.unknown for domain in domains if domain.unknown), None)},
    )


def usable_shape(api: Api, cluster: CloudCluster, domains: Sequence[Domain]) -> Json:
    """Return OCI's view of the shape. Raises UnknownShape, and InvalidInput for a spot machine of bare metal."""
    shape = next((domain.shape for domain in domains if domain.shape), None)
    if shape is None:
        listed = api.listed("compute.list_shapes")
        near = nearest(cluster.shape, sorted({str(shape["shape"]) for shape in listed}))
        region = api.credentials.region
        hint = f" Near it: {', '.join(near)}." if near else ""
        problem = (
            "is in OCI, but not for your account" if cluster.shape in SHAPES else "is no shape that OCI lists"
        )
        raise UnknownShape(
            f"{cluster.shape} {problem} in {region}.{hint} `gpuctl shapes` lists the known ones; try another "
            "--region, or ask for the shape's service limit in the console."
        )
    if cluster.spot and cluster.shape.startswith("BM."):
        raise InvalidInput(
            f"OCI has no preemptible bare-metal machines, and {cluster.shape} is one. Leave out --spot."
        )
    return shape


def facts_of(name: str, shape: Json, image: Image) -> dict[str, Any]:
    """Return the facts of shape and image for requests."""
    virtual = name.startswith("VM.")
    known = SHAPES.get(name)
    # A row of the catalog without networks has no data on RDMA.
    rdma = known.compute_cluster if known and known.network else bool(shape.get("rdmaPorts"))
    return {
        "compute_cluster": rdma and not virtual,
        "encrypts_in_transit": virtual and image.encrypts_in_transit,
        "shape_config": shape_config(shape),
        "limits": list(shape.get("quotaNames") or ()),
        "listing": list(image.listing) if image.listing else None,
    }


def shape_config(shape: Json) -> dict[str, float] | None:
    """Return OCPUs and memory for a flexible shape. `None`: the shape has its own."""
    if not shape.get("isFlexible"):
        return None
    ocpus, memory = shape.get("ocpuOptions") or {}, shape.get("memoryOptions") or {}
    count = min(max(FLEXIBLE_OCPUS, float(ocpus.get("min") or 1)), float(ocpus.get("max") or FLEXIBLE_OCPUS))
    each = float(memory.get("defaultPerOcpuInGBs") or 8)
    return {"ocpus": count, "memoryInGBs": count * each}


def _rdma_notes(cluster: CloudCluster, facts: Mapping[str, Any], image_note: str) -> tuple[str, ...]:
    """Return the plan's notes on the RDMA network of a shape that has one. `image_note`: empty, or on the image."""
    if requests.in_compute_cluster(cluster, facts):
        return (image_note,) if image_note else ()
    if not facts["compute_cluster"] or cluster.boots_from is None:
        return ()  # a machine alone needs no RDMA network
    return (
        "the cluster began with one machine, so its machines are in no compute cluster, and NCCL uses TCP between "
        f"them. For RDMA: `gpuctl down --cluster {cluster.name}`, then `gpuctl up` with the final --count",
    )


def ordered_zones(domains: Sequence[Domain]) -> tuple[Zone, ...]:
    """Return each domain as a whole, the likelier ones first; then each fault domain alone."""
    likely = sorted((domain for domain in domains if domain.shape is not None), key=_unlikely)
    whole = [Zone(name=domain.name) for domain in likely]
    parts = [
        Zone(name=domain.name, fault_domain=fault_domain)
        for domain in likely
        for fault_domain in domain.fault_domains
    ]
    return (*whole, *parts)


def _unlikely(domain: Domain) -> tuple[bool, bool, int]:
    """Return a sort key; higher for no room for one machine, no capacity, less room for more machines."""
    needed = int((domain.shape or {}).get("gpus") or 1)
    left = needed if domain.left is None else domain.left
    return left < needed, domain.capacity is not True, -left


def availability_domains(api: Api) -> list[str]:
    """Return the names of the availability domains, in the account's order."""
    domains = api.list_all("identity.list_availability_domains", api.tenancy)
    return [str(domain["name"]) for domain in domains]


def _image(api: Api, cluster: CloudCluster, *, terms: bool, refused: str | None) -> Callable[[], Image]:
    """Return a function that returns the image or raises its error: an error of the shape is raised first."""
    (outcome,) = run_all(lambda request: choice.find(api, request, terms=terms, refused=refused), [cluster])
    return lambda: values([outcome])[0]


def _subnet(api: Api, cluster: CloudCluster) -> Json | None:
    if cluster.subnet_id is None:
        return None
    try:
        view: Json = api.call("network.get_subnet", cluster.subnet_id)
    except Gone as error:
        raise InvalidInput(f"There is no subnet '{cluster.subnet_id}' that you may use. {error}") from error
    return view


def find_domains(api: Api, shape: str) -> list[Domain]:
    """Return the state of each availability domain for a shape."""
    names = availability_domains(api)
    return values(run_all(lambda name: _domain(api, name, shape), names))


def _in_domain(api: Api, zone: str, shape: str) -> Json | None:
    """Return a domain's view of the shape. `None`: the domain has no such shape, or OCI no such name."""
    try:
        listed = api.listed("compute.list_shapes", availability_domain=zone, shape=shape)
    except (BadCredentials, Throttled, Unclear):
        raise
    except CloudError:
        return None  # if permissions are missing, the list of all shapes raises
    return next((candidate for candidate in listed if candidate["shape"] == shape), None)


def _domain(api: Api, name: str, shape: str) -> Domain:
    listed, fault_domains, (capacity, unknown) = together(
        partial(_in_domain, api, name, shape),
        partial(api.list_all, "identity.list_fault_domains", api.tenancy, name),
        partial(_report, api, name, shape),
    )
    limit = machine_limit((listed or {}).get("quotaNames") or ())
    left = available(api, limit, name) if limit else None
    return Domain(
        name=name,
        fault_domains=tuple(str(domain["name"]) for domain in fault_domains),
        shape=listed,
        capacity=capacity,
        left=left,
        unknown=unknown,
    )


def _report(api: Api, zone: str, shape: str) -> tuple[bool | None, str]:
    """Return whether a capacity report shows machines, and the reason for a missing report."""
    body = requests.capacity_report(api.tenancy, zone, shape)
    try:
        answer = api.hint("compute.create_compute_capacity_report", body)
    except BadCredentials:
        raise
    except CloudError as error:
        return None, str(error)
    states = [
        availability.get("availabilityStatus") for availability in answer.get("shapeAvailabilities") or ()
    ]
    return ("AVAILABLE" in states if states else None), ""
