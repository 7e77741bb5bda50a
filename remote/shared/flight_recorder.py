"""What torch's flight recorder has of a rank's collectives, by whatever way it was had."""

import io
import json
import pickle
from typing import Any, Dict, List

MOST_TRACE_BYTES = 16 * 1024 * 1024
MOST_ENTRIES = 64
"""Of the last collectives, by process group; those that have not ended are always among them."""


class NotATrace(ValueError):
    """The bytes hold something else than a flight recorder's dump."""


class _Plain(pickle.Unpickler):
    """Reads numbers, text, lists and dictionaries, and nothing that would run code."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - it returns nothing
        raise pickle.UnpicklingError("it asks for {}.{}".format(module, name))


def in_dump(dump: bytes) -> List[Dict[str, Any]]:
    """Return the last collectives in a file that torch wrote at a timeout. Raises NotATrace."""
    if len(dump) > MOST_TRACE_BYTES:
        raise NotATrace("it has more than {} bytes".format(MOST_TRACE_BYTES))
    try:
        return in_trace(_Plain(io.BytesIO(dump)).load())
    except Exception as error:
        raise NotATrace(str(error) or type(error).__name__) from error


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
