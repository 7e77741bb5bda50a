"""The result of `status` from an inventory and the cloud's list."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuctl.workflow.clusters.bill import cost_of, hourly_of
from gpuctl.workflow.clusters.status import with_found
from inventories.machine import Inventory, Machine

KNOWN = Machine(
    name="default-0",
    rank=0,
    state="running",
    host="203.0.113.7",
    user="ubuntu",
    private_ip="10.0.0.2",
    gpus=2,
    id="i-0",
    launched_at="2026-11-21T05:45:01+00:00",
)
SECOND = replace(KNOWN, name="default-1", rank=1, id="i-1")


def test_with_found_takes_gone_state_only_from_cloud() -> None:
    shown = with_found((KNOWN, SECOND), (KNOWN,), {"i-0": "running", "i-1": "gone"})
    assert [machine.state for machine in shown] == ["running", "gone"]
    shown = with_found((KNOWN, SECOND), (KNOWN,), {"i-0": "stopped"})
    assert [machine.state for machine in shown] == ["stopped", "unknown"]
    assert [machine.state for machine in with_found((KNOWN,), (), {})] == ["unknown"]


def test_with_found_adds_machines_missing_in_inventory() -> None:
    shown = with_found((SECOND,), (KNOWN, SECOND), {"i-0": "running", "i-1": "running"})
    assert [machine.id for machine in shown] == ["i-0", "i-1"]


def test_with_found_takes_launch_time_from_cloud() -> None:
    restarted = replace(KNOWN, launched_at="2026-11-21T09:00:00+00:00")
    (shown,) = with_found((KNOWN,), (restarted,), {"i-0": "running"})
    assert (shown.launched_at, shown.gpus) == ("2026-11-21T09:00:00+00:00", 2)
    (shown,) = with_found((KNOWN,), (), {"i-0": "gone"})
    assert shown.launched_at == KNOWN.launched_at


def test_cost_of_gone_machines_stops_at_their_end() -> None:
    began = "2026-11-21T06:00:00+00:00"
    running, deleted = (replace(KNOWN, launched_at=began, state=state) for state in ("running", "gone"))
    pair = (running, deleted)
    both = Inventory(cluster="c", provider="aws", created_at=began, machines=pair, hourly_usd=8.0)
    now = datetime(2026, 11, 21, 10, tzinfo=UTC)
    assert hourly_of(both) == 4.0
    assert cost_of(both, None, now) == 32.0
    assert cost_of(both, "2026-11-21T07:00:00+00:00", now) == 4.0 * (4 + 1)
    assert cost_of(both, "2026-11-21T12:00:00+00:00", now) == 32.0
    ended = replace(both, machines=(deleted, deleted))
    assert (hourly_of(ended), cost_of(ended, "2026-11-21T07:00:00+00:00", now)) == (0.0, 8.0)
    assert hourly_of(replace(both, hourly_usd=None)) is None


@pytest.mark.parametrize(
    ("provider", "shape", "hourly_usd"),
    [
        ("aws", "g5.xlarge", 4.0),
        ("oci", "VM.GPU.A10.1", 4.0),
        ("oci", "BM.GPU.A10.4", 8.0),
        ("local", "local", 8.0),
    ],
)
def test_stopped_machine_has_a_price_only_where_the_cloud_bills_it(
    provider: str, shape: str, hourly_usd: float
) -> None:
    machines = tuple(replace(KNOWN, shape=shape, state=state) for state in ("running", "stopped"))
    cluster = Inventory(
        cluster="c",
        provider=provider,
        created_at="2026-11-21T06:00:00+00:00",
        machines=machines,
        hourly_usd=8.0,
    )
    assert hourly_of(cluster) == hourly_usd
