"""The files of the queue on a node: one for each entry, which has all that its run needs.

An entry is written whole before anybody hears of it, and moves to another folder at its end. So the files are right
after any crash: the watch for `--idle` sees the entries that wait or run, and no others.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Iterator, List, Set

from remote.node.home_folder import NODE_HOME
from remote.node.queue.schedule import WAITING, Entry
from remote.shared.constants import QUEUE
from remote.shared.files import read_json, write_json

RUNNING, SUCCEEDED, FAILED, STOPPED, REMOVED = "running", "succeeded", "failed", "stopped", "removed"
PRIVATE = ("places", "notify")
"""Parts of an entry that may hold secrets: the first node's answers leave them out, and so do ended entries."""


class Spool:
    """The queue's files of one node. Nodes may share a home folder: each has its own."""

    def __init__(self, node: str) -> None:
        self.folder = NODE_HOME / QUEUE / node
        self._ended = self.folder / ".ended"
        self._paused = self.folder / ".paused"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the queue while the body runs."""
        self._ended.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(str(self.folder / ".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, entry: Entry) -> Entry:
        """Put an entry at the end and return it with its number. A second call for its run changes nothing."""
        known = [
            *self.folder.glob(_file_name("*", entry["run"])),
            *self._ended.glob(_file_name("*", entry["run"])),
        ]
        if known:
            return read_json(known[0])
        names = [path.name for folder in (self.folder, self._ended) for path in folder.glob("*.json")]
        number = 1 + max([int(name.partition("-")[0]) for name in names], default=0)
        added = dict(entry, entry=str(number), state=WAITING, position=float(number), added_at=time.time())
        self.save(added)
        return added

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
        """Return the entries that wait or run, in the order of the queue."""
        ended = {path.name for path in self._ended.glob("*.json")}
        open_entries = []
        for path in self.folder.glob("*.json"):
            if path.name in ended:
                path.unlink()  # a crash in the middle of `close`
            else:
                open_entries.append(read_json(path))
        return sorted(filter(None, open_entries), key=lambda entry: (-entry["priority"], entry["position"]))

    def ended(self) -> List[Entry]:
        """Return the entries that have ended, by their numbers."""
        return sorted(
            filter(None, map(read_json, self._ended.glob("*.json"))), key=lambda entry: int(entry["entry"])
        )

    def ended_runs(self) -> Set[str]:
        """Return the runs of the entries that have ended."""
        return {path.stem.partition("-")[2] for path in self._ended.glob("*.json")}

    def ended_since_empty(self) -> List[Entry]:
        """Return the entries that have run since the queue was empty before, and note that it is empty now."""
        mark = self.folder / ".empty"
        empty_at = mark.stat().st_mtime if mark.exists() else 0.0
        mark.touch(mode=0o600)
        ran = [entry for entry in self.ended() if entry["state"] != REMOVED and entry["ended_at"] > empty_at]
        return sorted(ran, key=lambda entry: float(entry["ended_at"]))

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
    return "{}-{}.json".format(number if number == "*" else "{:06d}".format(int(number)), run)


def has_entries() -> bool:
    """Return whether an entry waits or runs on this machine."""
    return any((NODE_HOME / QUEUE).glob("*/*.json"))


def public(entry: Entry) -> Entry:
    """Return an entry as the client gets it: without its secrets."""
    return {key: value for key, value in entry.items() if key not in (*PRIVATE, "uses", "place")}


def following(node: str) -> Path:
    """Return the folder with a node's parts of runs that another node's queue starts."""
    return NODE_HOME / QUEUE / node / ".following"
