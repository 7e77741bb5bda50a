"""Machines that leave an inventory, as far as no machine has to be asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.app import App
from gpuctl.workflow.machines.host_firewalls import owner_of, restore_firewalls, update_firewalls
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine

A, B = (
    Machine(
        name=f"gpu-{rank}", rank=rank, state="running", host="127.0.0.1", port=rank + 1, user="u",
        private_ip=f"10.0.0.{rank + 2}", gpus=0, id=str(rank), host_key="ssh-ed25519 AAAA",
    )
    for rank in (0, 1)
)  # fmt: skip
"""Nobody listens on their ports."""
BOTH = Inventory(cluster="c", provider="hosts", created_at="2026-01-01T00:00:00+00:00", machines=(A, B))
ONLY_A = replace(BOTH, machines=(A,))


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """A cluster whose second machine has left, with its firewall open."""
    cluster = ClusterFolder(tmp_path / "c")
    cluster.make()
    cluster.journal.append("firewall", **entry(machine=B))
    cluster.save(ONLY_A)
    return cluster


def entry(**more: object) -> dict[str, Any]:
    return {"node": B.name, "host": B.host, "port": B.port, "owner": owner_of(BOTH), **more}


def test_let_go_records_firewall_closed_for_ended_machine(folder: ClusterFolder) -> None:
    update_firewalls(App(), folder, BOTH, ONLY_A, ended=True)
    last = folder.journal.read()[-1]
    assert last == {"at": last["at"], "event": "firewall closed", **entry()}
    assert restore_firewalls(App(), folder) == []


def test_restore_firewalls_retries_unreachable_machine_of_journal(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    update_firewalls(App(), folder, BOTH, ONLY_A, ended=False)
    errors = capsys.readouterr().err
    assert (
        "note: gpu-1: it may still let the cluster's machines in (127.0.0.1): gpu-1 (u@127.0.0.1:2): "
        in errors
    )
    assert errors.endswith("`gpuctl down` tries it again.\n")
    (left,) = restore_firewalls(App(), folder)
    assert left.id == "gpu-1"
    assert "gpu-1 (u@127.0.0.1:2): no TCP connection" in left.reason


def test_restore_firewalls_reports_machine_without_address(folder: ClusterFolder) -> None:
    folder.journal.append("firewall", **entry())
    (left,) = restore_firewalls(App(), folder)
    assert left.reason.endswith("the machine is in the inventory no more.")


def test_let_go_writes_nothing_if_no_machine_leaves(folder: ClusterFolder) -> None:
    before = folder.journal.read()
    update_firewalls(App(), folder, BOTH, BOTH, ended=False)
    assert folder.journal.read() == before
