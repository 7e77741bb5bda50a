"""`setup` of a spec: its lines run on each machine that has not run them, once, before any run.

The journal has the cluster's lines, and which machines have run them: another `up` without the spec, which adds or
replaces a machine, runs them there, too. A machine runs them again when they have changed, or have not ended well.
Each machine's output is in `setup-NAME.log` of the cluster's folder.
"""

import os
import shlex
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuctl.app import App
from gpuctl.command_results.clusters import SetUp
from gpuctl.text import clean, dollars, for_cluster
from gpuctl.workflow.machines.setup_state import SET_UP, Setup, identity, named_machines, not_set_up
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.specs.setup_steps import SetupStep, digest
from inventories.text import plural

if TYPE_CHECKING:
    from remote.sessions.session import Node

COMMAND_TIMEOUT_S = 3600.0
"""For one shell line, or one command of a task."""
LINES_SHOWN = 5
LINE_SHOWN = 300


def plan_setup(
    app: App,
    folder: ClusterFolder,
    steps: Sequence[SetupStep],
    new: Sequence[str],
    existing: Sequence[Machine],
) -> Setup:
    """Return the setup to run: on the machines that are `new`, by name, and on `existing` ones that lack it.

    Raises BadFabfile for an unknown task.
    """
    names = (*new, *(machine.name for machine in not_set_up(folder, existing, steps))) if steps else ()
    setup = Setup(steps=tuple(steps), machines=names)
    return _with_tasks(app, setup) if names else setup


def _with_tasks(app: App, setup: Setup) -> Setup:
    """Return the setup with its steps' tasks."""
    steps = [step for step in setup.steps if step.kind == "fab"]
    if not steps or setup.fabfile is not None:
        return setup
    from gpuctl.workflow.machines.fab import load_fabfile

    folder = steps[0].folder
    fabfile = load_fabfile(app, Path(folder) if folder else Path.cwd())
    tasks = {step: fabfile.parse(shlex.split(step.text))[0] for step in steps}
    return replace(setup, tasks=tasks, fabfile=fabfile)


def set_up(app: App, folder: ClusterFolder, machines: Sequence[Machine], setup: Setup) -> list[SetUp]:
    """Run the missing steps, each on all machines at once.

    A machine runs no step after a failed one.
    """
    lacking = not_set_up(folder, machines, setup.steps)
    if not lacking:
        return []
    work = _Work(app, folder, _with_tasks(app, setup), lacking)
    try:
        for number, step in enumerate(setup.steps, 1):
            if work.left:
                app.output.say(
                    f"setup {number} of {len(setup.steps)} on {named_machines([*work.left])}: {step}"
                )
                work.run(step)
    finally:
        work.close()
    if work.left:
        done = [identity(machine) for machine in work.left.values()]
        folder.journal.append(SET_UP, machines=done, digest=digest(setup.steps))
        logs = folder.path / "setup-*.log"
        app.output.say(f"setup: done on {plural(len(done), 'machine')}; the output is in {logs}")
    return [work.ended(machine) for machine in lacking]


def setup_hint(inventory: Inventory, failed: Sequence[SetUp], *, billed: bool) -> str:
    """Return the state and price of the machines whose setup failed, and the commands to type next."""
    count, names = len(inventory.machines), ", ".join(result.node for result in failed)
    stay = ""
    if billed:
        usd = inventory.hourly_usd
        price = "at an unknown price" if usd is None else f"for {dollars(usd)} an hour"
        stay = f"{'The machine is' if count == 1 else f'All {count} machines are'} billed, {price}. "
    again = (
        f"`gpuctl up` runs the setup on {names} again, from its first line; `gpuctl up -f FILE` as the file has it "
        "now; `gpuctl down` removes the cluster."
    )
    return for_cluster(stay + again, inventory.cluster)


