"""The result of a run: made by the command that watched it, or by any later one that asks."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.run_results.result import result_of
from gpuctl.workflow.runs.on_hang import HangWatch, ask, keep_stacks
from gpuctl.workflow.runs.runs import final_result, machines_of
from inventories.clocks import passed_s
from inventories.disk.store import RunFolder, Store
from inventories.runs.end_reasons import Ended, Reason
from inventories.runs.records import NodeRecord
from inventories.runs.result import Result
from inventories.runs.run import Run

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
    from gpuctl.run_results.read_run import read_run
    from remote.runs.outputs import gather_parts
    from remote.runs.run_files import merge_artifacts

    merge_artifacts(folder, run.nodes, watch.incoming)
    gather_parts(folder, run.nodes)
    evidence = read_run(folder, run, None if launched is None else watch.records)
    seconds: dict[str, float] = {}
    if evidence.is_over and launched is not None and began is not None and watch.ended_s is not None:
        now = passed_s()
        seconds = {"train": watch.ended_s - launched, "collect": now - watch.ended_s, "total": now - began}
    result = result_of(evidence, seconds)
    if result.hang is not None:
        keep_stacks(folder, result.hang)
        result = replace(result, hang=replace(result.hang, ranks=()))
    if launched is None:
        result = failed_as_before(folder.load_result(), result)
    elif watch.interrupts > 1 and not evidence.is_over:
        # The run got a stop signal, and the command did not wait: its ranks' ends are no failure.
        result = replace(result, status="running", exit_code=None, first_error=None, reason=None)
    if evidence.is_over or launched is not None:
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
