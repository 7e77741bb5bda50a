"""What came of a run: concluded by the command that watched it, or by any later one that asks."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuctl.results import summarise
from inventories.machine import Machine
from inventories.run import NodeRecord, Result, Run, Seconds
from inventories.store import RunFolder, Store

if TYPE_CHECKING:
    from remote.observer import Observer
    from remote.watch import Watch


def conclude(
    run: Run, folder: RunFolder, watch: "Watch", *, launched: float | None = None, began: float | None = None
) -> Result:
    """The result from what has arrived; kept as `result.json` once the run is over on every node.

    `launched` and `began` are this process's monotonic times of the launch and of the command's begin; for a
    run that another command launched they are None, and the nodes' own times are used.
    """
    from remote.replica import merge_artifacts, read_node_records

    merge_artifacts(folder, run.nodes)
    records = read_node_records(folder, run.nodes)
    over = len(records) == len(run.nodes)
    ended_at = _ended_at(run, records) if over else None
    train_s = collect_s = total_s = None
    if over and launched is not None and began is not None and watch.ended_s is not None:
        now = time.monotonic()
        train_s, collect_s, total_s = watch.ended_s - launched, now - watch.ended_s, now - began
    elif over and ended_at is not None:
        total_s = (ended_at - datetime.fromisoformat(run.started_at)).total_seconds()
        train_s = max(0.0, total_s - sum(run.seconds.values()))
    seconds = {
        **run.seconds,
        "total": _round(total_s),
        "train": _round(train_s),
        "collect": _round(collect_s),
    }
    result = _result(run, folder, Seconds(**seconds), ended_at)
    if over and not any(
        record.failure and record.exit_code is None and launched is None for record in records
    ):
        # A node that could not be reached by a later command may answer the next one.
        folder.save_result(result)
    return result


def _result(run: Run, folder: RunFolder, seconds: Seconds, ended_at: datetime | None) -> Result:
    """The result of what is in the run's folder."""
    from remote.replica import read_metrics, read_node_records, read_rank_records, tail

    return summarise(
        run,
        read_rank_records(folder, run.nodes),
        read_node_records(folder, run.nodes),
        read_metrics(folder, run),
        {rank: tail(folder, rank) for rank in range(run.world_size)},
        seconds,
        ended_at.isoformat(timespec="milliseconds") if ended_at else None,
        folder.path,
    )


def _ended_at(run: Run, records: list[NodeRecord]) -> datetime:
    """When the last node ended, in this computer's time; now, where no node could say."""
    offsets = {part.name: part.clock_offset_s for part in run.nodes}
    ends = [record.ended_at - offsets[record.node] for record in records if record.ended_at is not None]
    return datetime.fromtimestamp(max(ends), UTC) if ends else datetime.now(UTC)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def attach(store: Store, folder: RunFolder, observer: "Observer", *, wait: bool) -> Result:
    """The result of a run, however far it is: from disk where it is over, else brought from its nodes.

    With `wait`, follows it to its end; an interrupt leaves the run alone.
    """
    known = folder.load_result()
    if known is not None and known.status != "running":
        return known
    run = folder.load_run()
    from remote.watch import Watch

    cluster = store.cluster(run.cluster)
    machines = _machines_of(store, run)
    if set(machines) != {part.name for part in run.nodes}:
        return _without_nodes(run, folder)
    watch = Watch(run, folder, machines, cluster.known_hosts_path, observer)
    watch.go(wait=wait)
    return conclude(run, folder, watch)


def _machines_of(store: Store, run: Run) -> Mapping[str, Machine]:
    """The run's machines that the cluster still has."""
    cluster = store.cluster(run.cluster)
    if not cluster.exists():
        return {}
    names = {part.name for part in run.nodes}
    return {machine.name: machine for machine in cluster.load().machines if machine.name in names}


def _without_nodes(run: Run, folder: RunFolder) -> Result:
    """The result of a run whose machines are gone: what had arrived before."""
    from remote.replica import read_node_records, save_node_record

    had = {record.node for record in read_node_records(folder, run.nodes)}
    for part in run.nodes:
        if part.name not in had:
            gone = "the machine was removed before the run's end could be brought back"
            save_node_record(folder, NodeRecord(node=part.name, launcher=run.mode, failure=gone))
    result = _result(run, folder, Seconds(**run.seconds), None)
    folder.save_result(result)
    return result


def still_running(store: Store, cluster: str) -> list[RunFolder]:
    """Runs of a cluster that have no result yet, oldest first: they may be going on."""
    return [folder for folder in store.runs(cluster) if _unfinished(folder)]


def _unfinished(folder: RunFolder) -> bool:
    result = folder.load_result()
    return result is None or result.status == "running"
