"""Files of a project, read: an error names its path."""

import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from inventories.threads import read_file
from remote.errors import RemoteError


class BadRequirements(RemoteError):
    """The requirements can't be read, or can't be installed on a node."""

    exit_status = 2


_TABLE, _LIST, _TEXT = (Mapping, "a table"), (list, "a list"), (str, "a text in quotes")
BUILD_NEEDS = "tool.uv.extra-build-dependencies"
TYPES: Mapping[str, tuple[Any, str]] = {
    "project": _TABLE,
    "project.name": _TEXT,
    "project.requires-python": _TEXT,
    "project.dependencies": _LIST,
    "project.dependencies.*": _TEXT,
    "project.optional-dependencies": _TABLE,
    "project.optional-dependencies.*": _LIST,
    "project.scripts": _TABLE,
    "dependency-groups": _TABLE,
    "dependency-groups.*": _LIST,
    "build-system": _TABLE,
    "build-system.requires": _LIST,
    "build-system.build-backend": _TEXT,
    "build-system.backend-path": _LIST,
    "build-system.backend-path.*": _TEXT,
    "requires-python": _TEXT,
    "tool": _TABLE,
    "tool.poetry": _TABLE,
    "tool.poetry.dependencies": _TABLE,
    "tool.poetry.dependencies.*.path": _TEXT,
    "tool.uv": _TABLE,
    "tool.uv.sources": _TABLE,
    "tool.uv.sources.*.path": _TEXT,
    "tool.uv.workspace": _TABLE,
    "tool.uv.workspace.members": _LIST,
    "tool.uv.workspace.exclude": _LIST,
    BUILD_NEEDS: _TABLE,
    f"{BUILD_NEEDS}.*": _LIST,
    f"{BUILD_NEEDS}.*.*": ((str, Mapping), "a text in quotes, or a table"),
    f"{BUILD_NEEDS}.*.*.*": ((str, bool), "a text in quotes, true or false"),
}
"""Keys of a pyproject.toml and of a lock that gpuctl reads: the type of each one's value, and its name for people."""


def read_text(path: Path) -> str:
    """Return a file's text, with plain line ends, from UTF-8 or from UTF-16, as Windows' PowerShell writes it.

    Raises BadRequirements.
    """
    try:
        content = read_file(path)
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequirements(f"{path} can't be read: {error}. Mend it, or name another one.") from error


def normal_name(name: str) -> str:
    """Return a package's name in the one form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project_of(requirement: str) -> str:
    """Return the package's name in a requirement, in the form in which names are compared."""
    return normal_name(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])


@lru_cache(maxsize=64)
def parse_toml(text: str) -> Mapping[str, Any]:
    """A TOML document. The same files are asked about several times, and each is parsed once."""
    return tomllib.loads(text)


def read_toml(path: Path) -> Mapping[str, Any]:
    """Read a TOML document. Raises BadRequirements, also for a value of a wrong type.

    Returns: an empty document if the file does not exist.
    """
    document = read_toml_text(path)
    check_types(path, document, TYPES)
    return document


def read_toml_text(path: Path) -> Mapping[str, Any]:
    """Read a TOML document whose keys may have values of any type. Raises BadRequirements.

    Returns: an empty document if the file does not exist.
    """
    try:
        return parse_toml(read_text(path)) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise BadRequirements(
            f"{path} can't be read: {error}. Correct the file, or name the packages with --pip and leave the "
            "project out with --no-install-project."
        ) from error


def check_types(path: Path, document: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise BadRequirements for the first of these keys of TYPES whose value has a wrong type."""
    for key in keys:
        types, name = TYPES[key]
        for place, value in _values(document, key.split(".")):
            if not isinstance(value, types):
                raise BadRequirements(
                    f"{path}: {place} has to be {name}. Correct the file, and type the command again."
                )


def _values(value: Any, keys: Sequence[str], *before: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of TOML
    """Yield the values of a key, each with its full key. `*` stands for each key of a table and item of a list."""
    if not keys:
        yield ".".join(before), value
        return
    table = value if isinstance(value, Mapping) else {}
    if keys[0] == "*" and isinstance(value, list):
        table = {str(number): item for number, item in enumerate(value, 1)}
    for name in table if keys[0] == "*" else table.keys() & {keys[0]}:
        yield from _values(table[name], keys[1:], *before, name)
