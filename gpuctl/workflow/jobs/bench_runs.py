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
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.scaling.bottleneck import contradicting
from gpuctl.scaling.measurements import (
    Job,
    Layout,
    Measured,
    Repetition,
    repetition_of,
    repetition_of_script,
)
from gpuctl.tables.view import View, open_view
from gpuctl.workflow.jobs.bench_request import WARM_UP_WORDS
from gpuctl.workflow.runs.launch import Launch, plan_run, removed_unless_launched, see_through
from gpuctl.workflow.runs.prepare import Prepared
from gpuctl.workflow.runs.request.launchable import Launchable
from inventories.clocks import passed_s
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.runs.result import Result, RunStatus
from inventories.runs.run import Run
from remote.launchers import launcher_of
from remote.runs.observer import Observer
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
    launchable: Launchable

    @property
    def one_machine(self) -> bool:
        """Return whether the nodes are hosts on the same machine."""
        hosts = {machine.host for machine in self.machines}
        return self.inventory.provider == "local" or 1 == len(hosts) < len(self.machines)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run that succeeded."""

    run: Run
    job: Job
    repetition: Repetition | None
    """`None`: the run reported no epochs, samples or steps."""
    lines: int
    """Number of lines in rank 0's metrics or losses in its log."""
    interrupted: bool
    """A person wants no other."""


