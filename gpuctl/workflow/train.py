"""`train`: ready nodes → a run → its result."""

import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpuctl.errors import Failed, JobStopped
from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.view import View, open_view
from gpuctl.workflow.checkpoints import Earlier
from gpuctl.workflow.collect import conclude
from gpuctl.workflow.connect import connected, load_inventory
from gpuctl.workflow.elastic import Going, Growth, MakeReady
from gpuctl.workflow.placement import place, take_back
from gpuctl.workflow.prepare import Prepared, prepare
from gpuctl.workflow.request import TrainRequest, machines_of, what_to_install, what_to_run
from inventories.machine import Inventory, Machine
from inventories.run import Mode, Result, Run, RunNode
from inventories.store import ClusterFolder, RunFolder
from remote.observer import Observer

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.python_env.requirements import Wanted
    from remote.ray import Head
    from remote.script import Script
    from remote.session import Node
    from remote.tree import Tree
    from remote.watch import Watch

__all__ = [
    "TrainRequest",
    "check_nodes",
    "interrupts_go_to",
    "launches_of",
    "plan_run",
    "see_through",
    "train",
]


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
    from remote import ray_cluster

    inventory = load_inventory(folder)
    machines = machines_of(inventory, request)
    script, tree, destination = what_to_run(app, request, inventory)
    wanted = what_to_install(request, tree, machines, app.output.say)
    with open_view(app.output, logs=not request.built_in) as view, ExitStack() as preparing:
        # Held until the ranks have started: no `up`, `down` or second `train` comes in between.
        # A run that follows another has to follow: an `up` that replaces a lost machine may take a while.
        wait_s = FIRST_LOCK_S if request.answering is None else NEXT_LOCK_S
        preparing.enter_context(folder.lock("train", wait_s=wait_s, on_wait=view.note))
        inventory = load_inventory(folder)  # it may be another by now
        machines = machines_of(inventory, request)
        view.phase("connect", f"connecting to {plural(len(machines), 'node')}")
        with connected(folder, machines, at_least=request.min_nodes, say=view.note) as nodes:
            machines = [machine for machine in machines if machine.name in nodes]
            seconds = {"connect": time.monotonic() - began}
            mark = time.monotonic()
            view.phase("prepare", "facts, firewalls, environment, code")
            prepared = prepare(view, folder, inventory, nodes, tree, destination, wanted)
            seconds["prepare"] = time.monotonic() - mark
            mark = time.monotonic()
            view.phase("preflight", "trying every connection, checking what would fail later")
            check_nodes(
                view,
                nodes,
                prepared,
                machines[0],
                mode=request.mode,
                skip=request.skip_preflight,
                wished=request.env,
            )
            seconds["preflight"] = time.monotonic() - mark
            head = None
            if request.mode == "ray":
                mark = time.monotonic()
                view.phase("ray", "a head on the first node, workers on the others")
                head = ray_cluster.bring_up(
                    nodes, prepared.facts, folder.ray_token(), view.node, most=request.most_nodes
                )
                seconds["prepare"] += time.monotonic() - mark
            run_folder = app.store.new_run(started_at)
            run = plan_run(
                run_folder.id, inventory, request, script, machines, prepared.facts, started_at, seconds
            )
            try:
                if earlier is not None:
                    mark = time.monotonic()
                    place(view, app.store, folder, nodes, earlier, run)
                    placed_s = seconds["prepare"] + time.monotonic() - mark
                    run = replace(
                        run,
                        resumed_from=earlier.run.run,
                        seconds={**run.seconds, "prepare": round(placed_s, 3)},
                    )
                if request.answering is not None and earlier is not None:
                    check_not_stopped(app, earlier.run.run)
                make_ready = readying(
                    view, folder, request, tree, destination, wanted, prepared, machines[0], head
                )

                def grow(watch: "Watch") -> AbstractContextManager[None]:
                    if growth is None:
                        return nullcontext()
                    going = Going(
                        run=run,
                        watch=watch,
                        machines=machines,
                        make_ready=make_ready,
                        gives_way=not request.drives,  # what a driver has Ray do is Ray's to move
                        say=view.note,
                    )
                    return growth.during(going)

                return see_through(
                    view,
                    folder,
                    run_folder,
                    run,
                    nodes,
                    launches_of(run, script, prepared, request.env, head),
                    detach=request.detach,
                    mirror=request.max_restarts > 0 or request.elastic,
                    beside=grow,
                    began=began,
                    on_started=preparing.close,
                )
            except BaseException:
                if not run_folder.run_path.exists():  # it is written before anything is launched
                    shutil.rmtree(run_folder.path, ignore_errors=True)
                    if earlier is not None and earlier.source is not None:
                        take_back(view, folder, nodes, run)
                raise


