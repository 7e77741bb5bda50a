"""The files of the queue on a node: one for each entry, which has all that its run needs.

An entry is written whole before anybody hears of it, and moves to another folder at its end. So the files are right
after any crash: the watch for `--idle` sees the entries that wait or run, and no others.
"""

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from remote.node.home_folder import NODE_HOME
from remote.node.queue.schedule import WAITING, Entry
from remote.shared.constants import QUEUE
from remote.shared.files import TEMPORARY, read_json, write_json

RUNNING, SUCCEEDED, FAILED, STOPPED, REMOVED = "running", "succeeded", "failed", "stopped", "removed"
PRIVATE = ("places", "notify", "session")
"""Parts of an entry that may hold secrets: the first node's answers leave them out, and so do ended entries."""
KEYS = {"entry", "run", "name", "state", "after", "priority", "position", "script", "args", "tags"}
"""Parts that each entry has."""
OPEN_KEYS = KEYS | {"places", "session"}
"""Parts of an entry that waits or runs."""
UNKNOWN = {
    "name": None, "after": None, "priority": 0, "position": 0.0, "script": "-", "args": [], "tags": {}
}  # type: Entry  # fmt: skip
"""Parts of an entry whose file can't be read."""
UNREADABLE = "its file can't be read, or another version of gpuctl wrote it: add it again"
_FILE = re.compile(r"(\d+)-(.+)\.json")


class Spool:
    """The queue's files of one node. Nodes may share a home folder: each has its own."""

    def __init__(self, node: str) -> None:
        self.folder = NODE_HOME / QUEUE / node
        self._ended = self.folder / ".ended"
        self._paused = self.folder / ".paused"
        self._empty = self.folder / ".empty"
        self._notify = self.folder / ".notify"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the queue while the body runs."""
        self._ended.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(str(self.folder / ".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, entries: Sequence[Entry]) -> List[Entry]:
        """Put entries at the end and return them with their numbers. A second call for a run changes nothing."""
        self.remove_temporaries()
        files = [*files_in(self.folder), *files_in(self._ended)]
        known = {run: path for _, run, path in files}
        number, added = max([number for number, _, _ in files], default=0), []
        for entry in entries:
            if entry["run"] in known:
                added.append(read_json(known[entry["run"]]))
                continue
            number += 1
            place = {"entry": str(number), "state": WAITING, "position": float(number)}
            added.append(dict(entry, added_at=time.time(), **place))
            self.save(added[-1])
        targets = [entry["notify"] for entry in added if entry.get("notify")]
        if targets:
            write_json(self._notify, targets[-1])
        return added

    def remove_temporaries(self) -> None:
        """Remove the files of a process that ended as it wrote: they may hold secrets. Only under the lock."""
        for folder in (self.folder, self._ended):
            for path in folder.glob(TEMPORARY + "*"):
                path.unlink()

    def save(self, entry: Entry) -> None:
        """Replace the file of an entry that waits or runs."""
        write_json(self.folder / _file_name(entry["entry"], entry["run"]), entry)

    def close(self, entry: Entry, state: str, **facts: object) -> None:
        """Take an entry out of the queue, without its secrets."""
        ended = dict(entry, state=state, ended_at=time.time(), **facts)
        name = _file_name(entry["entry"], entry["run"])
        write_json(self._ended / name, {key: value for key, value in ended.items() if key not in PRIVATE})
        with contextlib.suppress(FileNotFoundError):
            (self.folder / name).unlink()

    def entries(self) -> List[Entry]:
        """Return the entries that wait or run, in the order of the queue. One that can't be read has failed."""
        ended = {path.name for path in self._ended.glob("*.json")}
        open_entries = []
        for number, run, path in files_in(self.folder):
            entry = read_json(path)
            if path.name in ended:
                path.unlink()  # a crash in the middle of `close`
            elif entry.keys() >= OPEN_KEYS:
                open_entries.append(entry)
            else:
                self.close(dict(UNKNOWN, entry=str(number), run=run), FAILED, error=UNREADABLE)
        return sorted(open_entries, key=lambda entry: (-entry["priority"], entry["position"]))

    def ended(self) -> List[Entry]:
        """Return the entries that have ended, by their numbers."""
        entries = [read_json(path) for _, _, path in files_in(self._ended)]
        return [entry for entry in entries if KEYS | {"ended_at"} <= entry.keys()]

    def ended_runs(self) -> Set[str]:
        """Return the runs of the entries that have ended."""
        return {run for _, run, _ in files_in(self._ended)}

    def ended_since_empty(self) -> List[Entry]:
        """Return the entries that have run since the queue was empty before."""
        last = int(read_json(self._empty).get("last", 0))  # a number, as the clock may be set back
        ran = [entry for entry in self.ended() if entry["state"] != REMOVED and int(entry["entry"]) > last]
        return sorted(ran, key=lambda entry: float(entry["ended_at"]))

    def notify(self) -> Dict[str, Any]:
        """Return the targets for the notice that the queue is empty. Empty: no notice is due."""
        return read_json(self._notify)

    def note_empty(self) -> None:
        """Note that the queue is empty, and that no notice is due."""
        ended = self.ended()
        if ended:
            write_json(self._empty, {"last": int(ended[-1]["entry"])})
        with contextlib.suppress(FileNotFoundError):
            self._notify.unlink()

    def changed_at(self) -> int:
        """Return the time of the folder's last change, which each change of an entry makes."""
        return os.stat(str(self.folder)).st_mtime_ns

    @property
    def paused(self) -> bool:
        """Return whether no entry is to start."""
        return self._paused.exists()

    def pause(self, *, paused: bool) -> None:
        """Let no entry start, or let them start again."""
        if paused:
            self._paused.touch(mode=0o600)
        elif self.paused:
            self._paused.unlink()


def _file_name(number: str, run: str) -> str:
    return "{:06d}-{}.json".format(int(number), run)


def files_in(folder: Path) -> List[Tuple[int, str, Path]]:
    """Return number, run and file of each entry in a folder, by their numbers."""
    names = [_FILE.fullmatch(name) for name in (os.listdir(str(folder)) if folder.is_dir() else [])]
    return sorted((int(name[1]), name[2], folder / name[0]) for name in names if name)


def has_entries() -> bool:
    """Return whether an entry waits or runs on this machine."""
    return any(files_in(folder) for folder in (NODE_HOME / QUEUE).glob("*"))


def public(entry: Entry) -> Entry:
    """Return an entry as the client gets it: without its secrets."""
    return {key: value for key, value in entry.items() if key not in (*PRIVATE, "uses", "place")}


def following(node: str) -> Path:
    """Return the folder with a node's parts of runs that another node's queue starts."""
    return NODE_HOME / QUEUE / node / ".following"
