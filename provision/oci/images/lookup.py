"""Images by name and by OCID, the newest Ubuntu, Oracle's own build for GPUs; who logs in, and what they need.

Only lists that the service has filtered by shape are chosen from, as names don't tell what an image runs on.
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

_GPU_BUILD = re.compile(r"Oracle-Linux-(\d+)(?:\.(\d+))?-Gen2-GPU-.*")
_GROW = "/usr/libexec/oci-growfs -y || echo 'the root file system is as large as the image made it' >&2"
"""Oracle Linux leaves its root file system at 47 GB, however large the boot volume is."""
_NEWER_PYTHON = (
    "python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || "
    "{ dnf install -y python39 && alternatives --set python3 /usr/bin/python3.9; }"
)
"""Oracle Linux 8 has 3.6. Its own tools name their interpreter and don't use `python3`."""


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
    system: System
    listing: tuple[str, str] | None = None
    """Id and version of the marketplace's listing, which needs a subscription."""
    terms: Terms | None = None
    """What the subscription accepts, where there is none yet."""
    why: str = "as asked for"
    """Why this one, in a clause."""
    there: bool = True
    """False: it can't be found any more."""
    boot_commands: tuple[str, ...] = ()
    """As `Offer.boot_commands`."""


def named(api: Api, wanted: str, shape: str) -> Image:
    """The image of that OCID or name. Raises InvalidInput where there is none."""
    if wanted.startswith("ocid1.image."):
        try:
            return as_image(api.call("compute.get_image", wanted))
        except Gone as error:
            raise InvalidInput(
                f"There is no image '{wanted}' that you may use in this region. {error}"
            ) from error
    fitting = api.listed("compute.list_images", shape=shape, sort_by="TIMECREATED", sort_order="DESC")
    return as_image(by_name(fitting, wanted, shape))


def booted(api: Api, image: BootImage) -> Image:
    """The image of machines that are there, also where it can't be found any more."""
    shown = {"displayName": image.name} if image.name else {}
    why = "the image of the machines that are there"
    try:
        return replace(as_image(api.call("compute.get_image", image.id) | shown), why=why)
    except Gone:
        return replace(as_image({"id": image.id} | shown), why=why, there=image.marketplace)


def ubuntu(api: Api, shape: str) -> Image:
    """The newest that runs on the shape. Raises InvalidInput where there is none."""
    chosen = newest_ubuntu(_of_system(api, UBUNTU, shape))
    if chosen is None:
        raise InvalidInput(
            f"OCI has no Ubuntu image that runs on {shape} in this region. Name one with --image: a "
            "display name, an OCID, or `marketplace:NAME`."
        )
    return as_image(chosen)


def gpu_build(api: Api, shape: str) -> Image | None:
    """Oracle's own build of Oracle Linux with NVIDIA's driver. None: there is none that runs on the shape."""
    chosen = newest_gpu_build(_of_system(api, ORACLE, shape))
    return as_image(chosen) if chosen else None


def _of_system(api: Api, system: str, shape: str) -> list[Json]:
    return api.listed(
        "compute.list_images", operating_system=system, shape=shape, sort_by="TIMECREATED", sort_order="DESC"
    )


def newest_gpu_build(images: Sequence[Json]) -> Json | None:
    """Of Oracle Linux 9, else of 8, the newest build for GPUs."""
    found = [(_GPU_BUILD.fullmatch(str(image.get("displayName"))), image) for image in images]
    builds = [(int(match[1]), image) for match, image in found if match and _usable(image)]
    fitting = [(release, image) for release, image in builds if release in (8, 9)]
    newest = max(fitting, key=lambda build: (build[0], str(build[1]["timeCreated"])), default=None)
    return newest[1] if newest else None


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


def as_image(view: Json, listing: tuple[str, str] | None = None, terms: Terms | None = None) -> Image:
    """What we need of an image as the API shows it."""
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
    """What a machine of that operating system needs at its first boot."""
    if system != ORACLE:
        return ()
    return (_GROW, _NEWER_PYTHON) if version.startswith("8") else (_GROW,)


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
