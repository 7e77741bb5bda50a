"""The result of a run: made by the command that watched it, or by any later one that asks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.run_results.curves.plot import with_curve
from gpuctl.run_results.metrics import unused
from gpuctl.run_results.outputs import files_of, outputs_of, with_local_paths_once
from gpuctl.run_results.result import summarise
from gpuctl.run_results.search import with_search
from gpuctl.run_results.utilisation import use_of_run
from gpuctl.workflow.runs.hangs.watch import HangWatch, ask, last_hang
from inventories.clocks import passed_s
from inventories.disk.store import RunFolder, Store
from inventories.machine import Machine
from inventories.runs.end_reasons import Cause, Ended, Reason
from inventories.runs.hang import Hang
from inventories.runs.run import Checkpoints, FirstError, NodeRecord, Result, Run, Seconds

if TYPE_CHECKING:
    from threading import Event

    from remote.runs.monitor import RunMonitor
    from remote.runs.observer import Observer


def conclude(
    run: Run,
    folder: RunFolder,
    watch: "RunMonitor",
    *,
    launched: float | None = None,
    began: float | None = None,
) -> Result:
    """Build the result from the files that have arrived, and save it as `result.json`.

    `launched` and `began` are the times of the launch and of the command's start, as `passed_s`; for a run that
    another command launched they are `None`, and the nodes' own times are used. A lost node counts as a failure for
    the command that launched the run; for a later one its end is just not known yet.
    """
    from remote.runs.run_files import merge_artifacts, read_node_records

    merge_artifacts(folder, run.nodes, watch.incoming)
    records = {record.node: record for record in read_node_records(folder, run.nodes)}
    if launched is not None:
        records = watch.records | records
    over = len(records) == len(run.nodes)
    ended_at = _ended_at(run, records.values()) if over else None
    train_s = collect_s = total_s = None
    if over and launched is not None and began is not None and watch.ended_s is not None:
        now = passed_s()
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
    result = _result(run, folder, Seconds(**seconds), ended_at, list(records.values()))
    if launched is None:
        result = failed_as_before(folder.load_result(), result)
    elif watch.interrupts > 1 and not over:
        # The run got a stop signal, and the command did not wait: its ranks' ends are no failure.
        result = replace(result, status="running", exit_code=None, first_error=None, reason=None)
    if over or launched is not None:
        folder.save_result(result)
    return result


def failed_as_before(before: Result | None, now: Result) -> Result:
    """Return the new result; but a run that failed stays failed, with its first cause.

    Another cause counts only if the lost node is back and reports it, not if the machine was removed since.
    """
    if before is None or before.status != "failed" or now.status == "succeeded":
        return now
    first, error = before.first_error, now.first_error
    same_node = first is None or (error is not None and error.node == first.node)
    removed = error is not None and error.reason is Reason.MACHINE_REMOVED
    if now.status == "failed" and (first is None or (same_node and not removed)):
        return now
    return replace(
        now,
        status="failed",
        exit_code=before.exit_code,
        first_error=first,
        reason=before.reason,
        ended_at=before.ended_at,
        seconds=before.seconds,
    )


def _result(
    run: Run, folder: RunFolder, seconds: Seconds, ended_at: datetime | None, records: Sequence[NodeRecord]
) -> Result:
    """Return the result of the files in the run's folder."""
    from remote.runs.outputs import gather_parts, read_outputs
    from remote.runs.run_files import read_metrics, read_rank_records, read_usage, tail

    gather_parts(folder, run.nodes)
    written = read_outputs(folder, run.nodes)
    outputs, totals = outputs_of(written)
    metrics = read_metrics(folder, run)
    result = summarise(
        run,
        read_rank_records(folder, run.nodes),
        records,
        {rank: file.lines for rank, file in metrics.items()},
        {rank: tail(folder, rank) for rank in range(run.world_size)},
        seconds,
        ended_at.isoformat(timespec="milliseconds") if ended_at else None,
        folder.path,
        use_of_run(run, read_usage(folder, run)),
    )
    hang = None if result.status == "succeeded" else last_hang(folder, running=result.status == "running")
    hung = hang if hang is not None and hang.verdict == "hung" else None
    return replace(
        with_search(_of_hang(result, hung)),
        train=result.train if run.built_in else with_curve(result.train, folder, outputs),
        checkpoints=checkpoints_left(run, folder),
        outputs=outputs,
        output_totals=totals,
        outside=with_local_paths_once(run, folder, (path for node in written for path in node.outside)),
        files=files_of(folder),
        hang=replace(hung, ranks=()) if hung is not None else None,
        unused_metrics=None if run.built_in else unused(metrics),
        endings={record.node: record.ending for record in records if record.ending is not None},
    )


