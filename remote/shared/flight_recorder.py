"""Records of torch's flight recorder about a rank's collectives, from either source.

Run with a number of seconds and files, it prints each file's last collectives, or null, as a line of JSON. A file
that takes more seconds of CPU time ends it; one that takes too much memory is null.
"""

import contextlib
import io
import json
import pickle
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List

MOST_TRACE_BYTES = 16 * 1024 * 1024
MOST_READ = 100_000
"""Of a trace's entries, the last ones: as many as people let torch keep."""
MOST_ENTRIES = 64
"""The last collectives, by process group, always with the unfinished ones."""
MOST_SIZES, MOST_CHARS, LARGEST = 64, 200, 2**64
"""The maximum of an entry. A dump of a few bytes can refer to the same list again and again."""
MOST_MEMORY_BYTES = 1024**3
"""Of the process that reads files: a dump of a few bytes can ask for any amount. The largest takes a quarter."""


class NotATrace(ValueError):
    """The bytes hold something else than a flight recorder's dump."""


class _Plain(pickle.Unpickler):
    """Reads numbers, text, lists and dictionaries, and nothing that would run code."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - it returns nothing
        raise pickle.UnpicklingError("it asks for {}.{}".format(module, name))


def in_file(path: Path) -> List[Dict[str, Any]]:
    """Return the last collectives in a file that torch wrote at a timeout. Raises NotATrace, OSError."""
    with path.open("rb") as file:
        return in_dump(file.read(MOST_TRACE_BYTES + 1))


def in_dump(dump: bytes) -> List[Dict[str, Any]]:
    """Return the last collectives in what torch wrote at a timeout. Raises NotATrace."""
    if len(dump) > MOST_TRACE_BYTES:
        raise NotATrace("it has more than {} bytes".format(MOST_TRACE_BYTES))
    try:
        return in_trace(_Plain(io.BytesIO(dump)).load())
    except Exception as error:
        raise NotATrace(str(error) or type(error).__name__) from error


def in_trace(trace: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return a trace's last collectives of each process group. Raises ValueError, TypeError or AttributeError."""
    by_group = {}  # type: Dict[str, List[Dict[str, Any]]]
    for entry in _list(trace.get("entries"))[-MOST_READ:]:
        name, title = [*map(_text, _list(entry.get("process_group"))[:2]), "", ""][:2]
        sequence = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
        value = entry.get("input_sizes")
        first = [
            [_number(size) for size in _list(item)[:MOST_SIZES]]
            if isinstance(item, (list, tuple))
            else _number(item)
            for item in _list(value)[:MOST_SIZES]
        ]
        summary = {
            "group": name,
            "title": title,
            "point_to_point": bool(entry.get("is_p2p")),
            "sequence": _number(sequence),
            # gloo:all_reduce
            "name": _text(entry.get("profiling_name")).rpartition(":")[2],
            "sizes": json.dumps(first)[:MOST_CHARS],
            "over": bool(entry.get("retired")) or entry.get("state") == "completed",
            "entered_at": _number(entry.get("time_created_ns") or 0) / 1e9,
        }
        by_group.setdefault(name, []).append(summary)
    entries = []
    for group in by_group.values():
        under_way = [summary for summary in group[:-MOST_ENTRIES] if not summary["over"]]
        entries += under_way[-MOST_ENTRIES:] + group[-MOST_ENTRIES:]
    return entries


def _list(value: Any) -> List[Any]:  # noqa: ANN401 - whatever the dump holds
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError("it has no list where one is to be")
    return list(value or ())


def _text(value: Any) -> str:  # noqa: ANN401
    if value is not None and not isinstance(value, str):
        raise ValueError("it has no text where some is to be")
    return (value or "")[:MOST_CHARS]


def _number(value: Any) -> int:  # noqa: ANN401
    if not isinstance(value, int) or not -LARGEST < value < LARGEST:
        raise ValueError("it has no number where one is to be")
    return value


def main(cpu_s: float, paths: List[str]) -> None:
    """Print the content of the files; the process is killed if one of them takes too long."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MOST_MEMORY_BYTES, hard)
    with contextlib.suppress(ValueError):  # macOS may refuse it
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    for path in paths:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the kernel's time for it, too
        try:
            line = json.dumps(in_file(Path(path)))
        except (OSError, NotATrace):
            line = "null"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