class _Log:
    """A machine's log file: each line that is run, and its output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(handle, "w", encoding="utf-8", errors="replace", buffering=1)
        self._lock = threading.Lock()
        self._end: deque[str] = deque(maxlen=LINES_SHOWN)

    @property
    def end(self) -> tuple[str, ...]:
        """Return the last lines since the last `begin`, without control characters for a terminal."""
        return tuple(clean(line, LINE_SHOWN) for line in self._end)

    def begin(self, step: SetupStep) -> None:
        """Begin with another line of the setup."""
        self.write(f"$ {step.text if step.kind == 'run' else step}")
        self._end.clear()

    def write(self, line: str) -> None:
        """Add a line."""
        with self._lock:
            self._file.write(f"{line}\n")
            self._end.append(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Work:
    """A pass over the machines."""

    def __init__(self, app: App, folder: ClusterFolder, setup: Setup, machines: Sequence[Machine]) -> None:
        self._app = app
        self._folder = folder
        self._setup = setup
        self._logs = {machine.name: _Log(folder.path / f"setup-{machine.name}.log") for machine in machines}
        self._failed: dict[str, SetUp] = {}
        self.left = {machine.name: machine for machine in machines}
        """The machines on which nothing has failed yet."""
        fab = [step for step in setup.steps if step.kind == "fab"][:1]
        for machine in machines:
            for step in fab if machine.transport != "ssh" else ():
                error = f"{machine.name} is reached by {machine.transport}, and Fabric needs SSH: write shell lines."
                self._fail(machine.name, step, "failed", error)

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def ended(self, machine: Machine) -> SetUp:
        """Return the result of the setup on a machine."""
        log = self._logs[machine.name].path
        done = SetUp(node=machine.name, status="done", line=None, error=None, log=log, output=())
        return self._failed.get(machine.name, done)

    def run(self, step: SetupStep) -> None:
        """Run one step on all machines that are left."""
        for name in self.left:
            self._logs[name].begin(step)
        if step.kind == "run":
            self._run_line(step)
        else:
            self._run_tasks(step)

    def _fail(self, name: str, step: SetupStep, status: Literal["failed", "unknown"], error: str) -> None:
        del self.left[name]
        log = self._logs[name]
        self._failed[name] = SetUp(
            node=name, status=status, line=str(step), error=error, log=log.path, output=log.end
        )
        self._app.output.say(f"{name}: setup: {error}")

    def _run_line(self, step: SetupStep) -> None:
        from remote.errors import ConnectionLost
        from remote.sessions.connect import ask_each

        def on_machine(node: "Node") -> int:
            log = self._logs[node.name]
            return node.run(
                step.text,
                lambda _, line: log.write(line.decode(errors="replace")),
                timeout_s=COMMAND_TIMEOUT_S,
            ).exit_code

        for outcome in ask_each(on_machine, self.left.values(), self._folder):
            if isinstance(outcome.error, ConnectionLost):
                self._fail(
                    outcome.node, step, "unknown", f"{outcome.error} It may have ended well, or go on there."
                )
            elif outcome.error is not None:
                self._fail(outcome.node, step, "failed", str(outcome.error))
            elif outcome.value != 0:
                code = outcome.value or 0
                self._fail(
                    outcome.node,
                    step,
                    "failed",
                    "a signal ended it." if code < 0 else f"it exited with status {code}.",
                )

    def _run_tasks(self, step: SetupStep) -> None:
        from gpuctl.workflow.machines.fab import Work
        from remote.transport.fabric_connection import PinnedGroup

        assert self._setup.fabfile is not None
        work = Work(
            app=self._app,
            fabfile=self._setup.fabfile,
            out=self._app.output.stderr,
            show=lambda machine: lambda _, line: self._logs[machine.name].write(line),
            timeout_s=COMMAND_TIMEOUT_S,
        )
        with work.printing():
            for task in self._setup.tasks[step]:
                if not self.left:
                    return
                if not task.on_machines:
                    result = work.run_local(task)
                    for name in [*self.left] if result.status != "done" else []:
                        self._fail(name, step, "failed", f"{task.name}, on this computer: {result.error}")
                    continue
                with PinnedGroup([*self.left.values()], self._folder) as group:
                    documents = group.map(lambda box, task=task: work.run_on(task, box)).values()
                for result in documents:
                    if result.status != "done":
                        self._fail(str(result.node), step, result.status, result.error)
