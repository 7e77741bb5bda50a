"""The offer of OCI for a cluster, before anything is made: shape, domains, limits, Kubernetes' version, images."""

import re
from collections.abc import Sequence
from functools import partial

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import DriverPlan
from inventories.threads import together
from provision.errors import CloudError, NoCapacity
from provision.oci import quotas
from provision.oci.api import Api, Json
from provision.oci.catalog import hourly_usd
from provision.oci.errors import STOPPED_COUNT
from provision.oci.offers import find_domains, ordered_zones, usable_shape
from provision.oke import requests
from provision.oke.traits import DISK_GB
from provision.pricing.catalog import SHAPES, nvidia_by_name
from provision.records import CloudCluster, Offer

ARM = ("BM.GPU.GB200.", "BM.GPU.GB300.")
_IMAGE = re.compile(
    r"Oracle-Linux-(?P<release>[89])[.\d]*-(?P<gpu>Gen2-GPU-)?(?P<date>[\d.]+)-\d+-OKE-(?P<version>[\d.]+)-(?P<build>\d+)"
)
"""Names of OKE's images for x86: `Oracle-Linux-8.10-Gen2-GPU-2026.01.31-0-OKE-1.34.1-1234`."""


def find(api: Api, cluster: CloudCluster, *, version: str | None = None) -> Offer:
    """Return the shape, the domains that have it, and the images. Raises UnknownShape and InvalidInput.

    `version`: the control plane's, which its nodes have as well. `None`: no control plane yet.
    """
    domains, options, versions = together(
        partial(find_domains, api, cluster.shape),
        lambda: api.call("container.get_node_pool_options", "all", compartment_id=api.compartment),
        lambda: api.call("container.get_cluster_options", "all", compartment_id=api.compartment),
    )
    shape = usable_shape(api, cluster, domains)
    gpus = int(shape.get("gpus") or 0)
    if not gpus:
        raise InvalidInput(
            f"{cluster.shape} has no GPU, and provider oke rents machines for those. Choose another shape: "
            "`gpuctl shapes --provider oci` lists them."
        )
    if not nvidia_by_name(cluster.shape) or cluster.shape.startswith(ARM):
        raise InvalidInput(
            f"OKE's images for x86 with NVIDIA's driver do not fit {cluster.shape}, and provider oke boots those. "
            "Choose another shape: `gpuctl shapes --provider oci` lists them."
        )
    version, gpu_image, cpu_image = choose(
        versions["kubernetesVersions"], options["sources"], preferred=version
    )
    known = SHAPES.get(cluster.shape)
    rdma = known.compute_cluster if known else bool(shape.get("rdmaPorts"))
    compute_cluster = rdma and cluster.shape.startswith("BM.")
    return Offer(
        shape=cluster.shape,
        gpus=gpus,
        image_id=gpu_image["imageId"],
        image_name=gpu_image["sourceName"],
        image_why=f"OKE's newest image with NVIDIA's driver, for Kubernetes {version}",
        driver=DriverPlan(source="image"),
        user="ray",
        disk_gb=cluster.disk_gb or DISK_GB,
        zones=tuple(zone for zone in ordered_zones(domains) if zone.fault_domain is None),
        hourly_usd=hourly_usd(cluster.shape, spot=cluster.spot),
        room={domain.name: domain.left for domain in domains if domain.shape},
        facts={
            "version": version,
            "cpu_image": cpu_image["imageId"],
            "compute_cluster": compute_cluster,
            "vcpus": int(2 * float(shape.get("ocpus") or 0)),
            "tainted": (requests.PREEMPTIBLE,) if cluster.spot else (),
        },
        notes=(requests.COMPUTE_CLUSTER_POLICY.format(compartment=api.compartment),)
        if compute_cluster
        else (),
    )


def choose(
    versions: Sequence[str], sources: Sequence[Json], *, preferred: str | None = None
) -> tuple[str, Json, Json]:
    """Return the newest version that has images, `v1.34.1`, its newest one with GPUs, and its newest without. Pure.

    `preferred`: the control plane's version, which nodes may not be ahead of. Images of Oracle Linux 8 win over those
    of 9. Raises CloudError if no version has images.
    """
    images = [(source, match) for source in sources if (match := _IMAGE.fullmatch(source["sourceName"]))]
    # A version that ends with .0 is a preview.
    candidates = [version for version in versions if _number(version)[-1]]
    if preferred:
        listed = {f"v{match['version']}" for _, match in images}
        older = (version for version in listed if _number(version) < _number(preferred))
        candidates = [preferred, *older]
    for version in sorted(candidates, key=_number, reverse=True):
        fitting = [image for image in images if image[1]["version"] == version.removeprefix("v")]
        newest = sorted(
            fitting,
            key=lambda image: (image[1]["release"] == "8", _number(image[1]["date"]), int(image[1]["build"])),
            reverse=True,
        )
        with_gpus = [source for source, match in newest if match["gpu"]]
        without = [source for source, match in newest if not match["gpu"]]
        if with_gpus and without:
            return version, with_gpus[0], without[0]
    missing = "version of Kubernetes that has an image"
    if preferred:
        missing = f"image for Kubernetes {preferred} or before"
    raise CloudError(f"OKE lists no {missing} with NVIDIA's driver.")


def refuse_over_quota(cluster: CloudCluster, offer: Offer, count: int) -> None:
    """Raise NoCapacity if the account's limit leaves no availability domain room for that many machines."""
    needed = quotas.units(offer, count)
    left = {zone.name: offer.room.get(zone.name) for zone in offer.zones}
    if any(free is None or free >= needed for free in left.values()):
        return
    listed = ", ".join(f"{free} in {zone}" for zone, free in left.items())
    raise NoCapacity(
        f"{count} {cluster.shape} need {needed} GPUs in one availability domain, and the account's limits leave "
        f"{listed}. Nothing was created. Ask for a higher limit in the console, or take a smaller --count. "
        f"{STOPPED_COUNT}"
    )


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