def _of_hang(result: Result, hang: Hang | None) -> Result:
    """Return a stopped run's result as failed if a rank had raised an exception without ending."""
    raised = next((rank for rank in hang.culprits if rank.raised), None) if hang is not None else None
    if raised is None or result.status != "stopped" or result.first_error is not None:
        return result
    words = raised.raised or ""
    error = FirstError(
        rank=raised.rank,
        node=raised.node,
        message=f"{words}; its process did not end by itself",
        reason=Reason.HUNG,
        ranks=(raised.rank,),
        detail=words,
        cause=Cause.RAISED,
        place=raised.place,
    )
    return replace(result, status="failed", first_error=error, reason=error.reason)


def checkpoints_left(run: Run, folder: RunFolder) -> dict[str, Checkpoints]:
    """Return, by node, the checkpoints that a run left, where these are here as they were at its end."""
    from remote.files.checkpoints import in_folder
    from remote.runs.run_files import mirrored_path

    if mirrored_path(folder).exists():
        return {}
    checkpoints = in_folder(folder.checkpoints_path, run)
    return {} if checkpoints is None or checkpoints.lacks else {run.nodes[0].name: checkpoints}


def _ended_at(run: Run, records: Iterable[NodeRecord]) -> datetime:
    """Return when the last node ended, in this computer's time; now, if no node reports its end."""
    offsets = {part.name: part.clock_offset_s for part in run.nodes}
    ends = [record.ended_at - offsets[record.node] for record in records if record.ended_at is not None]
    return datetime.fromtimestamp(max(ends), UTC) if ends else datetime.now(UTC)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def final_result(folder: RunFolder) -> Result | None:
    """Return the result once every node has reported the end, and all files are here; else `None`."""
    result = folder.load_result()
    if result is None or not _is_over(folder):
        return None
    return with_search(result)


def _is_over(folder: RunFolder) -> bool:
    from remote.runs.run_files import read_node_records

    run = folder.load_run()
    return len(read_node_records(folder, run.nodes)) == len(run.nodes)


def attach(
    store: Store, folder: RunFolder, observer: "Observer", *, wait: bool, left: "Event | None" = None
) -> Result:
    """Return the result of a run in any state: from disk if it is over, else from its nodes.

    With `wait`, follows the run to its end, or until `left` is set. Never stops a run, not even on an interrupt.
    """
    from remote.runs.monitor import RunMonitor
    from remote.runs.run_files import read_node_records, save_node_record

    known = final_result(folder)
    if known is not None:
        return known
    run = folder.load_run()
    machines = machines_of(store, run)
    ended = {record.node for record in read_node_records(folder, run.nodes)}
    unknown = tuple(part for part in run.nodes if part.name not in ended)
    for part in unknown:
        if part.name not in machines:
            removed = Ended(reason=Reason.MACHINE_REMOVED)
            save_node_record(folder, NodeRecord(node=part.name, launcher=run.mode, ended=removed))
    remaining = replace(run, nodes=tuple(part for part in unknown if part.name in machines))
    cluster = store.cluster(run.cluster)
    hangs = HangWatch(folder, observer, partial(ask, run, machines, cluster))
    on_hang = hangs.reported if wait else lambda *_: None
    watch = RunMonitor(remaining, folder, machines, cluster, observer, gang=False, on_hang=on_hang)
    try:
        watch.go(wait=wait, left=left)
    finally:
        watch.close()
    return conclude(run, folder, watch)


def machines_of(store: Store, run: Run) -> Mapping[str, Machine]:
    """Return the run's machines that the cluster still has, by name. Another host key or pod is another machine."""
    cluster = store.cluster(run.cluster)
    if not cluster.exists():
        return {}
    parts = {part.name: part for part in run.nodes}
    return {
        machine.name: machine
        for machine in cluster.load().machines
        if (part := parts.get(machine.name)) is not None
        and part.host_key in (None, machine.host_key)
        and part.machine_id in (None, machine.id)
    }
