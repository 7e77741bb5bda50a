"""`queue add`: prepare runs like `train`, and leave their start to the queue on the first node.

The files go to a folder of their content, the environment to one of its packages: so nothing that a run uses changes
while it waits, and nothing that an active run uses changes now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.option_table.queue_options import SWEEP_TAG, QueueSettings, grid, point_name, point_text
from gpuctl.tables.view import View, open_view
from gpuctl.text import nothing_ends
from gpuctl.workflow.machines.cloud_record import cloud_record
from gpuctl.workflow.machines.connect import connected, load_inventory
from gpuctl.workflow.machines.idle import keep_for_start
from gpuctl.workflow.machines.notify import default_targets
from gpuctl.workflow.machines.setup_state import check_set_up
from gpuctl.workflow.runs.gpus import check_gpus
from gpuctl.workflow.runs.launch import launches_of, plan_run
from gpuctl.workflow.runs.prepare import Prepared, check_nodes, gather_facts, prepare
from gpuctl.workflow.runs.queued_runs import first_machine, keep_records, mirrored, take_in, with_added
from gpuctl.workflow.runs.request.launchable import Launchable, read
from gpuctl.workflow.runs.request.request import TrainRequest, candidates_of, with_plain_strategy
from gpuctl.workflow.runs.strategy.auto import with_strategy
from gpuctl.workflow.runs.strategy.fitting import machines_that_fit, ranks_on
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.runs.queue import Queue
from inventories.text import listed, plural
from provision.clouds import RENTED
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from remote.runs.queue import NewEntry, Place
    from remote.sessions.session import Node

LOCK_S = 600.0
"""For another command to be done with the cluster: several may add at once."""


def add(app: App, request: TrainRequest, settings: QueueSettings) -> Queue:
    """Add an entry, or one for each point of a sweep, and return them alone as the first node has them."""
    _refuse(request)
    if not request.notify:
        request = replace(request, notify=default_targets(app))
    launchable = replace(read(with_plain_strategy(request)), by_content=True)
    folder = app.store.cluster(app.options.cluster)
    with (
        open_view(app.output, logs=False) as view,
        folder.lock("queue add", wait_s=LOCK_S, on_wait=view.note),
    ):
        inventory = load_inventory(folder)
        candidates, count = candidates_of(inventory, request)
        _refuse_pods(candidates)
        for note in launchable.notes(inventory, count):
            view.note(note)
        view.phase("connect", f"connecting to {plural(len(candidates), 'node')}")
        keeper = first_machine(folder)
        with (
            connected(folder, candidates, at_least=count, say=view.note) as nodes,
            connected(folder, [] if keeper.name in nodes else [keeper]) as others,
        ):
            check_set_up(folder, [node.machine for node in nodes.values()])
            for problem in keep_for_start(folder, inventory, nodes):
                view.note(f"note: {problem}")
            first = {**nodes, **others}[keeper.name]
            adding = _Adding(app, view, folder, inventory, first, nodes, count, launchable)
            return adding.add(settings)


class _Adding:
    """Adds entries, with all connections open."""

    def __init__(
        self,
        app: App,
        view: View,
        folder: ClusterFolder,
        inventory: Inventory,
        first: "Node",
        nodes: "Mapping[str, Node]",
        count: int,
        launchable: Launchable,
    ) -> None:
        """`first`: keeps the queue. `nodes`: can take part in the runs. `count`: of the nodes of a run."""
        self._app = app
        self._view = view
        self._folder = folder
        self._inventory = inventory
        self._nodes = nodes
        self._launchable = launchable
        self._first = first
        machines = [node.machine for node in nodes.values()]
        self._places = neighbours(machines, count)

    def add(self, settings: QueueSettings) -> Queue:
        """Prepare the nodes once, and add the entries at once."""
        from remote.runs import queue

        prepared = self._prepare()
        before = mirrored(self._folder)
        runs = {entry.run for entry in before.entries}
        points, entries = grid(settings.sweep), []
        sweep_id = self._app.store.free_run_id(datetime.now(UTC), runs)
        for number, point in enumerate(points, 1):
            run_id = self._app.store.free_run_id(datetime.now(UTC), runs)
            runs.add(run_id)
            entries.append(
                self._entry(prepared, run_id, self._at(point, number, sweep_id), settings.priority)
            )
        nodes = list({self._first.name: self._first, **self._nodes}.values())
        restarts = self._inventory.provider != "local"  # those start with this computer, by a command
        added = queue.add(nodes, entries, settings.after, restarts=restarts)
        if not before.open_entries and _is_endless(self._folder, self._inventory):
            day_usd = None if self._inventory.hourly_usd is None else self._inventory.hourly_usd * 24
            advice = (
                ", also after the last run (gpuctl down ends them; --notify says when the queue is empty)"
            )
            self._view.note(nothing_ends(day_usd, advice))
        if added.without_cron:
            self._view.note(
                f"no cron on {listed([*added.without_cron])}: after a restart, gpuctl queue ls continues the queue"
            )
        take_in(self._app, self._folder, nodes[0], with_added(before, added), before)
        return added

    def _prepare(self) -> Prepared:
        """Prepare the nodes as for a run. An active one is no obstacle: none of its files is touched."""
        request, view = self._launchable.request, self._view
        view.phase("prepare", "facts, firewalls, environment, code")
        real_facts = gather_facts(self._inventory, self._nodes, on_cpu=request.on_cpu)
        busy = any(fact.active_runs for fact in real_facts.values())
        facts = {name: replace(fact, active_runs=()) for name, fact in real_facts.items()}
        check_gpus(request, facts)
        if request.built_in:
            advised = with_strategy(self._app, request, self._places[0], facts)
            self._launchable = self._launchable.with_request(advised)
        prepared = prepare(view, self._folder, self._inventory, self._nodes, self._launchable, facts)
        view.phase("preflight", "checking what would fail later")
        skip = request.skip_preflight or busy  # its connections would disturb a run
        check_nodes(view, self._nodes, prepared, replace(request, skip_preflight=skip), self._places[0][0])
        request = self._launchable.request
        layouts = {tuple(ranks_on(request, facts[m.name]) for m in place): place for place in self._places}
        for place in layouts.values():
            machines_that_fit(request, place, prepared.facts, view.note, fewer=False)
        return prepared

    def _at(self, point: Mapping[str, str], number: int, sweep_id: str) -> Launchable:
        """Return the launchable at a point of the sweep: with its options, its name, and the sweep's tag."""
        if not point:
            return self._launchable
        words = [word for name, value in point.items() for word in (f"--{name}", value)]
        launchable = self._launchable.with_words(words)
        request = launchable.request
        labelled = replace(
            request,
            tags={SWEEP_TAG: sweep_id, **request.tags},
            name=request.name and point_name(request.name, point, number),
            note=request.note or point_text(point),
        )
        return replace(launchable, request=labelled, is_of_sweep=True)

    def _entry(self, prepared: Prepared, run_id: str, launchable: Launchable, priority: int) -> "NewEntry":
        """Return the entry of a launchable."""
        from remote.runs.queue import NewEntry

        places = [self._place(prepared, run_id, launchable, machines) for machines in self._places]
        keep_records(self._folder, [place.run for place in places])
        return NewEntry(places=places, priority=priority)

    def _place(
        self, prepared: Prepared, run_id: str, launchable: Launchable, machines: Sequence[Machine]
    ) -> "Place":
        """Return the run as it starts on these machines."""
        from remote.runs.queue import Place

        request = launchable.request
        run = plan_run(
            run_id,
            self._inventory,
            request,
            launchable.script,
            machines,
            prepared.facts,
            datetime.now(UTC),
            {},
            root=launchable.tree.root,
            names_ranks=launchable.sources.names_ranks,
            commit=launchable.commit,
        )
        service = launcher_of(request.mode).planned(machines, prepared.facts)
        launches = launches_of(run, launchable, prepared, service, self._app.store, self._inventory, machines)
        return Place(run=run, launches=launches)


