"""`fab`: the tasks of the user's fabfile, listed and run on the cluster's nodes."""

import io
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from gpuctl.app import App
from gpuctl.command_results.nodes import TaskOnNode, TaskResult
from gpuctl.output import NodeLines
from gpuctl.workflow.machines.access import chosen, with_ssh
from inventories.text import plural

if TYPE_CHECKING:
    from inventories.machine import Machine
    from remote.fabfile import Fabfile, Listed, Step
    from remote.transport.fabric_connection import PinnedConnection, PinnedGroup

Stream = Literal["stdout", "stderr"]
_Text: TypeAlias = TextIO | io.TextIOBase
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
    """Run the tasks of a line in order, each on all nodes at once; return the exit status.

    A failed task is the last. Raises BadFabfile for an unknown task or argument.
    """
    fabfile = load_fabfile(app, Path.cwd())
    steps, helped = fabfile.parse(words)
    if helped is not None:
        return _help(app, next(task for task in fabfile.tasks() if helped in (task.name, *task.aliases)))
    folder = app.store.cluster(app.options.cluster)
    machines = with_ssh(chosen(app, rank))
    from remote.transport.fabric_connection import PinnedGroup

    for step in steps:
        if step.hosts:
            app.output.say(
                f"note: {step.name} names hosts of its own; gpuctl fab runs it on the cluster's nodes"
            )
    lines = NodeLines(app.output, several=len(machines) > 1)
    work = Work(
        app=app,
        fabfile=fabfile,
        out=app.output.stderr if app.options.json else app.output.stdout,
        show=None if app.options.json else lambda machine: partial(lines.show, machine.name),
    )
    documents: list[TaskResult] = []
    failed = ""
    with work.printing(), PinnedGroup(machines, folder) as group:
        for step in steps:
            if failed:
                documents.append(TaskResult(task=step.name, not_run=f"{failed} failed"))
                app.output.say(f"{step.name}: not run, as {failed} failed")
                continue
            nodes = _on_all(app, work, step, group) if step.on_machines else [work.run_local(step)]
            documents.append(TaskResult(task=step.name, nodes=tuple(nodes)))
            failed = step.name if any(node.status != "done" for node in nodes) else ""
    if app.options.json:
        app.output.json({"fabfile": fabfile.path, "tasks": documents})
    return 1 if failed else 0


def load_fabfile(app: App, folder: Path) -> "Fabfile":
    """Load the fabfile of a folder or the nearest above it. Raises BadFabfile."""
    from remote import fabfile

    with _printing(app, app.output.stderr):  # a fabfile's own output is no result
        return fabfile.load(folder)


@contextmanager
def _printing(app: App, out: TextIO) -> Iterator[None]:
    """Redirect the output of this thread, and in a command's process also of threads that tasks start."""
    err = app.output.stderr
    with ExitStack() as redirections:
        if app.output.owns_process:
            redirections.enter_context(redirect_stdout(out))
            redirections.enter_context(redirect_stderr(err))
        redirections.enter_context(thread_output(out, err))
        yield


def _help(app: App, task: "Listed") -> int:
    """Show a task's help."""
    if app.options.json:
        app.output.json(task)
        return 0
    width = max((len(written) for written, _ in task.arguments), default=0)
    app.output.text(f"gpuctl fab {task.name}{' [--ARG ...]' if task.arguments else ''}")
    app.output.text(task.help)
    for written, text in task.arguments:
        app.output.text(f"  {written:<{width}}  {text}".rstrip())
    return 0


class Lines(io.TextIOBase):
    """A stream that passes on whole lines."""

    encoding = "utf-8"

    def __init__(self, show: "ShowLine | None", stream: Stream) -> None:
        super().__init__()
        self._show, self._stream = show, stream
        self._rest = ""
        self._lock = Lock()
        self.texts: list[str] = []
        """The whole text, without a `show`."""

    def __copy__(self) -> "Lines":
        """Return the same object: Fabric copies its settings."""
        return self

    def writable(self) -> bool:
        """Return `True`."""
        return True

    def write(self, text: str) -> int:
        """Take some text."""
        with self._lock:
            if self._show is None:
                self.texts.append(text)
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


