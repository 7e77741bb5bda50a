"""Packages whose build imports others that they do not declare, such as flash-attn and torch.

uv builds each package in an environment of its own. uv's remedy is a table of pyproject.toml. So a list of
requirements is sent with that table of its project.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote.python_env.project_files import (
    BUILD_NEEDS,
    TYPES,
    BadRequirements,
    check_types,
    parse_toml,
    read_toml_text,
)

SETTINGS = "uv.toml"
"""The file that gives uv the table, in the folder of a list of requirements."""
_TABLE = "extra-build-dependencies"
_KEYS = ("tool", "tool.uv", *(key for key in TYPES if key.startswith(BUILD_NEEDS)))
_HINT = re.compile(
    r"`(?P<package>[\w.-]+)(?:@[^`]*)?` depends on `(?P<module>[\w.-]+)`, but doesn't declare it"
)
"""uv's hint after such a build has failed."""


def settings_of(folder: Path, root: Path) -> str:
    """Return the table of the nearest pyproject.toml, up to `root`, as uv's settings. Empty: no file has that table.

    A list of requirements needs no pyproject.toml, so a file that can't be read is passed over.
    Raises BadRequirements for a table of a wrong type.
    """
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        document: Mapping[str, Any] = {}
        with suppress(BadRequirements):
            document = read_toml_text(path)
        check_types(path, document, _KEYS)
        if table := _table(document.get("tool", {}).get("uv", {})):
            return _text(_TABLE, table)
        if place == root:
            break
    return ""


def uv_settings(files: Iterable[tuple[str, str]], settings: str) -> Mapping[str, Any]:
    """Return uv's settings in the pyproject.toml that is sent, else the settings of a list."""
    for name, text in files:
        if name == "pyproject.toml":
            uv: Mapping[str, Any] = parse_toml(text).get("tool", {}).get("uv", {})
            return uv
    return parse_toml(settings)


def advice(text: str, uv: Mapping[str, Any], named: Sequence[str]) -> str:
    """Return how to declare a build's missing module, which uv's hint names. Empty: that is not what failed.

    `uv`: its present settings; `named`: the requirements, whose version of the module the build gets, too.
    """
    hint = _HINT.search(" ".join(text.split()))
    if hint is None:
        return ""
    package, module = hint["package"], hint["module"]
    pinned = re.compile(rf"{re.escape(module)}\s*[=<>~!].*", re.IGNORECASE)
    need = next((name for name in named if pinned.fullmatch(name)), module)
    table = _table(uv)
    extended = _text(f"tool.uv.{_TABLE}", {**table, package: [*table.get(package, ()), need]})
    lines = "".join(f"\n    {line}" for line in extended.splitlines())
    where = (
        f"Replace the table tool.uv.{_TABLE} of the project's pyproject.toml with this"
        if table
        else "Add this to the project's pyproject.toml (or write one with only these lines beside the script)"
    )
    return (
        f"The build of {package} imports {module}, and {package} does not declare that. {where}, and type the "
        f"command again:{lines}\n"
        f"  Or name an interpreter that has {package} with --python PATH."
    )


def without_hint(lines: Sequence[str]) -> list[str]:
    """Return uv's last lines without its hint, which names options that are not gpuctl's."""
    ends = (at for at, line in enumerate(lines) if line.startswith("hint:"))
    return list(lines[: next(ends, len(lines))])


def _table(uv: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: list(needs) for name, needs in uv.get(_TABLE, {}).items()}


def _text(header: str, table: Mapping[str, Sequence[Any]]) -> str:
    """Return a table of lists as TOML, of which JSON's texts, numbers and lists are a part."""
    lines = (f"{_key(name)} = [{', '.join(map(_value, needs))}]\n" for name, needs in table.items())
    return f"[{header}]\n{''.join(lines)}"


def _value(value: Any) -> str:  # noqa: ANN401 - of TOML
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(part)}' for key, part in value.items())} }}"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)
