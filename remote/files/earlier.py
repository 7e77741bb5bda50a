"""Files of earlier runs in the project's folder on a node: a sync moves some of them to a backup, the rest stays."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.errors import BadAnswer
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import ASIDE

MAX_LISTED = 20_000
MAX_NAMES = 100
LARGEST = 2**63 - 1
"""The kernel's limits for a number of bytes and for a time."""


@dataclass(frozen=True, kw_only=True)
class Aside:
    """The backup of files that runs have written and a sync would lose: a folder next to the project's."""

    name: str
    """The end of its name, the same on all nodes, as they may share the disk."""
    everything: bool = False
    """True: all that no sync has brought goes there. False: what would be replaced or removed."""

    def folder(self, destination: str) -> str:
        """Its path on a node."""
        return f"{destination}{ASIDE}{self.name}"

    def request(self, destination: str) -> dict[str, Any]:
        """Return the request for the node."""
        return {"aside": self.folder(destination), "fresh": self.everything}


@dataclass(frozen=True, kw_only=True)
class EarlierFiles:
    """Files of runs in the project's folder on a node."""

    aside: int = 0
    """Files and whole folders that were put aside."""
    aside_names: tuple[str, ...] = ()
    """The first of them."""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Path → bytes and time of modification in ns, of existing files; no caches."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """Path → the run that wrote the file last, as far as the node still knows it."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Path of a `.metadata` → paths of the parts that it names."""
    whole: bool = True
    """False: too many files, or too little time, so more may exist."""


def earlier_files(node: str, header: Mapping[str, Any], body: bytes) -> EarlierFiles:
    """Read a node's answer after a sync. Raises BadAnswer."""
    with reading(node, "what it says of earlier runs' files"):
        paths = json.loads(body)
        listed = paths["listed"]
        if len(listed) > MAX_LISTED or len(header["names"]) > MAX_NAMES:
            raise ValueError("too many names")
        return EarlierFiles(
            aside=int(header["aside"]),
            aside_names=tuple(map(str, header["names"])),
            files={str(path): (_bounded(size), _bounded(at)) for path, size, at, _ in listed},
            runs={str(path): str(run) for path, _, _, run in listed},
            parts={str(path): tuple(map(str, parts)) for path, parts in paths["parts"].items()},
            whole=bool(paths["whole"]),
        )


def digests(node: Node, root: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the digest of each of these files that the node has in the folder `root`. Raises BadAnswer."""
    with node.stream("digest_earlier", {"root": root, "paths": list(paths)}, bounds=Bounds()) as talk:
        for header, body in talk.frames():
            if header.get("t") == frames.DIGESTS:
                return digests_in(node.name, body)
    raise BadAnswer(f"{node.name}: ended before it had read its files.")


def digests_in(node: str, body: bytes) -> dict[str, str]:
    """Return the digests of files that a node sent, by path. Raises BadAnswer."""
    try:
        return {str(path): str(digest) for path, digest in json.loads(body).items()}
    except (AttributeError, ValueError, RecursionError) as error:
        raise BadAnswer(f"{node} sent digests of earlier runs' files that can't be read.") from error


def _bounded(number: Any) -> int:  # noqa: ANN401 - whatever the node sent
    return max(-LARGEST, min(int(number), LARGEST))
