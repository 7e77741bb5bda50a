"""The ranks of a run that have begun, and the ended ones, by the records of its nodes."""

from collections.abc import Iterator

from inventories.runs.records import RankRecord
from inventories.runs.run import Run
from remote.end_sentences import ranks_text

SHOWN_AFTER_S = 5.0
"""Ranks of all nodes seldom end at the same moment."""


class RankStates:
    """States of all ranks of a run. Times are as `awake_s`."""

    def __init__(self, run: Run) -> None:
        self._ranks = {part.name: range(part.first_rank, part.first_rank + part.nproc) for part in run.nodes}
        self._begun: set[int] = set()
        self._ended: dict[int, int] = {}
        """Rank → its exit status."""
        self._idle_since: dict[str, float] = {}
        """Nodes whose ranks have all ended and that were not shown yet → when."""
        self._closed: set[str] = set()
        """Nodes whose launcher has ended, or that were lost: their ranks are not known to run."""

    def add(self, node: str, record: RankRecord, now: float) -> None:
        """Add a rank's record."""
        self._begun.add(record.rank)
        if record.exit_code is not None:
            self._ended[record.rank] = record.exit_code
            if self._ended.keys() >= set(self._ranks[node]):
                self._idle_since.setdefault(node, now)

    def close_node(self, node: str) -> None:
        """Count a node's ranks as inactive from now on."""
        self._closed.add(node)

    @property
    def any_begun(self) -> bool:
        """Return whether a rank has begun."""
        return bool(self._begun)

    @property
    def all_begun(self) -> bool:
        """Return whether every rank has begun."""
        return len(self._begun) == sum(map(len, self._ranks.values()))

    @property
    def all_ended(self) -> bool:
        """Return whether every rank has ended, except on closed nodes."""
        return not self._without_end()

    def waiting_nodes(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield each node whose ranks ended well a while ago while others run, once, with the text on them."""
        for node, since in list(self._idle_since.items()):
            ranks, active = self._ranks[node], [rank for rank in self._without_end() if rank in self._begun]
            if now - since >= SHOWN_AFTER_S and active and not any(self._ended[rank] for rank in ranks):
                del self._idle_since[node]
                have, run = "has" if len(ranks) == 1 else "have", "runs" if len(active) == 1 else "run"
                yield node, f"{ranks_text(ranks)} {have} ended; {ranks_text(active)} still {run}"

    def _without_end(self) -> list[int]:
        nodes = (ranks for node, ranks in self._ranks.items() if node not in self._closed)
        return [rank for ranks in nodes for rank in ranks if rank not in self._ended]
