"""The image that machines boot from: the existing machines' image, the requested one, or the default.

For NVIDIA GPUs the default is the newest Deep Learning Base image, which brings the driver, else Ubuntu, on which
gpuctl installs it. GPUs that only old drivers run get Ubuntu at once: AWS's newest image for them is Amazon Linux 2,
whose glibc has no wheel of torch 2.6 or newer.
"""

from collections.abc import Mapping
from typing import Any

from inventories.errors import InvalidInput
from provision.aws import shapes
from provision.aws.api import Api
from provision.aws.images import lookup
from provision.pricing.catalog import last_driver_branch, nvidia_by_name
from provision.records import CloudCluster
from provision.rented.planning.drivers import branch_of

ImageView = Mapping[str, Any]


def unknown(cluster: CloudCluster) -> str:
    """Return the placeholder of the image's id for an unknown account."""
    if cluster.image is not None:
        return cluster.image
    last = last_driver_branch(cluster.shape)
    if branch_of(cluster.driver) or cluster.driver == "none" or last or not nvidia_by_name(cluster.shape):
        return "<newest Canonical Ubuntu>"
    return "<newest Deep Learning Base AMI>"


def find(api: Api, cluster: CloudCluster, described: Mapping[str, Any]) -> tuple[ImageView, str, bool]:
    """Return the image by DescribeImages, the reason for the choice, and whether it still exists.

    Raises InvalidInput for a missing image, or one for other processors than those of the type (`described`).
    """
    architecture = shapes.architecture(described)
    if cluster.boots_from is not None:
        listed = lookup.by_id(api, cluster.boots_from.id)
        known = listed or {
            "ImageId": cluster.boots_from.id,
            "Name": cluster.boots_from.name or cluster.boots_from.id,
            "Architecture": architecture,
        }
        return known, "the image of the machines that are there", listed is not None
    if cluster.image is not None:
        return lookup.named(api, cluster.image, architecture), "as asked for", True
    plain = lookup.plain(architecture)
    if branch := branch_of(cluster.driver):
        why = f"only on Ubuntu can driver {branch} be chosen; gpuctl installs it"
    elif not shapes.nvidia_gpus(described):
        why = "plain Ubuntu, as the shape has no NVIDIA GPUs"
    elif cluster.driver == "none":
        why = "plain Ubuntu, as --driver none asks for no driver"
    elif last := shapes.last_driver(described):
        why = f"gpuctl installs driver {last}, the last branch that runs its GPUs"
    else:
        image = lookup.published(api, lookup.with_driver(architecture), architecture)
        if image is not None:
            return image, "it brings the driver", True
        why = f"gpuctl installs the driver; AWS has no Deep Learning Base image for it in {api.region}"
    image = lookup.published(api, plain, architecture)
    if image is None:
        raise InvalidInput(lookup.missing(api.region, f"'{plain.parameter or plain.name}', the default"))
    return image, why, True
