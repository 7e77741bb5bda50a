"""`logs`: what the ranks wrote, brought up to date from the nodes and shown."""

from collections.abc import Mapping
from typing import Any

from gpuctl.errors import Usage
from gpuctl.options import App
from gpuctl.text import clean
from gpuctl.workflow.collect import attach
from gpuctl.workflow.runs import latest
from inventories.run import Result, Run
from inventories.store import RunFolder


def logs(app: App, named: str | None, *, follow: bool, rank: int | None) -> int:
    """Print the logs; with `follow` until the run is over. Returns the exit status."""
    folder = latest(app, named)
    run = folder.load_run()
    if rank is not None and not 0 <= rank < run.world_size:
        raise Usage(f"Run {run.run} has no rank {rank}: it has ranks 0 to {run.world_size - 1}.")
    if app.options.json:
        result = attach(app.store, folder, _Printer(app, run, rank, silent=True), wait=follow)
        app.output.json({"run": run.run, "status": result.status, "ranks": _texts(folder, run, rank)})
    else:
        printer = _Printer(app, run, rank, silent=False)
        printer.show_what_is_here(folder)
        try:
            result = attach(app.store, folder, printer, wait=follow)
        except KeyboardInterrupt:
            app.output.say(f"run {run.run} goes on; gpuctl stop {run.run} ends it")
            return 130
        if follow:
            _tell_the_end(app, result)
    return 1 if follow and result.status != "succeeded" else 0


def _tell_the_end(app: App, result: Result) -> None:
    """How the run that was followed ended, and what failed first."""
    error = result.first_error
    if error is not None:
        who = f"rank {error.rank} on {error.node}" if error.rank is not None else error.node
        app.output.say(f"{who} failed first: {clean(error.message)}")
    app.output.say(f"run {result.run}  {result.status}")


def _ranks(run: Run, rank: int | None) -> list[int]:
    return list(range(run.world_size)) if rank is None else [rank]


def _texts(folder: RunFolder, run: Run, rank: int | None) -> list[dict[str, Any]]:
    paths = {number: folder.logs_path / f"rank-{number}.log" for number in _ranks(run, rank)}
    return [
        {"rank": number, "log": path.read_text(errors="replace") if path.exists() else ""}
        for number, path in paths.items()
    ]


class _Printer:
    """Prints log lines on stdout as they arrive, each with its rank where there are several."""

    def __init__(self, app: App, run: Run, rank: int | None, *, silent: bool) -> None:
        self._app = app
        self._rank = rank
        self._silent = silent
        self._several = run.world_size > 1 and rank is None
        self._run = run

    def show_what_is_here(self, folder: RunFolder) -> None:
        """Print what had arrived before, rank by rank."""
        for number in _ranks(self._run, self._rank):
            path = folder.logs_path / f"rank-{number}.log"
            if path.exists():
                for line in path.read_text(errors="replace").removesuffix("\n").split("\n"):
                    self.log(number, "", line)

    def log(self, rank: int | None, node: str, line: str) -> None:  # noqa: ARG002 - an observer's method
        """One line of a rank's log; the launcher's own lines are not shown."""
        if self._silent or rank is None or self._rank not in (None, rank):
            return
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
