"""The evidence of a run: all that its folder holds for the result, as values. `read_run` reads it once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpuctl.run_results.metric_names import Line
from gpuctl.run_results.metrics import LossCurve
from gpuctl.run_results.rank_metrics import RankMetrics
from inventories.runs.activity import HangReport, RankActivity
from inventories.runs.hang import Hang
from inventories.runs.outputs import NodeOutputs, RunFile
from inventories.runs.records import NodeRecord, RankRecord
from inventories.runs.run import Checkpoints, Run
from inventories.runs.search import Search


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of a run: of its launch, of its ends on nodes, of hangs. A time is of the clock of its node."""

    run: Run
    ranks: Mapping[str, Sequence[RankRecord]]
    """By node."""
    nodes: Sequence[NodeRecord]
    """A node without a record has not reported its end."""
    hang: Hang | None = None
    """The hang that a command here saved last."""
    hang_reports: Mapping[str, HangReport] = field(default_factory=dict)
    """By node: the report of its watch, while its ranks make no progress."""
    dumps: Mapping[int, RankActivity] = field(default_factory=dict)
    """By rank: its collectives at a timeout of NCCL."""

    @property
    def by_rank(self) -> dict[int, RankRecord]:
        """The ranks' records, in the order of the ranks."""
        return {record.rank: record for node in self.run.nodes for record in self.ranks.get(node.name, ())}

    @property
    def offsets(self) -> dict[str, float]:
        """Node → its clock minus this computer's, seconds."""
        return {node.name: node.clock_offset_s for node in self.run.nodes}

    @property
    def is_over(self) -> bool:
        """Return whether every node has reported its end."""
        return {node.name for node in self.run.nodes} <= {node.node for node in self.nodes}


@dataclass(frozen=True, kw_only=True)
class Evidence(Records):
    """The records of a run, and all else that its result is made of."""

    folder: Path
    """The run's on this computer: the result names it, and nothing reads it again."""
    read_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metrics: Mapping[int, RankMetrics] = field(default_factory=dict)
    """By rank."""
    log_tails: Mapping[int, str] = field(default_factory=dict)
    """By rank: the end of its log."""
    losses: LossCurve | None = None
    """Losses in the files or the log of a script whose metrics have none. `None`: not read."""
    usage: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """By node: the lines on its load."""
    outputs: Sequence[NodeOutputs] = ()
    files: tuple[RunFile, ...] = ()
    checkpoints: dict[str, Checkpoints] = field(default_factory=dict)
    """By node, the checkpoints that the run left, where these are here as they were at its end."""
    search: Search | None = None

    @property
    def ended_at(self) -> datetime | None:
        """When the last node ended, in this computer's time; if no node knows, when this was read.

        Returns:
            `None` if a node has not reported its end.
        """
        if not self.is_over:
            return None
        ends = [node.ended_at - self.offsets[node.node] for node in self.nodes if node.ended_at is not None]
        return datetime.fromtimestamp(max(ends), UTC) if ends else self.read_at
