"""Runs that are not known to be over: asked of their nodes, and brought here where they have ended meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuctl.workflow.runs.collect import attach, final_result, machines_of
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError

if TYPE_CHECKING:
    from gpuctl.app import App
    from inventories.runs.run import Run

ASK_TIMEOUT_S = 5.0
"""For a connection: who looks does not want to wait for a machine that is off."""


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that may be at work."""

    folder: RunFolder
    going_on: bool
    """Whether a node says so."""
    unheard: tuple[str, ...] = ()
    """Its nodes that have not said how it ended there, where none says that it goes on."""

    @property
    def id(self) -> str:
        """The run's."""
        return self.folder.id


def how_it_stands(run: OpenRun) -> str:
    """A sentence."""
    if run.going_on:
        return f"The run {run.id} is active."
    return f"The run {run.id} may still be active{' on ' * bool(run.unheard)}{', '.join(run.unheard)}."


def open_runs(app: "App", cluster: str | None) -> list[OpenRun]:
    """The runs of a cluster, or of all, that are not over, oldest first.

    Where nothing is known of a run's end its nodes are asked, and if it has ended, its results are brought here.
    A run whose record can't be read is told, and left out. One that lost a node is not asked about again.
    """
    found = []
    for folder in app.store.runs(cluster):
        try:
            one = None if final_result(folder) is not None else _look(app, folder)
        except InventoryError as error:
            app.output.say(f"note: whether run {folder.id} goes on is not known: {error}")
            continue
        if one is not None:
            found.append(one)
    return found


def _look(app: "App", folder: RunFolder) -> OpenRun | None:
    """How a run without a final result is getting on; `None` where it has ended, and all of it is here now."""
    from remote.errors import RemoteError
    from remote.runs.run_files import read_node_records

    run, result = folder.load_run(), folder.load_result()
    said = {record.node for record in read_node_records(folder, run.nodes)}
    there = machines_of(app.store, run)
    # A pod that is gone, or has another in its place, runs nothing.
    unheard = tuple(
        part.name
        for part in run.nodes
        if part.name not in said and (part.machine_id is None or part.name in there)
    )
    if result is not None and result.status != "running":
        return OpenRun(folder=folder, going_on=False, unheard=unheard) if unheard else None
    app.output.detail(f"asking the nodes of run {run.run}")
    going_on, unheard = _ask(app, run, unheard)
    if going_on or unheard:
        return OpenRun(folder=folder, going_on=going_on, unheard=unheard)
    try:
        attach(app.store, folder, _Notes(app, run.run), wait=False)
    except (RemoteError, OSError) as error:
        app.output.say(f"run {run.run} has ended, and could not be brought here: {error}")
    if (final := final_result(folder)) is None:
        return OpenRun(folder=folder, going_on=False, unheard=unheard)
    app.output.say(f"run {run.run} has ended: {final.status}")
    return None


class _Notes:
    """Prints the notes on a run that no command is about, behind its name; its progress and its logs are no news."""

    def __init__(self, app: "App", run: str) -> None:
        self._app = app
        self._run = run

    def node(self, name: str, text: str) -> None:
        """Print nothing."""

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Print nothing."""

    def log(self, rank: int | None, node: str, line: str) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Print the note with the run's name."""
        self._app.output.say(f"run {self._run}: {text}")


def _ask(app: "App", run: "Run", names: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Whether one of the nodes says that the run goes on; if none does, those that don't say that it has ended.

    These could not be asked, or know nothing of the run: it is just being launched.
    """
    from remote.fanout import fan_out
    from remote.runs.node_state import is_running
    from remote.sessions.connect import connect

    machines, cluster = machines_of(app.store, run), app.store.cluster(run.cluster)
    parts = {part.name: part for part in run.nodes if part.name in names and part.name in machines}

    def ask(name: str) -> bool | None:
        with connect(machines[name], cluster, timeout_s=ASK_TIMEOUT_S) as node:
            return is_running(node, parts[name])

    outcomes = fan_out(ask, {name: name for name in parts})
    if any(outcome.value for outcome in outcomes):
        return True, ()
    return False, tuple(outcome.node for outcome in outcomes if outcome.value is not False)
