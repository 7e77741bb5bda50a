"""The image that machines boot from: the newest fitting Ubuntu, or one by name, by OCID, from the marketplace.

Only lists that the service has filtered by shape are chosen from, as names don't tell what an image runs on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from inventories.errors import InvalidInput
from inventories.suggest import nearest
from provision.cloud import Ensure, Offer
from provision.errors import Gone
from provision.oci import requests
from provision.oci.api import Api, Json

UBUNTU = "Canonical Ubuntu"
MARKETPLACE = "marketplace:"
DEFAULT_DISK_GB = 200
LEAST_DISK_GB, MOST_DISK_GB = 50, 32_768
MOST_NAMED = 3
WORD_CUTOFF = 0.75
"""How like each other two words are of which one is misspelt, 0 .. 1."""

_USERS = (
    ("ubuntu", "ubuntu"),
    ("nvidia", "ubuntu"),
    ("oracle", "opc"),
    ("centos", "opc"),
    ("rocky", "rocky"),
)
"""A word of the system's or the image's name → who logs in."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """What is to be known of an image."""

    id: str
    name: str
    user: str
    size_gb: int
    """Of the boot volume that it needs at least."""
    encrypts_in_transit: bool
    """Whether its boot volume is attached in a way that OCI can encrypt."""
    listing: tuple[str, str] | None = None
    """Id and version of the marketplace's listing, which needs a subscription."""


def find(api: Api, wanted: str | None, shape: str) -> Image:
    """The image that was asked for. Raises InvalidInput where there is none."""
    if wanted is None:
        fitting = api.listed(
            "compute.list_images",
            operating_system=UBUNTU,
            shape=shape,
            sort_by="TIMECREATED",
            sort_order="DESC",
        )
        chosen = newest_ubuntu(fitting)
        if chosen is None:
            raise InvalidInput(
                f"OCI has no Ubuntu image that runs on {shape} in this region. Name one with --image: a "
                "display name, an OCID, or `marketplace:NAME`."
            )
        return as_image(chosen)
    if wanted.startswith("ocid1.image."):
        try:
            return as_image(api.call("compute.get_image", wanted))
        except Gone as error:
            raise InvalidInput(
                f"There is no image '{wanted}' that you may use in this region. {error}"
            ) from error
    if wanted.startswith(MARKETPLACE):
        return _from_marketplace(api, wanted.removeprefix(MARKETPLACE).strip(), shape)
    fitting = api.listed("compute.list_images", shape=shape, sort_by="TIMECREATED", sort_order="DESC")
    return as_image(by_name(fitting, wanted, shape))


def newest_ubuntu(images: Sequence[Json]) -> Json | None:
    """Of the newest release the newest image that is not a minimal one; for Arm only where nothing else fits."""
    whole = [image for image in images if _usable(image) and "minimal" not in _words(image)]
    fitting = [image for image in whole if "aarch64" not in _words(image)] or whole
    return max(fitting, key=lambda image: (_version(image), str(image["timeCreated"])), default=None)


def by_name(images: Sequence[Json], wanted: str, shape: str) -> Json:
    """The image of that name, else the newest whose name begins with it. Raises InvalidInput."""
    usable = sorted(
        (image for image in images if _usable(image)),
        key=lambda image: str(image["timeCreated"]),
        reverse=True,
    )
    names = [str(image["displayName"]) for image in usable]
    for name, image in zip(names, usable, strict=True):
        if name == wanted:
            return image
    begun = [image for name, image in zip(names, usable, strict=True) if name.startswith(f"{wanted}-")]
    if begun:
        return min(begun, key=lambda image: _strangeness(image, shape))
    near = near_names(wanted, names)
    raise InvalidInput(
        f"There is no image '{wanted}' that runs on {shape} in this region. Near it: "
        f"{', '.join(near) or 'none'}. Give a display name or its beginning, an OCID, or `marketplace:NAME`."
    )


def near_names(wanted: str, names: Sequence[str]) -> list[str]:
    """Three names at most: like the wanted one as a whole, else those with the likest words, else the first."""
    asked = _split(wanted.casefold())
    likeness = {name: sum(_likeness(word, _split(name.casefold())) for word in asked) for name in names}
    by_words = sorted((name for name in names if likeness[name]), key=lambda name: -likeness[name])
    return nearest(wanted, names) or by_words[:MOST_NAMED] or list(names[:MOST_NAMED])


def _likeness(word: str, words: Sequence[str]) -> float:
    """Of a word to the likest of `words`; 0 where it is none of them misspelt."""
    best = max((SequenceMatcher(None, word, other).ratio() for other in words), default=0.0)
    return best if best >= WORD_CUTOFF else 0.0


