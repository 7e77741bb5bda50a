"""Images of OCI's marketplace: a listing has versions, each with terms that a compartment accepts once.

Planning only reads. The terms are accepted by `subscribe`, for an offer that shows them.
"""

import re
from collections.abc import Sequence

from inventories.errors import InvalidInput
from inventories.text import nearest
from provision.errors import Denied, Gone, RefusedPlan
from provision.oci import requests
from provision.oci.api import Api, Json
from provision.oci.errors import policy_for
from provision.oci.images.lookup import ORACLE, Image, as_image
from provision.records import Offer, Terms
from provision.rented.find_or_create import Ensure

VMI = "NVIDIA GPU-Optimized VMI"
CLUSTER_IMAGE = "Oracle Linux - GPU Cluster Networking Image"
"""Oracle's listing (134254210) of images for RDMA networks, with OFED, wpa_supplicant for 802.1X, and
Oracle's own packages. https://github.com/oracle-quickstart/oci-hpc (marketplace.tf, variables.tf)."""

_NVIDIA_BUILD = re.compile(r"OFED.*-GPU-([0-9]{3})(?![0-9])")
"""Versions of CLUSTER_IMAGE: `Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-…`. The
listing has builds for AMD's GPUs as well, with AMD-ROCM in place of GPU."""
_ORACLE_RELEASE = re.compile(r"Oracle-?Linux-([0-9]+)")
_WITHOUT_RDMA = re.compile(f"{VMI}|Canonical-Ubuntu-|Oracle-Linux-")
"""Names of the images that OCI and NVIDIA publish without the packages for an RDMA network."""


class NotAccepted(InvalidInput):
    """The terms of all fitting versions are not accepted, and the caller does not accept any."""


def find(api: Api, name: str, shape: str, *, terms: bool) -> Image:
    """Return the image of that listing: its newest version that runs on the shape.

    Without `terms`, the newest version whose terms are accepted already: raises NotAccepted if no version has.
    Raises InvalidInput without such a listing, or a version for the shape.
    """
    # Most names are whole, and the catalog is long.
    ids = _listings(api, display_name=name) or _listings(api)
    title = _title(list(ids), name)
    if title is None:
        near = nearest(name, ids) or list(ids)[:3]
        raise InvalidInput(
            f"OCI's marketplace has no image '{name}'. Near it: {', '.join(near) or 'none'}. Give the name as "
            f"the console shows it under Marketplace, `marketplace:{VMI}`."
        )
    listing = ids[title]
    accepted = _accepted(api, listing)
    newest: str | None = None
    versions = api.list_all("compute.list_app_catalog_listing_resource_versions", listing)
    for resource_version in in_order(title, versions):
        version = str(resource_version["listingResourceVersion"])
        details = api.call("compute.get_app_catalog_listing_resource_version", listing, version)
        shapes, regions = details.get("compatibleShapes"), details.get("availableRegions")
        if (shapes and shape not in shapes) or (regions and api.credentials.region not in regions):
            continue
        image_id = str(resource_version["listingResourceId"])
        newest = newest or version
        if version in accepted:
            return _image(api, title, listing, version, image_id, None)
        if terms:
            return _image(api, title, listing, version, image_id, _terms(api, title, listing, version))
    if newest is None:
        raise InvalidInput(
            f"No version of '{title}' in OCI's marketplace runs on {shape} in {api.credentials.region}. Name "
            "another --image or --shape."
        )
    links = ", ".join(_terms(api, title, listing, newest).links)
    raise NotAccepted(
        f"The terms of '{title}' {newest} in OCI's marketplace are not accepted yet ({links}). Run `gpuctl up` on a "
        "terminal, where a typed yes accepts them, or accept them with --accept-terms."
    )


