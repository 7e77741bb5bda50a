"""Code sync: a folder here becomes the same folder on a node; only what changed travels."""

import hashlib
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventories.text import human_bytes
from remote.errors import BadAnswer
from remote.files import rsync
from remote.files.earlier import Aside, EarlierFiles, earlier_files
from remote.files.tree import Tree
from remote.sessions.limits import Bounds
from remote.sessions.session import Conversation, Node
from remote.shared import frames
from remote.shared.constants import CODE, NODE_FOLDER

RSYNC_FILE_BYTES = 1000 * 1000
"""Smaller files are sent as frames, which costs less than rsync's work on each."""
RSYNC_FROM_BYTES = 100 * 1000 * 1000
"""For less in larger files rsync's second connection takes longer than it saves: measured on loopback."""
FIRST_WORD_S, NEXT_WORD_S = 2.0, 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Synced:
    """The outcome of a sync."""

    root: str
    """Absolute path of the folder on the node."""
    files: int
    """Files sent, links among them."""
    sent_bytes: int
    """Size of the files sent; rsync may have needed less."""
    removed: int
    rsync_files: int = 0
    """The number of files that rsync sent."""
    earlier: EarlierFiles | None = None
    """What runs have left in the folder. `None`: it was not asked for."""


def code_folder(root: Path, owner: str) -> str:
    """Return a project's folder on a node: the same for the same path here, so that a second sync is small.

    `owner` is the cluster's: another cluster's nodes may have the same home, and an active run.
    """
    digest = hashlib.sha256(f"{root.resolve()}\0{owner}".encode()).hexdigest()[:8]
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in root.resolve().name)
    return f"~/{NODE_FOLDER}/{CODE}/{name or 'root'}-{digest}"


def folder_in(code: str, folder: str) -> str:
    """A folder of the code on a node; `.` is the code's own."""
    return posixpath.normpath(f"{code}/{folder}")


def sync(
    node: Node,
    tree: Tree,
    destination: str,
    *,
    follow_deletions: bool = True,
    working_folder: str = ".",
    aside: Aside | None = None,
    project: str | None = None,
    say: Say | None = None,
) -> Synced:
    """Make `destination` on the node hold the tree. One round trip where nothing changed.

    With `follow_deletions`, files that an earlier sync brought and that are gone here go there too; what
    runs wrote themselves stays. rsync is used for much, where both sides have it and the system's ssh gets there.
    `working_folder`: one in it that is there afterwards, as are the tree's folders without files. `aside`: what
    becomes of files of runs that would be lost; `None`: they are replaced. `project`: the folder of the project that
    `destination` is in, where sent files stay until a person removes them. `say` hears how far it is, once that
    takes longer than two seconds.

    Raises OSError for a file here that can't be read, BadAnswer, ConnectionLost, NodeFailed with the blocking
    paths, DiskFull. The next sync continues an interrupted one.
    """
    # The duration depends on the sent bytes; the node sends three messages and no more.
    request: dict[str, Any] = {"root": destination, "follow_deletions": follow_deletions}
    request |= {"folders": [working_folder, *tree.folders], **(aside.request(destination) if aside else {})}
    request |= {"project": project} if project else {}
    with node.stream("sync", request, bounds=Bounds()) as talk:
        talk.send({"t": frames.MANIFEST}, tree.packed)
        answers = talk.frames()
        need, _ = _frame(node, answers, frames.NEED, {"paths", "removed", "rsync", "root"})
        paths = _files(node, tree, need["paths"])
        sizes = {path: int(tree.entries[path][0]) for path in paths}
        progress = _Progress(total_bytes=sum(sizes.values()), say=say)
        large = [path for path, size in sizes.items() if size >= RSYNC_FILE_BYTES]
        worth_it = sum(sizes[path] for path in large) >= RSYNC_FROM_BYTES
        if worth_it and need["rsync"] and node.transport.ssh_config and rsync.usable():
            target = rsync.Target.of(need, node.name, node.transport.ssh_config)
            failed = rsync.bring(target, tree.root, large, progress.at)
            if failed and say is not None:
                say(f"rsync ended early ({failed}); what is missing is sent without it")
            talk.send({"t": frames.LIST})
            paths = _files(node, tree, _frame(node, answers, frames.NEED, {"paths"})[0]["paths"])
            progress.at(progress.total_bytes - sum(sizes[path] for path in paths))
        _send(talk, tree.root, paths, progress)
        talk.send({"t": frames.SENT})
        done, left = _frame(node, answers, frames.SYNCED, {"root"})
        for _ in answers:
            raise BadAnswer(f"{node.name}: spoke on after the sync was over.")
    return Synced(
        root=done["root"],
        files=len(need["paths"]),
        sent_bytes=progress.total_bytes,
        removed=need["removed"],
        earlier=earlier_files(node.name, done, left) if aside else None,
        rsync_files=len(sizes) - len(paths),
    )


@dataclass(kw_only=True)
class _Progress:
    """The progress of a sync, reported now and then."""

    total_bytes: int
    say: Say | None
    sent_bytes: int = 0
    next_word: float = field(default_factory=lambda: time.monotonic() + FIRST_WORD_S)

    def at(self, sent_bytes: int) -> None:
        """Bytes sent so far."""
        self.sent_bytes = sent_bytes
        if self.say is not None and time.monotonic() >= self.next_word:
            self.next_word = time.monotonic() + NEXT_WORD_S
            self.say(f"{human_bytes(sent_bytes)} of {human_bytes(self.total_bytes)} sent")


def _send(talk: Conversation, root: Path, paths: Sequence[str], progress: _Progress) -> None:
    """Send the files as frames, small ones together: a write to the connection costs more than a small file."""
    batch = bytearray()
    for path in paths:
        with open(f"{root}/{path}", "rb") as file:  # noqa: PTH123 - a Path costs more than the call
            body = file.read(frames.CHUNK_BYTES)
            while True:
                following = file.read(frames.CHUNK_BYTES) if len(body) == frames.CHUNK_BYTES else b""
                batch += frames.encode({"t": frames.CHUNK, "path": path, "last": not following}, body)
                progress.sent_bytes += len(body)
                if len(batch) >= frames.CHUNK_BYTES:
                    talk.send_bytes(bytes(batch))
                    batch.clear()
                    progress.at(progress.sent_bytes)
                if not following:
                    break
                body = following
    if batch:
        talk.send_bytes(bytes(batch))


def _files(node: Node, tree: Tree, paths: Sequence[str]) -> list[str]:
    """Return the plain files among the requested paths. Raises BadAnswer for a path that is not in the tree."""
    for path in paths:
        if path not in tree.entries:
            raise BadAnswer(f"{node.name}: asked for a file that is not in the project: {path!r}.")
    return [path for path in paths if len(tree.entries[path]) > 1]


def _frame(node: Node, answers: Iterator[frames.Frame], kind: str, keys: set[str]) -> frames.Frame:
    """The next frame that says something. Raises BadAnswer where it is of another kind, or lacks one of the keys."""
    frame = next((answer for answer in answers if answer[0].get("t") != frames.BEAT), None)
    if frame is None or frame[0].get("t") != kind or not keys <= frame[0].keys():
        raise BadAnswer(f"{node.name}: expected {kind} during sync, got {frame and frame[0]!r}.")
    return frame
