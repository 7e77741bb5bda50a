"""Where the checkpoints of earlier runs lie, and how they get to the node that goes on from them."""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.text import plural
from gpuctl.view import View
from gpuctl.workflow.connect import connected, load_inventory
from inventories.machine import Machine
from inventories.run import Run
from inventories.store import ClusterFolder, RunFolder, Store

if TYPE_CHECKING:
    from remote.checkpoints import Checkpoints
    from remote.session import Node


@dataclass(frozen=True, kw_only=True)
class Place:
    """A machine that may have checkpoints."""

    cluster: ClusterFolder
    machine: Machine

    @property
    def key(self) -> str:
        """Of no other place: clusters may name machines alike."""
        return f"{self.cluster.name}/{self.machine.name}"


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The run that another goes on from, and where its checkpoints lie."""

    run: Run
    source: Run | None
    """Whose checkpoints are taken: the run's, or those that it went on from itself. None: there are none."""
    newest: str = ""
    """Name of the newest checkpoint's file."""
    places: tuple[Place, ...] = ()
    """Machines that have them. None: they were brought here when the run ended."""
    answering: frozenset[str] = frozenset()
    """Names of the cluster's machines that were reached."""
    why: str = ""
    """For a restart, what it is one for."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the machines say of some runs' checkpoints."""

    runs: Sequence[Run]
    places: Mapping[str, Place]
    found: "Mapping[str, Sequence[Checkpoints | None]]"
    """Place → what it has of each run; places that could not be asked are missing."""
    here: "Sequence[Checkpoints | None]"
    errors: tuple[str, ...]

    def answering(self, cluster: ClusterFolder) -> frozenset[str]:
        """Names of the cluster's machines that were asked and told."""
        asked = (self.places[key] for key in self.found)
        return frozenset(place.machine.name for place in asked if place.cluster == cluster)

    def pick(self) -> "tuple[Run, Checkpoints, tuple[Place, ...]] | None":
        """The first run of which there are any, and the places that have them; none: only this computer has."""
        for at, run in enumerate(self.runs):
            having = {key: said for key, all_runs in self.found.items() if (said := all_runs[at]) is not None}
            known = next(iter(having.values()), self.here[at])
            if known is not None:
                return run, known, tuple(self.places[key] for key in having)
        return None


def survey(store: Store, own: ClusterFolder, runs: Sequence[Run], *, unfinished: Run | None = None) -> Survey:
    """Ask every machine of the cluster at once, and the first nodes of runs of other clusters.

    Machines of the cluster `own` that did not tell how their part of the run `unfinished` ended end it first.
    """
    from remote import checkpoints
    from remote.connection import connect
    from remote.errors import RemoteError
    from remote.fanout import fan_out
    from remote.replica import read_node_records
    from remote.watch import stop_on_node

    places = [Place(cluster=own, machine=machine) for machine in load_inventory(own).machines]
    places += _of_other_clusters(store, own, runs)
    lost = {}
    if unfinished is not None:
        said = {record.node for record in read_node_records(store.run(unfinished.run), unfinished.nodes)}
        lost = {part.name: part for part in unfinished.nodes if part.name not in said}

    def one(there: Place) -> "list[Checkpoints | None]":
        node = connect(there.machine, there.cluster.known_hosts_path)
        try:
            if there.cluster == own and node.name in lost:
                stop_on_node(node, lost[node.name])
            return checkpoints.on_node(node, runs)
        finally:
            node.close()

    outcomes = fan_out(one, {there.key: there for there in places})
    errors = [outcome.error for outcome in outcomes if isinstance(outcome.error, RemoteError)]
    return Survey(
        runs=runs,
        places={there.key: there for there in places},
        found={outcome.node: outcome.value for outcome in outcomes if outcome.value is not None},
        here=[checkpoints.in_folder(store.run(run.run).checkpoints_path, run) for run in runs],
        errors=tuple(map(str, errors)),
    )


def _of_other_clusters(store: Store, own: ClusterFolder, runs: Sequence[Run]) -> list[Place]:
    """The first nodes of runs that took place elsewhere, of clusters that are still there."""
    places: dict[str, Place] = {}
    for run in runs:
        cluster = store.cluster(run.cluster)
        if cluster.name == own.name or not cluster.exists():
            continue
        for machine in cluster.load().machines:
            if machine.name == run.nodes[0].name:
                there = Place(cluster=cluster, machine=machine)
                places[there.key] = there
    return list(places.values())


def place(
    view: View,
    store: Store,
    cluster: ClusterFolder,
    nodes: "Mapping[str, Node]",
    earlier: Earlier,
    run: Run,
) -> None:
    """Bring the checkpoints to where the run's first node looks for them, and say in a line where it goes on from.

    On a node that has them nothing travels; else they come over this computer, file by file. What was not placed
    as a whole is taken back.
    """
    from remote import checkpoints
    from remote.errors import RemoteError

    if earlier.source is not None:
        node = nodes[run.nodes[0].name]
        try:
            _place(view, store.run(earlier.source.run), cluster, node, earlier, run)
        except RemoteError:
            with contextlib.suppress(RemoteError):
                checkpoints.discard(node, run.nodes[0])
            raise
    view.note(earlier.why + goes_on(earlier, run))


def _place(
    view: View, folder: RunFolder, cluster: ClusterFolder, node: "Node", earlier: Earlier, run: Run
) -> None:
    from remote import checkpoints
    from remote.replica import incoming

    def send(from_here: Path) -> None:
        ssh_config = cluster.ssh_config_path
        checkpoints.send(
            node, from_here, run.nodes[0], ssh_config=ssh_config, say=lambda text: view.node(node.name, text)
        )

    assert earlier.source is not None
    if has_them(earlier, run):
        checkpoints.place(node, earlier.source, run.nodes[0])
    elif earlier.places:
        there, passing = earlier.places[0], incoming(folder)
        try:
            with connected(there.cluster, [there.machine]) as others:
                for refused in checkpoints.bring(others[there.machine.name], earlier.source, passing):
                    view.note(f"{there.machine.name}: {refused}")
            send(passing)
        finally:
            shutil.rmtree(passing, ignore_errors=True)
    else:
        send(folder.checkpoints_path)


def has_them(earlier: Earlier, run: Run) -> bool:
    """Whether the run's first node has the checkpoints itself."""
    return f"{run.cluster}/{run.nodes[0].name}" in {place.key for place in earlier.places}


def goes_on(earlier: Earlier, run: Run) -> str:
    """`run B goes on from step-000040.pt of run A on 1 node`, and where that was brought from if it was."""
    where = plural(len(run.nodes), "node")
    if earlier.source is None:
        nothing = f"no checkpoint of run {earlier.run.run} is in reach"
        return f"run {run.run} starts from the beginning on {where}: {nothing}"
    line = f"run {run.run} goes on from {earlier.newest} of run {earlier.source.run} on {where}"
    if not earlier.places:
        return f"{line}, with what was brought here when that ended"
    if has_them(earlier, run):
        return line
    return f"{line}, brought from {earlier.places[0].machine.name}"
