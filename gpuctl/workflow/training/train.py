"""`train`: ready nodes → a run → its result."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpuctl.errors import JobStopped
from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.view import View, open_view
from gpuctl.workflow.cluster.unprepared import check_set_up, not_set_up, setup_steps
from gpuctl.workflow.connect import connected, load_inventory
from gpuctl.workflow.training.checkpoints import Earlier
from gpuctl.workflow.training.elastic import Going, Growth, MakeReady
from gpuctl.workflow.training.launch import see_through
from gpuctl.workflow.training.placement import place, take_back
from gpuctl.workflow.training.prepare import Prepared, check_nodes, prepare
from gpuctl.workflow.training.request import TrainRequest, machines_of, what_to_install, what_to_run
from gpuctl.workflow.training.run_plan import plan_run
from inventories.machine import Inventory, Machine
from inventories.run import Result, Run
from inventories.store import ClusterFolder
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from remote.files.tree import Tree
    from remote.launchers import Service
    from remote.launchers.rank_command import Script
    from remote.python_env.requirements import Wanted
    from remote.runs.monitor import Watch
    from remote.sessions.session import Node

FIRST_LOCK_S, NEXT_LOCK_S = 10.0, 3600.0
"""For another command to be done with the cluster: before a first run, and before one that follows another."""


def train(
    app: App, request: TrainRequest, earlier: Earlier | None = None, growth: Growth | None = None
) -> tuple[Result, bool]:
    """One run, which goes on from an earlier one's checkpoints where one is given.

    `growth` looks out for more machines while it goes on. Returns the result, and whether a person interrupted it.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    project = _project(app, request, inventory)
    tells_by_log = not request.built_in or request.search is not None
    with open_view(app.output, logs=tells_by_log) as view, ExitStack() as preparing:
        # Held until the ranks have started: no `up`, `down` or second `train` comes in between.
        # A run that follows another has to follow: an `up` that replaces a lost machine may take a while.
        wait_s = FIRST_LOCK_S if request.answering is None else NEXT_LOCK_S
        preparing.enter_context(folder.lock("train", wait_s=wait_s, on_wait=view.note))
        inventory = load_inventory(folder)  # it may be another by now
        machines = machines_of(inventory, request)
        check_set_up(folder, machines)
        view.phase("connect", f"connecting to {plural(len(machines), 'node')}")
        with connected(folder, machines, at_least=request.min_nodes, say=view.note) as nodes:
            seconds = {"connect": time.monotonic() - began}
            ready = _get_ready(view, folder, inventory, nodes, request, project, seconds)
            machines = [machine for machine in machines if machine.name in nodes]
            run_folder = app.store.new_run(started_at)
            run = plan_run(
                run_folder.id,
                inventory,
                request,
                project.script,
                machines,
                ready.prepared.facts,
                started_at,
                seconds,
            )
            try:
                if earlier is not None:
                    run = _go_on(app, view, nodes, earlier, run)
                if request.answering is not None and earlier is not None:
                    check_not_stopped(app, earlier.run.run)
                return see_through(
                    view,
                    folder,
                    run_folder,
                    run,
                    nodes,
                    ready.launches(run, project.script, request.rank_env),
                    detach=request.detach,
                    mirror=request.max_restarts > 0 or request.elastic,
                    beside=_growing(view, folder, request, project, ready, growth, run, machines),
                    began=began,
                    on_started=preparing.close,
                )
            except BaseException:
                if not run_folder.run_path.exists():  # it is written before anything is launched
                    shutil.rmtree(run_folder.path, ignore_errors=True)
                    if earlier is not None and earlier.source is not None:
                        take_back(view, folder, nodes, run)
                raise


