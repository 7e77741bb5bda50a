"""Test the queue on nodes that are not the first, and what the first one makes of their answers."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_here import NodeHere
from support import holders_of, wait_for

from remote.node.queue import door, part
from remote.node.queue import follower as follower_part
from remote.node.queue.active_run import ActiveRun, outcome_of
from remote.node.queue.door import Peers
from remote.shared.files import write_json


class FollowerHere:
    """The node gpu-1 on this computer, whose first node is this process."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.node = NodeHere(home)
        self.parts = home / ".gpuctl-node/queue/gpu-1/.following"
        self.ended: set[str] = set()
        self.peers = Peers(lambda: self.ended)
        folder.mkdir()
        self.settings = door.settings_of(folder, "127.0.0.1")

    def follow(self, *runs: str, keep: tuple[str, ...] = (), keep_new: bool = True, **door: Any) -> None:
        entries = [{"run": run, "places": [{"nodes": ["gpu-1"], "launch": self.launch(run)}]} for run in runs]
        body = {"node": "gpu-1", "entries": entries, "keep": keep, "keep_new": keep_new, "restarts": False}
        self.node.call("queue_follow", {**body, "door": {**self.settings, **door}})

    def launch(self, run: str) -> dict[str, Any]:
        env = {"GPUCTL_RUN_ID": run, "GPUCTL_HANG_AFTER": "off", "TOKEN": "s3cret"}
        argv = ["/bin/sh", "-c", "exec sleep 60"]
        about = {"node": "gpu-1", "argv": argv, "env": env, "grace_s": 1.0, "record": {}}
        return {"run_dir": str(self.run_dir(run)), **about}

    def run_dir(self, run: str) -> Path:
        return self.home / ".gpuctl-node/runs" / run / "gpu-1"

    def order(self, run: str, order: str) -> None:
        self.peers.order(["gpu-1"], {"run": run, "place": 0, "order": order, "started_at": time.time()})

    def processes(self) -> list[int]:
        return holders_of(str(self.parts / ".follower"))


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[FollowerHere]:
    made = FollowerHere(tmp_path, tmp_path / "first")
    yield made
    made.ended = {"r1", "r2"}
    with door.listening(made.settings, made.peers):
        wait_for(lambda: not made.processes(), what="the end of the follower")


def test_run_that_the_first_node_gave_up_ends_before_another_one_starts(follower: FollowerHere) -> None:
    follower.follow("r1", "r2")
    peers = follower.peers
    with door.listening(follower.settings, peers):
        follower.order("r1", "start")
        wait_for(lambda: (follower.run_dir("r1") / "runner.json").exists(), what="the start")
        follower.ended.add("r1")  # as after a partition: the first node went on with another run
        follower.order("r2", "ready")
        wait_for(lambda: peers.ready(["gpu-1"], "r2"), what="the node to be free")
    ended = json.loads((follower.run_dir("r1") / "exit.json").read_text())
    assert ended["ended"]["reason"] == "peer_failed"
    assert [path.stem for path in follower.parts.glob("*.json")] == ["r2"]


def test_new_parts_outlive_another_computers_list_and_not_the_cluster(follower: FollowerHere) -> None:
    follower.follow("r1")
    follower.follow(keep=())
    assert list(follower.parts.glob("*.json"))
    follower.follow(keep=(), keep_new=False)
    wait_for(lambda: not follower.processes(), what="the end of the follower")
    assert not list(follower.parts.glob("*.json"))


def test_old_part_of_an_active_run_outlives_a_list_without_it(follower: FollowerHere) -> None:
    follower.follow("r1", "r2")
    with door.listening(follower.settings, follower.peers):
        follower.order("r1", "start")
        wait_for(lambda: (follower.run_dir("r1") / "runner.json").exists(), what="the start")
        for path in follower.parts.glob("*.json"):
            os.utime(path, (0, 0))
        follower.follow(keep=())
        follower.order("r1", "stop")
        ends = wait_for(lambda: follower.peers.ends(["gpu-1"], "r1"), what="the end")
        assert ends["gpu-1"]["ended"]["reason"] == "peer_failed"
        follower.order("r2", "ready")
        wait_for(lambda: follower.peers.ends(["gpu-1"], "r2") == {"gpu-1": {}}, what="no part")


