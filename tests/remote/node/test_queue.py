"""Test the queue of a node: every entry runs once, in order, whatever is killed in between."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from node_here import NodeHere, node_part
from support import holders_of, processes_with, wait_for

from inventories.runs.queue import Queue
from remote.node import process
from remote.node.queue import door
from remote.node.queue.active_run import as_seen
from remote.node.queue.door import Peers
from remote.node.queue.schedule import assign, can_follow, moved
from remote.node.runs import supervisor
from remote.runs import queue
from remote.sessions import node_payload
from remote.shared.constants import RANK_LOG
from remote.shared.files import write_json

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


class QueueHere:
    """The queue of a node on this computer, whose entries write their numbers into a file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.node = NodeHere(home)
        self.log = home / "log"
        self.added = 0

    def entry(self, line: str = "", **fields: Any) -> dict[str, Any]:
        self.added += 1
        run = f"20261121-{self.added:06d}-3fa9"
        run_dir = str(self.home / ".gpuctl-node" / "runs" / run / "gpu-0")
        argv = ["/bin/sh", "-c", line or f"echo {self.added} >> {self.log}"]
        env = {"GPUCTL_RUN_ID": run, "GPUCTL_HANG_AFTER": "off"}
        launch = {"run_dir": run_dir, "node": "gpu-0", "argv": argv, "env": env, "grace_s": 1.0, "record": {}}
        usual = {
            "run": run,
            "name": None,
            "script": "my.py",
            "args": [],
            "tags": {},
            "nnodes": 1,
            "priority": 0, "notify": None,
        }  # fmt: skip
        return {**usual, "places": [{"nodes": ["gpu-0"], "launch": launch}], **fields}

    def add(self, *entries: dict[str, Any], after: str | None = None) -> Queue:
        return queue._ask(self.node, "queue_add", {"entries": entries, "after": after, "restarts": False})

    def states(self) -> dict[str, str]:
        return {entry.entry: entry.state for entry in queue.state_of(self.node).entries}

    def wait(self, deadline_s: float = 60) -> None:
        folder = self.home / ".gpuctl-node" / "queue"
        wait_for(
            lambda: not list(folder.glob("*/*.json")), what="the end of the queue", deadline_s=deadline_s
        )

    def lines(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def runners(self) -> list[int]:
        """Return the processes of the queue, which hold its lock open: a parent and its child."""
        path = str(self.home / ".gpuctl-node" / "queue" / "gpu-0" / ".runner")
        holders = {pid: parent_of(pid) for pid in holders_of(path)}
        # A supervisor is a process of the child for a moment.
        return [pid for pid, parent in holders.items() if holders.get(parent) not in holders]

    def kill(self, pids: Sequence[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def power_cut(self) -> None:
        """End all processes of the node, and let its files be those of an earlier boot."""
        while processes := [*self.runners(), *processes_with(str(self.home))]:
            self.kill(processes)
            time.sleep(0.05)
        for path in (self.home / ".gpuctl-node" / "runs").glob("*/*/runner.json"):
            document = json.loads(path.read_text())
            path.write_text(json.dumps({**document, "boot_id": OTHER_BOOT}))


def launch_of(entry: dict[str, Any]) -> dict[str, Any]:
    launch: dict[str, Any] = entry["places"][0]["launch"]
    return launch


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[QueueHere]:
    made = QueueHere(tmp_path)
    yield made
    made.power_cut()


def test_entries_run_once_in_order_though_the_runner_is_killed(here: QueueHere) -> None:
    here.add(*(here.entry() for _ in range(6)))
    wait_for(lambda: len(here.lines()) >= 2, what="two entries")
    child = max(here.runners())
    here.kill([child])
    wait_for(lambda: len(here.lines()) >= 4, what="further entries without a command")
    here.kill(here.runners())
    assert [queue.state_of(here.node).restarted for _ in range(2)] == [True, False]
    here.wait()
    assert here.lines() == list("123456")
    assert set(here.states().values()) == {"succeeded"}
    wait_for(lambda: not here.runners(), what="the end of the runner")


def test_entry_that_fails_or_can_not_start_blocks_no_other(here: QueueHere) -> None:
    missing = here.entry()
    launch_of(missing)["argv"] = ["/no/such/program"]
    here.add(here.entry("exit 3"), missing, here.entry())
    here.wait()
    assert here.states() == {"1": "failed", "2": "failed", "3": "succeeded"}
    failed, not_started, _ = queue.state_of(here.node).entries
    assert (failed.exit_code, failed.error) == (3, None)
    assert "/no/such/program could not be started" in (not_started.error or "")
    ended = json.loads((Path(launch_of(missing)["run_dir"]) / "exit.json").read_text())
    assert ended["ended"]["reason"] == "not_started"


def test_power_cut_fails_the_active_entry_alone(here: QueueHere) -> None:
    here.add(here.entry(f"echo 1 >> {here.log}; exec sleep 60"), here.entry())
    wait_for(lambda: here.lines() == ["1"], what="the first entry")
    here.power_cut()
    here.states()
    here.wait()
    assert here.lines() == ["1", "2"]
    assert here.states() == {"1": "failed", "2": "succeeded"}


def test_paused_queue_starts_nothing_and_ended_entries_keep_no_secret(here: QueueHere) -> None:
    queue.change(here.node, "pause")
    first, second = here.entry(), here.entry()
    launch_of(second)["env"]["TOKEN"] = "s3cret"
    here.add(first, second)
    queue.change(here.node, "move", ["2"], "first")
    queue.change(here.node, "remove", ["1"])
    with pytest.raises(AssertionError, match="entry 1 was removed: only waiting entries can be removed"):
        queue.change(here.node, "remove", ["1"])
    assert here.lines() == []
    assert here.states() == {"1": "removed", "2": "waiting"}
    queue.change(here.node, "resume")
    here.wait()
    assert here.lines() == ["2"]
    here.add(here.entry("sleep 1"), here.entry())
    wait_for(lambda: here.states()["3"] == "running", what="the third entry")
    queue.change(here.node, "clear")
    here.wait()
    assert here.states() == {"1": "removed", "2": "succeeded", "3": "succeeded", "4": "removed"}
    files = (here.home / ".gpuctl-node" / "queue").rglob("*.json")
    assert not [path for path in files if "s3cret" in path.read_text()]


def test_entry_is_seen_to_have_ended_before_the_queue_notes_it(tmp_path: Path) -> None:
    place = {"nodes": ["gpu-0"], "launch": {"run_dir": str(tmp_path)}}
    entry = {"state": "running", "place": 0, "places": [place], "nodes": ["gpu-0"]}
    assert as_seen(entry) == entry
    write_json(tmp_path / "runner.json", {"boot_id": OTHER_BOOT, "pid": 1, "birth": "1"})
    assert as_seen(entry)["state"] == "failed"  # the machine restarted
    write_json(tmp_path / "exit.json", {"exit_code": 0, "ended_at": 7.0})
    assert (as_seen(entry)["state"], as_seen(entry)["ended_at"]) == ("succeeded", 7.0)
    assert as_seen({**entry, "nodes": ["gpu-0", "gpu-1"]})["state"] == "running"  # gpu-1 may not have ended


def test_entries_run_though_who_added_them_is_gone(here: QueueHere) -> None:
    request = {"node": "gpu-0", "entries": [here.entry(), here.entry()], "after": None, "restarts": False}
    with node_part(here.home, "queue_add") as part:
        assert part.stdin is not None
        assert part.stdout is not None
        part.stdout.close()
        part.stdin.write(json.dumps(request).encode() + b"\n")
        part.stdin.close()
    here.wait()
    assert here.lines() == ["1", "2"]


def test_repeated_request_adds_nothing(here: QueueHere) -> None:
    entry = here.entry()
    assert [each.entry for _ in range(2) for each in here.add(entry).entries] == ["1", "1"]
    here.wait()
    assert [each.entry for each in here.add(entry).entries] == ["1"]
    assert here.lines() == ["1"]


def test_killed_runner_leaves_a_long_run_alone_and_another_one_follows_it(here: QueueHere) -> None:
    here.add(here.entry(f"echo 1 >> {here.log}; sleep 3; echo 1 >> {here.log}"))
    wait_for(lambda: here.lines() == ["1"], what="the entry")
    here.kill(here.runners())
    run_dir = next((here.home / ".gpuctl-node" / "runs").glob("*/gpu-0"))
    os.utime(run_dir, (0, 0))  # it began long ago
    here.states()
    here.wait()
    assert here.lines() == ["1", "1"]
    assert here.states() == {"1": "succeeded"}


def test_unknown_run_can_not_be_followed(here: QueueHere) -> None:
    with pytest.raises(AssertionError, match="no entry and no run here is named 7"):
        here.add(here.entry(), after="7")


def waiting(number: int, priority: int = 0, after: str | None = None) -> dict[str, Any]:
    return {
        "entry": str(number), "state": "waiting", "priority": priority, "position": float(number), "after": after,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("number", "place", "order"),
    [
        ("3", "first", "3124"),
        ("1", "last", "2341"),
        ("4", "2", "1423"),
        ("1", "3", "2134"),
        ("2", "1", "2134"),
    ],
)
def test_moved_entry_has_its_new_place(number: str, place: str, order: str) -> None:
    entries = [waiting(1, 5), waiting(2), waiting(3), waiting(4, -1)]
    entry = moved(entries, number, place)
    others = [each for each in entries if each["entry"] != number]
    ordered = sorted([*others, entry], key=lambda each: (-each["priority"], each["position"]))
    assert "".join(each["entry"] for each in ordered) == order


def test_entry_that_is_added_later_follows_those_that_were_moved_to_the_end() -> None:
    entries = [waiting(number) for number in (1, 2, 3)]
    for number in ("1", "2"):
        others = [entry for entry in entries if entry["entry"] != number]
        entries = [*others, moved(entries, number, "last")]
    ordered = sorted([waiting(4), *entries], key=lambda entry: entry["position"])
    assert [entry["entry"] for entry in ordered] == ["3", "1", "2", "4"]


def test_entry_behind_an_active_run_is_passed_over() -> None:
    running = {**waiting(1), "run": "a", "state": "running"}
    entries = [
        running,
        *({**waiting(n, after=after), "run": f"r{n}"} for n, after in ((2, "a"), (3, "b"), (4, None))),
    ]
    assert [entry["entry"] for entry in can_follow(entries)] == ["3", "4"]


@pytest.mark.parametrize(
    ("places", "free", "lost", "starts", "stranded"),
    [
        (["a b c"], "abc", "", "1a", ""),
        (["a b c", "a b c", "a b c", "a b c"], "ac", "", "1a 2c", ""),
        (
            ["ab bc ca", "a b c", "a b c"],
            "c",
            "",
            "",
            "",
        ),  # the first one reserves c and a node that is to be free
        (["ab bc cd da", "a b c d", "a b c d"], "bd", "", "2d", ""),  # it reserves a and b
        (["abc", "a b c"], "ab", "c", "2a", "1"),
        (["ab bc ca", "a b c"], "b", "c", "", ""),
    ],
)
def test_entries_take_free_nodes_in_their_order(
    places: list[str], free: str, lost: str, starts: str, stranded: str
) -> None:
    entries = [
        {"entry": str(number), "places": [{"nodes": list(nodes)} for nodes in text.split()]}
        for number, text in enumerate(places, 1)
    ]
    starting, failing = assign(entries, set(free), set(lost))
    shown = [entry["entry"] + "".join(entry["places"][at]["nodes"]) for entry, at in starting]
    assert (" ".join(shown), "".join(entry["entry"] for entry in failing)) == (starts, stranded)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousand_entries_run_once_in_order_with_kills_and_power_cuts(here: QueueHere) -> None:
    count, chance = 1000, random.Random(7)
    here.add(*(here.entry(f"echo {number} >> {here.log}") for number in range(1, count + 1)))
    kills = cuts = 0
    limit = time.monotonic() + 3000
    while here.runners() or list((here.home / ".gpuctl-node" / "queue").glob("*/*.json")):
        assert time.monotonic() < limit
        time.sleep(chance.uniform(1, 8))
        if chance.random() < 0.1:
            here.power_cut()
            cuts += 1
        else:
            here.kill(here.runners())
            kills += 1
        here.states()
    states = here.states()
    lines = [int(line) for line in here.lines()]
    print(f"{kills} kills, {cuts} power cuts, states {sorted(set(states.values()))}")
    assert lines == sorted(set(lines))
    cut_off = {int(number) for number, state in states.items() if state == "failed"}
    assert len(states) == count
    assert len(cut_off) <= cuts
    assert set(range(1, count + 1)) - set(lines) <= cut_off


def said(node: str, **about: Any) -> dict[str, Any]:
    return {"node": node, "run": "r1", "ready": True, "busy": False, "ended": None, "parts": [], **about}


def test_peers_count_with_fresh_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, nodes = Peers(lambda: {"r0"}), ["gpu-1", "gpu-2"]
    peers.order(nodes, {"run": "r1", "order": "ready"})
    answer = peers.answer(said("gpu-1", parts=["r0", "r1"]))
    assert answer == {"run": "r1", "order": "ready", "over": ["r0"]}
    peers.answer(said("gpu-2", run="r0"))  # it has the run of before in mind
    assert (peers.ready(nodes, "r1"), peers.idle()) == ({"gpu-1"}, {"gpu-1", "gpu-2"})
    peers.answer(said("gpu-2", busy=True, ready=False))
    assert (peers.ready(nodes, "r1"), peers.idle()) == ({"gpu-1"}, {"gpu-1"})
    peers.answer(said("gpu-1", ended={"exit_code": 0, "ended": None}))
    assert peers.ends(nodes, "r1") == {"gpu-1": {"exit_code": 0, "ended": None}}
    peers.expect([*nodes, "gpu-3"])
    assert peers.silent([*nodes, "gpu-3"], door.LOST_S) == set()
    later = time.monotonic() + door.LOST_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert (peers.ready(nodes, "r1"), peers.idle()) == (set(), set())
    assert peers.silent([*nodes, "gpu-3"], door.LOST_S) == {"gpu-1", "gpu-2", "gpu-3"}
    peers.expect(["gpu-2"])  # for the first entry in hours that needs others
    peers.expect(["gpu-2", "gpu-3"])
    assert peers.silent([*nodes, "gpu-3"], door.LOST_S) == {"gpu-1", "gpu-2"}


def test_door_answers_signed_messages_alone(tmp_path: Path) -> None:
    settings = door.settings_of(tmp_path, "127.0.0.1")
    assert door.settings_of(tmp_path, "127.0.0.1") == settings
    with door.listening(settings, Peers(set)):
        assert door.ask(settings, said("gpu-1")) == {"run": None, "over": []}
        assert door.ask({**settings, "key": "0" * 32}, said("gpu-1")) is None
    assert door.ask(settings, said("gpu-1")) is None


def test_closed_door_holds_up_no_entry_of_this_node_and_opens_later(here: QueueHere) -> None:
    folder = here.home / ".gpuctl-node/queue/gpu-0"
    folder.mkdir(parents=True)
    settings = door.settings_of(folder, "127.0.0.1")
    both = here.entry()
    both["places"][0]["nodes"] = ["gpu-0", "gpu-1"]
    with door.listening(settings, Peers(set)):
        here.add(here.entry(), both)
        wait_for(lambda: here.states() == {"1": "succeeded", "2": "waiting"}, what="the first entry")
    wait_for(lambda: door.ask(settings, said("gpu-1")), what="the first node's answer")
    queue.change(here.node, "clear")


def test_entry_waits_for_a_run_of_train_though_other_nodes_are_free(here: QueueHere) -> None:
    folder = here.home / ".gpuctl-node/queue/gpu-0"
    folder.mkdir(parents=True)
    settings = door.settings_of(folder, "127.0.0.1")
    run_dir = here.home / ".gpuctl-node/runs/trained/gpu-0"
    run_dir.mkdir(parents=True)
    pid = os.getpid()
    write_json(
        run_dir / "runner.json", {"boot_id": process.boot_id(), "pid": pid, "birth": process.birth(pid)}
    )
    elsewhere = [{"nodes": ["gpu-1"], "launch": None}]
    follows, free = (here.entry(places=elsewhere) for _ in range(2))
    here.add(follows, after="trained")
    here.add(free)

    def order() -> Any:
        return (door.ask(settings, said("gpu-1", run=None)) or {}).get("run")

    assert wait_for(order, what="an entry on gpu-1") == free["run"]


def test_full_disk_lets_entries_wait(here: QueueHere) -> None:
    node_home = here.home / ".gpuctl-node"
    node_home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(node_home)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        ballast = node_home / "ballast"
        here.add(here.entry(f"head -c 3400000 /dev/zero > {ballast}; exit 3"), here.entry())
        wait_for(lambda: here.states()["1"] == "failed", what="the first entry")
        waiting = queue.state_of(here.node).entries[1]
        assert (waiting.state, waiting.error) == ("waiting", "it waits: the disk of gpu-0 is full")
        ballast.unlink()
        here.wait()
        assert here.lines() == ["2"]
    finally:
        here.power_cut()
        subprocess.run(["umount", str(node_home)], check=True)


CRONTAB = """#!/bin/sh
[ "$1" = -l ] && exec cat "$HOME/crontab"
exec cat > "$HOME/crontab"
"""


def test_cron_continues_the_queue_after_a_restart(here: QueueHere) -> None:
    program = here.home / ".gpuctl-node" / "bin" / "part"
    with zipfile.ZipFile(io.BytesIO(zlib.decompress(node_payload.packed()))) as archive:
        archive.extractall(program)
    programs = here.home / "programs"
    programs.mkdir()
    (programs / "crontab").write_text(CRONTAB)
    (programs / "crontab").chmod(0o755)
    (here.home / "crontab").write_text("0 5 * * * backup --to '50%'\n")
    env = {"HOME": str(here.home), "PATH": f"{programs}:/usr/bin:/bin"}
    first = here.entry(f"echo 1 >> {here.log}; exec sleep 60")
    entries = [{**first, "priority": 1}, here.entry()]
    request = {"node": "gpu-0", "entries": entries, "after": None, "restarts": True}
    words = [sys.executable, "-I", str(program), "queue_add"]
    done = subprocess.run(
        words, input=json.dumps(request) + "\n", env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1])["restarts"] is True
    wait_for(lambda: here.lines() == ["1"], what="the first entry")
    backup, line = (here.home / "crontab").read_text().splitlines()
    command = line.removeprefix("* * * * * ").replace("\\%", "%")
    for end in (lambda: here.kill(here.runners()), here.power_cut):
        end()
        wait_for(lambda: not here.runners(), what="the end of the queue's processes")
        for _ in range(2):  # each minute
            subprocess.run(["/bin/sh", "-c", command], env=env, check=True)
        assert len(here.runners()) == 2
    here.wait()
    assert here.lines() == ["1", "2"]
    wait_for(lambda: (here.home / "crontab").read_text() == backup + "\n", what="the removal of the line")


def test_one_notice_says_that_the_queue_is_empty(here: QueueHere) -> None:
    notices = here.home / "notices"
    facts: dict[str, Any] = {
        "cluster": "default",
        "name": None,
        "script": "my.py",
        "args": [],
        "node": "gpu-0",
    }
    facts |= {
        "nodes": 1,
        "ranks": 1,
        "hourly_usd": None,
        "started": time.time(),
        "peers": {},
        "followers": [],
        "continues": False,
        "failures_only": True,
    }
    target = f'command:printf \'%s\\n\' "$GPUCTL_NOTIFY_TITLE" "$GPUCTL_NOTIFY_TEXT" >> {notices}'

    def entry(line: str, loss: str = "") -> dict[str, Any]:
        made = here.entry(line, args=["--lr", loss, "--epochs", "2"], tags={"sweep": "s"})
        if loss:
            log = Path(launch_of(made)["run_dir"]) / RANK_LOG.format(0)
            launch_of(made)["argv"][2] = f"mkdir -p {log.parent}; echo loss {loss} > {log}; {line}"
        notify = {"targets": [target], "settings": {}, "run": {**facts, "run": made["run"]}, "machine": None}
        launch_of(made)["notify"] = made["notify"] = notify
        return made

    here.add(entry("exit 0", "0.5"), entry("exit 3", "0.1"), entry("exit 0", "0.25"))
    here.wait()

    def empty() -> list[str]:
        lines = notices.read_text().splitlines() if notices.exists() else []
        return [line for line in lines if line.startswith("the queue")]

    assert wait_for(empty, what="the notice") == ["the queue of default is empty: 2 succeeded, 1 failed"]
    assert "best: loss 0.25, --lr 0.25 (20261121-000003-3fa9)" in notices.read_text()
    wait_for(lambda: "my.py failed" in notices.read_text(), what="the notice of the failure")
    mark = here.home / ".gpuctl-node/queue/gpu-0/.empty"
    os.utime(mark, (time.time() + 3600,) * 2)  # the clock was ahead
    here.add(entry("exit 0"))
    second = wait_for(lambda: empty()[1:], what="the second notice")
    assert second == ["the queue of default is empty: 1 succeeded"]
    assert "my.py succeeded" not in notices.read_text()
    assert not (mark.parent / ".notify").exists()


def test_entry_whose_launcher_may_have_run_is_not_started_again(here: QueueHere) -> None:
    cut, following = here.entry(), here.entry()
    folder = Path(launch_of(cut)["run_dir"])
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as stuck:
        starting = {"pid": stuck.pid, "birth": process.birth(stuck.pid)}
        (folder / supervisor.STARTING).write_text(json.dumps(starting))
        here.add(cut, following)
        here.wait()
        assert stuck.wait(10) == -signal.SIGKILL
    assert (here.lines(), here.states()) == (["2"], {"1": "failed", "2": "succeeded"})


def test_files_that_can_not_be_read_hold_up_no_entry(here: QueueHere) -> None:
    folder = here.home / ".gpuctl-node/queue/gpu-0"
    folder.mkdir(parents=True)
    (folder / "foo.json").write_text("{}")
    (folder / "000001-torn.json").write_text('{"entry": "1", "priori')
    older = {**here.entry(), "entry": "2", "state": "waiting"}
    del older["priority"]
    (folder / "000002-older.json").write_text(json.dumps(older))
    (folder / ".gpuctl-cut").write_text("s3cret")
    here.add(here.entry())
    wait_for(here.lines, what="the third entry")
    torn, unknown, _ = queue.state_of(here.node).entries
    assert (torn.state, unknown.state, unknown.run) == ("failed", "failed", "older")
    assert "another version of gpuctl wrote it: add it again" in (torn.error or "")
    wait_for(lambda: not here.runners(), what="the end of the runner")
    files = {path.name for path in folder.iterdir()}
    assert files == {"foo.json", ".empty", ".ended", ".lock", ".runner", ".runner.log"}


def test_run_has_the_environment_of_the_session_that_added_it(here: QueueHere) -> None:
    for name in "ab":
        here.node.variables = {"LANG": name, "SSH_AUTH_SOCK": f"/{name}", name: name}
        here.add(here.entry(f"env > {here.home}/env-{name}"))
    here.wait()
    seen = {name: (here.home / f"env-{name}").read_text().splitlines() for name in "ab"}
    assert "SSH_AUTH_SOCK" not in " ".join(seen["a"] + seen["b"])
    assert {"LANG=a", "a=a"} <= set(seen["a"])
    assert "LANG=b" in seen["b"]
    assert "a=a" not in seen["b"]
