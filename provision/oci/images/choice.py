"""Which image machines boot from: that of the machines that are there, the one asked for, or the default.

For NVIDIA GPUs the default is the first of these that the account can have: the marketplace's NVIDIA
GPU-Optimized VMI, Oracle's own build of Oracle Linux for GPUs, Ubuntu, on which gpuctl installs the driver.
"""

from dataclasses import replace

from inventories.errors import InvalidInput
from provision.cloud.planning.drivers import branch_of
from provision.cloud.records import CloudCluster, Terms
from provision.errors import Denied, Gone
from provision.oci.api import Api
from provision.oci.errors import policy_for
from provision.oci.images import lookup, marketplace
from provision.oci.images.lookup import Image
from provision.oci.images.marketplace import VMI
from provision.pricing.catalog import nvidia_by_name

MARKETPLACE = "marketplace:"


def unknown(cluster: CloudCluster) -> str:
    """What stands for the image's id where no account can be asked."""
    if cluster.image is not None:
        return cluster.image
    if branch_of(cluster.driver) or cluster.driver == "none" or not nvidia_by_name(cluster.shape):
        return "<newest Canonical Ubuntu for the shape>"
    return f"<{VMI}, else the newest GPU build of Oracle Linux, else Ubuntu>"


def unknown_terms(cluster: CloudCluster) -> Terms | None:
    """The terms of what `unknown` stands for; the account has their links. None: it has none, or is not known."""
    if cluster.image is not None and cluster.image.startswith(MARKETPLACE):
        return Terms(name=cluster.image.removeprefix(MARKETPLACE).strip(), links=())
    return Terms(name=VMI, links=()) if VMI in unknown(cluster) and cluster.image is None else None


def find(api: Api, cluster: CloudCluster, *, terms: bool, refused: str | None = None) -> Image:
    """The image and why it is that one. Raises InvalidInput where there is none.

    `terms`: as `Cloud.offer` says. `refused`: why the VMI's terms can't be accepted, where that was tried.
    """
    if cluster.boots_from is not None:
        return lookup.booted(api, cluster.boots_from)
    wanted = cluster.image
    if wanted is not None and wanted.startswith(MARKETPLACE):
        found = marketplace.find(api, wanted.removeprefix(MARKETPLACE).strip(), cluster.shape, terms=terms)
        return replace(found, why=f"{found.why}{_accepted_before(found)}")
    if wanted is not None:
        return lookup.named(api, wanted, cluster.shape)
    if branch := branch_of(cluster.driver):
        why = f"only on Ubuntu can driver {branch} be chosen; gpuctl installs it"
    elif not nvidia_by_name(cluster.shape):
        why = "the newest Ubuntu, as the shape has no NVIDIA GPUs"
    elif cluster.driver == "none":
        why = "the newest Ubuntu, as --driver none asks for no driver"
    else:
        return _for_nvidia(api, cluster.shape, terms=terms, refused=refused)
    return replace(lookup.ubuntu(api, cluster.shape), why=why)


def _for_nvidia(api: Api, shape: str, *, terms: bool, refused: str | None) -> Image:
    vmi, without = (None, refused) if refused else _vmi(api, shape, terms=terms)
    if vmi is not None:
        return vmi
    build = lookup.gpu_build(api, shape)
    if build is not None:
        return replace(build, why=f"it brings the driver; the {VMI} is not taken: {without}")
    return replace(
        lookup.ubuntu(api, shape),
        why=f"gpuctl installs the driver; the {VMI} is not taken: {without}; and Oracle Linux has no GPU build "
        f"for {shape} in {api.credentials.region}",
    )


def _vmi(api: Api, shape: str, *, terms: bool) -> tuple[Image | None, str]:
    """The VMI, or why it is not taken."""
    try:
        image = marketplace.find(api, VMI, shape, terms=terms)
    except marketplace.NotAccepted:
        return None, "its terms are not accepted; --accept-terms takes it"
    except InvalidInput:
        return None, f"the marketplace has none for {shape} in {api.credentials.region}"
    except (Denied, Gone):
        policy = policy_for("app_catalog", api.compartment)
        return None, f"the account may not use the marketplace (policy `{policy}`)"
    return replace(image, why=f"it brings the driver{_accepted_before(image)}"), ""


def _accepted_before(image: Image) -> str:
    return "" if image.terms else "; its terms were accepted before in this account"
