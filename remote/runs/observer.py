"""Watchers of a run, and the lines in a node's chunks of bytes."""

import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from remote.runs.metrics_lines import metrics_objects

OVERWRITTEN_S = 1.0
Outcome: TypeAlias = Literal["done", "failed", "stopped", "interrupted"]
"""How a phase ended."""


class Observer:
    """A watcher of a run. Called from several threads; ignores events for which it has no method of its own."""

    def phase(self, name: str, text: str, *, previous: Outcome = "done") -> None:
        """Begin a phase (`connect`, `connecting to 2 nodes`); end the previous one with its outcome and time.

        If the phase has that name already, only its text changes.
        """

    def node(self, name: str, text: str) -> None:
        """Show a node's current action."""

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Take one metrics line of a rank."""

    def log(self, rank: int | None, node: str, line: str) -> None:
        """Show one line of a rank's log, or of the launcher's (rank `None`)."""

    def script_file(self, path: str, body: bytes, *, begins: bool) -> None:
        """Take the next part of a file with the metrics of a library that the script uses.

        `begins`: the file begins with it, or was written anew.
        """

    def note(self, text: str) -> None:
        """Show a line that stays."""


class Lines:
    """Cuts the chunks of a node's files into lines for the observer.

    A progress bar that overwrites itself (`\r`) is shown about once a second.
    """

    def __init__(self, observer: Observer, node: str) -> None:
        self._observer = observer
        self._node = node
        self._rest: dict[str, bytes] = {}
        self._told_s: dict[str, float] = {}

    def feed(self, path: str, body: bytes) -> None:
        """Take the next bytes of a file; tell of the lines that are complete."""
        *lines, rest = (self._rest.pop(path, b"") + body).split(b"\n")
        for line in lines:
            self._tell(path, line)
        *_, shown, rest = rest.rsplit(b"\r", 2) if rest.count(b"\r") > 1 else (b"", b"", rest)
        now = time.monotonic()
        if shown and now - self._told_s.get(path, 0.0) >= OVERWRITTEN_S:
            self._told_s[path] = now
            self._tell(path, shown)
        self._rest[path] = rest[-65_536:]

    def flush(self) -> None:
        """The files have ended: tell of what came without a line's end."""
        for path, rest in self._rest.items():
            if rest:
                self._tell(path, rest)
        self._rest.clear()

    def _tell(self, path: str, line: bytes) -> None:
        folder, _, name = path.partition("/")
        number = name[5:].partition(".")[0] if name.startswith("rank-") else ""
        rank = int(number) if number.isdecimal() else None
        if folder == "logs":
            # Return the text that a terminal would show: the last state.
            self._observer.log(
                rank, self._node, line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            )
        elif folder == "metrics" and rank is not None:
            for parsed in metrics_objects(line)[0]:
                self._observer.metric(rank, parsed)
