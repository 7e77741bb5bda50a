"""Code sync: a folder here becomes the same folder on a node; only what changed travels."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remote.errors import BadAnswer
from remote.node import frames
from remote.session import Node
from remote.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What a sync did."""

    root: str
    """Absolute path of the folder on the node."""
    files: int
    """Files sent."""
    sent_bytes: int
    removed: int


def code_folder(root: Path) -> str:
    """Where a project lives on a node: the same folder for the same path here, so that a second sync is small."""
    digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in root.resolve().name)
    return f"~/.gpuctl-node/code/{name or 'root'}-{digest}"


def sync(node: Node, tree: Tree, destination: str, *, follow_deletions: bool = True) -> Synced:
    """Make `destination` on the node hold the tree. One round trip where nothing changed.

    With `follow_deletions`, files that an earlier sync brought and that are gone here go there too; what
    runs wrote themselves stays.
    """
    request = {"root": destination, "manifest": tree.entries, "follow_deletions": follow_deletions}
    files = sent_bytes = 0
    with node.converse("sync", request) as talk:
        answers = talk.frames()
        need, _ = _expect(node, answers, "need")
        for path in need["paths"]:
            entry = tree.entries.get(path)
            if entry is None:
                raise BadAnswer(f"{node.name}: asked for a file that is not in the project: {path!r}.")
            files += 1
            if len(entry) == 3:
                with (tree.root / path).open("rb") as file:
                    body = file.read(frames.CHUNK_BYTES)
                    while True:
                        following = file.read(frames.CHUNK_BYTES) if len(body) == frames.CHUNK_BYTES else b""
                        talk.send({"t": "chunk", "path": path, "last": not following}, body)
                        sent_bytes += len(body)
                        if not following:
                            break
                        body = following
        talk.send({"t": "sent"})
        done, _ = _expect(node, answers, "synced")
        for _ in answers:
            raise BadAnswer(f"{node.name}: spoke on after the sync was over.")
    return Synced(root=done["root"], files=files, sent_bytes=sent_bytes, removed=need["removed"])


def _expect(node: Node, answers: Iterator[frames.Frame], kind: str) -> frames.Frame:
    frame = next(answers, None)
    if frame is None or frame[0].get("t") != kind:
        raise BadAnswer(f"{node.name}: expected {kind} during sync, got {frame and frame[0]!r}.")
    return frame
