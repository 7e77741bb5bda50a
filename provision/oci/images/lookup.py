"""Images by name and by OCID, the newest Ubuntu, Oracle's own build for GPUs; their login and boot commands.

Images are chosen only from lists that the service has filtered by shape: names do not show the shapes of an image.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from inventories.errors import InvalidInput
from inventories.text import nearest
from provision.errors import Gone
from provision.oci.api import Api, Json
from provision.records import BootImage, Terms
from provision.rented.planning.drivers import System, system_of

UBUNTU = "Canonical Ubuntu"
ORACLE = "Oracle Linux"
DEFAULT_DISK_GB = 200
MIN_DISK_GB, MAX_DISK_GB = 50, 32_768
MAX_NAMED = 3
WORD_CUTOFF = 0.75
"""Lowest likeness of a word and its misspelling, 0 .. 1."""

_USERS = (
    ("ubuntu", "ubuntu"),
    ("nvidia", "ubuntu"),
    ("oracle", "opc"),
    ("centos", "opc"),
    ("rocky", "rocky"),
)
"""Word of the system's or the image's name → login."""

_GPU_BUILD = re.compile(r"Oracle-Linux-(\d+)(?:\.(\d+))?-Gen2-GPU-.*")
_GROW = "/usr/libexec/oci-growfs -y || echo 'the root file system is as large as the image made it' >&2"
"""Oracle Linux leaves its root file system at 47 GB, however large the boot volume is."""
_NEWER_PYTHON = (
    "python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || "
    "{ dnf install -y python39 && alternatives --set python3 /usr/bin/python3.9; }"
)
"""Oracle Linux 8 has Python 3.6. Its own tools name their interpreter and don't use `python3`."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image, as far as launches need it."""

    id: str
    name: str
    user: str
    size_gb: int
    """Smallest size of its boot volume."""
    encrypts_in_transit: bool
    """Whether OCI can encrypt the attachment of its boot volume."""
    system: System
    listing: tuple[str, str] | None = None
    """Id and version of the marketplace's listing, which needs a subscription."""
    terms: Terms | None = None
    """Terms that a new subscription accepts. `None`: the subscription exists, or is not needed."""
    why: str = "as asked for"
    """Reason for the choice, in a clause."""
    exists: bool = True
    """False: OCI does not list it any more."""
    boot_commands: tuple[str, ...] = ()
    """See `Offer.boot_commands`."""


def named(api: Api, name: str, shape: str) -> Image:
    """Return the image of that OCID or name. Raises InvalidInput for a missing image."""
    if name.startswith("ocid1.image."):
        try:
            return as_image(api.call("compute.get_image", name))
        except Gone as error:
            raise InvalidInput(
                f"There is no image '{name}' that you may use in this region. {error}"
            ) from error
    fitting = api.listed("compute.list_images", shape=shape, sort_by="TIMECREATED", sort_order="DESC")
    return as_image(by_name(fitting, name, shape))


def booted(api: Api, image: BootImage) -> Image:
    """Return the image of existing machines, even if OCI does not list it any more."""
    shown = {"displayName": image.name} if image.name else {}
    why = "the image of the machines that are there"
    try:
        return replace(as_image(api.call("compute.get_image", image.id) | shown), why=why)
    except Gone:
        return replace(as_image({"id": image.id} | shown), why=why, exists=image.marketplace)


def ubuntu(api: Api, shape: str) -> Image:
    """Return the newest Ubuntu for the shape. Raises InvalidInput if it is not found."""
    chosen = newest_ubuntu(_of_system(api, UBUNTU, shape))
    if chosen is None:
        raise InvalidInput(
            f"OCI has no Ubuntu image that runs on {shape} in this region. Name one with --image: a "
            "display name, an OCID, or `marketplace:NAME`."
        )
    return as_image(chosen)


def gpu_build(api: Api, shape: str) -> Image | None:
    """Return Oracle's own build of Oracle Linux with NVIDIA's driver. `None`: not found for the shape."""
    chosen = newest_gpu_build(_of_system(api, ORACLE, shape))
    return as_image(chosen) if chosen else None


def _of_system(api: Api, system: str, shape: str) -> list[Json]:
    return api.listed(
        "compute.list_images", operating_system=system, shape=shape, sort_by="TIMECREATED", sort_order="DESC"
    )


def newest_gpu_build(images: Sequence[Json]) -> Json | None:
    """Return the newest build for GPUs of Oracle Linux 9, else of 8."""
    matches = [(_GPU_BUILD.fullmatch(str(image.get("displayName"))), image) for image in images]
    builds = [(int(match[1]), image) for match, image in matches if match and _usable(image)]
    fitting = [(release, image) for release, image in builds if release in (8, 9)]
    newest = max(fitting, key=lambda build: (build[0], str(build[1]["timeCreated"])), default=None)
    return newest[1] if newest else None


