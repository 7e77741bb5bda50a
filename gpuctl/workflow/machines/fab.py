"""`fab`: the tasks of the user's fabfile, listed and run on the cluster's nodes."""

import io
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TextIO

from gpuctl.app import App
from gpuctl.text import clean, plural
from gpuctl.workflow.machines.access import chosen, with_ssh
from gpuctl.workflow.machines.thread_output import thread_output

if TYPE_CHECKING:
    from inventories.machine import Machine
    from remote.fabfile import Fabfile, Listed, Step
    from remote.transport.connection_group import PinnedGroup
    from remote.transport.pinned_connection import PinnedConnection

Stream = Literal["stdout", "stderr"]
ShowLine = Callable[[Stream, str], None]


def show_tasks(app: App) -> int:
    """List the tasks."""
    fabfile = load_fabfile(app, Path.cwd())
    tasks = fabfile.tasks()
    if app.options.json:
        app.output.json({"fabfile": fabfile.path, "tasks": tasks})
        return 0
    width = max(len(task.name) for task in tasks)
    app.output.say(f"the tasks of {fabfile.path}:")
    for task in tasks:
        app.output.text(f"{task.name:<{width}}  {task.help}".rstrip())
    return 0


def run_tasks(app: App, words: Sequence[str], rank: str | None) -> int:
    """Run the tasks of a line, one after the other, each on all nodes at once; the exit status.

    After one that failed on a node none is begun. Raises BadFabfile for a task or an argument that is not there.
    """
    fabfile = load_fabfile(app, Path.cwd())
    steps, helped = fabfile.parse(words)
    if helped is not None:
        return _help(app, next(task for task in fabfile.tasks() if helped in (task.name, *task.aliases)))
    folder = app.store.cluster(app.options.cluster)
    machines = with_ssh(chosen(app, rank))
    from remote.transport.connection_group import PinnedGroup

    for step in steps:
        if step.hosts:
            app.output.say(
                f"note: {step.name} names hosts of its own; gpuctl fab runs it on the cluster's nodes"
            )
    show, several = _Show(app), len(machines) > 1
    work = Work(
        app=app,
        fabfile=fabfile,
        out=app.output.stderr if app.options.json else app.output.stdout,
        show=None if app.options.json else lambda machine: show.of(machine if several else None),
    )
    documents: list[dict[str, Any]] = []
    failed = ""
    with work.printing(), PinnedGroup(machines, folder) as group:
        for step in steps:
            if failed:
                documents.append({"task": step.name, "nodes": [], "not_run": f"{failed} failed"})
                app.output.say(f"{step.name}: not run, as {failed} failed")
                continue
            nodes = _on_all(app, work, step, group) if step.on_machines else [work.here(step)]
            documents.append({"task": step.name, "nodes": nodes, "not_run": None})
            failed = step.name if any(node["status"] != "done" for node in nodes) else ""
    if app.options.json:
        app.output.json({"fabfile": fabfile.path, "tasks": documents})
    return 1 if failed else 0


def load_fabfile(app: App, folder: Path) -> "Fabfile":
    """Load the fabfile of a folder or the nearest above it. Raises BadFabfile."""
    from remote import fabfile

    with _printing(app, app.output.stderr):  # what the file prints is no result
        return fabfile.load(folder)


@contextmanager
def _printing(app: App, out: TextIO) -> Iterator[None]:
    """Take what is printed here: by this thread, and in a command's process also by those that tasks start."""
    err = app.output.stderr
    with ExitStack() as taken:
        if app.output.owns_process:
            taken.enter_context(redirect_stdout(out))
            taken.enter_context(redirect_stderr(err))
        taken.enter_context(thread_output(out, err))
        yield


def _help(app: App, task: "Listed") -> int:
    """Show a task's help."""
    if app.options.json:
        app.output.json(task)
        return 0
    width = max((len(written) for written, _ in task.arguments), default=0)
    app.output.text(f"gpuctl fab {task.name}{' [--ARG ...]' if task.arguments else ''}")
    app.output.text(task.help)
    for written, told in task.arguments:
        app.output.text(f"  {written:<{width}}  {told}".rstrip())
    return 0


