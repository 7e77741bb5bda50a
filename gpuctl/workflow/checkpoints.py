"""Where the checkpoints of earlier runs lie, and how they get to the node that goes on from them."""

import contextlib
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
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
    found: "Checkpoints | None" = None
    """What there is of them."""
    places: tuple[Place, ...] = ()
    """Machines that have them. None: they were brought here."""
    answering: frozenset[str] = frozenset()
    """Names of the cluster's machines that were reached."""
    unknown: Run | None = None
    """A later run, or the same, that may have left newer ones on a first node that did not answer."""
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
    errors: Mapping[str, str]
    """Place → why it could not be asked."""
    mirrored: frozenset[str] = frozenset()
    """Ids of runs of which what is here was brought while they went on: their first nodes may have newer ones."""

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

    def unknown(self) -> tuple[Run, str] | None:
        """The first run that may have newer ones than those to pick on a first node that did not answer, and why."""
        asked = list(self.runs)
        if (picked := self.pick()) is not None:
            source, _, places = picked
            del asked[asked.index(source) :]
            if not places and source.run in self.mirrored:
                asked.append(source)
        for run in asked:
            if error := self.errors.get(f"{run.cluster}/{run.nodes[0].name}"):
                return run, error
        return None


def survey(store: Store, own: ClusterFolder, runs: Sequence[Run], *, unfinished: Run | None = None) -> Survey:
    """Ask every machine of the cluster at once, and the first nodes of runs of other clusters.

    Machines of the cluster `own` that did not tell how their part of the run `unfinished` ended end it first.
    """
    from remote import checkpoints
    from remote.connection import connect
    from remote.fanout import fan_out
    from remote.replica import mirrored_path, read_node_records
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
    return Survey(
        runs=runs,
        places={there.key: there for there in places},
        found={outcome.node: outcome.value for outcome in outcomes if outcome.value is not None},
        here=[checkpoints.in_folder(store.run(run.run).checkpoints_path, run) for run in runs],
        errors={outcome.node: str(outcome.error) for outcome in outcomes if outcome.error is not None},
        mirrored=frozenset(run.run for run in runs if mirrored_path(store.run(run.run)).exists()),
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

    On a node that has them nothing travels; else they come over this computer, file by file. Where they are not
    placed as a whole it raises, and where the run is not launched, whatever the reason, `take_back` is to follow.
    """
    if earlier.source is not None:
        node = nodes[run.nodes[0].name]
        _place(view, store.run(earlier.source.run), cluster, node, earlier, run)
    view.note(earlier.why + goes_on(earlier, run))


def take_back(view: View, cluster: ClusterFolder, node: "Node", run: Run) -> None:
    """Remove from the run's first node what was placed, or had begun to be. Ctrl-C has to wait for it."""
    from remote import checkpoints
    from remote.errors import RemoteError

    with interrupts_held_back():
        view.note(f"{node.name}: removing the checkpoints that were placed for run {run.run}")
        try:
            # The connection at hand may have been left in the middle of a packet.
            with connected(cluster, [node.machine]) as fresh:
                checkpoints.discard(fresh[node.name], run.nodes[0])
        except RemoteError as error:
            view.note(f"{node.name}: they are left there, beside {run.nodes[0].run_dir}: {error}")


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C during the body counts once that is over. Of the main thread only."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _place(
    view: View, folder: RunFolder, cluster: ClusterFolder, node: "Node", earlier: Earlier, run: Run
) -> None:
    from remote import checkpoints
    from remote.intake import Intake
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
                checkpoints.bring(others[there.machine.name], earlier.source, Intake(passing))
            send(passing)
        finally:
            shutil.rmtree(passing, ignore_errors=True)
    else:
        send(folder.checkpoints_path)


def has_them(earlier: Earlier, run: Run) -> bool:
    """Whether the run's first node has the checkpoints itself."""
    return f"{run.cluster}/{run.nodes[0].name}" in {place.key for place in earlier.places}


def goes_on(earlier: Earlier, run: Run) -> str:
    """`run B goes on from step-000040.pt of run A on 1 node`, and what a person would not expect of it."""
    where = plural(len(run.nodes), "node") + _other_ranks(earlier.source or earlier.run, run)
    if earlier.source is None or earlier.found is None:
        nothing = f"no checkpoint of run {earlier.run.run} is in reach"
        return f"run {run.run} starts from the beginning on {where}: {nothing}{_unknown(earlier, 'some')}"
    line = f"run {run.run} goes on from {earlier.found.newest} of run {earlier.source.run} on {where}"
    if not earlier.places:
        line += ", with what was brought here"
    elif not has_them(earlier, run):
        line += f", brought from {earlier.places[0].machine.name}"
    return line + _unknown(earlier, "newer ones")


def _other_ranks(before: Run, run: Run) -> str:
    """`, 1 rank instead of 2`, and what that does to the built-in job; empty where there are as many."""
    if run.world_size == before.world_size:
        return ""
    ranks = f", {plural(run.world_size, 'rank')} instead of {before.world_size}"
    if not run.built_in or any(word.split("=")[0] == "--global-batch-size" for word in run.args):
        return ranks
    return f"{ranks} (the global batch changes with them unless --global-batch-size is given)"


def _unknown(earlier: Earlier, what: str) -> str:
    run = earlier.unknown
    if run is None:
        return ""
    lost = run.nodes[0].name
    if run == earlier.source:
        return f"; {lost}, which does not answer, may have {what}"
    return f"; run {run.run} may have left {what} on {lost}, which does not answer"