class Work:
    """The tasks of a line, run on this computer or on nodes."""

    def __init__(
        self,
        *,
        app: App,
        fabfile: "Fabfile",
        out: TextIO,
        show: "Callable[[Machine], ShowLine] | None",
        timeout_s: float | None = None,
    ) -> None:
        """Save the parameters. `out`: stream for output of this computer.

        `show`: function for a machine's lines; `None`: only its document gets them. `timeout_s`: limit for each
        command of a task on a machine; `None`: no limit.
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

    def run_local(self, step: "Step") -> TaskOnNode:
        """Run a task on this computer."""
        from remote.fabfile import Streams

        value, error = None, None
        try:
            # Threads of their own read the output of commands, so `thread_output` does not reach it.
            value = self._fabfile.run_here(step, Streams(out=self._out, err=self._app.output.stderr))
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - somebody else's code, and its error is told
            error = self._why(raised, None)
        if error is not None:
            self._app.output.error(f"{step.name} failed: {error}")
        status: Literal["done", "failed"] = "done" if error is None else "failed"
        return TaskOnNode(node=None, rank=None, status=status, error=error, value=_for_json(value))

    def run_on(self, step: "Step", box: "PinnedConnection") -> TaskOnNode:
        """Run a task on a machine."""
        from remote.fabfile import Streams, lost

        show = None if self._show is None else self._show(box.machine)
        out, err = Lines(show, "stdout"), Lines(show, "stderr")
        value, error, unknown = None, None, False
        try:
            # A task's own prints go to the stream of its commands' output.
            with thread_output(out, err):
                value = self._fabfile.run(step, box, Streams(out=out, err=err), timeout_s=self._timeout_s)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - somebody else's code, and its error is told
            error, unknown = self._why(raised, box), lost(raised, box)
        finally:
            out.end()
            err.end()
        return TaskOnNode(
            node=box.machine.name,
            rank=box.machine.rank,
            status="done" if error is None else "unknown" if unknown else "failed",
            error=error,
            value=_for_json(value),
            stdout="".join(out.texts),
            stderr="".join(err.texts),
        )

    def _why(self, raised: BaseException, box: "PinnedConnection | None") -> str | None:
        """Return why a task failed, in a sentence. `None`: it ended well."""
        from remote.fabfile import failure

        why = failure(raised, self._fabfile.path, box)
        if why is not None:
            self._app.output.detail("".join(traceback.format_exception(raised)).rstrip())
        return why


def _on_all(app: App, work: Work, step: "Step", group: "PinnedGroup") -> list[TaskOnNode]:
    """Run a task on every node."""
    done = group.map(lambda box: work.run_on(step, box))
    documents = [done[box] for box in group]
    failed = [document for document in documents if document.status != "done"]
    for document in failed:
        app.output.error(f"{document.node}: {step.name} failed: {document.error}")
    if len(documents) > 1:
        ended = f"done on {len(documents) - len(failed)} of {plural(len(documents), 'node')}"
        names = ", ".join(str(document.node) for document in failed)
        app.output.say(f"{step.name}: {ended}{'; failed on ' + names if failed else ''}")
    return documents


def _for_json(value: object) -> object:
    """Return the value, or `None` if JSON can't hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


class _StandIn:
    """In place of `sys.stdout` or `sys.stderr`: each thread finds its own stream behind it, or the usual one.

    All redirected threads share one: the first thread installs it, and the last restores the stream of before.
    """

    def __init__(self, name: Stream) -> None:
        self._name = name
        self._usual: TextIO | None = None
        self._nowhere = io.StringIO()
        self._of: dict[int, _Text] = {}
        self._users = 0
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        usual = self._nowhere if self._usual is None else self._usual
        return getattr(self._of.get(get_ident(), usual), name)

    @contextmanager
    def to(self, stream: _Text) -> Iterator[None]:
        """Send what this thread prints to a stream."""
        thread = get_ident()
        with self._lock:
            now = getattr(sys, self._name)
            if self._users == 0 and now is not self:
                self._usual = now
                setattr(sys, self._name, self)
            self._users += 1
        before = self._of.get(thread)
        self._of[thread] = stream
        try:
            yield
        finally:
            if before is None:
                del self._of[thread]
            else:
                self._of[thread] = before
            with self._lock:
                self._users -= 1
                # Another stream installed since is not ours to remove.
                if self._users == 0 and getattr(sys, self._name) is self:
                    setattr(sys, self._name, self._usual)


_STDOUT, _STDERR = _StandIn("stdout"), _StandIn("stderr")


@contextmanager
def thread_output(out: _Text, err: _Text) -> Iterator[None]:
    """Send what this thread prints to these streams."""
    with _STDOUT.to(out), _STDERR.to(err):
        yield
