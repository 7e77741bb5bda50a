"""Leftovers of gpuctl on a node's disk, as the node lists them, and their removal by name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from inventories.codec import from_json
from inventories.errors import CorruptFile
from remote.errors import BadAnswer
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames

Kind = Literal["environment", "wheels", "uv", "code", "written", "run", "program", "removed"]
"""`code` was sent from here; `written`: files that runs wrote into a folder of code; `program`: an earlier version
of the node's part; `removed`: the remains of an interrupted removal."""

MEASURE_S = 20.0
SILENCE_S = 60.0
REMOVED_WITHIN_S = 1800.0
"""Environments are a hundred thousand files, on disks that may be slow."""
MOST_ITEMS = 10_000


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file of a run."""

    node: str
    path: str
    """Relative to the run's folder on that node."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item that can be removed on its own."""

    kind: Kind
    name: str
    bytes: int
    """Size on the disk; a minimum, unless `whole`."""
    shared: int = 0
    """Bytes of files with further names, like an environment's files in uv's cache."""
    whole: bool = True
    used: float = 0.0
    """When it was last used or changed, by the node's clock; 0: never, or not known."""
    in_use: bool = False
    """Whether a process uses it now."""
    over: bool = True
    """Of a run: whether it is known to have ended."""
    checkpoints: int | None = None
    """Of a run: bytes of its checkpoints; `None`: no checkpoints."""
    files: tuple[RunFile, ...] | None = None
    """Of a run: files that may not be brought back. `None`: too many, or no run."""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Leftovers on one node."""

    items: tuple[Item, ...]
    home: str | None
    """The same on nodes that share a home. `None`: not known."""
    free_bytes: int
    uv_cache: str | None
    """The place of uv's own cache; `None`: no cache."""
    uv_cache_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """The outcome of a removal."""

    freed_bytes: int
    """Bytes freed on the disk: a shared file frees space only with its last name."""
    removed: tuple[tuple[str, str], ...]
    """Kind and name."""
    kept: tuple[tuple[str, str, str], ...]
    """Kind, name, and why."""


def find_leftovers(node: Node, *, built_in: Collection[str] = (), measure_s: float = MEASURE_S) -> Leftovers:
    """List a node's leftovers in one round trip.

    `measure_s` bounds the measuring of sizes; later sizes are not whole.

    `built_in`: ids of runs of the built-in job.
    """
    items: list[Item] = []
    end: Mapping[str, Any] | None = None
    request = {"built_in": sorted(built_in), "deadline_s": measure_s}
    bounds = Bounds(total_s=measure_s + SILENCE_S)
    with node.stream("leftovers", request, timeout_s=measure_s + SILENCE_S, bounds=bounds) as talk:
        for header, _ in talk.frames():
            if header.get("t") == frames.ITEM and len(items) < MOST_ITEMS:
                items.append(_item(node.name, header))
            elif header.get("t") == frames.END:
                end = header
    try:
        assert end is not None
        home, cache = end["home"], end["uv_cache"]
        return Leftovers(
            items=tuple(items),
            home=None if home is None else str(home),
            free_bytes=int(end["free_bytes"]),
            uv_cache=None if cache is None else str(cache["path"]),
            uv_cache_bytes=0 if cache is None else int(cache["bytes"]),
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{node.name}: what it says of its disk can't be read: {error!r}.") from error


def _item(name: str, header: Mapping[str, Any]) -> Item:
    known = {key: header[key] for key in Item.__dataclass_fields__ if header.get(key) is not None}
    try:
        return from_json(Item, known, "an item")
    except CorruptFile as error:
        raise BadAnswer(f"{name}: what it says of its disk can't be read: {error}") from error


Digests: TypeAlias = Mapping[str, Sequence[str]]
"""Path of a file in a run's folder on a node → SHA-256 of the copies here; any of several will do."""


def clean(
    node: Node, items: Sequence[tuple[str, str]], digests: Mapping[str, Digests] = MappingProxyType({})
) -> Cleaned:
    """Remove items by kind and name.

    A run with a file of another digest stays: `digests` has the known ones by its name. Raises NodeFailed if a run
    is active on the node.
    """
    answer: Mapping[str, Any] | None = None
    request = {"items": [list(item) for item in items], "digests": dict(digests)}
    with node.stream("clean", request, timeout_s=SILENCE_S, bounds=Bounds(total_s=REMOVED_WITHIN_S)) as talk:
        for header, _ in talk.frames():
            if header.get("t") == frames.CLEANED:
                answer = header
    try:
        assert answer is not None
        return Cleaned(
            freed_bytes=int(answer["freed"]),
            removed=tuple((str(kind), str(name)) for kind, name in answer["removed"]),
            kept=tuple((str(kind), str(name), str(why)) for kind, name, why in answer["kept"]),
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{node.name}: what it says of the removal can't be read: {error!r}.") from error