def neighbours(machines: Sequence[Machine], count: int) -> list[list[Machine]]:
    """Return the places for a run on `count` machines: neighbours in a ring, in which the first follows the last."""
    ring = [*machines, *machines]
    starts = range(1 if count == len(machines) else len(machines))
    return [sorted(ring[start : start + count], key=lambda machine: machine.rank) for start in starts]


def _is_endless(folder: ClusterFolder, inventory: Inventory) -> bool:
    """Return whether the machines are rented, without a time limit and without an end for want of use."""
    if inventory.provider not in RENTED:
        return False
    from gpuctl.workflow.clusters.bill import ending_of

    record = cloud_record(folder, inventory.provider)
    return record is None or (record.idle_s is None and ending_of(folder, inventory.provider) is None)


def _refuse(request: TrainRequest) -> None:
    """Raise Usage for a request that a node can't carry out alone."""
    if request.mode == "ray":
        raise Usage("A queue starts its runs with torchrun: leave out --mode ray, or run it by gpuctl train.")
    if request.gpus:
        raise Usage("A queue starts its runs on whole nodes: leave out --gpus, or use gpuctl train.")
    if request.elastic:
        raise Usage(
            f"--nnodes {request.nnodes_text} is elastic, which needs gpuctl to stay: name a number of nodes, or use "
            "gpuctl train."
        )


def _refuse_pods(machines: Sequence[Machine]) -> None:
    """Raise Usage for machines that can't keep a queue."""
    if any(machine.transport == "pod" for machine in machines):
        raise Usage(
            "A pod keeps no queue, as an empty one may replace it at any time: use gpuctl train, or a queue of "
            "Kubernetes with gpuctl manifests."
        )
