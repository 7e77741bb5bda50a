"""A run that was started, and can't be watched to its end."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_here import NodeHere
from support import a_run

from gpuctl.errors import Failed
from gpuctl.workflow.training.launch import Launch, see_through
from inventories.disk.store import Store

RUN = a_run()


class Begun(NodeHere):
    """A node that has started its rank, and says so."""

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        """What it says, whatever it is asked."""
        rank = {"rank": 0, "local_rank": 0, "pid": 7, "started_at": 1790000000.5}
        said = [
            ({"t": "started"}, b""),
            ({"t": "record", "path": "ranks/rank-0.json"}, json.dumps(rank).encode()),
        ]
        yield SimpleNamespace(frames=lambda: iter(said))


class Quiet:
    """Is told how the run goes, and keeps it to itself."""

    def node(self, name: str, text: str) -> None:
        """What a node is doing."""

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """A metrics line."""

    def log(self, rank: int | None, node: str, line: str) -> None:
        """A line of a log."""

    def note(self, text: str) -> None:
        """A line of its own."""

    def phase(self, name: str, text: str) -> None:
        """A phase."""


def test_see_through_reports_running_job_if_record_cannot_be_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.new_run(datetime(2026, 11, 21, tzinfo=UTC))
    run = replace(RUN, run=folder.id)
    (folder.path / "ranks" / "rank-0.json").mkdir(parents=True)  # the record's place is taken
    launch = Launch(
        run=run,
        folder=folder,
        cluster=store.cluster("default"),
        nodes={"gpu-0": Begun(tmp_path)},
        commands={"gpu-0": {}},
        began=0.0,
    )
    with pytest.raises(
        Failed, match=r"rank-0\.json'.*If it has not ended, it continues\. .*gpuctl logs -f 20261121-"
    ):
        see_through(Quiet(), launch, launch.watch(Quiet()))
