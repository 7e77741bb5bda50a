"""The download size of an environment's packages, as uv resolves them: asked before gigabytes come."""

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

from remote.node.environments import build_lock, uv_tool

RESOLVED, REST = "pylock.gpuctl.toml", "beside.txt"
"""The resolution, and a file with further requests in addition to the requirements."""
WHEEL = re.compile(r'url = "(?P<url>[^"]+\.whl)"(?:, upload-time = [^,}]+)?(?:, size = (?P<size>\d+))?')
MOST_ASKED = 8
"""Wheels whose size an index does not list, and is asked for one by one."""
WITHOUT_PROJECT = ("--no-install-project", "--no-install-workspace")


def download_size(
    uv: str, install: List[str], folder: Path, environment: Dict[str, str], caller: build_lock.Caller
) -> int:
    """Return the bytes that uv's arguments `install` download and its cache lacks; 0: nothing, or it is not known."""
    words = resolving(install, folder)
    if words is None or build_lock.run([uv, *words], folder, environment, caller, quiet=True)[0] != 0:
        return 0  # why it can't be resolved, the installation says
    try:
        cached = wheels_in(Path(environment.get("UV_CACHE_DIR") or os.path.expanduser("~/.cache/uv")))
        total, requested = 0, 0
        version = re.search(
            r"^version_info\s*=\s*3\.(\d+)", (folder.parent / "venv" / "pyvenv.cfg").read_text(), re.M
        )
        for url, size in wheels_of(
            (folder / RESOLVED).read_text(encoding="utf-8"), version and version.group(1)
        ):
            if name_of(url) in cached:
                continue
            if not size and requested < MOST_ASKED:
                requested += 1
                with contextlib.suppress(OSError, ValueError):
                    size = uv_tool.size_of(url)
            total += size
        return total
    except (OSError, ValueError):
        return 0  # an installation does not fail for want of its size


def resolving(install: List[str], folder: Path) -> Optional[List[str]]:
    """Return uv's arguments that resolve an installation; `None`: files on the node name all sources."""
    output = ["--format", "pylock.toml", "-o", RESOLVED, "--quiet"]
    if install[0] == "sync":
        words = [word for word in install[1:] if word not in WITHOUT_PROJECT]
        return ["export", *words, "--no-emit-workspace", *output]
    if "--no-index" in install or "-r" not in install:
        return None
    at = install.index("-r")
    named, rest = install[at + 1], install[at + 2 :]
    if named.startswith("pylock"):
        return None
    (folder / REST).write_text("".join(line + "\n" for line in rest), encoding="utf-8")
    return ["pip", "compile", *install[2:at], named, REST, *output]


def wheels_of(text: str, minor: Optional[str]) -> Iterator[Tuple[str, int]]:
    """Yield address and size of the largest wheel of each package that this machine takes; 0: no size is listed.

    `minor`: of the Python, 11 for 3.11; `None`: not known.
    """
    python = "cp3{}|py3|abi3|py2.py3".format(minor or r"\d+")
    fits = re.compile(r"-(?:{})-.*(?:any|linux[^-]*{})\.whl$".format(python, re.escape(platform.machine())))
    for part in text.split("[[packages]]")[1:]:
        wheels = [(match.group("url"), int(match.group("size") or 0)) for match in WHEEL.finditer(part)]
        fitting = [match for match in wheels if fits.search(match[0])]
        if fitting:
            yield max(fitting, key=lambda match: match[1])


def name_of(url: str) -> str:
    """Return package and version of a wheel, as its file name begins."""
    return "-".join(url.rpartition("/")[2].replace("%2B", "+").split("-")[:2]).lower()


def wheels_in(cache: Path) -> Set[str]:
    """Return package and version of each wheel in uv's cache."""
    # Other files of that name are there when only a package's metadata was read.
    paths = [*cache.glob("wheels-v*/pypi/*/*.http"), *cache.glob("wheels-v*/index/*/*/*.http")]
    return {
        "{}-{}".format(path.parent.name.replace("-", "_"), path.name.split("-")[0]).lower() for path in paths
    }
