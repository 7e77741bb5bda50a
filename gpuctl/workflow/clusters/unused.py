"""Clusters whose machines had no use for the time of their `--idle`, as the machines report it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuctl.workflow.machines.idle import ask_machines, unknown_use
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Clusters without use, and clusters that could not be asked."""

    ids: frozenset[str]
    problems: Mapping[str, str]
    """Id of a cluster → why it is not known whether it is in use."""


def find_unused(clusters: Iterable[FoundCluster], folders: Mapping[str, ClusterFolder]) -> Unused:
    """Ask the machines of clusters with `--idle`. `folders`: on this computer, by id of the cluster.

    A cluster is unused if all its machines that are on answer that their time is over.
    """
    ids, problems = set(), {}
    for cluster in clusters:
        folder = folders.get(cluster.id)
        if not cluster.machines:
            continue
        if folder is None:
            if cluster.idle:
                problems[cluster.id] = (
                    f"this computer has no files of it; `gpuctl adopt {cluster.id}` gets them"
                )
            continue
        try:
            reason = _reason_to_stay(cluster, folder)
        except InventoryError as error:
            reason = str(error)
        if reason is None:
            ids.add(cluster.id)
        elif reason:
            problems[cluster.id] = reason
    return Unused(ids=frozenset(ids), problems=problems)


def _reason_to_stay(cluster: FoundCluster, folder: ClusterFolder) -> str | None:
    """Return why it is not known that a cluster is unused. Empty: it is in use, or never ends so. `None`: unused."""
    record = CloudState(folder).load()
    if record is None or record.idle_s is None:
        return ""
    running = [machine for machine in cluster.machines if machine not in cluster.off]
    if not running:
        return f"its machines are stopped; `gpuctl down --cluster {folder.name}` removes them"
    machines = {machine.id: machine for machine in folder.load().machines}
    if missing := [machine for machine in running if machine not in machines]:
        return f"{', '.join(missing)}: no `gpuctl up` has reached it"
    answers = ask_machines(folder, [machines[machine] for machine in running])
    if errors := [str(outcome.error) for outcome in answers if outcome.error is not None]:
        return " ".join(errors)
    states = {outcome.node: outcome.value for outcome in answers if outcome.value is not None}
    if dead := [name for name, state in states.items() if not state.running]:
        return f"the watch for use does not run on {', '.join(dead)}"
    if unknown := [problem for outcome in answers for problem in unknown_use(outcome)]:
        return "; ".join(unknown)
    return None if all(state.over for state in states.values()) else ""
