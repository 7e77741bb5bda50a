"""Test the records of runs that a node sends, which may be another's than was asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from support import a_run

from inventories.codec import to_json
from inventories.runs.run import Run
from remote.runs.run_records import unknown_runs
from remote.sessions.session import Node
from remote.shared import frames


class HostileNode(Node):
    """A node that answers with these records, whatever the request."""

    def __init__(self, *runs: Run) -> None:
        self.runs = runs

    @property
    def name(self) -> str:
        return "default-0"

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        records = [({"t": frames.RECORD, "run": to_json(run)}, b"") for run in self.runs]
        yield SimpleNamespace(frames=lambda: iter([*records, ({"t": frames.END}, b"")]))


def test_node_replaces_no_record_and_adds_only_requested_runs_of_its_cluster() -> None:
    known, new = a_run(run="20261121-054625-abcd"), a_run(run="20261121-054626-abcd")
    other = a_run(run="20261121-054627-abcd", cluster="other")
    node = HostileNode(known, new, other)
    assert unknown_runs(node, new.cluster, [known.run]) == [new]
    assert unknown_runs(node, new.cluster, (), [known.run]) == [known]
