"""The image that machines boot from: the existing machines' image, the requested one, or the default.

For NVIDIA GPUs the default is the first of these that the account can have: for shapes with an RDMA network Oracle's
GPU Cluster Networking Image, which alone can join it; the marketplace's NVIDIA GPU-Optimized VMI; Oracle's own build
of Oracle Linux for GPUs; Ubuntu, on which gpuctl installs the driver. GPUs that only old drivers run get Ubuntu at
once, as the newer images for GPUs have drivers without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inventories.errors import InvalidInput
from provision.errors import Denied, Gone
from provision.oci.api import Api
from provision.oci.catalog import last_driver_branch, may_have_rdma
from provision.oci.errors import policy_for
from provision.oci.images import lookup, marketplace
from provision.oci.images.lookup import Image
from provision.oci.images.marketplace import CLUSTER_IMAGE, VMI
from provision.pricing.catalog import nvidia_by_name
from provision.records import CloudCluster, Terms
from provision.rented.planning.drivers import branch_of

MARKETPLACE = "marketplace:"
NO_RDMA = "RDMA will not work with this image: NCCL uses TCP"
WITH_RDMA = f"--image '{MARKETPLACE}{CLUSTER_IMAGE}' takes Oracle's image for RDMA"


def unknown(cluster: CloudCluster) -> str:
    """Return the placeholder of the image's id for an unknown account."""
    if cluster.image is not None:
        return cluster.image
    if _ubuntu_reason(cluster):
        return "<newest Canonical Ubuntu for the shape>"
    listings = ", else the ".join(_listings(cluster.shape))
    return f"<{listings}, else the newest GPU build of Oracle Linux, else Ubuntu>"


def unknown_terms(cluster: CloudCluster) -> Terms | None:
    """Return the terms of the image of `unknown`, without their links. `None`: no terms, or not known."""
    if cluster.image is not None and cluster.image.startswith(MARKETPLACE):
        return Terms(name=cluster.image.removeprefix(MARKETPLACE).strip(), links=())
    if cluster.image is not None or _ubuntu_reason(cluster):
        return None
    return Terms(name=_listings(cluster.shape)[0], links=())


def find(api: Api, cluster: CloudCluster, *, terms: bool, refused: str | None = None) -> Image:
    """Return the image, with the reason for the choice. Raises InvalidInput for a missing image.

    `terms`: see `Cloud.offer`. `refused`: reason why the terms of the marketplace's image could not be accepted.
    """
    if cluster.boots_from is not None:
        return lookup.booted(api, cluster.boots_from)
    requested = cluster.image
    if requested is not None and requested.startswith(MARKETPLACE):
        image = marketplace.find(api, requested.removeprefix(MARKETPLACE).strip(), cluster.shape, terms=terms)
        return replace(image, why=f"{image.why}{_accepted_before(image)}")
    if requested is not None:
        return lookup.named(api, requested, cluster.shape)
    if why := _ubuntu_reason(cluster):
        return replace(lookup.ubuntu(api, cluster.shape), why=why)
    shape = cluster.shape
    reasons: dict[str, list[str]] = {}
    for listing in _listings(shape):
        listed, reason = (None, refused) if refused else _listed(api, listing, shape, terms=terms)
        if listed is not None:
            return replace(listed, why="; ".join([listed.why, *_not_taken(reasons)]))
        reasons.setdefault(reason, []).append(f"the {listing}")
    without = _not_taken(reasons)
    build = lookup.gpu_build(api, shape)
    if build is not None:
        return replace(build, why="; ".join(["it brings the driver", *without]))
    no_build = f"and Oracle Linux has no GPU build for {shape} in {api.credentials.region}"
    why = "; ".join(["gpuctl installs the driver", *without, no_build])
    return replace(lookup.ubuntu(api, shape), why=why)


def _ubuntu_reason(cluster: CloudCluster) -> str:
    """Return why the default image is Ubuntu, in a clause. Empty: another image is."""
    if branch := branch_of(cluster.driver):
        return f"only on Ubuntu can driver {branch} be chosen; gpuctl installs it"
    if not nvidia_by_name(cluster.shape):
        return "the newest Ubuntu, as the shape has no NVIDIA GPUs"
    if cluster.driver == "none":
        return "the newest Ubuntu, as --driver none asks for no driver"
    if last := last_driver_branch(cluster.shape):
        return f"gpuctl installs driver {last}, the last branch that runs its GPUs"
    return ""


def _listings(shape: str) -> tuple[str, ...]:
    """Return the marketplace's default images for the shape, the best first."""
    return (CLUSTER_IMAGE, VMI) if may_have_rdma(shape) else (VMI,)


def _not_taken(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a clause for each reason, with the listings that it excludes."""
    return [
        f"{' and '.join(listings)} {'is' if len(listings) == 1 else 'are'} not taken: {reason}"
        for reason, listings in reasons.items()
    ]


def _listed(api: Api, listing: str, shape: str, *, terms: bool) -> tuple[Image | None, str]:
    """Return the image of the marketplace's listing, or why it is not taken."""
    try:
        image = marketplace.find(api, listing, shape, terms=terms)
    except marketplace.NotAccepted:
        return None, "the terms are not accepted (add --accept-terms)"
    except InvalidInput:
        return None, f"the marketplace has none for {shape} in {api.credentials.region}"
    except (Denied, Gone):
        policy = policy_for("app_catalog", api.compartment)
        return None, f"the account may not use the marketplace (policy `{policy}`)"
    brings = "the driver and what RDMA needs" if listing == CLUSTER_IMAGE else "the driver"
    return replace(image, why=f"it brings {brings}{_accepted_before(image)}"), ""


def rdma_note(image_name: str, *, default: bool) -> str:
    """Return the plan's note on an image that RDMA does not work with, or may not; empty: it works.

    `default`: gpuctl chose the image, and the plan says why.
    """
    has_rdma = marketplace.has_rdma(image_name)
    if has_rdma:
        return ""
    if has_rdma is None:
        return (
            f"gpuctl does not know whether RDMA works with the image '{image_name}': without OFED, wpa_supplicant "
            f"and Oracle's packages NCCL uses TCP. {WITH_RDMA}"
        )
    return NO_RDMA if default else f"{NO_RDMA}. {WITH_RDMA}"


def expected_rdma_note(cluster: CloudCluster) -> str:
    """Return the same without an account, of the image that `unknown` stands for."""
    if cluster.image is not None:
        return rdma_note(cluster.image.removeprefix(MARKETPLACE).strip(), default=False)
    return NO_RDMA if _ubuntu_reason(cluster) else ""


def _accepted_before(image: Image) -> str:
    return "" if image.terms else "; its terms were accepted before in this account"