def check_not_stopped(app: App, run: str) -> None:
    """Raises JobStopped where a person stopped the run that is to be followed by another."""
    if app.store.run(run).stopped_path.exists():
        raise JobStopped(f"The job was stopped: no other run follows {run}.")


def readying(
    view: View,
    folder: ClusterFolder,
    request: TrainRequest,
    tree: "Tree",
    destination: str,
    wanted: "Wanted | None",
    prepared: Prepared,
    master: Machine,
    head: "Head | None",
) -> MakeReady:
    """What makes a machine ready to join those that are, and has it join the Ray that a driver uses."""
    from remote import preflight, ray_cluster
    from remote.errors import NodeFailed

    facts = dict(prepared.facts)

    def make_ready(inventory: Inventory, nodes: "Mapping[str, Node]", machine: Machine) -> None:
        if master.name not in nodes:
            raise NodeFailed(f"{master.name}, the first of the run's machines, is not there any more.")
        others = {name: node for name, node in nodes.items() if name != machine.name}
        one = {machine.name: nodes[machine.name]}
        ready = prepare(view, folder, inventory, one, tree, destination, wanted, beside=others)
        together = {**{name: facts[name] for name in others}, **ready.facts}
        preflight.check(together, None, master=master, note=view.note, mode=request.mode, wished=request.env)
        if request.drives and head is not None:
            token, most = folder.ray_token(), request.most_nodes
            ray_cluster.join(nodes, machine, together, head, master, token, view.node, most=most)
        facts.update(ready.facts)

    return make_ready


class Stage(Observer, Protocol):
    """Who is told how a run goes, and which phase it is in."""

    def phase(self, name: str, text: str) -> None:
        """Begin a phase."""


def see_through(
    view: Stage,
    cluster: ClusterFolder,
    folder: RunFolder,
    run: Run,
    nodes: "Mapping[str, Node]",
    launches: Mapping[str, dict[str, Any]],
    *,
    began: float,
    detach: bool = False,
    mirror: bool = False,
    on_started: Callable[[], None] = lambda: None,
    beside: "Callable[[Watch], AbstractContextManager[None]]" = lambda _: nullcontext(),
) -> tuple[Result, bool]:
    """Start a planned run on its nodes, which are ready, and see it to its end unless `detach`.

    `nodes` are those of the run; their connections stay open. `began`: monotonic time since which its total is
    counted. `mirror`: the newest checkpoints are brought here on the way. `beside`: is entered while it is watched.
    Returns the result, and whether a person interrupted it.
    """
    from remote.watch import Watch

    machines = {name: node.machine for name, node in nodes.items()}
    watch = Watch(
        run, folder, machines, cluster.known_hosts_path, view, gang=True, mirror=mirror, nodes=nodes
    )
    with interrupts_go_to(watch), beside(watch):
        folder.save_run(run)
        return _launch(view, folder, run, watch, launches, on_started, detach=detach, began=began)


@contextmanager
def interrupts_go_to(watch: "Watch") -> Iterator[None]:
    """From here on Ctrl-C is a message to the watch: nothing is broken off half-way."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: watch.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _price(inventory: Inventory, machines: int) -> float | None:
    """USD an hour of the machines that take part: their share of the cluster's price."""
    if inventory.hourly_usd is None:
        return None
    return inventory.hourly_usd * machines / len(inventory.machines)


