"""`train`: a job's runs, one after the other. Each: connect → prepare → place → launch → conclude.

`job.next_step` decides on the step after a run; this module carries it out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Self

from gpuctl.app import App
from gpuctl.errors import JobStopped, StrategyDoesNotFit, Usage
from gpuctl.interrupts import told_if_terminated
from gpuctl.tables.view import View, open_view
from gpuctl.workflow.jobs.elastic import ActiveRun, ElasticScaler
from gpuctl.workflow.jobs.job import (
    Attempt,
    GiveUp,
    Job,
    Resize,
    Restart,
    attempt_of,
    next_step,
    stopped_line,
)
from gpuctl.workflow.jobs.scale_for_run import run_machines
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.idle import keep_for_start
from gpuctl.workflow.machines.notify import (
    default_targets,
    failure_sent,
    first_node_lost,
    not_restarted,
    send_from_here,
)
from gpuctl.workflow.machines.replaced_pods import ReplacedPods
from gpuctl.workflow.machines.setup_state import check_set_up, without_setup
from gpuctl.workflow.runs.gpus import check_gpus, with_parts
from gpuctl.workflow.runs.idle_nodes import connected_idle, refuse_busy
from gpuctl.workflow.runs.launch import (
    Launch,
    launches_of,
    plan_run,
    removed_unless_launched,
    rounded,
    see_through,
)
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint, resume_line
from gpuctl.workflow.runs.outputs.earlier import note_or_share, rewritten_sentence
from gpuctl.workflow.runs.outputs.task_files import with_task_files
from gpuctl.workflow.runs.placement import place, take_back
from gpuctl.workflow.runs.prepare import Prepared, check_nodes, gather_facts, prepare
from gpuctl.workflow.runs.request.launchable import Launchable, read
from gpuctl.workflow.runs.request.request import TrainRequest, candidates_of, with_plain_strategy
from gpuctl.workflow.runs.resume import resolve, resume_point_of
from gpuctl.workflow.runs.strategy.auto import with_strategy
from gpuctl.workflow.runs.strategy.fitting import machines_that_fit
from inventories.clocks import passed_s
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.runs.end_reasons import Reason
from inventories.runs.result import Result
from inventories.runs.run import Run
from inventories.text import plural
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from remote.launchers import Service
    from remote.runs.monitor import RunMonitor
    from remote.sessions.session import Node

FIRST_LOCK_S, NEXT_LOCK_S = 60.0, 3600.0
"""For another command to be done with the cluster: before a first run, as several may start at once, and before one
that follows another."""
PAUSE_S = 10.0
"""Before the second try to start an elastic job's next run; twice as long before the third."""


def train(
    app: App, request: TrainRequest, *, command: str = "train", on_end: Callable[[Job], None] = lambda _: None
) -> Job:
    """Run a job to its end and return its record, with the last run's result.

    A run is followed by another if it failed on its own, never if a person ended it, and only if the next one may do
    better: up to `max_restarts` times, and without limit for an elastic job that lost a machine. A run that was
    stopped for more machines is followed by one on all of them. Each run uses the machines that answer, and resumes
    from the last checkpoints. Raises the errors of the first run's start.

    `command`: its name. `on_end` gets the job before gpuctl terminates machines that it started for the job, which
    may take minutes.
    """
    request, point = resolve(app, request)
    if not request.notify:
        request = replace(request, notify=default_targets(app))
    launchable = read(with_plain_strategy(request))
    with (
        failure_sent(app, request.notify, f"{command} {launchable.script.title}", app.options.cluster),
        run_machines(app, command, nnodes=request.nnodes, min_nodes=request.min_nodes) as hand_over,
    ):
        with _Runs(app, request) as runs:
            job = Job(request=request)
            job = job.with_attempt(_Start(runs=runs, job=job, launchable=launchable, point=point).run())
            while isinstance(step := next_step(job), Restart | Resize):
                job = runs.follow(job, step)
        if step.reason:
            app.output.say(step.reason)
            if isinstance(step, GiveUp):
                send_from_here(app, request.notify, not_restarted(job.last.run, step.reason))
        hand_over(job.result)
        on_end(job)
    return job


