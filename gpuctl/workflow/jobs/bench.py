"""`bench`: the built-in job on one layout after the other, over one set of connections and prepared nodes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from gpuctl.app import App
from gpuctl.command_results import same_fields
from gpuctl.scaling.bottleneck import bottleneck, comparable, contradicting, doubts
from gpuctl.scaling.forecast import BenchForecast, Outlook, outlook
from gpuctl.scaling.gradient_buckets import buckets_of
from gpuctl.scaling.measurements import BenchLayout, Measured, default_layouts, same_batch
from gpuctl.scaling.network_links import Line, network_of, nominal_gb_s
from gpuctl.tables.view import open_view
from gpuctl.workflow.jobs.bench_request import (
    BENCH_WORDS,
    BenchRequest,
    bucket_mb,
    check,
    check_gpus,
    nodes_of,
)
from gpuctl.workflow.jobs.bench_runs import Ready, measure, put_aside
from gpuctl.workflow.jobs.scale_for_run import run_machines
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.notify import (
    command_failed,
    command_succeeded,
    default_targets,
    failure_sent,
    send_from_here,
)
from gpuctl.workflow.machines.setup_state import check_set_up
from gpuctl.workflow.runs import bandwidth
from gpuctl.workflow.runs.idle_nodes import connected_idle
from gpuctl.workflow.runs.prepare import check_nodes, gather_facts, prepare
from gpuctl.workflow.runs.request.launchable import read
from gpuctl.workflow.runs.request.request import candidates_of, check_together
from inventories.clocks import passed_s
from inventories.runs.result import RunStatus
from inventories.text import dollars, plural
from remote.errors import RemoteError
from remote.shared.notify.message import Notice


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The result of a benchmark, of at least one layout."""

    cluster: str
    script: str
    """Its title, or `built-in`."""
    words: tuple[str, ...]
    """Its arguments."""
    status: RunStatus
    """`stopped`: a person ended it; `failed`: a run did. The layouts before that are here."""
    failure: str | None
    measured: tuple[Measured, ...]
    outlooks: tuple[Outlook, ...]
    allreduce: Sequence[Line] | None
    """The measurement of the bandwidth; `None`: not measured."""
    forecasts: int
    """Number of requested forecasts."""
    hourly_usd: float | None
    """Price of all machines that took part."""
    total_s: float

    @property
    def exit_status(self) -> int:
        """Return 0; 1 if a run failed, 130 if a person ended it, 4 if a forecast can't be given."""
        if self.status != "succeeded":
            return 130 if self.status == "stopped" else 1
        unknown = [outlook for outlook in self.outlooks if outlook.forecast is None]
        return 4 if unknown or len(self.outlooks) < self.forecasts else 0

    def document(self) -> "BenchResult":
        """Return the document of `bench --json`."""
        first, limit = self.measured[0], bottleneck(self.measured)
        sound, wrong = comparable(self.measured), contradicting(self.measured)
        return BenchResult(
            **same_fields(BenchResult, self),
            args=self.words,
            model=first.job.model,
            dataset=first.job.dataset,
            batch_size=first.job.batch_size if same_batch(self.measured) else None,
            gradient_bytes=first.job.gradient_bytes,
            layouts=tuple(
                layout.document(first, compared=layout in sound, disturbed=layout in wrong)
                for layout in self.measured
            ),
            forecast=tuple(forecast.document() for forecast in self.outlooks),
            bottleneck=limit.kind if limit else None,
            advice=f"{limit.sentence} {limit.advice}" if limit else None,
            doubts=tuple(doubts(self.measured)),
            seconds=BenchSeconds(total=round(self.total_s, 3)),
            cost_usd=None if self.hourly_usd is None else self.hourly_usd * self.total_s / 3600,
        )


