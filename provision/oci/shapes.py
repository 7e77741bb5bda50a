"""Shapes: OCI's view, facts for requests, price."""

from typing import Any

from inventories.errors import InvalidInput
from inventories.text import nearest
from provision.errors import BadCredentials, CloudError, Throttled, Unclear
from provision.oci.api import Api, Json
from provision.oci.catalog import SPOT_SHARE, not_launched
from provision.oci.images.lookup import Image
from provision.pricing.catalog import SHAPES

FLEXIBLE_OCPUS = 2.0
"""OCPUs of flexible shapes, which have no GPUs."""


def in_domain(api: Api, zone: str, shape: str) -> Json | None:
    """Return a domain's view of the shape. `None`: the domain has no such shape, or OCI no such name."""
    try:
        listed = api.listed("compute.list_shapes", availability_domain=zone, shape=shape)
    except (BadCredentials, Throttled, Unclear):
        raise
    except CloudError:
        return None  # if permissions are missing, the list of all shapes raises
    return next((candidate for candidate in listed if candidate["shape"] == shape), None)


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


def hourly_usd(name: str, *, spot: bool) -> float | None:
    """Return the list price of one machine. `None`: not known."""
    known = SHAPES.get(name)
    price = known.usd_per_hour if known else None
    if price is None:
        return None
    return price * SPOT_SHARE if spot else price


def refuse_not_launched(name: str) -> None:
    """Raise InvalidInput for a shape that gpuctl does not launch."""
    if reason := not_launched(name):
        raise InvalidInput(
            f"{name} is not launched by gpuctl: {reason}. Choose another shape: `gpuctl shapes` lists them."
        )


def missing(api: Api, name: str) -> str:
    """Return the message for a shape that no domain lists."""
    listed = api.listed("compute.list_shapes")
    near = nearest(name, sorted({str(shape["shape"]) for shape in listed}))
    region = api.credentials.region
    hint = f" Near it: {', '.join(near)}." if near else ""
    problem = "is in OCI, but not for your account" if name in SHAPES else "is no shape that OCI lists"
    return (
        f"{name} {problem} in {region}.{hint} `gpuctl shapes` lists the known ones; try another --region, or "
        "ask for the shape's service limit in the console."
    )
