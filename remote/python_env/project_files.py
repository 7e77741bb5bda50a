"""Files of a project, read: what can't be read is told with its path."""

import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from inventories import deadline
from remote.errors import RemoteError


class BadRequirements(RemoteError):
    """What is to be installed can't be read, or can't be installed on a node."""

    exit_status = 2


def read_text(path: Path) -> str:
    """Return a file's text, with plain line ends, from UTF-8 or from UTF-16, as Windows' PowerShell writes it.

    Raises BadRequirements.
    """
    try:
        content = deadline.read(path)
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
    """A TOML document; empty where there is none. Raises BadRequirements."""
    try:
        return parse_toml(read_text(path)) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise BadRequirements(
            f"{path} can't be read: {error}. Mend it, or name what is needed with --pip."
        ) from error
