"""`logs`: what the ranks wrote, brought up to date from the nodes and shown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuctl.errors import Usage
from gpuctl.options import App
from gpuctl.run_results.failures import failed_first
from gpuctl.text import clean
from gpuctl.workflow.training.collect import attach, final_result
from gpuctl.workflow.training.runs import latest
from inventories.run import Result, Run
from inventories.store import RunFolder
from remote.shared.constants import RANK_LOG


def logs(app: App, named: str | None, *, follow: bool, rank: int | None) -> int:
    """Print the logs; with `follow` until the run is over. Returns the exit status."""
    folder = latest(app, named)
    run = folder.load_run()
    if rank is not None and not 0 <= rank < run.world_size:
        raise Usage(f"Run {run.run} has no rank {rank}: it has ranks 0 to {run.world_size - 1}.")
    if app.options.json:
        result = attach(app.store, folder, Printer(app, run, rank, silent=True), wait=follow)
        app.output.json({"run": run.run, "status": result.status, "ranks": _texts(folder, run, rank)})
    else:
        printer = Printer(app, run, rank, silent=False)
        try:
            with printer.going_on_from(folder, over=final_result(folder) is not None):
                result = attach(app.store, folder, printer, wait=follow)
        except KeyboardInterrupt:
            app.output.say(f"run {run.run} continues; gpuctl stop {run.run} stops it")
            return 130
        if follow:
            _tell_the_end(app, result)
    return 1 if follow and result.status != "succeeded" else 0


def _tell_the_end(app: App, result: Result) -> None:
    """How the run that was followed ended, and what failed first."""
    error = result.first_error
    if error is not None:
        app.output.say(f"{failed_first(error)}: {clean(error.message)}")
    app.output.say(f"run {result.run}  {result.status}")


def _ranks(run: Run, rank: int | None) -> list[int]:
    return list(range(run.world_size)) if rank is None else [rank]


def _texts(folder: RunFolder, run: Run, rank: int | None) -> list[dict[str, Any]]:
    paths = {number: folder.path / RANK_LOG.format(number) for number in _ranks(run, rank)}
    return [
        {"rank": number, "log": path.read_text(errors="replace") if path.exists() else ""}
        for number, path in paths.items()
    ]


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A line of a file here whose end had not arrived."""

    path: Path
    offset: int
    """Of its first byte."""

    def now(self) -> bytes:
        """The line as far as it is here, with its end if that has arrived."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.readline()

    def whole(self, rest: str) -> str:
        """The line whose rest has just been told; from the file, as a character of it may have come in two parts."""
        text = self.now()
        redrawn = b"\r" in text and not text.endswith(b"\n")
        return rest if redrawn else text.decode(errors="replace")


class Printer:
    """Prints log lines on stdout as they arrive, each with its rank where there are several."""

    def __init__(self, app: App, run: Run, rank: int | None, *, silent: bool) -> None:
        self._app = app
        self._rank = rank
        self._silent = silent
        self._several = run.world_size > 1 and rank is None
        self._run = run
        self._begun: dict[int, _Begun] = {}
        """The last line of a rank, where it has no end yet."""

    @contextmanager
    def going_on_from(self, folder: RunFolder, *, over: bool) -> Iterator[None]:
        """Print what had arrived before, rank by rank, then what arrives; a line that comes in parts only once.

        With `over` nothing arrives.
        """
        try:
            for number in _ranks(self._run, self._rank):
                self._show(number, folder.path / RANK_LOG.format(number))
                if over:
                    self._show_begun(number)
            yield
        finally:
            for number in sorted(self._begun):
                self._show_begun(number)

    def _show(self, rank: int, path: Path) -> None:
        """Print a log's lines that have an end, and keep in mind where another begins."""
        data = path.read_bytes() if path.exists() else b""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self.log(rank, "", line.decode(errors="replace"))
        if rest:
            self._begun[rank] = _Begun(path=path, offset=len(data) - len(rest))

    def _show_begun(self, rank: int) -> None:
        if begun := self._begun.pop(rank, None):
            self.log(rank, "", begun.now().decode(errors="replace"))

    def log(self, rank: int | None, node: str, line: str) -> None:  # noqa: ARG002 - an observer's method
        """One line of a rank's log; the launcher's own lines are not shown."""
        if self._silent or rank is None or self._rank not in (None, rank):
            return
        if begun := self._begun.pop(rank, None):
            line = begun.whole(line)
        text = clean(line, limit=len(line) + 1)
        self._app.output.text(f"[rank {rank}] {text}" if self._several else text)

    def node(self, name: str, text: str) -> None:
        """What a node is doing."""
        self._app.output.detail(f"{name}: {text}")

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Metrics are not logs."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._app.output.say(text)
