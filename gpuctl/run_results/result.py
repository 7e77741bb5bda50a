"""A run's result: its records, metrics and logs put together as a `Result`. Pure, but for `args_of`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuctl.run_results import metrics as told
from gpuctl.run_results.failures.failures import first_failure
from gpuctl.run_results.failures.log_errors import read
from gpuctl.run_results.metric_names import Line
from gpuctl.run_results.run_status import exit_code_of, reason_of, run_status
from gpuctl.run_results.time_parts import first_step_of, train_parts_of
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.end_reasons import Reason
from inventories.runs.run import (
    FirstError,
    NodeRecord,
    RankRecord,
    RankResult,
    Result,
    Run,
    Seconds,
    TrainSummary,
)
from inventories.runs.usage import RunUse


def args_of(result: Result) -> tuple[str, ...]:
    """Return the script's arguments from the record of the launch. Empty: the record can't be read."""
    try:
        return RunFolder(Path(result.dir)).load_run().args
    except (InventoryError, OSError):
        return ()


def summarise(
    run: Run,
    ranks: Mapping[str, Sequence[RankRecord]],
    nodes: Sequence[NodeRecord],
    metrics: Mapping[int, Sequence[Mapping[str, Any]]],
    log_tails: Mapping[int, str],
    seconds: Seconds,
    ended_at: str | None,
    dir: Path,  # noqa: A002 - the result's own name for it
    usage: RunUse | None = None,
) -> Result:
    """Compute the result of a run from all that is known now.

    `ranks`: node's name → records of its ranks. `metrics`: rank → its lines; `log_tails`: rank → the end of its log.
    Missing values of `seconds` come from the run's record, the ranks' records and `ended_at` (ISO 8601). Unknown
    values are `None`; a run succeeded only if every node reports success.
    """
    records = {record.rank: record for node in run.nodes for record in ranks.get(node.name, ())}
    failure = first_failure(run, ranks, nodes, log_tails, metrics)
    status = run_status(run, records, nodes, failure)
    ended_at = None if status == "running" else ended_at
    seconds = _complete(seconds, run, ranks, ended_at)
    return Result(
        run=run.run,
        cluster=run.cluster,
        mode=run.mode,
        script=run.script,
        status=status,
        exit_code=exit_code_of(status, failure),
        nnodes=len(run.nodes),
        nproc_per_node=max((node.nproc for node in run.nodes), default=0),
        world_size=run.world_size,
        started_at=run.started_at,
        ended_at=ended_at,
        seconds=seconds,
        train=_train_summary(run, records, nodes, metrics),
        ranks=tuple(
            RankResult(
                rank=rank,
                local_rank=rank - node.first_rank,
                node=node.name,
                device=told.device_of(metrics.get(rank, ())),
                exit_code=records[rank].exit_code if rank in records else None,
                step_ms_p50=told.step_ms_of(metrics.get(rank, ())).p50,
                steps=told.steps_of(metrics.get(rank, ())),
                transports=records[rank].transports if rank in records else (),
            )
            for node in run.nodes
            for rank in range(node.first_rank, node.first_rank + node.nproc)
        ),
        first_error=failure.error if failure else None,
        cost_usd=_cost_usd(run.hourly_usd, seconds.total),
        dir=str(dir),
        usage=usage,
        resumed_from=run.resumed_from,
        reason=reason_of(status, nodes, failure),
        commit=run.commit,
        logged_error=_logged_error(run, log_tails) if status == "succeeded" else None,
        joined=_joined(run, records),
    )


def _joined(run: Run, records: Mapping[int, RankRecord]) -> bool | None:
    """Return whether ranks joined each other. `None`: the run has one rank, or not all ranks have reported."""
    joined = [record.joined for record in records.values()]
    if run.world_size < 2 or len(joined) < run.world_size:
        return None
    return True if any(joined) else None if None in joined else False


def alone_sentence(result: Result) -> str:
    """Return the sentence on ranks that each did the whole job. Empty: they joined, or may have divided it."""
    if result.joined is not False or result.status != "succeeded":
        return ""
    try:
        if RunFolder(Path(result.dir)).load_run().names_ranks:
            return ""
    except (InventoryError, OSError):
        return ""
    return (
        f"The {result.world_size} ranks never joined each other (torch.distributed), so each seems to have done the "
        "whole job. --nnodes 1 --nproc-per-node 1 runs it once."
    )


def _train_summary(
    run: Run,
    records: Mapping[int, RankRecord],
    nodes: Sequence[NodeRecord],
    metrics: Mapping[int, Sequence[Line]],
) -> TrainSummary:
    """Return the job's report, with the times that need the nodes' records."""
    launched = {
        rank: record.launched_at for rank, record in records.items() if record.launched_at is not None
    }
    first_step_s, first_step = first_step_of(metrics, launched)
    ended = next((node.ended_at for node in nodes if node.node == run.nodes[0].name), None)
    return replace(
        told.summary(metrics, world_size=run.world_size, written=_written(records)),
        first_step_s=first_step_s,
        first_step=first_step,
        parts=train_parts_of(metrics.get(0, ()), launched.get(0), ended),
    )


def _logged_error(run: Run, log_tails: Mapping[int, str]) -> FirstError | None:
    """Return the exception with which a rank's log ends, of a run whose ranks all have exit status 0.

    Scripts catch what they log: `except Exception: logging.exception(…)`. `None`: no log ends with such an exception.
    """
    for node in run.nodes:
        for rank in range(node.first_rank, node.first_rank + node.nproc):
            log = read(log_tails.get(rank, ""))
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


def earlier_of(result: Result) -> list[Result]:
    """Return the runs that a run continues, the oldest first, as far as their results can be read."""
    earlier: list[Result] = []
    run, visited = result, {result.run}
    while run.resumed_from is not None and run.resumed_from not in visited:
        visited.add(run.resumed_from)
        try:
            before = RunFolder(Path(result.dir).parent / run.resumed_from).load_result()
        except (InventoryError, OSError):
            break
        if before is None:
            break
        earlier.insert(0, before)
        run = before
    return earlier


def job_of(result: Result) -> tuple[str | None, ...]:
    """Return the job of a run: its script, arguments, model and data set."""
    return result.script, *args_of(result), result.train.model, result.train.dataset


def is_other_layout(result: Result, base: Result) -> bool:
    """Return whether a run is the job of `base` with other numbers of nodes or ranks: the speeds show the scaling."""
    layouts = {(run.nnodes, run.world_size) for run in (result, base)}
    return len(layouts) == 2 and job_of(result) == job_of(base)


def nothing_was_left(result: Result) -> bool:
    """Return whether the built-in job resumed a finished run, and so had no epoch to train."""
    train = result.train
    return (
        result.script == "built-in"
        and result.status == "succeeded"
        and result.resumed_from is not None
        and train.epochs is not None
        and not train.epoch_s
        and not train.loss
    )


def _written(records: Mapping[int, RankRecord]) -> dict[int, told.Written]:
    """Return the growth of the metrics files of ended ranks with a count of samples."""
    return {
        rank: told.Written(samples=samples, seconds=ended_at - began_at)
        for rank, record in records.items()
        if (samples := record.metrics_began_samples) is not None
        and (began_at := record.metrics_began_at) is not None
        and (ended_at := record.metrics_ended_at) is not None
    }


def _complete(
    seconds: Seconds, run: Run, ranks: Mapping[str, Sequence[RankRecord]], ended_at: str | None
) -> Seconds:
    """Complete `seconds` from the records."""
    known: dict[str, float | None] = {
        "total": _between(run.started_at, ended_at),
        "train": _train_s(run, ranks),
        **{name: run.seconds.get(name) for name in ("connect", "prepare", "preflight", "ray", "launch")},
    }
    return replace(
        seconds, **{name: value for name, value in known.items() if getattr(seconds, name) is None}
    )


def _between(started_at: str, ended_at: str | None) -> float | None:
    """Seconds from one ISO 8601 time to another."""
    if ended_at is None:
        return None
    try:
        passed = datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)
    except (TypeError, ValueError):  # one without a zone, or no time at all
        return None
    return passed.total_seconds() if passed.total_seconds() >= 0 else None


def _train_s(run: Run, ranks: Mapping[str, Sequence[RankRecord]]) -> float | None:
    """From the first rank's start to the last one's end, once all of them have ended."""
    spans = [
        (record.started_at - node.clock_offset_s, record.ended_at - node.clock_offset_s)
        for node in run.nodes
        for record in ranks.get(node.name, ())
        if record.ended_at is not None
    ]
    if not spans or len(spans) < run.world_size:
        return None
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _cost_usd(hourly_usd: float | None, total_s: float | None) -> float | None:
    """The machines' price for the time of the run."""
    if hourly_usd == 0:
        return 0.0
    if hourly_usd is None or total_s is None or not math.isfinite(total_s):
        return None
    return hourly_usd * total_s / 3600
