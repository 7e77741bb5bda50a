"""The order of the queue: which entries start now, and on which nodes. Pure."""

import math
from typing import Any, Dict, List, Sequence, Set, Tuple

WAITING = "waiting"
Entry = Dict[str, Any]


def can_follow(entries: Sequence[Entry]) -> List[Entry]:
    """Return the waiting entries that no other one has to end for. `entries`: those that wait or run."""
    names = {name for entry in entries for name in (entry["entry"], entry["run"])}
    return [entry for entry in entries if entry["state"] == WAITING and entry["after"] not in names]


def assign(
    waiting: Sequence[Entry], free: Set[str], lost: Set[str]
) -> Tuple[List[Tuple[Entry, int]], List[Entry]]:
    """Return the entries to start, each with the index of its place, and the entries that have no place left.

    An entry without a free place reserves the place that lacks the fewest nodes: smaller ones behind it take other
    nodes, so it starts in the end. `lost`: nodes that do not answer; a place with one of them is no place.
    """
    free, starting, stranded = set(free), [], []
    for entry in waiting:
        places = [set(place["nodes"]) for place in entry["places"]]
        missing = [(len(nodes - free), index) for index, nodes in enumerate(places) if nodes.isdisjoint(lost)]
        if not missing:
            stranded.append(entry)
            continue
        count, index = min(missing)
        if count == 0:
            starting.append((entry, index))
        free -= places[index]
    return starting, stranded


def moved(entries: Sequence[Entry], number: str, place: str) -> Entry:
    """Return an entry that waits with its new place: `first`, `last`, or in front of another entry.

    It gets the priority of its new place.
    """
    waiting = [each for each in entries if each["state"] == WAITING and each["entry"] != number]
    entry = next(each for each in entries if each["entry"] == number)
    if not waiting:
        return entry
    if place == "last":
        before = waiting[-1]["position"]
        # At most the number of an entry that is added later, which is its position.
        after = math.floor(before) + 1
        return dict(entry, priority=waiting[-1]["priority"], position=(before + after) / 2)
    at = 0 if place == "first" else [each["entry"] for each in waiting].index(place)
    following = waiting[at]
    earlier = [each["position"] for each in waiting[:at] if each["priority"] == following["priority"]]
    position = (earlier[-1] + following["position"]) / 2 if earlier else following["position"] - 1.0
    return dict(entry, priority=following["priority"], position=position)