@dataclass(frozen=True, kw_only=True)
class _Project:
    """What is run, and what it needs on a node."""

    script: "Script"
    tree: "Tree"
    destination: str
    """Of the tree, on a node."""
    wanted: "Wanted | None"
    """What is to be installed. None: nothing."""


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """Nodes on which a run can be started."""

    prepared: Prepared
    service: "Service"
    """What starts the ranks."""

    def launches(self, run: Run, script: "Script", env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What is started on each node."""
        return self.service.launches(run, script, self.prepared.facts, self.prepared.code, env)


def _project(app: App, request: TrainRequest, inventory: Inventory) -> _Project:
    """What was asked for, looked at before anything is done. Raises Usage and the like."""
    machines = machines_of(inventory, request)
    script, tree, destination = what_to_run(app, request, inventory)
    wanted = what_to_install(request, tree, machines, app.output.say)
    return _Project(script=script, tree=tree, destination=destination, wanted=wanted)


def _get_ready(
    view: View,
    folder: ClusterFolder,
    inventory: Inventory,
    nodes: "Mapping[str, Node]",
    request: TrainRequest,
    project: _Project,
    seconds: dict[str, float],
) -> _Ready:
    """Prepare the nodes, check them, and have Ray on them where it starts the ranks. `seconds` gets the phases'."""
    master = min((node.machine for node in nodes.values()), key=lambda machine: machine.rank)
    with _taking(seconds, "prepare"):
        view.phase("prepare", "facts, firewalls, environment, code")
        prepared = prepare(
            view,
            folder,
            inventory,
            nodes,
            project.tree,
            project.destination,
            project.wanted,
            on_cpu=request.on_cpu,
            wished=request.env,
        )
    with _taking(seconds, "preflight"):
        view.phase("preflight", "trying every connection, checking what would fail later")
        check_nodes(
            view,
            nodes,
            prepared,
            master,
            mode=request.mode,
            skip=request.skip_preflight,
            wished=request.env,
        )
    launcher = launcher_of(request.mode)
    with _taking(seconds, "prepare"):
        if launcher.phase is not None:
            view.phase(request.mode, launcher.phase)
        service = launcher.start(nodes, prepared.facts, folder, view.node, most=request.most_nodes)
    return _Ready(prepared=prepared, service=service)


@contextmanager
def _taking(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add what the body takes to the phase's time."""
    mark = time.monotonic()
    yield
    seconds[phase] = seconds.get(phase, 0.0) + time.monotonic() - mark


def _go_on(app: App, view: View, nodes: "Mapping[str, Node]", earlier: Earlier, run: Run) -> Run:
    """Place the earlier run's checkpoints for the run; its record, which tells of it."""
    seconds = dict(run.seconds)
    with _taking(seconds, "prepare"):
        place(view, app.store, nodes, earlier, run)
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    return replace(run, resumed_from=earlier.run.run, seconds=rounded)


def _growing(
    view: View,
    folder: ClusterFolder,
    request: TrainRequest,
    project: _Project,
    ready: _Ready,
    growth: Growth | None,
    run: Run,
    machines: Sequence[Machine],
) -> "Callable[[Watch], AbstractContextManager[None]]":
    """What looks out for more machines while the run is watched, where that was asked for."""
    if growth is None:
        return lambda _: nullcontext()
    make_ready = _readying(view, folder, request, project, ready, machines[0])
    return lambda watch: growth.during(
        Going(
            run=run,
            watch=watch,
            machines=machines,
            make_ready=make_ready,
            # What a driver has started is the launcher's to move.
            takes_part=launcher_of(request.mode).takes_part if request.drives else None,
            say=view.note,
        )
    )


def _readying(
    view: View,
    folder: ClusterFolder,
    request: TrainRequest,
    project: _Project,
    already: _Ready,
    master: Machine,
) -> MakeReady:
    """What makes a machine ready to join those that are, and has it join what a driver uses."""
    from remote.checks import preflight
    from remote.errors import NodeFailed

    facts = dict(already.prepared.facts)

    def make_ready(inventory: Inventory, nodes: "Mapping[str, Node]", machine: Machine) -> None:
        if master.name not in nodes:
            raise NodeFailed(f"{master.name}, the first of the run's machines, is not there any more.")
        if not_set_up(folder, [machine], setup_steps(folder)):
            raise NodeFailed("the setup of the cluster has not ended well on it: `gpuctl up` runs it.")
        others = {name: node for name, node in nodes.items() if name != machine.name}
        one = {machine.name: nodes[machine.name]}
        tree, destination, wanted = project.tree, project.destination, project.wanted
        on_cpu, wished = request.on_cpu, request.env
        ready = prepare(
            view,
            folder,
            inventory,
            one,
            tree,
            destination,
            wanted,
            beside=others,
            on_cpu=on_cpu,
            wished=wished,
        )
        together = {**{name: facts[name] for name in others}, **ready.facts}
        expected = ready.expected
        preflight.check(
            together, None, master=master, note=view.note, mode=request.mode, wished=wished, expected=expected
        )
        if request.drives:
            already.service.join(nodes, machine, together)
        facts.update(ready.facts)

    return make_ready


def check_not_stopped(app: App, run: str) -> None:
    """Raises JobStopped where a person stopped the run that is to be followed by another."""
    if app.store.run(run).stopped_path.exists():
        raise JobStopped(f"The job was stopped: no other run follows {run}.")