def as_image(view: Json, listing: tuple[str, str] | None = None) -> Image:
    """What we need of an image as the API shows it."""
    options = view.get("launchOptions") or {}
    return Image(
        id=view["id"],
        name=view.get("displayName") or view["id"],
        user=user_of(f"{view.get('operatingSystem') or ''} {view.get('displayName') or ''}"),
        size_gb=-(-int(view.get("sizeInMBs") or 0) // 1024),
        encrypts_in_transit=options.get("bootVolumeType") == "PARAVIRTUALIZED",
        listing=listing,
    )


def user_of(text: str) -> str:
    """Who logs in to an image of that system and name: the user that cloud-init makes there."""
    folded = text.casefold()
    return next((user for word, user in _USERS if word in folded), "opc")


def disk_gb(asked: int | None, image: Image) -> int:
    """Size of the boot volume. Raises InvalidInput where less was asked for than the image needs."""
    least = max(LEAST_DISK_GB, image.size_gb)
    if asked is None:
        return max(DEFAULT_DISK_GB, least)
    if not least <= asked <= MOST_DISK_GB:
        raise InvalidInput(
            f"A boot volume of {asked} GB can't be had with image '{image.name}': it takes {least} to "
            f"{MOST_DISK_GB} GB. Change --disk-gb."
        )
    return asked


def subscribe(api: Api, offer: Offer, ensure: Ensure) -> None:
    """Accept the terms of a marketplace listing for the compartment, once. Other images need nothing."""
    listing = offer.facts.get("listing")
    if listing is None:
        return
    listing_id, version = listing

    def find() -> str | None:
        made = api.listed("compute.list_app_catalog_subscriptions", listing_id=listing_id)
        return version if any(one.get("listingResourceVersion") == version for one in made) else None

    def create(token: str) -> str:
        agreements = api.call("compute.get_app_catalog_listing_agreements", listing_id, version)
        body = requests.subscription(api.compartment, agreements)
        api.call("compute.create_app_catalog_subscription", body, opc_retry_token=token)
        return str(version)

    ensure(f"marketplace subscription {listing_id} {version}", find=find, create=create)


def _from_marketplace(api: Api, name: str, shape: str) -> Image:
    listings = api.list_all("compute.list_app_catalog_listings")
    names = {str(one.get("displayName")): str(one["listingId"]) for one in listings}
    chosen = _listing(list(names), name)
    if chosen is None:
        near = nearest(name, names) or list(names)[:3]
        raise InvalidInput(
            f"OCI's marketplace has no image '{name}'. Near it: {', '.join(near) or 'none'}. Give the name as "
            "the console shows it under Marketplace, `marketplace:NVIDIA GPU-Optimized VMI`."
        )
    listing_id = names[chosen]
    versions = api.list_all("compute.list_app_catalog_listing_resource_versions", listing_id)
    for version in sorted(versions, key=lambda one: str(one.get("timePublished") or ""), reverse=True):
        of = str(version["listingResourceVersion"])
        details = api.call("compute.get_app_catalog_listing_resource_version", listing_id, of)
        shapes = details.get("compatibleShapes") or ()
        regions = details.get("availableRegions") or ()
        if (shapes and shape not in shapes) or (regions and api.credentials.region not in regions):
            continue
        image_id = str(version["listingResourceId"])
        try:
            view: Json = api.call("compute.get_image", image_id)
        except Gone:
            # It can't be looked at before its terms have been accepted.
            view = {"id": image_id, "displayName": f"{chosen} {of}"}
        return as_image(view | {"displayName": f"{chosen} {of}"}, (listing_id, of))
    raise InvalidInput(
        f"No version of '{chosen}' in OCI's marketplace runs on {shape} in {api.credentials.region}. Name "
        "another --image or --shape."
    )


def _listing(names: Sequence[str], wanted: str) -> str | None:
    """The listing of that name whatever its case, else the only one that holds it."""
    folded = wanted.casefold()
    same = [name for name in names if name.casefold() == folded]
    holding = [name for name in names if folded and folded in name.casefold()]
    if same:
        return same[0]
    return holding[0] if len(holding) == 1 else None


def _strangeness(image: Json, shape: str) -> tuple[bool, bool]:
    """`Canonical-Ubuntu-24.04` means no minimal image, nor one for Arm; `Oracle-Linux-8` has one with drivers."""
    words = _words(image)
    return bool({"minimal", "aarch64"} & words), ("gpu" in words) is not (".GPU" in shape)


def _usable(image: Json) -> bool:
    return image.get("lifecycleState") in (None, "AVAILABLE")


def _words(image: Json) -> set[str]:
    text = f"{image.get('displayName') or ''} {image.get('operatingSystemVersion') or ''}"
    return set(_split(text.casefold()))


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[-_ ]", text) if word]


def _version(image: Json) -> tuple[int, ...]:
    """`24.04 Minimal` is (24, 4)."""
    found = re.match(r"[\d.]+", str(image.get("operatingSystemVersion") or ""))
    return tuple(int(part) for part in found[0].split(".") if part) if found else ()
