"""`logs`: the output of the ranks, brought up to date from the nodes."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias

from gpuctl.app import App
from gpuctl.command_results.runs import LogLine
from gpuctl.errors import Usage
from gpuctl.output import Output
from gpuctl.workflow.runs.collect import attach
from gpuctl.workflow.runs.runs import final_result
from inventories.disk.store import RunFolder
from inventories.runs.result import Result
from inventories.runs.run import Run
from remote.runs.observer import Observer
from remote.shared.constants import RANK_LOG

Emit: TypeAlias = Callable[[LogLine], None]
"""Gets a line. Called from several threads, never from two at once."""


def ranks_of(run: Run, rank: int | None) -> Collection[int]:
    """Return the rank of a run as a sequence; for `None` all ranks. Raises Usage for an unknown rank."""
    if rank is None:
        return range(run.world_size)
    if not 0 <= rank < run.world_size:
        raise Usage(f"Run {run.run} has no rank {rank}: it has ranks 0 to {run.world_size - 1}.")
    return (rank,)


def text_of(folder: RunFolder, rank: int) -> str:
    """Return a rank's log as far as it is here."""
    path = folder.path / RANK_LOG.format(rank)
    return path.read_text(errors="replace") if path.exists() else ""


def read_logs(
    app: App,
    folder: RunFolder,
    emit: Emit,
    *,
    follow: bool,
    ranks: Collection[int],
    left: Event | None = None,
) -> Result:
    """Pass the lines of these ranks to the observer, and return the run's result.

    `follow`: until the run is over, or `left` is set.
    """
    reader = Reader(ranks, emit, app.output)
    with reader.going_on_from(folder, over=final_result(folder) is not None):
        return attach(app.store, folder, reader, wait=follow, left=left)


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A line of a file here whose end had not arrived."""

    path: Path
    offset: int
    """Of its first byte."""

    def now(self) -> bytes:
        """Return the line as far as it is here, with its end if that has arrived."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.readline()

    def whole(self, rest: str) -> str:
        """Return the whole line from the file: one of its characters may have come in two parts."""
        text = self.now()
        redrawn = b"\r" in text and not text.endswith(b"\n")
        return rest if redrawn else text.decode(errors="replace")


class Reader(Observer):
    """Gives log lines as they arrive."""

    def __init__(self, ranks: Collection[int], emit: Emit, output: Output) -> None:
        """`ranks`: only their lines. `output`: gets notes."""
        self._ranks = ranks
        self._emit = emit
        self._output = output
        self._lock = Lock()
        self._begun: dict[int, _Begun] = {}
        """The last line of a rank, where it has no end yet."""

    @contextmanager
    def going_on_from(self, folder: RunFolder, *, over: bool) -> Iterator[None]:
        """Give what had arrived before, rank by rank, then what arrives; a line that comes in parts only once.

        With `over` nothing arrives.
        """
        try:
            for number in self._ranks:
                path = folder.path / RANK_LOG.format(number)
                data = path.read_bytes() if path.exists() else b""
                *lines, rest = data.split(b"\n")
                for line in lines:
                    self.log(number, "", line.decode(errors="replace"))
                if rest:  # a line without its end
                    self._begun[number] = _Begun(path=path, offset=len(data) - len(rest))
                if over:
                    self._give_begun(number)
            yield
        finally:
            for number in sorted(self._begun):
                self._give_begun(number)

    def _give_begun(self, rank: int) -> None:
        if begun := self._begun.pop(rank, None):
            self.log(rank, "", begun.now().decode(errors="replace"))

    def log(self, rank: int | None, node: str, line: str) -> None:  # noqa: ARG002 - an observer's method
        """Take a line of a rank's log; skip the launcher's own lines."""
        if rank is None or rank not in self._ranks:
            return
        if begun := self._begun.pop(rank, None):
            line = begun.whole(line)
        with self._lock:
            self._emit(LogLine(rank=rank, text=line.removesuffix("\n")))

    def node(self, name: str, text: str) -> None:
        """Print a node's state as a detail."""
        self._output.detail(f"{name}: {text}")

    def note(self, text: str) -> None:
        """Print a note."""
        self._output.say(text)
