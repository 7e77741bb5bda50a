"""The image catalog of partners: a listing has versions, each with an agreement that a subscription accepts."""

import hashlib

from tests.fakes.oci.account import REGION
from tests.fakes.oci.api import Handler, Reply, Request, View, page
from tests.fakes.oci.common import in_compartment
from tests.fakes.oci.errors import invalid, not_found
from tests.fakes.oci.images import IMAGES, Image
from tests.fakes.oci.shapes import SHAPES
from tests.fakes.oci.store import Cloud, now

KIND = "appcatalogsubscription"


def _listing(title: str, publisher: str, summary: str) -> View:
    unique = hashlib.sha256(title.encode()).hexdigest()[:52]
    return {
        "listingId": f"ocid1.appcataloglisting.oc1..aaaaaaaa{unique}",
        "displayName": title,
        "publisherName": publisher,
        "summary": summary,
    }


VMI = _listing("NVIDIA GPU-Optimized VMI", "NVIDIA", "Ubuntu with drivers and Docker for GPU machines")
CLUSTER_IMAGE = _listing(
    "Oracle Linux - GPU Cluster Networking Image", "Oracle", "Oracle Linux with what an RDMA network needs"
)
LISTINGS = [
    _listing("Oracle Linux - HPC Cluster Networking Image", "Oracle", "The same without GPU drivers"),
    CLUSTER_IMAGE,
    _listing("Data Science GPU Image", "Another Publisher", "Not the one you look for"),
    VMI,
    _listing("NVIDIA GPU-Optimized VMI (ARM64)", "NVIDIA", "For Grace processors"),
    _listing("HPC Image", "Another Publisher", "Not the one you look for either"),
]
_TERMS = "https://cloudmarketplace.oracle.com/marketplace/oracle-terms-of-use"
_EULA = "https://www.nvidia.com/content/DriverDownload-March2009/licence.php"


def _get_listing(identifier: str) -> View:
    for listing in LISTINGS:
        if listing["listingId"] == identifier:
            return listing
    raise not_found()


def _images(listing: str) -> list[Image]:
    title = _get_listing(listing)["displayName"]
    return [image for image in IMAGES.values() if image.listing_version and image.listing == title]


def _image(listing: str, version: str) -> Image:
    for image in _images(listing):
        if image.listing_version == version:
            return image
    raise not_found()


def _version(listing: str, image: Image) -> View:
    return {
        "listingId": listing,
        "listingResourceVersion": image.listing_version,
        "listingResourceId": image.id,
        "timePublished": image.created,
    }


def list_listings(cloud: Cloud, request: Request) -> Reply:
    """ListAppCatalogListings."""
    return page(request, enumerate(LISTINGS), size=cloud.settings.page_size)


def list_versions(cloud: Cloud, request: Request) -> Reply:
    """ListAppCatalogListingResourceVersions."""
    listing = request.path["listingId"]
    rows = [_version(listing, image) for image in _images(listing)]
    return page(request, enumerate(rows), size=cloud.settings.page_size)


def get_version(cloud: Cloud, request: Request) -> Reply:
    """GetAppCatalogListingResourceVersion."""
    listing = request.path["listingId"]
    image = _image(listing, request.path["resourceVersion"])
    return Reply(
        body={
            **_version(listing, image),
            "availableRegions": [REGION, "us-ashburn-1"],
            "compatibleShapes": [shape.name for shape in SHAPES.values() if image.fits(shape)],
            "accessiblePorts": [22],
            "allowedActions": ["SNAPSHOT", "BOOT_VOLUME_DETACH", "SERIAL_CONSOLE_ACCESS"],
        }
    )


def get_agreements(cloud: Cloud, request: Request) -> Reply:
    """GetAppCatalogListingAgreements: the fields that a subscription has to repeat."""
    listing, version = request.path["listingId"], request.path["resourceVersion"]
    _image(listing, version)
    retrieved = now()
    return Reply(
        body={
            "listingId": listing,
            "listingResourceVersion": version,
            "oracleTermsOfUseLink": _TERMS,
            "eulaLink": _EULA,
            "timeRetrieved": retrieved,
            "signature": _signature(listing, version, retrieved),
        }
    )


def _signature(listing: str, version: str, retrieved: str) -> str:
    moment = retrieved.replace("+00:00", "Z").split(".")[0].rstrip("Z")
    return hashlib.sha256(f"{listing} {version} {moment}".encode()).hexdigest()


def subscribe(cloud: Cloud, request: Request) -> Reply:
    """CreateAppCatalogSubscription: with the signature of the agreement."""
    body = request.body
    in_compartment(cloud, body)
    listing, version = body["listingId"], body["listingResourceVersion"]
    image, shown = _image(listing, version), _get_listing(listing)
    if body["signature"] != _signature(listing, version, body["timeRetrieved"]):
        raise invalid("signature is not that of the agreement for this version and time")
    if body["oracleTermsOfUseLink"] != _TERMS or body.get("eulaLink", _EULA) != _EULA:
        raise invalid("oracleTermsOfUseLink and eulaLink must be those of the agreement")
    existing = next(
        cloud.where(KIND, compartmentId=body["compartmentId"], listingResourceVersion=version), None
    )
    subscription = existing or cloud.add(
        KIND,
        {
            "compartmentId": body["compartmentId"],
            "listingId": listing,
            "listingResourceVersion": version,
            "listingResourceId": image.id,
            **{name: shown[name] for name in ("displayName", "publisherName", "summary")},
        },
    )
    return Reply(body=_shown(subscription.view), made=subscription)


def list_subscriptions(cloud: Cloud, request: Request) -> Reply:
    """ListAppCatalogSubscriptions."""
    rows = [(number, _shown(view)) for number, view in cloud.rows(KIND)]
    return page(request, rows, size=cloud.settings.page_size)


def _shown(view: View) -> View:
    """Subscriptions have no id of their own."""
    return {name: value for name, value in view.items() if name != "id"}


HANDLERS: dict[str, Handler] = {
    "ListAppCatalogListings": list_listings,
    "ListAppCatalogListingResourceVersions": list_versions,
    "GetAppCatalogListingResourceVersion": get_version,
    "GetAppCatalogListingAgreements": get_agreements,
    "CreateAppCatalogSubscription": subscribe,
    "ListAppCatalogSubscriptions": list_subscriptions,
}
