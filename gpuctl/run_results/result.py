"""A run's result, made of its evidence. Pure."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from gpuctl.run_results import metrics
from gpuctl.run_results.evidence import Evidence
from gpuctl.run_results.failures.failures import Failure, first_failure
from gpuctl.run_results.failures.log_errors import read
from gpuctl.run_results.hangs.recorded import last_hang
from gpuctl.run_results.outputs import outputs_of, with_local_paths_once
from gpuctl.run_results.rank_metrics import RankMetrics, Written
from gpuctl.run_results.status import run_status
from gpuctl.run_results.time_parts import first_step_of, train_parts_of
from gpuctl.run_results.utilisation import use_of_run
from inventories.runs.end_reasons import Cause, Reason
from inventories.runs.hang import Hang
from inventories.runs.result import FirstError, RankResult, Result, RunStatus, Seconds, TrainSummary


def result_of(evidence: Evidence, measured: Mapping[str, float] | None = None) -> Result:
    """Return the result of a run from all that is known now.

    `measured`: seconds of phases that the command measured; others come from the records. Unknown values are
    `None`; a run succeeded only if every node reports success. The hang has the stacks of all ranks.
    """
    run, records = evidence.run, evidence.by_rank
    failure = first_failure(evidence)
    status = run_status(evidence, failure)
    hang = None if status == "succeeded" else last_hang(evidence, running=status == "running")
    hang = hang if hang is not None and hang.verdict == "hung" else None
    if status == "stopped" and hang is not None and (failure := _raised_in(hang)):
        status = "failed"
    ended_at = None if status == "running" else evidence.ended_at
    seconds = _seconds(evidence, ended_at, measured or {})
    outputs, totals = outputs_of(evidence.outputs)
    outside = (path for node in evidence.outputs for path in node.outside)
    return Result(
        run=run.run,
        cluster=run.cluster,
        mode=run.mode,
        script=run.script,
        status=status,
        exit_code=0 if status == "succeeded" else failure.exit_code if failure else None,
        nnodes=len(run.nodes),
        nproc_per_node=max((node.nproc for node in run.nodes), default=0),
        world_size=run.world_size,
        started_at=run.started_at,
        ended_at=ended_at.isoformat(timespec="milliseconds") if ended_at else None,
        seconds=seconds,
        train=_train_summary(evidence),
        ranks=tuple(
            RankResult(
                rank=rank,
                local_rank=rank - node.first_rank,
                node=node.name,
                device=lines.device,
                exit_code=records[rank].exit_code if rank in records else None,
                step_ms_p50=lines.step_ms.p50,
                steps=lines.step_count,
                transports=records[rank].transports if rank in records else (),
            )
            for node in run.nodes
            for rank in range(node.first_rank, node.first_rank + node.nproc)
            for lines in (evidence.metrics.get(rank, RankMetrics()),)
        ),
        first_error=failure.error if failure else None,
        cost_usd=_cost_usd(run.hourly_usd, seconds.total),
        dir=str(evidence.folder),
        usage=use_of_run(run, evidence.usage),
        resumed_from=run.resumed_from,
        reason=_reason(evidence, status, failure),
        checkpoints=evidence.checkpoints,
        outputs=outputs,
        output_totals=totals,
        files=evidence.files,
        search=evidence.search,
        hang=hang,
        commit=run.commit,
        name=run.name,
        note=run.options.note if run.options else None,
        tags=run.options.tags if run.options else {},
        endings={node.node: node.ending for node in evidence.nodes if node.ending is not None},
        logged_error=_logged_error(evidence) if status == "succeeded" else None,
        joined=_joined(evidence),
        outside=with_local_paths_once(run, evidence.folder.parents[1], outside),
        unused_metrics=None if run.built_in else metrics.unused(evidence.metrics),
    )


def _raised_in(hang: Hang) -> Failure | None:
    """Return the failure of a stopped run of which a rank had raised an exception without ending. `None`: no rank."""
    rank = next((rank for rank in hang.culprits if rank.raised), None)
    if rank is None:
        return None
    words = rank.raised or ""
    error = FirstError(
        rank=rank.rank,
        node=rank.node,
        message=f"{words}; its process did not end by itself",
        reason=Reason.HUNG,
        ranks=(rank.rank,),
        detail=words,
        cause=Cause.RAISED,
        place=rank.place,
    )
    return Failure(error=error, exit_code=None)


def _reason(evidence: Evidence, status: RunStatus, failure: Failure | None) -> Reason | None:
    """Return the reason of the run's end. `None`: it succeeded or is active, or the reason is not known."""
    if failure:
        return failure.error.reason
    if status != "stopped":
        return None
    stops = [node.reason for node in evidence.nodes if node.stop_ordered and node.reason is not None]
    # A user's order has precedence over gpuctl's own.
    return Reason.STOPPED if Reason.STOPPED in stops else next(iter(stops), None)


