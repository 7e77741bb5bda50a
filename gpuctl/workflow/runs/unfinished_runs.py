"""Runs that are not known to have ended: ask their nodes, and download the results of ended ones."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuctl.command_results.runs import RunInfo
from gpuctl.errors import Usage
from gpuctl.run_results.saved_results import changes
from gpuctl.workflow.runs.collect import attach
from gpuctl.workflow.runs.queued_runs import take_in_started
from gpuctl.workflow.runs.runs import final_result, machines_of
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.result import RunStatus
from remote.runs.observer import Observer

if TYPE_CHECKING:
    from gpuctl.app import App
    from inventories.runs.run import Run

ASK_TIMEOUT_S = 5.0
"""For a connection: who looks does not want to wait for a machine that is off."""


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that may be active."""

    folder: RunFolder
    active: bool
    """True: a node reports the run as active."""
    silent: tuple[str, ...] = ()
    """Its nodes that have not reported the end there, if no node reports it as active."""

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.folder.id


@dataclass(frozen=True, kw_only=True)
class ClusterRuns:
    """The runs of a cluster at one moment."""

    unfinished: Sequence[OpenRun] = ()
    """Runs that are not known to have ended, as their nodes reported."""
    known: frozenset[str] = frozenset()
    """Ids of all runs that had begun."""

    def refuse_if_active(self, now: Sequence[RunFolder]) -> None:
        """Raise Usage if a run is active. `now`: the cluster's runs, of which some may have begun since."""
        active = [run.id for run in self.unfinished if run.active]
        active += [folder.id for folder in now if folder.id not in self.known]
        if active:
            raise Usage(
                f"The run {active[0]} is active. No machine was ended. `gpuctl stop {active[0]}` stops it."
            )


def runs_of_cluster(app: "App", cluster: str) -> ClusterRuns:
    """Ask the nodes of a cluster's unfinished runs."""
    known = frozenset(folder.id for folder in app.store.runs(cluster))
    return ClusterRuns(unfinished=open_runs(app, cluster), known=known)


def state_sentence(run: OpenRun) -> str:
    """Return a sentence on the run's state."""
    if run.active:
        return f"The run {run.id} is active."
    return f"The run {run.id} may still be active{' on ' * bool(run.silent)}{', '.join(run.silent)}."


def open_runs(app: "App", cluster: str | None) -> list[OpenRun]:
    """Return the unfinished runs of a cluster, or of all, oldest first.

    The nodes of a run without a result are asked, and the results of an ended run are downloaded. A run with an
    unreadable record is reported, and left out. A run that lost a node is not asked about again.
    """
    take_in_started(app, cluster)
    runs = []
    for folder in app.store.runs(cluster):
        try:
            run = None if final_result(folder) is not None else _state_of(app, folder)
        except InventoryError as error:
            app.output.say(f"note: whether run {folder.id} goes on is not known: {error}")
            continue
        if run is not None:
            runs.append(run)
    return runs


def _state_of(app: "App", folder: RunFolder) -> OpenRun | None:
    """Return the state of a run without a final result. `None`: it has ended, and its results are here now."""
    from remote.errors import RemoteError
    from remote.runs.run_files import read_node_records

    run, result = folder.load_run(), folder.load_result()
    ended = {record.node for record in read_node_records(folder, run.nodes)}
    machines = machines_of(app.store, run)
    # A pod that is gone, or has another in its place, runs nothing.
    silent = tuple(
        part.name
        for part in run.nodes
        if part.name not in ended and (part.machine_id is None or part.name in machines)
    )
    if result is not None and result.status != "running":
        return OpenRun(folder=folder, active=False, silent=silent) if silent else None
    app.output.detail(f"asking the nodes of run {run.run}")
    active, silent = _ask(app, run, silent)
    if active or silent:
        return OpenRun(folder=folder, active=active, silent=silent)
    try:
        attach(app.store, folder, _Notes(app, run.run), wait=False)
    except (RemoteError, OSError) as error:
        app.output.say(f"run {run.run} has ended, and could not be brought here: {error}")
    if (final := final_result(folder)) is None:
        return OpenRun(folder=folder, active=False, silent=silent)
    app.output.say(f"run {run.run} has ended: {final.status}")
    return None


class _Notes(Observer):
    """Prints the notes on a run that no command is about, behind its name; its progress and its logs are no news."""

    def __init__(self, app: "App", run: str) -> None:
        self._app = app
        self._run = run

    def note(self, text: str) -> None:
        """Print the note with the run's name."""
        self._app.output.say(f"run {self._run}: {text}")


def _ask(app: "App", run: "Run", names: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Return whether a node reports the run as active; if no node does, the nodes that do not report its end.

    Such a node did not answer, or does not know the run because its launch is in progress.
    """
    from remote.runs.node_state import is_running
    from remote.sessions.connect import ask_each

    machines, cluster = machines_of(app.store, run), app.store.cluster(run.cluster)
    parts = {part.name: part for part in run.nodes if part.name in names and part.name in machines}
    outcomes = ask_each(
        lambda node: is_running(node, parts[node.name]),
        [machines[name] for name in parts],
        cluster,
        timeout_s=ASK_TIMEOUT_S,
    )
    if any(outcome.value for outcome in outcomes):
        return True, ()
    return False, tuple(outcome.node for outcome in outcomes if outcome.value is not False)


def overview(app: "App", cluster: str | None) -> list[RunInfo]:
    """Return the runs of a cluster, or of all clusters. Results of runs that have ended are downloaded first."""
    open_runs(app, cluster)
    last_of_script: dict[str, Run] = {}
    rows = []
    for folder in app.store.runs(cluster):
        run = result = None
        status: RunStatus | Literal["unreadable"] = "unreadable"
        with suppress(InventoryError):
            run = folder.load_run()
            result = folder.load_result()
            status = result.status if result else "running"
        before = last_of_script.get(run.script) if run else None
        if run:
            last_of_script[run.script] = run
        row = RunInfo(
            run=folder.id,
            cluster=run.cluster if run else None,
            mode=run.mode if run else None,
            script=run.script if run else None,
            args=run.args if run else (),
            status=status,
            world_size=run.world_size if run else None,
            started_at=run.started_at if run else None,
            seconds=result.seconds.total if result else None,
            accuracy=result.train.accuracy if result else None,
            cost_usd=result.cost_usd if result else None,
            name=run.name if run else None,
            note=run.options.note if run and run.options else None,
            tags=run.options.tags if run and run.options else {},
            loss=result.train.loss[-1] if result and result.train.loss else None,
            changed=changes(before, run) if before and run else None,
        )
        rows.append(row)
    return rows
