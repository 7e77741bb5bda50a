"""Test a node's report on a run's end: stored unchanged, or refused."""

from typing import Any

import pytest

from inventories.runs.end_reasons import Ended, Reason
from remote.errors import BadAnswer
from remote.runs.node_state import record_of_end


def test_record_of_end_keeps_the_nodes_answer() -> None:
    output = {"running": False, "exit_code": 3, "ended_at": 1790000000.5, "stopped": False, "pid": 7}
    record = record_of_end("gpu-0", "torchrun", output)
    assert (record.node, record.launcher, record.exit_code, record.ended_at) == (
        "gpu-0",
        "torchrun",
        3,
        1790000000.5,
    )
    unknown = record_of_end(
        "gpu-0", "torchrun", {"running": False, "exit_code": None, "ended": {"reason": "rebooted"}}
    )
    assert (unknown.exit_code, unknown.ended_at, unknown.failure) == (
        None,
        None,
        Ended(reason=Reason.REBOOTED),
    )


@pytest.mark.parametrize(
    "ended",
    [
        {"reason": "not_started", "program": "torchrun", "detail": "No such file or directory"},
        {"reason": "ray_late", "rank": 0, "seconds": 300.0},
        {"reason": "disk_full", "free_bytes": 0},
        {"reason": "no_record", "detail": "/r"},
        {"reason": "ray_ended", "detail": ""},
        {"reason": "peer_failed"},
        {"reason": "resized"},
    ],
)
def test_record_of_end_takes_what_nodes_say(ended: dict[str, Any]) -> None:
    record = record_of_end("gpu-0", "ray", {"running": False, "exit_code": 1, "ended": ended})
    assert record.reason == ended["reason"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit_code": "0"},
        {"exit_code": 0.0},
        {"exit_code": False},
        {"ended_at": "yesterday"},
        {"ended_at": 1e30},
        {"ended_at": float("nan")},
        {"stopped_at": -1.0},
        {"stopped": "no"},
        {"ended": "disk full"},
        {"ended": {"reason": "tired"}},
        {"ended": {"reason": "disk_full", "free_bytes": "none"}},
        {"ended": {"reason": "disk_full"}},
        {"ended": {"reason": "node_lost"}},
        {"ended": {"reason": "node_lost", "seconds": 25.0, "detail": "gone"}},
        {"ended": {"reason": "ray_late", "rank": 3}},
        {"ended": {"reason": "not_started"}},
        {"ended": {"reason": "hung"}},
        {"ended": {"reason": "ended_early"}},
        {"ended": {"reason": "launcher_ended"}},
        {"ended": {"reason": "machine_removed"}},
    ],
)
def test_record_of_end_refuses_impossible_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer, match="gpu-0: what it says of the run's end can't be read"):
        record_of_end("gpu-0", "torchrun", {"running": False} | wrong)
