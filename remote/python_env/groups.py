"""Dependency groups (PEP 735) and extras of a project, by their names in its pyproject.toml."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from remote.python_env.project_files import BadRequirements, normal_name, project_of, read_toml

_OPTION = re.compile(r"--group[ =]\s*(?P<name>[\w.-]+)")
"""pip's option for a dependency group, as a word after `--pip`."""
FILE = "pyproject.toml"


def with_groups(words: Iterable[str], folder: Path, root: Path) -> Iterator[str]:
    """Yield the words of `--pip`, with the requirements of a group in place of `--group NAME`.

    The nearest pyproject.toml counts, of `folder` or above it up to `root`. Raises BadRequirements.
    """
    for word in words:
        option = _OPTION.fullmatch(word.strip())
        if option is None:
            yield word
        else:
            yield from _requirements(project_file(folder, root), option["name"], ())


def project_file(folder: Path, root: Path) -> Path:
    """Return the nearest pyproject.toml, which need not exist."""
    above = (place / FILE for place in (folder, *folder.parents) if place.is_relative_to(root))
    return next((path for path in above if path.is_file()), folder / FILE)


def listed_in(path: Path, package: str) -> tuple[Literal["group", "extra"], str] | None:
    """Return the extra, or the group, in which a pyproject.toml lists a package; `None`: not listed."""
    document = read_toml(path)
    extras = document.get("project", {}).get("optional-dependencies", {})
    kinds: list[tuple[Literal["group", "extra"], Mapping[str, Any]]] = [
        ("extra", extras),
        ("group", document.get("dependency-groups", {})),
    ]
    named = (
        (kind, name)
        for kind, table in kinds
        for name, lines in table.items()
        if any(project_of(line) == normal_name(package) for line in lines if isinstance(line, str))
    )
    return next(named, None)


def _requirements(path: Path, name: str, within: Sequence[str]) -> Iterator[str]:
    groups: Mapping[str, Any] = read_toml(path).get("dependency-groups", {})
    lines = next((lines for known, lines in groups.items() if normal_name(known) == normal_name(name)), None)
    if lines is None or name in within:
        known = ", ".join(groups) or "none"
        raise BadRequirements(f"{path} has no dependency group {name} that can be read. Its groups: {known}.")
    for line in lines:
        if isinstance(line, str):
            yield line
        elif isinstance(line, Mapping) and "include-group" in line:
            yield from _requirements(path, str(line["include-group"]), (*within, name))
