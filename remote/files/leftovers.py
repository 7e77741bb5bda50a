"""Leftovers of gpuctl on a node's disk, as the node lists them, and their removal by name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from inventories.codec import from_json
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames

Kind = Literal["environment", "wheels", "uv", "code", "written", "run", "program", "removed", "downloads"]
"""`code` was sent from here; `written`: files that runs wrote into a folder of code; `program`: an earlier version
of the node's part; `removed`: the remains of an interrupted removal; `downloads`: uv's own cache."""

MEASURE_S = 20.0
SILENCE_S = 60.0
REMOVED_WITHIN_S = 1800.0
"""Environments are a hundred thousand files, on disks that may be slow."""
MAX_ITEMS = 10_000


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
    keep: str = ""
    """Why it has to stay now, such as `in use`. Empty: it may be removed."""
    checkpoints: bool = False
    """Of a run: whether it has checkpoints."""
    files: tuple[RunFile, ...] | None = None
    """Of a run: files that may not be brought back. `None`: too many, or no run."""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Leftovers on one node."""

    items: tuple[Item, ...]
    home: str | None
    """The same on nodes that share a home. `None`: not known."""
    uv_cache: str | None = None
    """The place of uv's own cache; `None`: no cache."""
    uv_cache_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Retained:
    """An item that was not removed."""

    kind: str
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """The outcome of a removal."""

    freed: int
    """Bytes freed on the disk: a shared file frees space only with its last name."""
    removed: int
    """Number of items."""
    retained: tuple[Retained, ...]


def find_leftovers(node: Node, *, built_in: Collection[str] = (), measure_s: float = MEASURE_S) -> Leftovers:
    """List a node's leftovers in one round trip.

    `measure_s` bounds the measuring of sizes; later sizes are not whole.

    `built_in`: ids of runs of the built-in job.
    """
    request = {"built_in": sorted(built_in), "deadline_s": measure_s}
    bounds = Bounds(total_s=measure_s + SILENCE_S)
    items: list[dict[str, Any]] = []
    end: dict[str, Any] = {}
    with node.stream("leftovers", request, timeout_s=measure_s + SILENCE_S, bounds=bounds) as talk:
        for header, _ in talk.frames():
            kind = header.pop("t", None)
            if kind == frames.ITEM and len(items) < MAX_ITEMS:
                items.append(header)
            elif kind == frames.END:
                end = header
    with reading(node.name, "what it says of its disk"):
        return from_json(Leftovers, {**end, "items": items}, "the answer")


Digests: TypeAlias = Mapping[str, Sequence[str]]
"""Path of a file in a run's folder on a node → SHA-256 of the copies here; any of several will do."""


def clean(
    node: Node, items: Sequence[tuple[str, str]], digests: Mapping[str, Digests] = MappingProxyType({})
) -> Cleaned:
    """Remove items by kind and name.

    A run with a file of another digest stays: `digests` has the known ones by its name. Raises NodeFailed if a run
    is active on the node.
    """
    request = {"items": [list(item) for item in items], "digests": dict(digests)}
    answer: dict[str, Any] = {}
    with node.stream("clean", request, timeout_s=SILENCE_S, bounds=Bounds(total_s=REMOVED_WITHIN_S)) as talk:
        for header, _ in talk.frames():
            if header.pop("t", None) == frames.CLEANED:
                answer = header
    with reading(node.name, "what it says of the removal"):
        return from_json(Cleaned, answer, "the answer")