def _joined(evidence: Evidence) -> bool | None:
    """Return whether ranks joined each other. `None`: the run has one rank, or not all ranks have reported."""
    joined = [record.joined for record in evidence.by_rank.values()]
    if evidence.run.world_size < 2 or len(joined) < evidence.run.world_size:
        return None
    return True if any(joined) else None if None in joined else False


def _train_summary(evidence: Evidence) -> TrainSummary:
    """Return the job's report, with the times that need the nodes' records."""
    records = evidence.by_rank
    launched = {
        rank: record.launched_at for rank, record in records.items() if record.launched_at is not None
    }
    first_step_s, first_step = first_step_of(evidence.metrics, launched)
    head = evidence.run.nodes[0].name
    ended = next((node.ended_at for node in evidence.nodes if node.node == head), None)
    written = {
        rank: Written(samples=samples, seconds=ended_at - began_at)
        for rank, record in records.items()
        if (samples := record.metrics_began_samples) is not None
        and (began_at := record.metrics_began_at) is not None
        and (ended_at := record.metrics_ended_at) is not None
    }
    train = metrics.summary(
        evidence.metrics, world_size=evidence.run.world_size, written=written, losses=evidence.losses
    )
    return replace(
        train,
        first_step_s=first_step_s,
        first_step=first_step,
        parts=train_parts_of(evidence.metrics.get(0, RankMetrics()), launched.get(0), ended),
    )


def _logged_error(evidence: Evidence) -> FirstError | None:
    """Return the exception with which a rank's log ends, of a run whose ranks all have exit status 0.

    Scripts catch what they log: `except Exception: logging.exception(…)`. `None`: no log ends with such an exception.
    """
    for node in evidence.run.nodes:
        for rank in range(node.first_rank, node.first_rank + node.nproc):
            log = read(evidence.log_tails.get(rank, ""))
            if log.traceback and log.last:
                place = f" ({log.place})" if log.place else ""
                return FirstError(
                    rank=rank,
                    node=node.name,
                    message=f"rank {rank} on {node.name} has exit status 0, and its log ends with an exception: "
                    f"{log.words}{place}",
                    reason=Reason.EXIT_CODE,
                    detail=log.words,
                )
    return None


def _seconds(evidence: Evidence, ended_at: datetime | None, measured: Mapping[str, float]) -> Seconds:
    """Return the seconds of each phase, measured or else recorded."""
    run = evidence.run
    total = None if ended_at is None else (ended_at - datetime.fromisoformat(run.started_at)).total_seconds()
    if total is not None and total < 0:  # a clock was set in between
        total = None
    train = _train_s(evidence) if total is None else max(0.0, total - sum(run.seconds.values()))
    known = {"total": total, "train": train, **measured}
    return Seconds(
        **run.seconds,
        **{name: round(seconds, 3) for name, seconds in known.items() if seconds is not None},
    )


def _train_s(evidence: Evidence) -> float | None:
    """From the first rank's start to the last one's end, once all of them have ended."""
    spans = [
        (record.started_at - node.clock_offset_s, record.ended_at - node.clock_offset_s)
        for node in evidence.run.nodes
        for record in evidence.ranks.get(node.name, ())
        if record.ended_at is not None
    ]
    if not spans or len(spans) < evidence.run.world_size:
        return None
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _cost_usd(hourly_usd: float | None, total_s: float | None) -> float | None:
    """The machines' price for the time of the run."""
    if hourly_usd == 0:
        return 0.0
    if hourly_usd is None or total_s is None or not math.isfinite(total_s):
        return None
    return hourly_usd * total_s / 3600
