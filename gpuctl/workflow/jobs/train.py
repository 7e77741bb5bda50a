"""`train`: a job's runs, one after the other. Each: connect → prepare → place checkpoints → launch → collect.

`job.next_step` decides on the step after a run; this module carries it out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from gpuctl.app import App
from gpuctl.errors import JobStopped, StrategyDoesNotFit, Usage
from gpuctl.interrupts import told_if_terminated
from gpuctl.scripts.sources import names_ranks
from gpuctl.tables.view import View, open_view
from gpuctl.workflow.jobs.elastic import ActiveRun, ElasticScaler, Preparation
from gpuctl.workflow.jobs.job import Attempt, Job, Resize, Restart, attempt_of, next_step, stopped_line
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.replaced_pods import ReplacedPods
from gpuctl.workflow.machines.setup_state import check_set_up, without_setup
from gpuctl.workflow.runs.idle_nodes import busy_runs, connected_idle, refusal
from gpuctl.workflow.runs.launch import (
    Launch,
    plan_run,
    removed_unless_launched,
    rounded,
    see_through,
    with_project,
)
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint, resume_line
from gpuctl.workflow.runs.outputs.earlier import aside_of, note_or_share, rewritten_sentence
from gpuctl.workflow.runs.placement import place, take_back
from gpuctl.workflow.runs.prepare import check_nodes, gather_facts, prepare
from gpuctl.workflow.runs.prepared import Prepared
from gpuctl.workflow.runs.request.argument_paths import path_notes
from gpuctl.workflow.runs.request.project import Project, project_of
from gpuctl.workflow.runs.request.request import TrainRequest, candidates_of, machines_of
from gpuctl.workflow.runs.resume import resolve, resume_point_of
from gpuctl.workflow.runs.strategy.auto import with_plain_strategy, with_strategy
from gpuctl.workflow.runs.strategy.fitting import machines_that_fit
from gpuctl.workflow.runs.task_files import with_task_files
from inventories.clocks import passed_s
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.runs.run import Run
from inventories.text import plural
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.files.earlier import Aside
    from remote.launchers import Service
    from remote.sessions.session import Node

FIRST_LOCK_S, NEXT_LOCK_S = 10.0, 3600.0
"""For another command to be done with the cluster: before a first run, and before one that follows another."""
PAUSE_S = 10.0
"""Before the second try to start an elastic job's next run; twice as long before the third."""


def train(app: App, request: TrainRequest) -> Job:
    """Run a job to its end and return its record, with the last run's result.

    A run is followed by another if it failed on its own, never if a person ended it, and only if the next one may do
    better: up to `max_restarts` times, and without limit for an elastic job that lost a machine. A run that was
    stopped for more machines is followed by one on all of them. Each run uses the machines that answer, and resumes
    from the last checkpoints. Raises the errors of the first run's start.
    """
    point = None
    if request.resume or request.resume_from:
        request, point = resolve(app, request)
    with _Runs(app, request) as runs:
        job = Job(request=request)
        job = job.with_attempt(runs.run(job, point))
        while isinstance(step := next_step(job), Restart | Resize):
            job = runs.follow(job, step)
    if step.reason:
        app.output.say(step.reason)
    return job