def subscribe(api: Api, offer: Offer, ensure: Ensure) -> None:
    """Accept the terms of the offer, if it has any, for the compartment, once.

    Raises Denied if the account may not, RefusedPlan if the terms have changed since the offer.
    """
    if offer.terms is None:
        return
    listing, version = offer.facts["listing"]
    shown = offer.terms

    def find() -> str | None:
        return version if version in _accepted(api, listing) else None

    def create(token: str) -> str:
        agreements = api.call("compute.get_app_catalog_listing_agreements", listing, version)
        if _links(agreements) != shown.links:
            raise RefusedPlan(
                f"The terms of '{shown.name}' have changed since they were shown. Nothing was accepted or created: "
                "run the command again."
            )
        body = requests.subscription(api.compartment, agreements)
        api.call("compute.create_app_catalog_subscription", body, opc_retry_token=token)
        return str(version)

    try:
        ensure(f"marketplace subscription {listing} {version}", find=find, create=create)
    except (Denied, Gone) as error:
        raise Denied(
            f"The terms of '{shown.name}' could not be accepted, as OCI refused it. {needed_policy(api)}",
            operation=error.operation,
            code=error.code,
        ) from error


def needed_policy(api: Api) -> str:
    """Return the advice on a refusal of the marketplace."""
    return (
        "This policy statement is probably missing: "
        f"`{policy_for('create_app_catalog_subscription', api.compartment)}`."
    )


def _listings(api: Api, **only: str) -> dict[str, str]:
    """Return the id of each listing by its title."""
    listings = api.list_all("compute.list_app_catalog_listings", **only)
    return {str(listing.get("displayName")): str(listing["listingId"]) for listing in listings}


def _title(names: Sequence[str], text: str) -> str | None:
    """Return the listing of that name in any case, else the only one that contains the name."""
    folded = text.casefold()
    same = [name for name in names if name.casefold() == folded]
    holding = [name for name in names if folded and folded in name.casefold()]
    if same:
        return same[0]
    return holding[0] if len(holding) == 1 else None


def _accepted(api: Api, listing: str) -> set[str]:
    """Return the versions whose terms the compartment has accepted."""
    subscriptions = api.listed("compute.list_app_catalog_subscriptions", listing_id=listing)
    return {str(subscription.get("listingResourceVersion")) for subscription in subscriptions}


def in_order(title: str, versions: Sequence[Json]) -> list[Json]:
    """Return a listing's versions, the newest first.

    Of CLUSTER_IMAGE only builds with NVIDIA's driver, and those with the newest driver first: its builds for several
    drivers are published on the same days, and the newest GPUs need the newest driver.
    """
    branches = [nvidia_branch(str(version["listingResourceVersion"])) for version in versions]
    only_nvidia = title == CLUSTER_IMAGE
    rows = [
        (branch if only_nvidia else 0, str(version.get("timePublished") or ""), version)
        for branch, version in zip(branches, versions, strict=True)
        if branch or not only_nvidia
    ]
    return [version for *_, version in sorted(rows, key=lambda row: row[:2], reverse=True)]


def nvidia_branch(version: str) -> int:
    """Return the driver branch of a build with OFED and NVIDIA's driver, by its name. 0: another build."""
    match = _NVIDIA_BUILD.search(version)
    return int(match[1]) if match else 0


def has_rdma(name: str) -> bool | None:
    """Return whether an image has the packages for an RDMA network, by its name. `None`: not known."""
    if name.startswith(CLUSTER_IMAGE) or "OFED" in name:
        return True
    return False if _WITHOUT_RDMA.match(name) else None


def _terms(api: Api, title: str, listing: str, version: str) -> Terms:
    agreements = api.call("compute.get_app_catalog_listing_agreements", listing, version)
    return Terms(name=f"{title} {version}", links=_links(agreements))


def _links(agreements: Json) -> tuple[str, ...]:
    return tuple(str(agreements[key]) for key in ("oracleTermsOfUseLink", "eulaLink") if agreements.get(key))


def _image(api: Api, title: str, listing: str, version: str, image_id: str, terms: Terms | None) -> Image:
    try:
        view: Json = api.call("compute.get_image", image_id)
    except Gone:
        # OCI does not show an image before its terms are accepted.
        release = _ORACLE_RELEASE.search(f"{title} {version}")
        view = {"id": image_id} | (
            {"operatingSystem": ORACLE, "operatingSystemVersion": release[1]} if release else {}
        )
    return as_image(view | {"displayName": f"{title} {version}"}, listing=(listing, version), terms=terms)