class Lines(io.TextIOBase):
    """A stream that passes on whole lines."""

    encoding = "utf-8"

    def __init__(self, show: "ShowLine | None", stream: Stream) -> None:
        super().__init__()
        self._show, self._stream = show, stream
        self._rest = ""
        self._lock = Lock()
        self.kept: list[str] = []
        """All of it, where it is not shown."""

    def __copy__(self) -> "Lines":
        """The same one: Fabric copies what is among its settings."""
        return self

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take some text."""
        with self._lock:
            if self._show is None:
                self.kept.append(text)
                return len(text)
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._show(self._stream, line)
        return len(text)

    def end(self) -> None:
        """Show the last line, where it has no end."""
        with self._lock:
            if self._rest and self._show is not None:
                self._show(self._stream, self._rest)
            self._rest = ""


@dataclass(frozen=True)
class _Show:
    """Shows lines of several threads, as `gpuctl exec` does."""

    app: App
    lock: Lock = field(default_factory=Lock)

    def of(self, machine: "Machine | None") -> "ShowLine":
        """What shows the lines of a machine behind its name, or of the only one."""
        return partial(self._line, f"{machine.name}: " if machine else "")

    def _line(self, prefix: str, stream: Stream, line: str) -> None:
        text, output = line.rstrip("\r"), self.app.output
        if stream == "stderr" or output.stdout.isatty():
            text = clean(text, sys.maxsize)
        with self.lock:
            (output.text if stream == "stdout" else output.say)(prefix + text)


class Work:
    """What is done for one line of tasks."""

    def __init__(
        self,
        *,
        app: App,
        fabfile: "Fabfile",
        out: TextIO,
        show: "Callable[[Machine], ShowLine] | None",
        timeout_s: float | None = None,
    ) -> None:
        """`out`: where what is printed here goes. `show`: gets a machine's lines; `None`: they are in its document.

        `timeout_s`: for each command of a task on a machine; `None`: a person waits for it.
        """
        self._app = app
        self._fabfile = fabfile
        self._show = show
        self._timeout_s = timeout_s
        self._out = out

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Take what tasks print."""
        with _printing(self._app, self._out):
            yield

    def here(self, step: "Step") -> dict[str, Any]:
        """Run a task on this computer; its document."""
        from remote.fabfile import Streams

        value, error = None, None
        try:
            # Commands are read by threads of their own, so they are told where it goes.
            value = self._fabfile.run_here(step, Streams(out=self._out, err=self._app.output.stderr))
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - somebody else's code, and its error is told
            error = self._why(raised, None)
        if error is not None:
            self._app.output.error(f"{step.name} failed: {error}")
        return _document(None, value, error, {})

    def on_one(self, step: "Step", box: "PinnedConnection") -> dict[str, Any]:
        """Run a task on a machine; its document."""
        from remote.fabfile import Streams, lost

        show = None if self._show is None else self._show(box.machine)
        out, err = Lines(show, "stdout"), Lines(show, "stderr")
        value, error, unknown = None, None, False
        try:
            # What a task prints itself goes where its commands' output goes.
            with thread_output(out, err):
                value = self._fabfile.run(step, box, Streams(out=out, err=err), timeout_s=self._timeout_s)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - somebody else's code, and its error is told
            error, unknown = self._why(raised, box), lost(raised, box)
        finally:
            out.end()
            err.end()
        said = {"stdout": "".join(out.kept), "stderr": "".join(err.kept)}
        return _document(box.machine, value, error, said, unknown=unknown)

    def _why(self, raised: BaseException, box: "PinnedConnection | None") -> str | None:
        """Why a task failed, in a sentence; `None`: it ended itself well."""
        from remote.fabfile import failure

        why = failure(raised, self._fabfile.path, box)
        if why is not None:
            self._app.output.detail("".join(traceback.format_exception(raised)).rstrip())
        return why


def _on_all(app: App, work: Work, step: "Step", group: "PinnedGroup") -> list[dict[str, Any]]:
    """Run a task on every node; a document of each."""
    done = group.map(lambda box: work.on_one(step, box))
    documents = [done[box] for box in group]
    failed = [document for document in documents if document["status"] != "done"]
    for document in failed:
        app.output.error(f"{document['node']}: {step.name} failed: {document['error']}")
    if len(documents) > 1:
        ended = f"done on {len(documents) - len(failed)} of {plural(len(documents), 'node')}"
        names = ", ".join(document["node"] for document in failed)
        app.output.say(f"{step.name}: {ended}{'; failed on ' + names if failed else ''}")
    return documents


def _document(
    machine: "Machine | None",
    value: object,
    error: str | None,
    said: Mapping[str, str],
    *,
    unknown: bool = False,
) -> dict[str, Any]:
    """What came of a task on one node; with `None`: on this computer. `unknown`: nobody knows how it ended."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        value = None
    return {
        "node": machine.name if machine else None,
        "rank": machine.rank if machine else None,
        "status": "done" if error is None else "unknown" if unknown else "failed",
        "error": error,
        "value": value,
        "stdout": said.get("stdout", ""),
        "stderr": said.get("stderr", ""),
    }