def test_parts_are_forgotten_if_the_first_node_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without crontab
    monkeypatch.setattr(follower_part, "FORGET_S", 0.5)
    for run in ("ended", "not-begun"):
        launch = {"run_dir": str(tmp_path / "runs" / run), "env": {"TOKEN": "s3cret"}}
        write_json(tmp_path / f"{run}.json", {"places": [{"nodes": ["gpu-1"], "launch": launch}]})
    (tmp_path / "runs/ended").mkdir(parents=True)
    write_json(tmp_path / "runs/ended/exit.json", {"exit_code": 0})
    follower_part.Follower("gpu-1", tmp_path).work()
    assert not list(tmp_path.glob("*.json"))


def test_all_parts_ask_the_newest_door(follower: FollowerHere) -> None:
    follower.follow("r2", key="0" * 32)
    follower.follow("r1", keep=("r2",))
    follower.order("r2", "ready")
    with door.listening(follower.settings, follower.peers):
        wait_for(lambda: follower.peers.ready(["gpu-1"], "r2"), what="the older part")


def said(run: str, **about: Any) -> dict[str, Any]:
    return {"node": "gpu-1", "run": run, "ready": False, "busy": False, "ended": None, "parts": [], **about}


def entry_with_notices(titles: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cluster": "c",
        "name": None,
        "script": "my.py",
        "args": [],
        "node": "gpu-1",
        "nodes": 1,
        "ranks": 1,
    }
    facts |= {
        "run": "r1",
        "hourly_usd": None,
        "started": 0.0,
        "peers": {},
        "followers": [],
        "continues": False,
    }
    target = f"command:echo $GPUCTL_NOTIFY_TITLE >> {titles}"
    return {
        "run": "r1", "script": "my.py", "place": 0, "started_at": 0.0,
        "places": [{"nodes": ["gpu-1"], "launch": None}],
        "notify": {"targets": [target], "settings": {}, "run": facts, "machine": None},
    }  # fmt: skip


def test_busy_node_is_waited_for_and_one_without_files_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(part, "NODE_HOME", tmp_path)
    titles, clock = tmp_path / "titles", time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    peers = Peers(set)
    active = ActiveRun(entry_with_notices(titles), "gpu-0", peers)
    for _ in range(10):  # as during `train` there
        peers.answer(said("r1", busy=True))
        assert active.follow() is None
        clock += door.GATHER_S / 2
    assert active.error is None
    ends = None
    for _ in range(3):
        peers.answer(said("r1", ended={}))
        ends = active.follow()
        clock += door.GATHER_S / 2
    assert ends == [{}]
    assert active.error == "gpu-1 answers, but has no files of the run: add it again"
    ended = json.loads((tmp_path / "runs/r1/gpu-0/exit.json").read_text())
    assert ended["ended"]["reason"] == "not_started"
    monkeypatch.undo()
    wait_for(titles.exists, what="the notice")
    assert "my.py failed" in titles.read_text()


def test_lost_first_node_of_a_run_is_notified_by_the_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(part, "NODE_HOME", tmp_path)
    titles, clock = tmp_path / "titles", time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    peers = Peers(set)
    active = ActiveRun(entry_with_notices(titles), "gpu-0", peers)
    peers.answer(said("r1", ready=True))
    assert active.follow() is None
    clock += door.LOST_S + 1
    assert active.follow() == [{}]
    assert active.error == "gpu-1 did not answer the first node for 120 s"
    monkeypatch.undo()
    wait_for(titles.exists, what="the notice")
    assert "my.py failed" in titles.read_text()


@pytest.mark.parametrize(
    ("codes", "reason", "state", "code"),
    [
        ([0, 0], None, "succeeded", 0),
        ([0, None], None, "failed", None),
        ([None, 3], None, "failed", 3),
        ([0, 0], "gpus_idle", "stopped", 0),
        ([-15, 0], "stopped_hung", "stopped", -15),
    ],
)
def test_entry_has_the_worst_end_of_its_nodes(
    codes: list[int | None], reason: str | None, state: str, code: int | None
) -> None:
    ends = [{"exit_code": code, "ended": reason and {"reason": reason}} for code in codes]
    outcome = outcome_of(ends)
    assert (outcome["state"], outcome["exit_code"]) == (state, code)
