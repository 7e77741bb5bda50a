"""The hang of a run that is over, or that nobody watched: saved by a command here, or reported by its nodes. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

from gpuctl.run_results.evidence import Records
from gpuctl.run_results.hangs.culprit import blocks, compare
from gpuctl.run_results.hangs.rank import Rank
from gpuctl.run_results.hangs.sentences import hang_of, past_tense
from inventories.runs.activity import RankActivity
from inventories.runs.hang import Hang
from inventories.runs.run import Run

SAME_MOMENT_S = 2.0
"""Maximum difference of two machines' clocks beyond the known offset, seconds."""


def ranks_of(run: Run, activities: Mapping[int, RankActivity]) -> list[Rank]:
    """Return all ranks of a run, each with its node's report."""
    return [
        Rank(rank=rank, node=part.name, activity=activities.get(rank), clock_offset_s=part.clock_offset_s)
        for part in run.nodes
        for rank in range(part.first_rank, part.first_rank + part.nproc)
    ]


def last_hang(records: Records, *, running: bool = False) -> Hang | None:
    """Return the last hang found by a command here, by the nodes' watches or by NCCL's. `None`: no hang.

    The hang is in the past tense, unless the run is running and a node's watch still reports it.
    """
    hang = _last_recorded(records)
    if hang is None or (running and records.hang_reports):
        return hang
    hang = past_tense(hang)
    return replace(hang, sentence=f"{hang.sentence} `gpuctl why` asks its ranks again.") if running else hang


def _last_recorded(records: Records) -> Hang | None:
    known = records.hang
    if known is not None and known.ranks and all(rank.begun is False for rank in known.ranks):
        known = None  # a run that had not begun says nothing about its later state
    if known is not None and known.verdict == "hung":
        if not _progressed_since(records, known):
            return known
        known = None
    return _of_reports(records) or _of_dumps(records) or known


def _progressed_since(records: Records, hang: Hang) -> bool:
    """Return whether a rank that has ended wrote metrics after the hang was found, and before the run was stopped."""
    if hang.at is None:
        return False
    found_at = datetime.fromisoformat(hang.at).timestamp() + SAME_MOMENT_S
    stopped_at = {node.node: node.stopped_at for node in records.nodes}
    for node in records.run.nodes:
        limit = stopped_at.get(node.name) or inf
        wrote = (record.metrics_ended_at or 0.0 for record in records.ranks.get(node.name, ()))
        if any(found_at < at - node.clock_offset_s and at < limit for at in wrote):
            return True
    return False


def _of_reports(records: Records) -> Hang | None:
    """Return the hang from the reports of the nodes' watches. `None` also while a node without one still runs."""
    run, reports = records.run, records.hang_reports
    activities = {activity.rank: activity for report in reports.values() for activity in report.ranks}
    if not activities:
        return None
    last = max(activity.now for activity in activities.values())
    for record in (
        record for name, ranks in records.ranks.items() if name not in reports for record in ranks
    ):
        if record.ended_at is None or record.ended_at > last:
            return None
        activities[record.rank] = RankActivity(
            rank=record.rank, now=record.ended_at, began_at=record.started_at, ended=True
        )
    finding = compare(ranks_of(run, activities))
    if len(activities) < run.world_size or not any(
        blocks(finding, report.silent_s, report.allowed_s) for report in reports.values()
    ):
        return None
    return hang_of(run.run, finding, at=datetime.fromtimestamp(last, UTC), hung=True)


def _of_dumps(records: Records) -> Hang | None:
    """Return the hang from the dumps that torch writes when a collective of NCCL's exceeds its timeout."""
    finding = compare(ranks_of(records.run, records.dumps))
    if not finding.waiting:
        return None
    at = max(activity.now for activity in records.dumps.values())
    return hang_of(records.run.run, finding, at=datetime.fromtimestamp(at, UTC), hung=True)
