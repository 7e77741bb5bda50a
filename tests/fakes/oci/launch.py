"""Check a launch as LaunchInstance does before it accepts it."""

import base64
import binascii
from typing import Any

from tests.fakes.oci.account import FAULT_DOMAINS
from tests.fakes.oci.api import View
from tests.fakes.oci.common import in_compartment
from tests.fakes.oci.errors import incorrect_state, invalid, missing, not_found
from tests.fakes.oci.images import IMAGES, MAX_BOOT_VOLUME_GB, MIN_BOOT_VOLUME_GB, Image
from tests.fakes.oci.shapes import SHAPES, Shape
from tests.fakes.oci.store import Cloud, Resource, must_be_live

MAX_METADATA = 32_000


def check_launch(cloud: Cloud, body: View) -> tuple[Shape, Image | None, Resource | None]:
    """Refuse a launch that the service refuses; return the shape, and the image or the boot volume to boot from."""
    in_compartment(cloud, body)
    domain = body["availabilityDomain"]
    if not cloud.account.has_domain(domain):
        raise invalid(f"availabilityDomain is no availability domain of this region: {domain}")
    if body.get("faultDomain") and body["faultDomain"] not in FAULT_DOMAINS:
        raise invalid(f"faultDomain is no fault domain: {body['faultDomain']}")
    shape = _shape(body, domain)
    image, volume = _source(cloud, body)
    if image and not image.fits(shape):
        raise invalid(f"Shape {shape.name} is not valid for image {image.id}.")
    _check_bare_metal(body, shape)
    _check_cluster(cloud, body, shape)
    check_metadata(body.get("metadata") or {})
    return shape, image, volume


def _shape(body: View, domain: str) -> Shape:
    name = body.get("shape")
    if not name:
        raise missing("shape is required")
    shape = SHAPES.get(name)
    if shape is None or not shape.offered_in(domain):
        raise not_found(f"shape {name} not found")
    config = body.get("shapeConfig") or {}
    if shape.flexible:
        if not config.get("ocpus"):
            raise invalid("Invalid ShapeConfig: null (Cannot launch flexible instance without ShapeConfig)")
        if not 1 <= config["ocpus"] <= 64:
            raise invalid(f"shapeConfig.ocpus must be between 1 and 64: {config['ocpus']}")
    elif config.get("ocpus", shape.ocpus) != shape.ocpus or (
        config.get("memoryInGBs", shape.memory_gb) != shape.memory_gb
    ):
        raise invalid(f"shapeConfig: shape {name} is not flexible")
    return shape


def _source(cloud: Cloud, body: View) -> tuple[Image | None, Resource | None]:
    source: dict[str, Any] = body.get("sourceDetails") or {
        "sourceType": "image",
        "imageId": body.get("imageId"),
    }
    if source["sourceType"] == "bootVolume":
        return None, _volume(cloud, source["bootVolumeId"], body["availabilityDomain"])
    if source.get("imageId") is None:
        raise missing("sourceDetails.imageId is required")
    image = IMAGES.get(source["imageId"])
    if image is None or cloud.settings.lacks_image(image.name):
        raise not_found()
    if image.listing_version and not any(
        cloud.where(
            "appcatalogsubscription",
            compartmentId=body["compartmentId"],
            listingResourceVersion=image.listing_version,
        )
    ):
        raise not_found()
    size = source.get("bootVolumeSizeInGBs")
    if size is not None and not max(MIN_BOOT_VOLUME_GB, image.size_gb) <= size <= MAX_BOOT_VOLUME_GB:
        raise invalid(
            f"sourceDetails.bootVolumeSizeInGBs must be between {max(MIN_BOOT_VOLUME_GB, image.size_gb)} "
            f"and {MAX_BOOT_VOLUME_GB} for this image: {size}"
        )
    performance = source.get("bootVolumeVpusPerGB")
    if performance is not None and performance not in range(10, 121, 10):
        raise invalid(f"sourceDetails.bootVolumeVpusPerGB must be 10, 20, … 120: {performance}")
    return image, None


def _volume(cloud: Cloud, identifier: str, domain: str) -> Resource:
    volume = cloud.get("bootvolume", identifier)
    must_be_live(volume, "The boot volume")
    if volume.view["availabilityDomain"] != domain:
        raise invalid(f"sourceDetails.bootVolumeId: {identifier} is not in availability domain {domain}")
    if any(cloud.where("bootvolumeattachment", bootVolumeId=identifier, lifecycleState="ATTACHED")):
        raise incorrect_state(f"The boot volume {identifier} is attached to an instance.")
    return volume


def _check_bare_metal(body: View, shape: Shape) -> None:
    options = body.get("launchOptions") or {}
    encrypted = options.get("isPvEncryptionInTransitEnabled") or body.get("isPvEncryptionInTransitEnabled")
    if encrypted and shape.bare_metal:
        raise invalid(f"isPvEncryptionInTransitEnabled is not supported by bare metal shape {shape.name}")
    if options.get("bootVolumeType") == "PARAVIRTUALIZED" and shape.bare_metal:
        raise invalid(f"launchOptions.bootVolumeType: shape {shape.name} has no paravirtualized boot volume")
    if body.get("preemptibleInstanceConfig") and shape.bare_metal:
        raise invalid(f"preemptibleInstanceConfig is not supported by shape {shape.name}")


def _check_cluster(cloud: Cloud, body: View, shape: Shape) -> None:
    if not body.get("computeClusterId"):
        return
    cluster = cloud.get("computecluster", body["computeClusterId"])
    if cluster.state != "ACTIVE":
        raise incorrect_state(f"The compute cluster {cluster.id} is in state {cluster.state}.")
    if not shape.rdma_ports:
        raise invalid(f"computeClusterId: shape {shape.name} has no RDMA network")
    if cluster.view["availabilityDomain"] != body["availabilityDomain"]:
        raise invalid(
            f"computeClusterId: {cluster.id} is in availability domain {cluster.view['availabilityDomain']}"
        )


def check_metadata(metadata: dict[str, str]) -> None:
    """Refuse metadata that is too long, and user-data that is not in base64."""
    if sum(len(key) + len(value) for key, value in metadata.items()) > MAX_METADATA:
        raise invalid(f"metadata has more than {MAX_METADATA} bytes")
    user_data(metadata)


def user_data(metadata: dict[str, str]) -> bytes:
    """Return the user-data for cloud-init."""
    try:
        return base64.b64decode(metadata.get("user_data", ""), validate=True)
    except binascii.Error:
        raise invalid("metadata.user_data is not in base64") from None
