"""torch's worker server in a rank, asked over its Unix socket. A rank that hangs may not answer: waits are short."""

import json
import os
import socket
import sys
import time
from typing import Any, Dict, List, Optional

ANSWER_S = 3.0
"""For an answer: stacks need Python's lock, which C code may hold; the flight recorder needs none."""
MOST_TRACE_BYTES = 16 * 1024 * 1024
MOST_ENTRIES = 64
"""Of the last collectives, by process group; those that have not ended are always among them."""


def ask(path: str, what: str, most_bytes: int) -> Optional[bytes]:
    """Return the answer's body, at most so many bytes of it; None where there was none in time."""
    request = (
        "POST /handler/{} HTTP/1.1\r\nHost: rank\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".format(
            what
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


def collectives(path: str) -> List[Dict[str, Any]]:
    """Return the last collectives that the flight recorder has, oldest first; none where it is empty or silent."""
    body = ask(path, "fr_trace_json", MOST_TRACE_BYTES)
    try:
        return in_trace(json.loads(body)) if body else []
    except (ValueError, TypeError, AttributeError):  # another torch's, or cut off
        return []


def in_trace(trace: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return a trace's last collectives of each process group."""
    by_group = {}  # type: Dict[str, List[Dict[str, Any]]]
    for entry in trace.get("entries") or []:
        name, title = [*(entry.get("process_group") or []), "", ""][:2]
        sequence = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
        one = {
            "group": str(name),
            "title": str(title),
            "point_to_point": bool(entry.get("is_p2p")),
            "sequence": int(sequence),
            # gloo:all_reduce
            "name": str(entry.get("profiling_name")).rpartition(":")[2],
            "sizes": json.dumps(entry.get("input_sizes"))[:200],
            "over": bool(entry.get("retired")) or entry.get("state") == "completed",
            "entered_at": int(entry.get("time_created_ns") or 0) / 1e9,
        }
        by_group.setdefault(str(name), []).append(one)
    kept = []
    for group in by_group.values():
        under_way = [one for one in group[:-MOST_ENTRIES] if not one["over"]]
        kept += under_way[-MOST_ENTRIES:] + group[-MOST_ENTRIES:]
    return kept