class _Runs:
    """Carries out the steps of one job."""

    def __init__(self, app: App, request: TrainRequest) -> None:
        self.app = app
        self.request = request
        self.folder = app.store.cluster(app.options.cluster)
        self.pods = ReplacedPods(app, self.folder)
        self.scaler = ElasticScaler(self.folder, request, self.pods.take_in) if request.elastic else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.scaler is not None:
            self.scaler.stop()

    def follow(self, job: Job, step: Restart | Resize) -> Job:
        """Start the run after the job's last one, unless the machines' answers rule it out.

        Returns the job's record with that run, with the failed start, or with the reason for no run.
        """
        from remote.errors import PreflightFailed, RemoteError

        say, last = self.app.output.say, job.last
        try:
            self.refuse_if_stopped(last.run)
            if self.scaler is not None:
                Event().wait(PAUSE_S * job.failed_starts)
                self.scaler.settle(say)
            if job.last.machine_lost:
                names = {part.name for part in job.last.lost}
                self.pods.wait_for(job.wanted_machines, names, lambda: self._was_stopped(last.run))
                self.refuse_if_stopped(last.run)
            left = resume_point_of(self.app, last.run, job.lost)
            job = job.with_left(left)
            checked = next_step(job)
            if not isinstance(checked, Restart | Resize):
                return job
            step = checked
            start = _Start(
                runs=self, job=job, launchable=read(with_plain_strategy(self.request)), point=left, step=step
            )
            return job.with_attempt(start.run(), step)
        except KeyboardInterrupt:
            say(f"{step.why}interrupted before another began")
            return replace(job, interrupted=True)
        except JobStopped:
            return replace(job, stopped=True)
        except StrategyDoesNotFit as error:
            return replace(job, does_not_fit=str(error), hint=error.hint)
        except (RemoteError, InventoryError, Usage) as error:
            say(f"{step.why}another could not be started: {error}")
            nodes = error.nodes if isinstance(error, PreflightFailed) else ()
            return job.with_failed_start(step, nodes, bar=isinstance(error, RemoteError))

    def refuse_if_stopped(self, run: Run) -> None:
        """Raise JobStopped if a person stopped the run that another is to follow."""
        if self._was_stopped(run):
            raise JobStopped(stopped_line(run))

    def _was_stopped(self, run: Run) -> bool:
        return self.app.store.run(run.run).stopped_path.exists()


