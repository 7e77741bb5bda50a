"""Notes on mistyped paths in a script's arguments, and on paths that only this computer has. Reads folders only."""

import os
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from gpuctl.scripts.arguments import named_values
from gpuctl.text import clean

MAX_NAMES = 10_000
"""Names in a folder among which a near one is looked for."""
SIMILARITY = 0.8
_PATH_OPTION = re.compile(
    r"path|file|dir\b|dir_|folder|root|data|input|config|ckpt|checkpoint|resume|weights"
)
_OUTPUT_OPTION = re.compile(r"out|save|log|dest|write|export|dump|target|cache|te?mp|work")
_NO_PATH = re.compile(r"[\s*?\[\]{}<>|;,]|://")
_SUFFIX = re.compile(r"[^./]\.[A-Za-z]\w{0,9}$")
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib\w*|opt|proc|run|sbin|srv|sys|usr|var)(/|$)")


def notes_on_paths(words: Sequence[str], folder: Path, root: Path, *, local: bool) -> list[str]:
    """Return a note for each argument that is a mistyped path, and for paths that rented machines would not have.

    `folder`: that of the script. `root`: the folder that is sent. `local`: the nodes are hosts on this computer.
    """
    notes = []
    for option, value in named_values(words):
        if not value or len(value) >= 1000 or value.startswith("~") or _NO_PATH.search(value):
            continue
        if not ("/" in value or _SUFFIX.search(value) or _PATH_OPTION.search(option.lower())):
            continue  # neither the value nor its option looks like a path
        path, absolute = folder / value, value.startswith("/")
        if _OUTPUT_OPTION.search(option.lower()) or (
            absolute and not local and not path.is_relative_to(root)
        ):
            continue  # the script makes it, or it is a path of the nodes
        if os.path.lexists(path):
            if local and absolute and not _SYSTEM.match(value):
                if path.is_relative_to(root):
                    way = (
                        f"write {shlex.quote(os.path.relpath(path, folder))}, which is sent with the project"
                    )
                else:
                    way = f"gpuctl push {shlex.quote(str(path))} data copies it to ~/data on each node"
                notes.append(
                    f"note: {clean(value, 200)} is on this computer, and rented machines do not have it: {way}"
                )
        elif near := _near(path, folder):
            shown = near if absolute else Path(os.path.relpath(near, folder))
            notes.append(f"note: {clean(value, 200)} does not exist: did you mean {clean(str(shown), 200)}?")
    return list(dict.fromkeys(notes))


def _near(path: Path, folder: Path) -> Path | None:
    """Return the existing path of which each part is the same or nearly the same. `None`: no path is."""
    existing = folder if path.is_relative_to(folder) else Path(path.anchor)
    for part in path.relative_to(existing).parts:
        if part != ".." and not os.path.lexists(existing / part):
            names = {name.lower(): name for name in _names(existing)}
            near = get_close_matches(part.lower(), names, n=1, cutoff=SIMILARITY)
            if not near or _without_digits(near[0]) == _without_digits(part.lower()) != part.lower():
                return None
            part = names[near[0]]
        existing /= part
    return existing


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False)]
    except OSError:
        return []


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)