def newest_ubuntu(images: Sequence[Json]) -> Json | None:
    """Return the newest image of the newest release, without minimal ones; for Arm only if nothing else fits."""
    whole = [image for image in images if _usable(image) and "minimal" not in _words(image)]
    fitting = [image for image in whole if "aarch64" not in _words(image)] or whole
    return max(fitting, key=lambda image: (_version(image), str(image["timeCreated"])), default=None)


def by_name(images: Sequence[Json], name: str, shape: str) -> Json:
    """Return the image of that name, else the newest whose name begins with it. Raises InvalidInput."""
    usable = sorted(
        (image for image in images if _usable(image)),
        key=lambda image: str(image["timeCreated"]),
        reverse=True,
    )
    names = [str(image["displayName"]) for image in usable]
    for candidate, image in zip(names, usable, strict=True):
        if candidate == name:
            return image
    begun = [
        image for candidate, image in zip(names, usable, strict=True) if candidate.startswith(f"{name}-")
    ]
    if begun:
        return min(begun, key=lambda image: _strangeness(image, shape))
    near = near_names(name, names)
    raise InvalidInput(
        f"There is no image '{name}' that runs on {shape} in this region. Near it: "
        f"{', '.join(near) or 'none'}. Give a display name or its beginning, an OCID, or `marketplace:NAME`."
    )


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return at most three names: similar as a whole, else with the most similar words, else the first."""
    words = _split(name.casefold())
    likeness = {
        candidate: sum(_likeness(word, _split(candidate.casefold())) for word in words) for candidate in names
    }
    by_words = sorted(
        (candidate for candidate in names if likeness[candidate]), key=lambda candidate: -likeness[candidate]
    )
    return nearest(name, names) or by_words[:MAX_NAMED] or list(names[:MAX_NAMED])


def _likeness(word: str, words: Sequence[str]) -> float:
    """Return the likeness of a word to the most similar of `words`. 0: it is no misspelling of any."""
    best = max((SequenceMatcher(None, word, other).ratio() for other in words), default=0.0)
    return best if best >= WORD_CUTOFF else 0.0


def as_image(view: Json, listing: tuple[str, str] | None = None, terms: Terms | None = None) -> Image:
    """Return an image from the API's view."""
    options = view.get("launchOptions") or {}
    name, system = str(view.get("displayName") or view["id"]), str(view.get("operatingSystem") or "")
    return Image(
        id=view["id"],
        name=name,
        user=user_of(f"{system} {name}"),
        system=system_of(name, system),
        size_gb=-(-int(view.get("sizeInMBs") or 0) // 1024),
        encrypts_in_transit=options.get("bootVolumeType") == "PARAVIRTUALIZED",
        listing=listing,
        terms=terms,
        boot_commands=boot_commands(system, str(view.get("operatingSystemVersion") or "")),
    )


def boot_commands(system: str, version: str) -> tuple[str, ...]:
    """Return the commands that a machine of that operating system needs at its first boot."""
    if system != ORACLE:
        return ()
    return (_GROW, _NEWER_PYTHON) if version.startswith("8") else (_GROW,)


def user_of(text: str) -> str:
    """Return the login for an image of that system and name: the user that cloud-init makes."""
    folded = text.casefold()
    return next((user for word, user in _USERS if word in folded), "opc")


def disk_gb(requested_gb: int | None, image: Image) -> int:
    """Return the size of the boot volume. Raises InvalidInput for a requested size that does not hold the image."""
    min_gb = max(MIN_DISK_GB, image.size_gb)
    if requested_gb is None:
        return max(DEFAULT_DISK_GB, min_gb)
    if not min_gb <= requested_gb <= MAX_DISK_GB:
        raise InvalidInput(
            f"A boot volume of {requested_gb} GB can't be had with image '{image.name}': it takes {min_gb} to "
            f"{MAX_DISK_GB} GB. Change --disk-gb."
        )
    return requested_gb


def _strangeness(image: Json, shape: str) -> tuple[bool, bool]:
    """Return a sort key: `Canonical-Ubuntu-24.04` means no minimal or Arm image, `Oracle-Linux-8` drivers."""
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
    """Return (24, 4) for `24.04 Minimal`."""
    match = re.match(r"[\d.]+", str(image.get("operatingSystemVersion") or ""))
    return tuple(int(part) for part in match[0].split(".") if part) if match else ()