@dataclass(kw_only=True)
class _Start:
    """A run of a job, from its first connection to its result. Each stage adds its part to this record."""

    runs: _Runs
    job: Job
    """The job before this run."""
    launchable: Launchable
    point: ResumePoint | None
    """The run that this one resumes."""
    step: Restart | Resize | None = None
    """The step after the job's last run. `None`: the first run."""
    began: float = field(default_factory=passed_s)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: dict[str, float] = field(default_factory=dict)
    """Phase → its time."""
    lock: ExitStack = field(default_factory=ExitStack)
    """Held until the ranks have started: no `up`, `down` or second `train` comes in between."""
    held: ExitStack = field(default_factory=ExitStack)
    """The connections, and the removal of a run that is not launched."""
    view: View = field(init=False)
    inventory: Inventory = field(init=False)
    nodes: "Mapping[str, Node]" = field(init=False)
    machines: Sequence[Machine] = field(init=False)
    spare: Sequence[Machine] = field(init=False)
    """Ready machines that the job's strategy can't use."""
    prepared: Prepared = field(init=False)
    service: "Service" = field(init=False)
    """The launcher's service."""
    folder: RunFolder = field(init=False)
    record: Run = field(init=False)
    launched: Launch = field(init=False)
    watch: "RunMonitor" = field(init=False)
    result: Result = field(init=False)
    interrupted: bool = field(init=False)

    def run(self) -> Attempt:
        """Do the run, stage by stage, and return it with its end."""
        shows_logs = not self.runs.request.built_in or self.runs.request.search is not None
        with open_view(self.runs.app.output, logs=shows_logs) as self.view, self.lock, self.held:
            self.connect()
            self.prepare()
            self.place()
            self.launch()
            return self.conclude()

    @property
    def fewer(self) -> bool:
        """Return whether fewer machines than requested suffice."""
        return self.runs.request.elastic or self.step is not None

    @property
    def fresh(self) -> bool:
        """Return whether files of earlier runs are put aside: only the first run of a job begins without them."""
        return self.runs.request.fresh and self.step is None

    def connect(self) -> None:
        """Lock the cluster, choose the machines of the run, and connect to them."""
        app, folder, request = self.runs.app, self.runs.folder, self.runs.request
        # A run that follows another has to follow: an `up` that replaces a lost machine may take a while.
        wait_s = FIRST_LOCK_S if self.step is None else NEXT_LOCK_S
        self.lock.enter_context(folder.lock("train", wait_s=wait_s, on_wait=self.view.note))
        self.inventory = load_inventory(folder, empty=True)
        usable = None
        if self.step is not None:
            lacking = without_setup(folder, self.inventory.machines)
            usable = self.step.machines.difference(machine.name for machine in lacking)
        resumed = self.point.nodes if self.point else frozenset()
        candidates, count = candidates_of(self.inventory, request, usable, resumed)
        if self.step is None:
            for note in self.launchable.notes(self.inventory, count):
                self.view.note(note)
        self.view.phase("connect", f"connecting to {plural(count, 'node')}")
        self.nodes = self.held.enter_context(
            connected_idle(
                app.store, folder, candidates, request, count, fewer=self.fewer, say=self.view.note
            )
        )
        self.machines = [node.machine for node in self.nodes.values()]
        check_set_up(folder, self.machines)
        for problem in keep_for_start(folder, self.inventory, self.nodes):
            self.view.note(f"note: {problem}")
        self.seconds["connect"] = passed_s() - self.began

    def prepare(self) -> None:
        """Prepare the nodes, check them, and start the launcher's service."""
        request, view, nodes = self.runs.request, self.view, self.nodes
        launcher = launcher_of(request.mode)
        with self._timed("prepare"):
            view.phase("prepare", "facts, firewalls, environment, code")
            facts = with_parts(request, gather_facts(self.inventory, nodes, on_cpu=request.on_cpu))
            check_gpus(request, facts)
            if request.built_in:
                advised = with_strategy(self.runs.app, request, self.machines, facts)
                self.launchable = self.launchable.with_request(advised)
            prepared = self.prepared = prepare(
                view,
                self.runs.folder,
                self.inventory,
                nodes,
                self.launchable,
                facts,
                fresh=self.fresh,
            )
        if any(fact.active_runs for fact in prepared.facts.values()):
            refuse_busy(self.runs.app.store, nodes, request.gpus)
        with self._timed("preflight"):
            view.phase("preflight", "trying every connection, checking what would fail later")
            check_nodes(view, nodes, prepared, request, self.machines[0])
        with self._timed("prepare" if launcher.phase is None else request.mode):
            if launcher.phase is not None:
                view.phase(request.mode, launcher.phase)
            self.service = launcher.start(
                nodes, prepared.facts, self.runs.folder, view.node, most=request.max_nodes
            )
        self.machines, self.spare = machines_that_fit(
            self.launchable.request, self.machines, prepared.facts, view.note, fewer=self.fewer
        )

    def place(self) -> None:
        """Plan the run, and place what earlier runs left: outputs on all nodes, checkpoints for its ranks."""
        app, launchable, point = self.runs.app, self.launchable, self.point
        request = launchable.request
        self.folder = app.store.new_run(self.started_at)
        app.started_runs.add(self.folder.id)
        self.held.enter_context(removed_unless_launched(self.folder))
        self.record = plan_run(
            self.folder.id,
            self.inventory,
            request,
            launchable.script,
            self.machines,
            self.prepared.facts,
            self.started_at,
            self.seconds,
            root=launchable.tree.root,
            names_ranks=launchable.sources.names_ranks,
            commit=launchable.commit,
        )
        if not request.built_in and not request.drives:
            uneven = note_or_share(
                self.view, self.runs.folder, self.nodes, self.prepared, launchable, self.folder
            )
            self.record = replace(self.record, uneven_files=uneven)
        if point is None:
            return
        self.held.callback(self._take_back, point)
        with self._timed("prepare"):
            began_with = place(self.view, app.store, self.nodes, point, self.record)
            self.view.note((self.step.why if self.step else "") + resume_line(point, self.record))
        if self.step is not None:
            self.runs.refuse_if_stopped(point.run)
        self.record = replace(
            self.record,
            resumed_from=point.run.run,
            first_run=point.run.job,
            began_with=began_with,
            seconds=rounded(self.seconds),
        )

    def _take_back(self, point: ResumePoint) -> None:
        """Remove the placed checkpoints of a run that was not launched."""
        if point.source is not None and not self.folder.run_path.exists():
            take_back(self.view, self.runs.folder, self.nodes, point, self.record)

    def launch(self) -> None:
        """Start the ranks and follow the run to its end; an elastic run also looks for more machines."""
        request, scaler, launchable = self.runs.request, self.runs.scaler, self.launchable
        run, facts = self.record, self.prepared.facts
        commands = launches_of(
            run, launchable, self.prepared, self.service, self.runs.app.store, self.inventory, self.machines
        )
        self.launched = Launch(
            run=run,
            folder=self.folder,
            cluster=self.runs.folder,
            nodes={machine.name: self.nodes[machine.name] for machine in self.machines},
            commands=commands,
            began=self.began,
        )
        self.watch = self.launched.watch(self.view, mirror=request.continues, end_hung=request.ends_hung)
        active = ActiveRun(
            run=run,
            watch=self.watch,
            machines=self.machines,
            spare=self.spare,
            view=self.view,
            launchable=launchable,
            facts=facts,
            service=self.service,
            job=self.job,
        )
        goes_on = f"gpuctl was ended, and the run goes on: gpuctl logs -f {run.run}"
        word = told_if_terminated(goes_on) if self.runs.app.output.owns_process else nullcontext()
        with nullcontext() if scaler is None else scaler.during(active), word:
            self.result, self.interrupted = see_through(
                self.view, self.launched, self.watch, detach=request.detach, on_started=self.lock.close
            )

    def conclude(self) -> Attempt:
        """Complete the result with what only this command knows, and return the run with its end."""
        request, scaler, result = self.runs.request, self.runs.scaler, self.result
        names = [part.name for part in self.record.nodes]
        if request.drives and result.ended_at is not None:
            rankless = {name: node for name, node in self.launched.nodes.items() if name not in names}
            age_s = passed_s() - self.began
            result = with_task_files(result, self.folder, rankless, self.launchable.tree.entries, age_s)
        earlier = self.prepared.earlier
        if request.share_outputs and (sentence := rewritten_sentence(result.outputs, names, earlier)):
            self.runs.app.output.say(sentence)
        attempt = attempt_of(
            self.record,
            result,
            self.watch.records,
            machines=len(self.machines),
            joining=scaler.joining if scaler else (),
            interrupted=self.interrupted,
            hung=self.watch.stopped_as_hung and request.on_hang == "restart",
        )
        first = self.record.nodes[0].name
        if first in self.watch.lost or result.reason in (Reason.REBOOTED, Reason.CONTAINER_RESTARTED):
            why = result.first_error.message if result.first_error else f"{first} does not answer"
            send_from_here(self.runs.app, request.notify, first_node_lost(self.record, why))
        if request.drives and result.status in ("succeeded", "failed"):
            with suppress(KeyboardInterrupt):  # the run is over, and its record is not to be lost
                self.runs.pods.report_lost([m for m in self.machines if m.name not in names])
        return attempt

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the body to the phase's time."""
        mark = passed_s()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + passed_s() - mark
