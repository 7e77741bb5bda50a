"""A local copy of the newest checkpoints of an active run, so that they outlive their node.

The copy is
replaced as a whole or not at all, and never once the run's end is under way, which brings its own. Nothing that
goes wrong here harms the run: it is noted once, and the next checkpoints are tried.
"""

import shutil
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from threading import Lock, Thread

from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.run import Checkpoints, Run
from remote.errors import BadAnswer, RemoteError
from remote.files import checkpoints
from remote.files.receive import FileReceiver
from remote.runs.observer import Observer
from remote.runs.run_files import keep_checkpoints
from remote.sessions.session import Node

MAX_MIRROR_BYTES = 256 * 1000**2
"""Larger ones are not brought during a run: a transfer would take its network, and clouds bill it."""
WINDOW_BYTES = 256 * 1024
"""On its way at a time: on a slow link the run's own word is not to be held up until the node counts as silent."""
CLOSE_S = 1.0
"""A transfer under way is given this long to notice that it is not wanted any more."""


class _Closed(Exception):
    """The mirror was closed during a transfer."""


class Mirror:
    """Brings the newest checkpoints that a run's first node reports, one set at a time, in a thread of its own."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        incoming: Path,
        observer: Observer,
        others: Callable[[], Iterable[Node]] = tuple,
    ) -> None:
        """`incoming`: where files are taken in. `others`: the run's other nodes, which may have parts of a set."""
        self._other_nodes = others
        self._run = run
        self._folder = folder
        self._incoming = incoming
        self._observer = observer
        self._lock = Lock()
        self._job: tuple[Node, Checkpoints] | None = None
        """The node's last report, until its transfer begins."""
        self._newest: Checkpoints | None = None
        """The node's report of the set that is here."""
        self._thread: Thread | None = None
        self._closed = False
        self._noted: set[str] = set()

    def offer(self, node: Node, checkpoints: Checkpoints) -> None:
        """Bring these checkpoints, after the current transfer. Returns at once."""
        with self._lock:
            if self._closed:
                return
            self._job = (node, checkpoints)
            if self._thread is None:
                self._thread = Thread(target=self._work, daemon=True, name=f"mirror {node.name}")
                self._thread.start()

    def close(self) -> None:
        """From here on nothing is put in place; a transfer under way is abandoned. Takes about a second at most."""
        with self._lock:
            self._closed, self._job, thread = True, None, self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _work(self) -> None:
        while job := self._next():
            node, checkpoints = job
            if checkpoints.bytes > MAX_MIRROR_BYTES:
                self._note("large", too_large(node.name, checkpoints.bytes))
            elif checkpoints != self._newest:  # a reconnected node reports again
                self._try(node, checkpoints)

    def _next(self) -> tuple[Node, Checkpoints] | None:
        with self._lock:
            job, self._job = self._job, None
            if job is None:
                self._thread = None
            return job

    def _try(self, node: Node, newest: Checkpoints) -> None:
        """Bring the set and put it in place, or note why not."""
        passing = self._incoming / ".mirror"
        shutil.rmtree(passing, ignore_errors=True)
        try:
            intake = _Abandonable(passing, self._check)
            # Of a script's, the first node does not know what ranks of others have written.
            nodes = chain([node], self._other_nodes() if newest.lacks or not self._run.built_in else ())
            checkpoints.bring_together(nodes, self._run, intake, newest=True, window_bytes=WINDOW_BYTES)
            # The node reads its files before it sends them. A script's files may be written at that time.
            torn = not self._run.built_in and checkpoints.on_node(node, [self._run])[0].found != newest
            if torn or checkpoints.in_folder(passing, self._run) is None:
                raise BadAnswer(f"{node.name}: they changed while they were brought.")
            with self._lock:
                self._check()
                keep_checkpoints(self._folder, passing, final=False)
            self._newest = newest
        except _Closed:
            pass
        except (RemoteError, InventoryError, OSError) as error:
            self._note("failed", not_brought(node.name, error))
        finally:
            shutil.rmtree(passing, ignore_errors=True)

    def _check(self) -> None:
        if self._closed:
            raise _Closed

    def _note(self, kind: str, text: str) -> None:
        """Once a run, and not at its end, where it would be no news."""
        if kind not in self._noted and not self._closed:
            self._noted.add(kind)
            self._observer.note(text)


class _Abandonable(FileReceiver):
    """Takes files in for as long as `check` does not raise."""

    def __init__(self, root: Path, check: Callable[[], None]) -> None:
        super().__init__(root, max_bytes=MAX_MIRROR_BYTES)
        self._check = check

    def chunk(self, path: str, offset: int, body: bytes) -> None:
        """Take a chunk. Raises what `check` does."""
        self._check()
        super().chunk(path, offset, body)


def too_large(node: str, size: int) -> str:
    """The sentence for a set over the limit."""
    return (
        f"{node}: checkpoints of {size / 1e6:.0f} MB are not copied here during the run, as they are more "
        f"than {MAX_MIRROR_BYTES / 1e6:.0f} MB: if {node} is lost, the next run resumes from older ones that can be "
        "reached, or starts from the beginning."
    )


def not_brought(node: str, error: Exception) -> str:
    """The sentence for a transfer that failed."""
    why = str(error).removeprefix(f"{node}: ").rstrip(".")
    return f"{node}: its newest checkpoints were not brought here ({why}); the next ones are tried again."
