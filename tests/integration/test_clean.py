"""Test `clean` on two real hosts with full disks: the files removed, retained and refused."""

from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

SCRIPT = """
import os, pathlib
run = pathlib.Path(os.environ["GPUCTL_RUN_DIR"])
(run / "artifacts" / "a.bin").write_bytes(os.environ["RANK"].encode() * 300_000)
(run / "checkpoints" / "c.pt").write_bytes(b"y" * 200_000)
pathlib.Path("written.txt").write_text("by a run")
"""
WAITS = "import time\nprint('begins', flush=True)\ntime.sleep(120)\n"


def node_home(gpuctl: Gpuctl, rank: int) -> Path:
    return gpuctl.home / "clusters/default/local" / f"default-{rank}" / "home/.gpuctl-node"


def removable(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return place, kind and name of each removable item."""
    return {(item["where"], item["kind"], item["name"]) for item in document["items"] if item["removes"]}


def test_clean_frees_disks_and_refuses_during_a_run(two_hosts: Gpuctl) -> None:
    gpuctl = two_hosts
    gpuctl.script("short.py", SCRIPT)
    first, second = (gpuctl.ok("train", "--json", "short.py").json["run"] for _ in range(2))
    for name in ("old", "new"):
        for file in ("venv/big.so", "ready.json"):
            path = node_home(gpuctl, 0) / "envs" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 500_000)
    (node_home(gpuctl, 0) / "envs/new/used").touch()
    clusters = gpuctl.ok("clusters", "--json").json["clusters"]
    assert [(cluster["cluster"], cluster["state"], cluster["runs"]) for cluster in clusters] == [
        ("default", "running", [])
    ]
    assert (clusters[0]["cost_usd"], len(clusters[0]["machines"])) == (0.0, 2)

    goes = {("default-0", "run", first), ("default-1", "run", first), ("default-0", "environment", "old")}
    before = gpuctl.ok("clean", "--dry-run", "--json").json
    assert removable(before) == goes
    assert before["removable_bytes"] > 2 * 500_000
    refused = gpuctl("clean")
    assert (refused.status, "it needs --yes" in refused.err) == (2, True)
    assert removable(gpuctl.ok("clean", "--dry-run", "--json").json) == goes
    done = gpuctl.ok("clean", "--yes", "--json").json
    assert (done["removed"], done["failed"], done["not_asked"]) == (3, [], [])
    assert done["freed_bytes"] >= before["removable_bytes"] - 100_000
    after = gpuctl.ok("clean", "--dry-run", "--json").json
    assert removable(after) == set()
    sizes = [sum(item["bytes"] for item in document["items"]) for document in (before, after)]
    assert sizes[1] <= sizes[0] - before["removable_bytes"] + 100_000
    for rank in (0, 1):
        assert [path.name for path in (node_home(gpuctl, rank) / "runs").iterdir()] == [second]
        assert list((node_home(gpuctl, rank) / "code").glob("*/written.txt"))
    assert (node_home(gpuctl, 0) / "envs/new/venv/big.so").exists()
    assert gpuctl.ok("results", "--json", first).json["runs"][0]["status"] == "succeeded"
    assert gpuctl.ok("train", "--resume", "--json").json["resumed_from"] == second

    gpuctl.script("waits.py", WAITS)
    run = gpuctl.ok("train", "--detach", "--json", "waits.py").json["run"]
    for words in (
        ("clean", "--yes"),
        ("clean", "--dry-run"),
        ("clean", "--cluster", "default", "--all", "--yes"),
    ):
        busy = gpuctl(*words)
        assert busy.status == 2, busy.err
        assert f"The run {run} is active on the cluster default" in busy.err
    assert run in gpuctl.ok("clusters").out
    assert gpuctl.ok("clean", "--here", "--dry-run", "--json").json["not_asked"] == []
    gpuctl.ok("stop", run)


def test_down_of_kept_machines_reports_leftover_bytes(two_hosts: Gpuctl) -> None:
    gpuctl = two_hosts
    known = gpuctl.home / "clusters/default"
    gpuctl.script("short.py", SCRIPT)
    hosts = ("--hosts", str(known / "inventory.yaml"), "--known-hosts", str(known / "known_hosts"))
    gpuctl.ok("up", "--cluster", "mine", *hosts)
    gpuctl.ok("train", "--cluster", "mine", "short.py")
    gpuctl.kill_host("default-1")
    down = gpuctl.ok("down", "--cluster", "mine", "--yes", "--json")
    assert down.json["leftovers"] == []
    first, second = down.json["left_on_nodes"]
    assert (first["node"], second) == ("default-0", {"node": "default-1", "bytes": None})
    assert first["bytes"]["run"] > 500_000
    assert "gpuctl leaves" in down.err
    assert "default-1: what gpuctl leaves there is not known" in down.err
    assert "`gpuctl clean --all --cluster mine` before `gpuctl down`" in down.err
    assert list((node_home(gpuctl, 0) / "runs").iterdir()), "--yes is no answer to what was not asked"
    cleaned = gpuctl("clean", "--all", "--yes", "--json")
    assert cleaned.status == 4, "default-1 could not be asked"
    assert [item["node"] for item in cleaned.json["not_asked"]] == ["default-1"]