class _Runs:
    """Carries out the steps of one job."""

    def __init__(self, app: App, request: TrainRequest) -> None:
        self._app = app
        self._request = request
        self._folder = app.store.cluster(app.options.cluster)
        self._pods = ReplacedPods(app, self._folder)
        self._scaler = ElasticScaler(self._folder, request, self._pods.take_in) if request.elastic else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._scaler is not None:
            self._scaler.stop()

    def follow(self, job: Job, step: Restart | Resize) -> Job:
        """Start the run after the job's last one, unless the machines' answers rule it out.

        Returns the job's record with that run, with the failed start, or with the reason for no run.
        """
        from remote.errors import PreflightFailed, RemoteError

        say, last = self._app.output.say, job.last
        try:
            self._refuse_if_stopped(last.run)
            if self._scaler is not None:
                Event().wait(PAUSE_S * job.failed_starts)
                self._scaler.settle(say)
            if job.last.machine_lost:
                names = {part.name for part in job.last.lost}
                self._pods.wait_for(job.wanted_machines, names, lambda: self._was_stopped(last.run))
                self._refuse_if_stopped(last.run)
            left = resume_point_of(self._app, last.run, job.lost)
            job = job.with_left(left)
            checked = next_step(job)
            if not isinstance(checked, Restart | Resize):
                return job
            step = checked
            return job.with_attempt(self.run(job, left, step), step)
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

    def run(self, job: Job, point: ResumePoint | None, step: Restart | Resize | None = None) -> Attempt:
        """Do a run of the job, from its first connection to its result.

        `point`: the run that it resumes. `step`: the step after the job's last run; `None`: the first run.
        """
        began, started_at = passed_s(), datetime.now(UTC)
        inventory = load_inventory(self._folder, empty=True)
        resumed = point.nodes if point else frozenset()
        planned = machines_of(inventory, self._request, self._usable(inventory, step), resumed)
        request = with_plain_strategy(self._request)
        project = project_of(self._app, request, inventory, planned)
        if step is None:
            for note in path_notes(request, project, inventory):
                self._app.output.say(note)
        shows_logs = not request.built_in or request.search is not None
        with open_view(self._app.output, logs=shows_logs) as view, ExitStack() as starting:
            # Held until the ranks have started: no `up`, `down` or second `train` comes in between.
            # A run that follows another has to follow: an `up` that replaces a lost machine may take a while.
            wait_s = FIRST_LOCK_S if step is None else NEXT_LOCK_S
            starting.enter_context(self._folder.lock("train", wait_s=wait_s, on_wait=view.note))
            inventory = load_inventory(self._folder, empty=True)  # it may be another by now
            usable = self._usable(inventory, step)
            machines = machines_of(inventory, request, usable, resumed)
            check_set_up(self._folder, machines)
            view.phase("connect", f"connecting to {plural(len(machines), 'node')}")
            with connected_idle(
                self._app.store,
                self._folder,
                candidates_of(inventory, request, usable, resumed),
                request,
                len(machines),
                fewer=request.elastic or step is not None,
                say=view.note,
            ) as nodes:
                seconds = {"connect": passed_s() - began}
                machines = [node.machine for node in nodes.values()]
                check_set_up(self._folder, machines)
                if [(m.python, m.shape) for m in machines] != [(m.python, m.shape) for m in planned]:
                    project = project_of(self._app, request, inventory, machines)
                with _timed(seconds, "prepare"):
                    view.phase("prepare", "facts, firewalls, environment, code")
                    facts = gather_facts(inventory, nodes, on_cpu=project.on_cpu)
                    request = with_strategy(self._app, self._request, machines, facts)
                    project = project.with_words(request)
                aside = aside_of(request, started_at, first=step is None)
                prepared, service = self._prepare(view, inventory, nodes, project, facts, seconds, aside)
                facts, fewer = prepared.facts, request.elastic or step is not None
                machines, spare = machines_that_fit(request, machines, facts, view.note, fewer=fewer)
                run_folder = self._app.store.new_run(started_at)
                self._app.started_runs.add(run_folder.id)
                with removed_unless_launched(run_folder):
                    uneven = ""
                    if aside is not None and not request.drives:
                        uneven = note_or_share(
                            view, inventory.cluster, nodes, prepared, request, aside, run_folder, project
                        )
                    run = plan_run(
                        run_folder.id,
                        inventory,
                        request,
                        project.script,
                        machines,
                        facts,
                        started_at,
                        seconds,
                        root=project.tree.root,
                        names_ranks=names_ranks(project.sources),
                        uneven_files=uneven,
                        commit=project.commit,
                    )
                    try:
                        if point is not None:
                            run = self._place(view, nodes, point, run, step)
                        launch = Launch(
                            run=run,
                            folder=run_folder,
                            cluster=self._folder,
                            nodes={machine.name: nodes[machine.name] for machine in machines},
                            commands=self._launches(run, project, prepared, service),
                            began=began,
                        )
                        preparation = Preparation(
                            view=view, project=project, prepared=prepared, service=service
                        )
                        return self._launch(job, launch, preparation, (machines, spare), starting)
                    except BaseException:
                        if (
                            not run_folder.run_path.exists()
                            and point is not None
                            and point.source is not None
                        ):
                            take_back(view, self._folder, nodes, point, run)
                        raise

    def _usable(self, inventory: Inventory, step: Restart | Resize | None) -> frozenset[str] | None:
        """Return the names of the machines that can take part in a later run. `None`: in the first run all must."""
        if step is None:
            return None
        lacking = without_setup(self._folder, inventory.machines)
        return step.machines.difference(machine.name for machine in lacking)

    def _prepare(
        self,
        view: View,
        inventory: Inventory,
        nodes: "Mapping[str, Node]",
        project: Project,
        facts: "Mapping[str, Facts]",
        seconds: dict[str, float],
        aside: "Aside | None",
    ) -> "tuple[Prepared, Service]":
        """Prepare the nodes, check them, and start the launcher's service. `seconds` gets the phases' times.

        `aside`: the backup folder for files of earlier runs that would be lost.
        """
        request, launcher = self._request, launcher_of(project.mode)
        master = min((node.machine for node in nodes.values()), key=lambda machine: machine.rank)
        with _timed(seconds, "prepare"):
            prepared = prepare(
                view,
                self._folder,
                inventory,
                nodes,
                project,
                facts,
                env_names=request.env,
                aside=aside,
            )
        active = any(fact.active_runs for fact in prepared.facts.values())
        if active and (busy := busy_runs(self._app.store, nodes)):
            raise refusal(busy, [name for name in nodes if name not in busy], len(nodes))
        with _timed(seconds, "preflight"):
            view.phase("preflight", "trying every connection, checking what would fail later")
            skip, env_names = request.skip_preflight, request.env
            check_nodes(view, nodes, prepared, master, mode=project.mode, skip=skip, env_names=env_names)
        with _timed(seconds, "prepare" if launcher.phase is None else project.mode):
            if launcher.phase is not None:
                view.phase(project.mode, launcher.phase)
            service = launcher.start(nodes, prepared.facts, self._folder, view.node, most=project.max_nodes)
        return prepared, service

    def _launches(
        self, run: Run, project: Project, prepared: Prepared, service: "Service"
    ) -> dict[str, dict[str, Any]]:
        """Return the launch of each node's supervisor. The built-in job, without a project, leaves artifacts."""
        launches = service.launches(run, project.script, prepared.facts, prepared.code, project.rank_env)
        if self._request.built_in:
            return launches
        home_folders = launcher_of(project.mode).home_folders
        return with_project(launches, prepared.roots, project, home_folders)

    def _place(
        self,
        view: View,
        nodes: "Mapping[str, Node]",
        point: ResumePoint,
        run: Run,
        step: Restart | Resize | None,
    ) -> Run:
        """Place the checkpoints that the run resumes from, note them, and return the run's record."""
        seconds = dict(run.seconds)
        with _timed(seconds, "prepare"):
            began_with = place(view, self._app.store, nodes, point, run)
            view.note((step.why if step else "") + resume_line(point, run))
        if step is not None:
            self._refuse_if_stopped(point.run)
        return replace(run, resumed_from=point.run.run, began_with=began_with, seconds=rounded(seconds))

    def _launch(
        self,
        job: Job,
        launch: Launch,
        preparation: Preparation,
        machines: tuple[Sequence[Machine], Sequence[Machine]],
        starting: ExitStack,
    ) -> Attempt:
        """Start the ranks and follow the run to its end; an elastic run also looks for more machines.

        `machines`: the run's machines, and the ready ones that are left over.
        """
        request, scaler = self._request, self._scaler
        watch = launch.watch(preparation.view, mirror=request.continues, end_hung=request.ends_hung)
        working, spare = machines
        active = ActiveRun(
            run=launch.run, watch=watch, machines=working, spare=spare, preparation=preparation, job=job
        )
        goes_on = f"gpuctl was ended, and the run goes on: gpuctl logs -f {launch.run.run}"
        word = told_if_terminated(goes_on) if self._app.output.owns_process else nullcontext()
        with nullcontext() if scaler is None else scaler.during(active), word:
            result, interrupted = see_through(
                preparation.view, launch, watch, detach=request.detach, on_started=starting.close
            )
        names = [part.name for part in launch.run.nodes]
        if request.drives and result.ended_at is not None:
            rankless = {name: node for name, node in launch.nodes.items() if name not in names}
            sent, age_s = preparation.project.tree.entries, passed_s() - launch.began
            result = with_task_files(result, launch.folder, rankless, sent, age_s)
        earlier = preparation.prepared.earlier
        if request.share_outputs and (sentence := rewritten_sentence(result.outputs, names, earlier)):
            self._app.output.say(sentence)
        attempt = attempt_of(
            launch.run,
            result,
            watch.records,
            machines=len(working),
            joining=scaler.joining if scaler else (),
            interrupted=interrupted,
            hung=watch.stopped_as_hung and request.on_hang == "restart",
        )
        if request.drives and result.status in ("succeeded", "failed"):
            with suppress(KeyboardInterrupt):  # the run is over, and its record is not to be lost
                self._pods.report_lost([machine for machine in working if machine.name not in names])
        return attempt

    def _refuse_if_stopped(self, run: Run) -> None:
        """Raise JobStopped if a person stopped the run that another is to follow."""
        if self._was_stopped(run):
            raise JobStopped(stopped_line(run))

    def _was_stopped(self, run: Run) -> bool:
        return self._app.store.run(run.run).stopped_path.exists()


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the duration of the body to the phase's time."""
    mark = passed_s()
    yield
    seconds[phase] = seconds.get(phase, 0.0) + passed_s() - mark