def check_nodes(
    view: Stage,
    nodes: "Mapping[str, Node]",
    prepared: Prepared,
    master: Machine,
    *,
    mode: Mode = "torchrun",
    skip: bool = False,
    wished: Collection[str] = (),
) -> None:
    """The preflight. Raises PreflightFailed.

    `skip`: only where nothing could be started at all. `wished`: names of the variables that a person sets.
    """
    from remote import preflight
    from remote.probe import probe

    facts, port = prepared.facts, prepared.facts[master.name].free_port
    busy = any(fact.active_runs for fact in facts.values())
    if skip and port is not None and prepared.code:
        view.note("the preflight is skipped, as you said")
        return
    probes = None if busy or skip else probe(nodes, master=master.name, rendezvous_port=port)
    preflight.check(facts, probes, master=master, note=view.note, mode=mode, wished=wished)


def plan_run(
    run_id: str,
    inventory: Inventory,
    request: TrainRequest,
    script: "Script",
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    started_at: datetime,
    seconds: Mapping[str, float],
) -> Run:
    """The run's record: which ranks on which node, and where they meet.

    A script that drives Ray is one process on the first node; what it starts on the others is its own affair.
    """
    parts: list[RunNode] = []
    first_rank = 0
    hourly_usd = _price(inventory, len(machines))
    if request.drives:
        machines, request = machines[:1], replace(request, nproc_per_node=1)
    for rank, machine in enumerate(machines):
        fact = facts[machine.name]
        asked = request.nproc_per_node
        nproc = asked if isinstance(asked, int) else len(fact.gpus) or 1
        parts.append(
            RunNode(
                name=machine.name,
                rank=rank,
                nproc=nproc,
                first_rank=first_rank,
                # A home may be shared by all nodes.
                run_dir=f"{fact.home}/.gpuctl-node/runs/{run_id}/{machine.name}",
                clock_offset_s=round(fact.clock_offset_s, 3),
            )
        )
        first_rank += nproc
    port = facts[machines[0].name].free_port or 0  # the preflight refuses a node that has none
    return Run(
        run=run_id,
        cluster=inventory.cluster,
        mode=request.mode,
        script=script.title,
        args=script.args,
        nodes=tuple(parts),
        master_addr=machines[0].private_ip,
        master_port=port,
        started_at=started_at.isoformat(timespec="milliseconds"),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        hourly_usd=hourly_usd,
        options=request.options(),
    )


def launches_of(
    run: Run, script: "Script", prepared: Prepared, wished: Mapping[str, str], head: "Head | None" = None
) -> dict[str, dict[str, Any]]:
    """What is started on each node. `head`: of the Ray that starts the ranks; None: torchrun does."""
    from remote import ray, torchrun
    from remote.facts import cores_of_a_node

    cores = cores_of_a_node(prepared.facts)
    if head is not None:
        return {
            part.name: ray.launch_spec(
                run,
                part,
                prepared.facts,
                script,
                cwd=prepared.code[part.name],
                cores=cores,
                wished=wished,
                head=head,
            )
            for part in run.nodes
        }
    return {
        part.name: torchrun.launch_spec(
            run,
            part,
            prepared.facts[part.name],
            script,
            cwd=prepared.code[part.name],
            cores=cores[part.name],
            wished=wished,
        )
        for part in run.nodes
    }


def _launch(
    view: Stage,
    folder: RunFolder,
    run: Run,
    watch: "Watch",
    launches: Mapping[str, dict[str, Any]],
    on_started: Callable[[], None],
    *,
    detach: bool,
    began: float,
) -> tuple[Result, bool]:
    """Start the ranks and see the run through, or leave it alone where that was asked for."""
    where = plural(len(run.nodes), "node")
    ranks = plural(run.world_size, "rank")
    view.phase("launch", f"run {run.run}: starting {ranks} on {where}")
    mark = time.monotonic()

    def started() -> None:
        on_started()
        if not detach:
            view.phase("train", f"{run.script}: {ranks} at work")

    try:
        watch.go(launches=launches, wait=not detach, on_started=started)
        launched = max(watch.started_s.values(), default=mark)
        run = replace(run, seconds={**run.seconds, "launch": round(launched - mark, 3)})
        folder.save_run(run)
        if not detach:
            view.phase("collect", "bringing the results back")
        result = conclude(run, folder, watch, launched=launched, began=began)
    except OSError as error:
        raise Failed(
            f"Run {run.run} can no longer be watched from here: {error}. It goes on by itself: mend that, then "
            f"gpuctl logs -f {run.run} follows it and gpuctl stop {run.run} ends it."
        ) from error
    finally:
        watch.close()
    return result, watch.interrupts > 0
