"""The runs of `bench`: layout after layout, each warmed up and timed, on nodes that are ready.

Each repetition is a run like any other, planned, launched, watched and concluded by the functions of `train`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.errors import Failed, GpuctlError
from gpuctl.run_results.failures.failures import what_failed
from gpuctl.run_results.metrics import event
from gpuctl.scaling.bottleneck import contradicting
from gpuctl.scaling.measurements import (
    Job,
    Layout,
    Measured,
    Repetition,
    repetition_of,
    repetition_of_script,
)
from gpuctl.tables.view import Outcome, View, open_view
from gpuctl.workflow.jobs.bench_request import WARM_UP_WORDS
from gpuctl.workflow.runs.launch import Launch, plan_run, removed_unless_launched, see_through
from gpuctl.workflow.runs.prepared import Prepared
from gpuctl.workflow.runs.request.project import Project
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.clocks import passed_s
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.runs.run import Run, RunStatus
from remote.launchers import launcher_of
from remote.shared.constants import OF_BENCH

if TYPE_CHECKING:
    from remote.sessions.session import Node


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The nodes that are ready, and what runs on them."""

    app: App
    folder: ClusterFolder
    inventory: Inventory
    machines: Sequence[Machine]
    """By rank; a layout takes the first of them."""
    nodes: "Mapping[str, Node]"
    prepared: Prepared
    project: Project
    request: TrainRequest

    @property
    def one_machine(self) -> bool:
        """Whether the nodes are hosts on one machine."""
        hosts = {machine.host for machine in self.machines}
        return self.inventory.provider == "local" or 1 == len(hosts) < len(self.machines)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run that succeeded."""

    run: Run
    job: Job
    repetition: Repetition | None
    """`None`: it told of nothing that counts."""
    told: int
    """How much, in lines of rank 0's metrics or losses in its log."""
    interrupted: bool
    """A person wants no other."""


def measure(
    ready: Ready, layouts: Sequence[Layout], repeats: int
) -> tuple[RunStatus, str | None, tuple[Measured, ...]]:
    """How it ended, the sentence if it failed, and what was measured until then (at least one layout).

    Raises KeyboardInterrupt, or the failure, where nothing was.
    """
    runs = _Runs(ready)
    measured: list[Measured] = []
    status: RunStatus = "succeeded"
    failure = None
    try:
        for layout in layouts:
            runs.warm_up(layout)
            runs.layout(layout, repeats, measured)
        if again := contradicting(measured):
            names = ", ".join(one.layout.name for one in again)
            ready.app.output.say(f"measured again, as the figures contradict themselves: {names}")
        for one in again:
            anew: list[Measured] = []
            runs.layout(one.layout, repeats, anew)
            measured[measured.index(one)] = anew[0]
    except KeyboardInterrupt:
        if not measured:
            raise
        status = "stopped"
    except GpuctlError as error:
        if not measured:
            raise
        status, failure = "failed", str(error)
    return status, failure, tuple(measured)


