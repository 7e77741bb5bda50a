"""Lines of a requirements file that name a folder or a file, or include another list."""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from remote.files.tree import PRIVATE, root_of, up_to_secret
from remote.python_env.project_files import BadRequirements, read_text
from remote.shared.addresses import without_logins

_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=|(?=[./~]))")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<extras>\[[^]]*\])?\s*@\s*(?P<place>.+)")
_EXTRAS = re.compile(r"(?P<place>.*?)\s*\[(?P<extras>[^][]*)\]")
_COMMENT = re.compile(r"(^|\s)#.*$")
_MARKER = re.compile(r"\s;.*$|;\s.*$")
_PARTS = re.compile(r"[\w.-]+(/[\w.-]+)+/?")
"""A path of several parts, unlike any requirement."""
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_PLACES = (".", "/", "~", "file:")
"""How a place of this computer begins. A bare name is a package's, unless it is said to be editable."""
BUILD_FILES = ("pyproject.toml", "setup.py")
INSTALLABLE = f"The nodes install packages of an index, and folders with a {' or a '.join(BUILD_FILES)}."
INCLUDE = re.compile(r"^\s*(?P<option>-r|-c|--requirement|--constraint)[ =]?\s*(?P<path>\S+)")


class NamedProject(NamedTuple):
    """A project that a requirements file names by its folder."""

    folder: Path
    extras: tuple[str, ...] = ()


def project_of_line(line: str, folder: Path, where: str) -> NamedProject | None:
    """Return the project that a line installs from a folder of this computer. `None`: it does not name a place here.

    `folder`: where the line's path begins; `where`: the line's place in a message. Raises BadRequirements for
    places that hold no project.
    """
    named = _place_of(line)
    if named is None:
        return None
    place, extras = named
    path = (folder / os.path.expanduser(place)).resolve()  # noqa: PTH111 - a Path raises for an unknown user
    if path.is_dir() and any((path / file).is_file() for file in BUILD_FILES):
        return NamedProject(path, extras)
    shown = f"{where}: `{without_logins(line.strip())}`"
    if not path.exists():
        raise BadRequirements(
            f"{shown} names {path}, which is not on this computer. Name the package and its version in its place. "
            "A list with versions alone is written by: python -m pip list --format=freeze"
        )
    if path.is_file():
        raise BadRequirements(
            f"{shown} is a file on this computer. {INSTALLABLE} Name the package and its version in its place, or "
            "take the line out."
        )
    raise BadRequirements(
        f"{shown} is a folder on this computer. {INSTALLABLE} Take the line out, or name the packages with "
        "--requirements FILE or --pip."
    )


def _place_of(line: str) -> tuple[str, tuple[str, ...]] | None:
    """The place that a line names, and the extras; `None`: it is a package of an index, an address or an option."""
    text = _MARKER.sub("", _COMMENT.sub("", line)).strip()
    editable = _EDITABLE.match(text)
    text = (text[editable.end() :] if editable else text).strip().strip("\"'")
    extras = ""
    named = _NAMED.fullmatch(text)
    if named is not None:
        text, extras = named["place"].strip(), (named["extras"] or "").strip("[]")
    if not text or text.startswith("-") or ("://" in text and not text.startswith("file:")):
        return None
    if (within := _EXTRAS.fullmatch(text)) is not None:
        text, extras = within["place"], within["extras"]
    if not (
        editable or named or text.startswith(_PLACES) or text.endswith(_ARCHIVES) or _PARTS.fullmatch(text)
    ):
        return None
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    return text, tuple(extra.strip() for extra in extras.split(",") if extra.strip())


def with_includes(path: Path, root: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder that holds a requirements file and all that it includes, and their texts by paths in it.

    `root`: the folder that is sent. Raises BadRequirements.
    """
    texts: dict[Path, str] = {}
    top = Path(os.path.normpath(Path.cwd() / path))
    ahead = [top]
    while ahead:
        file = ahead.pop(0)
        if file in texts:
            continue
        texts[file] = read_text(file)
        included = (included_by(line, file, top, root) for line in texts[file].splitlines())
        ahead += [path for path in included if path is not None]
    folder = Path(os.path.commonpath([file.parent for file in texts]))
    return folder, {file.relative_to(folder).as_posix(): text for file, text in texts.items()}


def included_by(line: str, file: Path, top: Path, root: Path) -> Path | None:
    """Return the file of this computer that a line of `file` includes. `None`: the line includes no file.

    `top`: the file that was read first; `root`: the folder that is sent. Raises BadRequirements for a file that must
    not be sent: it is outside the project and the first file's repository, or may hold credentials.
    """
    include = INCLUDE.match(line)
    if include is None or "://" in include["path"]:
        return None
    if Path(include["path"]).is_absolute():
        raise BadRequirements(
            f"{file} includes {include['path']}, an absolute path, which no node has. Write the path from the "
            f"file's own folder: {os.path.relpath(include['path'], file.parent)}"
        )
    path = Path(os.path.normpath(file.parent / include["path"]))
    actual, sent = path.resolve(), root.resolve()
    if not actual.is_relative_to(sent):
        sent = root_of(top.parent.resolve())
    if not actual.is_relative_to(sent):
        raise BadRequirements(
            f"{file} includes {actual}, which is not in {sent}, and gpuctl sends no file from outside. Copy it into "
            "that folder, or send a folder that holds both: --root FOLDER"
        )
    if up_to_secret(actual.relative_to(sent).as_posix()):
        raise BadRequirements(f"{file} includes {actual}, which is not sent to the nodes: {PRIVATE}.")
    return path
