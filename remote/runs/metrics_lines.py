"""The lines of a metrics file: JSON objects, one or several a line, of anybody's script."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_METRICS_LINE_BYTES = 65_536
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[ \t\r,]*")
"""The characters between two objects of a line."""


@dataclass(kw_only=True)
class MetricsFile:
    """The objects of a metrics file, and the lines without an object."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    unreadable: int = 0
    """Number of lines of which a part could not be read."""
    example: str = ""
    """The first of them."""
    why: str = ""
    """Why that could not be read: a clause such as `it is not JSON`."""


def read_metrics_file(lines: Iterable[bytes]) -> MetricsFile:
    """Read a metrics file. A last line that the end of its rank cut off is left out."""
    read = MetricsFile()
    for line in lines:
        objects, why = metrics_objects(line)
        read.lines += objects
        if why and not (line.lstrip().startswith((b"{", b"[")) and not line.endswith(b"\n")):
            read.unreadable += 1
            read.example = read.example or line.decode(errors="replace").strip()
            read.why = read.why or why
    return read


def metrics_objects(line: bytes) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON objects in a line, also of several in a row or in a list, and why the rest was not read."""
    if len(line) > MAX_METRICS_LINE_BYTES:
        return [], f"it is longer than {MAX_METRICS_LINE_BYTES // 1024} KiB"
    objects: list[dict[str, Any]] = []
    text, at = line.decode("utf-8-sig", errors="replace").strip(), 0
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return objects, "it is not JSON"
        values = value if isinstance(value, list) else [value]
        objects += (item for item in values if isinstance(item, dict))
        if not all(isinstance(item, dict) for item in values):
            return objects, "it is not a JSON object"
        at += len(_BETWEEN.match(text, at)[0])  # type: ignore[index]  # it may be empty
    return objects, ""