class _Runs:
    """The runs of one bench. They find what those before them wrote, such as data that they have downloaded.

    A script that resumes its own checkpoint so has nothing left to do. Where that is seen, each run from then on
    begins with what was sent alone.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self._anew = False
        self._told: dict[Layout, int] = {}
        """What the warm-up of a layout told."""

    def warm_up(self, layout: Layout) -> None:
        """A run that is not timed: a short one of the built-in job. Raises as `layout`."""
        built_in = self.ready.request.built_in
        timed = self._run(layout, "warm-up", WARM_UP_WORDS if built_in else ())
        self._told[layout] = 0 if built_in else timed.told
        if timed.interrupted:
            raise KeyboardInterrupt

    def layout(self, layout: Layout, repeats: int, measured: list[Measured]) -> None:
        """Time; the last of `measured` is then this layout, with each repetition as soon as it is over.

        Raises KeyboardInterrupt where a person wants no more, Failed where a run failed.
        """
        for number in range(1, repeats + 1):
            timed = self._timed(layout, f"repetition {number} of {repeats}")
            if timed.repetition is None:
                raise Failed(
                    f"Run {timed.run.run} on {layout.name} told of no epochs, samples or steps, so there is nothing "
                    'to measure. Have rank 0 write lines such as {"step": 10, "samples": 640} into the file '
                    "$GPUCTL_METRICS."
                )
            if number == 1:
                measured.append(
                    Measured(
                        layout=layout,
                        job=timed.job,
                        hourly_usd=timed.run.hourly_usd,
                        repetitions=(timed.repetition,),
                        one_machine=self.ready.one_machine,
                    )
                )
            else:
                measured[-1] = replace(
                    measured[-1], repetitions=(*measured[-1].repetitions, timed.repetition)
                )
            if timed.interrupted:
                raise KeyboardInterrupt

    def _timed(self, layout: Layout, what: str) -> Timed:
        timed = self._run(layout, what)
        if self._anew or timed.interrupted or not resumed(timed.told, self._told[layout]):
            return timed
        self._anew = True
        self.ready.app.output.say(
            f"run {timed.run.run} did less than the warm-up, as a script that resumes its own checkpoint: it is run "
            "again, and each run from now on begins with what was sent alone"
        )
        return self._run(layout, what)

    def _run(self, layout: Layout, what: str, more: tuple[str, ...] = ()) -> Timed:
        if self._anew:
            put_aside(self.ready)
        return _one_run(self.ready, layout, what, more)


def resumed(told: int, by_warm_up: int) -> bool:
    """Whether a run that told so much has left out work, compared with the same run before it."""
    return 2 * told < by_warm_up


def _one_run(ready: Ready, layout: Layout, what: str, more: tuple[str, ...] = ()) -> Timed:
    """A run of the layout, seen through to its end; `more`: words behind the job's.

    Raises KeyboardInterrupt where a person stopped it, Failed where it failed.
    """
    from remote import facts
    from remote.runs.run_files import read_metrics

    began, started_at = passed_s(), datetime.now(UTC)
    machines = ready.machines[: layout.nodes]
    master = machines[0].name
    request = replace(ready.request, nnodes=layout.nodes, nproc_per_node=layout.nproc)
    script = replace(ready.project.script, args=(*ready.project.script.args, *more))
    known = {machine.name: ready.prepared.facts[machine.name] for machine in machines}
    # Each run meets at a port of its own, on which nobody listens now.
    known[master] = replace(known[master], free_port=facts.gather(ready.nodes[master], ()).free_port)
    nodes = {machine.name: ready.nodes[machine.name] for machine in machines}
    folder = ready.app.store.new_run(started_at)
    ready.app.started_runs.add(folder.id)
    root = None if request.built_in else ready.project.tree.root
    run = plan_run(folder.id, ready.inventory, request, script, machines, known, started_at, {}, root=root)
    with removed_unless_launched(folder), open_view(ready.app.output, logs=False) as view:
        view.phase(layout.name, f"{what}, run {run.run}")
        service = launcher_of(run.mode).start(nodes, known, ready.folder, view.node, most=len(nodes))
        launch = Launch(
            run=run,
            folder=folder,
            cluster=ready.folder,
            nodes=nodes,
            commands=service.launches(run, script, known, ready.prepared.code, request.rank_env),
            began=began,
        )
        quiet = Quiet(view)
        result, interrupted = see_through(quiet, launch, launch.watch(quiet))
        if result.status != "succeeded":
            if interrupted:
                raise KeyboardInterrupt
            if result.status == "stopped":
                raise Failed(
                    f"Run {run.run} on {layout.name} was stopped by another command: gpuctl stop, or gpuctl down."
                )
            raise Failed(
                f"Run {run.run} on {layout.name} {result.status} ({what_failed(result)}). gpuctl results {run.run} "
                "shows all of it."
            )
    metrics = {rank: file.lines for rank, file in read_metrics(folder, run).items()}
    return Timed(
        run=run,
        job=Job.of(event(metrics.get(0, ()), "start"), script=None if request.built_in else script.title),
        repetition=(repetition_of if request.built_in else repetition_of_script)(result, metrics),
        told=max(len(metrics.get(0, ())), len(result.train.loss_at)),
        interrupted=interrupted,
    )


def put_aside(ready: Ready) -> bool:
    """Have the nodes begin with what was sent alone; return whether runs of a script wrote anything else."""
    from remote.fanout import fan_out, values
    from remote.files.earlier import Aside
    from remote.files.sync import sync

    if ready.request.built_in:
        return False
    project, aside = (
        ready.project,
        Aside(name=f"{OF_BENCH}{datetime.now(UTC):%Y%m%d-%H%M%S}", everything=True),
    )

    def one(node: "Node") -> bool:
        synced = sync(node, project.tree, project.destination, working_folder=project.folder, aside=aside)
        return synced.earlier is not None and synced.earlier.aside > 0

    return any(values(fan_out(one, ready.nodes)).values())


class Quiet:
    """Passes on how far a run is and what is worth a line of its own; neither logs nor what a node is doing."""

    def __init__(self, view: View) -> None:
        self._view = view

    def phase(self, name: str, text: str, *, previous: Outcome = "done") -> None:
        """Nothing: a whole run is one phase here."""

    def node(self, name: str, text: str) -> None:
        """Nothing: the next run is about to begin."""

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Show it."""
        self._view.metric(rank, line)

    def log(self, rank: int | None, node: str, line: str) -> None:
        """Nothing: it is in the run's folder."""

    def note(self, text: str) -> None:
        """Show it."""
        self._view.note(text)
