"""The first session, as a person types it: up, train, results, down; and `up` again."""

import socket
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from support import Gpuctl, processes_with

pytestmark = pytest.mark.slow

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
MACHINE = {"name", "rank", "state", "host", "port", "user", "private_ip", "gpus", "id"}
RESULT = {
    "run", "cluster", "mode", "script", "status", "exit_code", "nnodes", "nproc_per_node", "world_size",
    "started_at", "ended_at", "seconds", "train", "ranks", "first_error", "cost_usd", "dir",
    "usage", "resumed_from", "reason", "checkpoints", "hang", "files", "outputs", "output_totals", "search",
    "commit", "name", "note", "tags", "endings", "logged_error", "joined", "outside",
}  # fmt: skip
SECONDS = {"total", "connect", "prepare", "preflight", "launch", "train", "collect"}
TRAIN = {
    "model", "dataset", "strategy", "device", "epochs", "epoch_s", "samples_per_s", "loss", "accuracy", "metrics",
    "judged_on", "epochs_before", "first_step_s", "first_step", "parts", "step_ms", "share", "loss_at", "loss_from",
    "loss_by", "perplexity", "tokens_per_s", "memory_gb", "mfu", "precision", "memory_savers", "graphs",
}  # fmt: skip
RANK = {"rank", "local_rank", "node", "device", "exit_code", "step_ms_p50", "steps", "transports"}


def check_result(result: Mapping[str, Any]) -> None:
    """Exactly the keys of the contract, at every level."""
    assert set(result) == RESULT
    assert set(result["seconds"]) == SECONDS
    assert set(result["train"]) == TRAIN
    assert set(result["train"]["step_ms"]) == {"p50", "p95"}
    assert set(result["train"]["share"]) == {"compute", "communication", "data"}
    assert all(set(rank) == RANK for rank in result["ranks"])


@pytest.mark.whole
def test_up_train_results_and_down_complete_a_session(gpuctl: Gpuctl) -> None:
    up = gpuctl.ok("up", "--provider", "local", "--count", "2", "--json").json
    assert set(up) == {"cluster", "provider", "region", "machines", "hourly_usd", "seconds"}
    assert [set(machine) for machine in up["machines"]] == [MACHINE, MACHINE]
    assert [machine["rank"] for machine in up["machines"]] == [0, 1]
    assert up["hourly_usd"] == 0
    assert len({machine["port"] for machine in up["machines"]}) == 2

    trained = gpuctl.ok("train", "--mode", "torchrun", "--json").json
    check_result(trained)
    assert trained["status"] == "succeeded"
    assert trained["world_size"] == 2
    assert trained["train"]["accuracy"] >= 0.95
    assert [rank["exit_code"] for rank in trained["ranks"]] == [0, 0]
    assert {rank["node"] for rank in trained["ranks"]} == {"default-0", "default-1"}
    assert trained["cost_usd"] == 0
    assert all(value is not None for value in trained["seconds"].values())
    assert sum(trained["train"]["share"].values()) == pytest.approx(1)
    assert sum(trained["train"]["parts"].values()) == pytest.approx(trained["seconds"]["train"], rel=0.05)
    assert sum(trained["train"]["first_step"].values()) == pytest.approx(
        trained["train"]["first_step_s"], abs=0.01
    )

    results = gpuctl.ok("results", "--json").json
    assert results == {"runs": [trained]}
    table = gpuctl.ok("results").out
    assert "accuracy" in table.lower()
    assert trained["run"] in table

    down = gpuctl.ok("down", "--json").json
    assert down["leftovers"] == []
    assert sorted(down["removed"]) == ["default-0", "default-1"]
    assert not processes_with(str(gpuctl.home))
    assert gpuctl.ok("results", "--json").json == {"runs": [trained]}, "results outlive the machines"
    assert gpuctl.ok("down").status == 0, "nothing to remove is success"


def test_up_refuses_wrong_interpreter_and_next_up_fixes_it(gpuctl: Gpuctl) -> None:
    for path in ("/nowhere/python", "/bin/true", "/etc/passwd"):
        wrong = gpuctl("up", "--provider", "local", "--python", path)
        assert wrong.status == 1
        assert path in wrong.err
        assert "--python PATH" in wrong.err
    right = gpuctl.ok("up", "--python", sys.executable)
    assert "nothing changed" not in right.err
    assert "another interpreter" in right.err
    assert "nothing changed" in gpuctl.ok("up").err
    assert gpuctl("up", "--python", "/nowhere/python").status == 1
    inventory = (gpuctl.home / "clusters" / "default" / "inventory.yaml").read_text()
    assert "/nowhere" not in inventory
    assert "nothing changed" in gpuctl.ok("up").err


def test_up_rebuilds_lost_inventory_before_connecting(gpuctl: Gpuctl) -> None:
    before = gpuctl.ok("up", "--provider", "local", "--json").json["machines"]
    inventory = gpuctl.home / "clusters" / "default" / "inventory.yaml"
    inventory.unlink()
    assert gpuctl("up", "--provider", "local", "--python", "/nowhere/python").status == 1
    assert inventory.exists()
    inventory.unlink()
    again = gpuctl.ok("up", "--provider", "local", "--json")
    assert again.json["machines"] == before
    assert "nothing changed" not in again.err


def test_failed_first_up_leaves_no_cluster_folder(gpuctl: Gpuctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    text = f"all:\n  hosts:\n    box:\n      ansible_host: 127.0.0.1\n      ansible_port: {port}\n"
    hosts = str(gpuctl.script("hosts.yaml", text))
    known = gpuctl.script("known_hosts", f"[127.0.0.1]:{port} {HOST_KEY}\n")
    clusters = gpuctl.home / "clusters"
    for more, output in (
        (("--known-hosts", "/dev/null"), "no host key"),
        (("--known-hosts", "/dev/null", "--accept-new-host-keys"), "showed no host key"),
        (("--known-hosts", str(known)), "no TCP connection"),
    ):
        failed = gpuctl("up", "--hosts", hosts, *more)
        assert failed.status == 1
        assert output in failed.err
        assert list(clusters.iterdir()) == []
    assert gpuctl.ok("status", "--all", "--json").json["clusters"] == []