def measure(
    ready: Ready, layouts: Sequence[Layout], repeats: int
) -> tuple[RunStatus, str | None, tuple[Measured, ...]]:
    """Return the status, the failure's sentence, and the measured layouts (at least one).

    Raises KeyboardInterrupt, or the failure, if no layout was measured.
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
            names = ", ".join(layout_measured.layout.name for layout_measured in again)
            ready.app.output.say(f"measured again, as the figures contradict themselves: {names}")
        for layout_measured in again:
            anew: list[Measured] = []
            runs.layout(layout_measured.layout, repeats, anew)
            measured[measured.index(layout_measured)] = anew[0]
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
    """The runs of a benchmark. A run finds the files of earlier ones, such as downloaded data.

    A script that resumes its own checkpoint would so have nothing left to do. Once that is detected, each further run
    starts from the sent files alone.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self._anew = False
        self._warm_up_lines: dict[Layout, int] = {}
        """Number of lines that the warm-up of a layout reported."""

    def warm_up(self, layout: Layout) -> None:
        """Run a layout without timing it, the built-in job only shortly. Raises as `layout`."""
        built_in = self.ready.launchable.request.built_in
        timed = self._run(layout, "warm-up", WARM_UP_WORDS if built_in else ())
        self._warm_up_lines[layout] = 0 if built_in else timed.lines
        if timed.interrupted:
            raise KeyboardInterrupt

    def layout(self, layout: Layout, repeats: int, measured: list[Measured]) -> None:
        """Time a layout; the last item of `measured` then has each repetition as soon as it is over.

        Raises KeyboardInterrupt on Ctrl-C, and Failed if a run failed.
        """
        for number in range(1, repeats + 1):
            title = f"repetition {number} of {repeats}"
            timed = self._run(layout, title)
            if not self._anew and not timed.interrupted and resumed(timed.lines, self._warm_up_lines[layout]):
                self._anew = True
                self.ready.app.output.say(
                    f"run {timed.run.run} did less than the warm-up, as a script that resumes its own checkpoint: it "
                    "is run again, and each run from now on begins with what was sent alone"
                )
                timed = self._run(layout, title)
            if timed.repetition is None:
                raise Failed(
                    f"Run {timed.run.run} on {layout.name} told of no epochs, samples or steps, so there is nothing "
                    'to measure. Have rank 0 write lines such as {"step": 10, "samples": 640, "time": 1700000000.5} '
                    "into the file $GPUCTL_METRICS."
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

    def _run(self, layout: Layout, title: str, more: tuple[str, ...] = ()) -> Timed:
        """Run a layout to its end. `more`: words after the job's.

        Raises KeyboardInterrupt on Ctrl-C, and Failed if the run failed.
        """
        from gpuctl.run_results.read_run import rank_metrics
        from remote import facts

        ready = self.ready
        if self._anew:
            put_aside(ready)
        began, started_at = passed_s(), datetime.now(UTC)
        machines = ready.machines[: layout.nodes]
        master = machines[0].name
        launchable = ready.launchable
        request = replace(launchable.request, nnodes=layout.nodes, nproc_per_node=layout.nproc)
        script = replace(launchable.script, args=(*launchable.script.args, *more))
        known = {machine.name: ready.prepared.facts[machine.name] for machine in machines}
        # Each run meets at a port of its own, on which nobody listens now.
        known[master] = replace(known[master], free_port=facts.gather(ready.nodes[master], ()).free_port)
        nodes = {machine.name: ready.nodes[machine.name] for machine in machines}
        folder = ready.app.store.new_run(started_at)
        ready.app.started_runs.add(folder.id)
        root = None if request.built_in else launchable.tree.root
        run = plan_run(
            folder.id, ready.inventory, request, script, machines, known, started_at, {}, root=root
        )
        with removed_unless_launched(folder), open_view(ready.app.output, logs=False) as view:
            view.phase(layout.name, f"{title}, run {run.run}")
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
            _refuse_unless_succeeded(run, layout, result, interrupted=interrupted)
        metrics = rank_metrics(folder, run)
        first = metrics.get(0, RankMetrics())
        return Timed(
            run=run,
            job=Job.of(first.start, script=None if request.built_in else script.title),
            repetition=(repetition_of if request.built_in else repetition_of_script)(result, metrics),
            lines=max(len(first.file.lines), len(result.train.loss_at)),
            interrupted=interrupted,
        )


def _refuse_unless_succeeded(run: Run, layout: Layout, result: Result, *, interrupted: bool) -> None:
    """Raise KeyboardInterrupt for a run that a person ended, and Failed for any other that did not succeed."""
    if result.status == "succeeded":
        return
    if interrupted:
        raise KeyboardInterrupt
    subject = f"Run {run.run} on {layout.name}"
    if result.status == "stopped":
        raise Failed(f"{subject} was stopped by another command: gpuctl stop, or gpuctl down.")
    raise Failed(
        f"{subject} {result.status} ({what_failed(result)}). gpuctl results {run.run} shows all of it."
    )


def resumed(lines: int, warm_up_lines: int) -> bool:
    """Return whether a run did much less work than the same run before it, by the lines that both reported."""
    return 2 * lines < warm_up_lines


def put_aside(ready: Ready) -> bool:
    """Reset the project's folder on the nodes to the sent files; return whether its runs had written others."""
    from remote.fanout import fan_out, values
    from remote.files.earlier import Aside
    from remote.files.sync import sync

    if ready.launchable.request.built_in:
        return False
    launchable, destination = ready.launchable, ready.launchable.destination(ready.inventory)
    aside = Aside(name=f"{OF_BENCH}{datetime.now(UTC):%Y%m%d-%H%M%S}", everything=True)

    def reset(node: "Node") -> bool:
        synced = sync(node, launchable.tree, destination, working_folder=launchable.folder, aside=aside)
        return synced.earlier is not None and synced.earlier.aside > 0

    return any(values(fan_out(reset, ready.nodes)).values())


class Quiet(Observer):
    """Pass on a run's progress and its notes; a whole run is a single phase here, and its logs are in its folder."""

    def __init__(self, view: View) -> None:
        self._view = view

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Show it."""
        self._view.metric(rank, line)

    def log(self, rank: int | None, node: str, line: str) -> None:
        """Show the progress in a line."""
        self._view.log(rank, node, line)

    def script_file(self, path: str, body: bytes, *, begins: bool) -> None:
        """Show the progress in a file of the script's libraries."""
        self._view.script_file(path, body, begins=begins)

    def note(self, text: str) -> None:
        """Show it."""
        self._view.note(text)