@dataclass(frozen=True, kw_only=True)
class BenchSeconds:
    """Wall-clock seconds of a benchmark."""

    total: float


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The document of `bench --json`."""

    cluster: str
    script: str
    args: tuple[str, ...]
    status: RunStatus
    """`stopped`: a person ended it; `failed`: a run did. The layouts before that are here."""
    failure: str | None
    model: str | None
    dataset: str | None
    batch_size: int | None
    """Of a rank. `None`: not the same on all layouts."""
    gradient_bytes: int | None
    layouts: tuple[BenchLayout, ...]
    forecast: tuple[BenchForecast, ...]
    bottleneck: str | None
    advice: str | None
    doubts: tuple[str, ...]
    """Why the figures may say little."""
    allreduce: Sequence[Line] | None
    """The measurement of the bandwidth. `None`: not measured."""
    seconds: BenchSeconds
    cost_usd: float | None


def bench(app: App, request: BenchRequest, *, on_end: Callable[[Bench], object] = lambda _: None) -> Bench:
    """Measure every layout. If a person or a failed run ends the measurement, return the layouts measured so far.

    `on_end` gets the result before machines started for it are ended. Raises KeyboardInterrupt, or the failure, if no
    layout was measured.
    """
    check(request)
    nnodes = max((layout.nodes for layout in request.layouts), default=None)
    targets = request.job.notify or default_targets(app)
    command = "bench " + " ".join(request.job.words[:1] or ["(built-in job)"])
    with (
        failure_sent(app, targets, command, app.options.cluster),
        run_machines(app, "bench", nnodes=nnodes) as hand_over,
    ):
        done = _bench(app, request)
        hand_over(done.document())
        on_end(done)
    if done.status != "stopped":  # by a person who is here
        send_from_here(app, targets, _notice(done, command))
    return done


def _notice(done: Bench, command: str) -> Notice:
    """Return the notice of the end of a benchmark: a line for each layout."""
    document = done.document()
    lines = [
        f"{layout.layout}: {layout.per_s:.4g} {layout.unit} a second"
        + (f", {layout.speed_up:.2f} times the first" if layout.speed_up else "")
        for layout in document.layouts
    ]
    if document.cost_usd:
        lines.append(dollars(document.cost_usd))
    if done.status == "succeeded":
        return command_succeeded(command, done.cluster, lines)
    return command_failed(command, done.cluster, done.failure or done.status)


def _bench(app: App, request: BenchRequest) -> Bench:
    began = passed_s()
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    train_request = replace(request.job, nnodes=nodes_of(request.layouts, inventory))
    if train_request.built_in:
        train_request = replace(train_request, words=(*BENCH_WORDS, *train_request.words))
    check_together(train_request)
    launchable = read(train_request)
    candidates, count = candidates_of(inventory, train_request)
    with ExitStack() as held:
        with open_view(app.output, logs=False) as view:
            # Held to the end: no other run may share the machines with a measurement.
            held.enter_context(folder.lock("bench", on_wait=view.note))
            view.phase("connect", f"connecting to {plural(count, 'node')}")
            nodes = held.enter_context(
                connected_idle(app.store, folder, candidates, train_request, count, say=view.note)
            )
            machines = [node.machine for node in nodes.values()]
            check_set_up(folder, machines)
            view.phase("prepare", "facts, firewalls, environment, code")
            prepared = prepare(
                view,
                folder,
                inventory,
                nodes,
                launchable,
                gather_facts(inventory, nodes, on_cpu=train_request.on_cpu),
                fresh=True,
            )
            view.phase("preflight", "trying every connection, checking what would fail later")
            check_nodes(view, nodes, prepared, train_request, machines[0])
            gpus = [len(prepared.facts[machine.name].gpus) for machine in machines]
            layouts = request.layouts or default_layouts(gpus)
            check_gpus(layouts, gpus)
            allreduce = None
            if request.forecast:
                view.phase("all-reduce", "measuring the bandwidth")
                allreduce, rows = bandwidth.measure(view, folder, inventory, nodes, prepared.facts)
                if allreduce is None:
                    view.note(f"the bandwidth was not measured: {rows[-1].detail}")
        ready = Ready(
            app=app,
            folder=folder,
            inventory=inventory,
            machines=machines,
            nodes=nodes,
            prepared=prepared,
            launchable=launchable,
        )
        if ready.one_machine and any(layout.nodes > 1 for layout in layouts):
            app.output.say("these hosts share one machine: more of them bring no more speed")
        status, failure, measured = measure(ready, layouts, request.repeats)
        _leave_tidy(ready)
    return Bench(
        cluster=inventory.cluster,
        script=launchable.script.title,
        words=launchable.script.args,
        status=status,
        failure=failure,
        measured=measured,
        outlooks=tuple(_outlooks(request, ready, measured, allreduce or ())),
        allreduce=allreduce,
        forecasts=len(request.forecast),
        hourly_usd=None
        if inventory.hourly_usd is None
        else inventory.hourly_usd * len(machines) / len(inventory.machines),
        total_s=passed_s() - began,
    )


def _leave_tidy(ready: Ready) -> None:
    """Move the output of a script's runs aside, so that its next training run does not load it."""
    say = ready.app.output.say
    try:
        if put_aside(ready):
            say(
                "what these runs wrote into the project's folder is put aside on the nodes, beside it: gpuctl clean "
                "removes it"
            )
    except RemoteError as error:
        say(f"what these runs wrote into the project's folder is still there on the nodes: {error}")


def _outlooks(
    request: BenchRequest, ready: Ready, measured: Sequence[Measured], lines: Sequence[Line]
) -> list[Outlook]:
    """Return the forecasts for the requested layouts. Empty also if the measurements contradict each other."""
    if request.forecast and contradicting(measured):
        ready.app.output.say("no forecast is made: the figures contradict themselves")
        return []
    mb = bucket_mb(request.job.words) if request.job.built_in else None
    buckets = buckets_of(measured[0].job, mb)
    rdma = any(device.addressed for fact in ready.prepared.facts.values() for device in fact.rdma)
    network = network_of(
        lines,
        nnodes=len(ready.machines),
        bucket_bytes=buckets.largest_bytes if buckets else 0,
        given_gb_s=request.bandwidth_gb_s,
        nominal_gb_s=nominal_gb_s(ready.inventory.shape, rdma=rdma),
    )
    gpus = min(len(ready.prepared.facts[machine.name].gpus) for machine in ready.machines)
    return [outlook(layout, measured, network, gpus_a_node=gpus, bucket_mb=mb) for layout in request.forecast]
