"""torch's worker server in a rank, asked over its Unix socket. A rank that hangs may not answer: waits are short."""

import json
import os
import re
import socket
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

from remote.shared.flight_recorder import MOST_TRACE_BYTES, in_trace

_CREATED = re.compile(rb'"time_created_ns": ?([0-9]{1,19})\b')
_UNDER_WAY = re.compile(rb'"retired": ?false')
ANSWER_S = 3.0
"""Limit for an answer: stacks need Python's lock, which C code may hold; the flight recorder does not."""


def ask(path: str, method: str, most_bytes: int) -> Optional[bytes]:
    """Return the answer's body, up to a maximum size; `None` without an answer in time."""
    request = (
        "POST /handler/{} HTTP/1.1\r\nHost: rank\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".format(
            method
        )
    )
    answer, limit = b"", time.monotonic() + ANSWER_S
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(ANSWER_S)
            # A socket's path has 107 bytes at most.
            short = "/proc/self/fd/{}/{}".format(folder, os.path.basename(path))
            link.connect(short if sys.platform.startswith("linux") else path)
            link.sendall(request.encode())
            while len(answer) < most_bytes and time.monotonic() < limit:
                part = link.recv(65536)
                if not part:
                    break
                answer += part
    except OSError:
        return None
    finally:
        os.close(folder)
    head, _, body = answer.partition(b"\r\n\r\n")
    return body if head.startswith(b"HTTP/1.1 200") else None


class Pulse(NamedTuple):
    """A sign that a rank makes progress."""

    entered: List[float]
    """When it came to its last collectives, Unix seconds, oldest first."""
    under_way: int
    """How many of them are not known to be over."""


def pulse(path: str) -> Optional[Pulse]:
    """Return a rank's pulse; `None` if its flight recorder is silent.

    It is searched in the text: to read the whole text as JSON would cost more than the rest of the watch.
    """
    body = ask(path, "fr_trace_json", MOST_TRACE_BYTES)
    if body is None:
        return None
    entered = sorted(int(stamp) / 1e9 for stamp in _CREATED.findall(body))
    return Pulse(entered=entered, under_way=len(_UNDER_WAY.findall(body)))


def collectives(path: str) -> List[Dict[str, Any]]:
    """Return the last collectives in the flight recorder, oldest first; empty if it is empty or silent."""
    body = ask(path, "fr_trace_json", MOST_TRACE_BYTES)
    try:
        return in_trace(json.loads(body)) if body else []
    except (ValueError, TypeError, AttributeError):  # another torch's, or cut off
        return []
