"""Test how a node ends its part in a run: signals, time to save, leftovers of ranks. With a real supervisor."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from node_here import ROOT
from support import processes_with

from inventories.runs.end_reasons import STOP_GRACE_S
from inventories.runs.records import LeftProcess, NodeEnding
from remote.end_sentences import ended_lines, interrupt_text, waiting_text
from remote.node.runs.ending import GRACE_S, command_of

STOP = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from remote.node.runs import supervisor
from remote.node import run_state
run_dir = Path({run_dir!r})
argv = {argv!r}
supervisor.launch(dict(run_dir=str(run_dir), node="gpu-0", argv=argv, env={{}}, grace_s={grace!r}))

def wait_for(condition):
    limit = time.monotonic() + 30
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)

log = run_dir / "logs" / "rank-0.log"
for order in {orders!r}:
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    supervisor.tell_to_stop(run_dir, "stopped", *order)
    time.sleep(0.5)
began = time.monotonic()
waited = []
state = run_state.state(run_dir)
while state["running"] and time.monotonic() < began + 40:
    waited.append(supervisor.read_json(run_dir / "ending.json"))
    state = supervisor.wait_for_end(run_dir, 0.1)
state["waited"] = next((one for one in reversed(waited) if one), None)
state["left_a_file"] = (run_dir / "ending.json").exists()
json.dump(state, sys.stdout)
"""
WRAPPER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from remote.node.runs import rank_wrapper
sys.exit(rank_wrapper.main(sys.argv[1:]))
"""
RANK = "import os, signal, subprocess, sys, time\n"
SAVES = """
try:
    print("ready", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
ON_TERM = """
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2.5), print("saved", flush=True), os._exit(0)))
print("ready", flush=True)
time.sleep(30)
"""
DEAF = """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(30)
"""
UNREADABLE = """
os.mkdir(os.path.dirname(os.path.dirname(os.environ["GPUCTL_METRICS"])) + "/ranks/rank-9.json")
"""
SLOW_LAUNCHER = """
import signal, sys, time
from pathlib import Path
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("RUN_DIR", "logs", "rank-0.log").write_text("ready")
time.sleep({seconds})
"""
LEAVES = """
subprocess.Popen(["sh", "-c", "sleep {seconds}; touch {tmp}/uploaded # upload"], start_new_session={apart})
"""


def ended(
    tmp_path: Path, script: str, *orders: tuple[Any, ...], grace: float = 20.0, launcher: str = ""
) -> dict[str, Any]:
    """End a run of one rank by these orders, and return its state with the processes `waited` for.

    `launcher`: code that runs before the rank is started.
    """
    run_dir = tmp_path / ".gpuctl-node" / "runs" / "20261121-060000-0000" / "gpu-0"
    rank = [sys.executable, "-c", RANK + script, str(tmp_path)]
    launcher = launcher.replace("RUN_DIR", str(run_dir))
    wrapper = [sys.executable, "-I", "-c", launcher + WRAPPER, str(run_dir), str(tmp_path), "--"]
    code = STOP.format(
        root=str(ROOT), run_dir=str(run_dir), argv=[*wrapper, *rank], grace=grace, orders=orders
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=80, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)
    assert not state["running"]
    assert not state["left_a_file"]
    assert not processes_with(str(tmp_path))
    return state


def log(tmp_path: Path) -> str:
    """The rank's log."""
    [path] = tmp_path.rglob("rank-0.log")
    return path.read_text()


def test_interrupt_is_sigint_and_the_rank_saves(tmp_path: Path) -> None:
    state = ended(tmp_path, SAVES, ("SIGINT",))
    assert "interrupted" in log(tmp_path)
    assert (state["stopped"], state["ended"]) == (True, {"reason": "stopped"})
    assert (state["ending"]["signal"], state["ending"]["killed"]) == ("SIGINT", [])


def test_stop_is_sigterm_and_waits_while_the_rank_saves(tmp_path: Path) -> None:
    state = ended(tmp_path, ON_TERM, ())
    assert "saved" in log(tmp_path)
    assert (state["ending"]["signal"], state["ending"]["killed"]) == ("SIGTERM", [])
    assert 2.0 <= state["ending"]["seconds"] <= 10.0
    assert (state["waited"]["active"], state["waited"]["grace_s"]) == ([0], 20.0)


@pytest.mark.parametrize(
    ("orders", "grace"),
    [([("SIGTERM", None)], 0.7), ([("SIGINT", None), ("SIGINT", 0.0)], 20.0), ([("SIGTERM", 0.5)], 20.0)],
    ids=["its grace is over", "a second order kills", "the order's own grace"],
)
def test_rank_that_does_not_end_is_killed(
    tmp_path: Path, orders: list[tuple[Any, ...]], grace: float
) -> None:
    state = ended(tmp_path, DEAF, *orders, grace=grace)
    assert state["ending"]["killed"] == [0]
    [record] = tmp_path.rglob("rank-0.json")
    assert json.loads(record.read_text())["exit_code"] == -9


@pytest.mark.parametrize(("deaf", "seconds"), [(False, 30), (True, 1.5)], ids=["starting", "deaf"])
def test_interrupt_before_the_ranks_begin_ends_the_run(tmp_path: Path, deaf: bool, seconds: float) -> None:
    """A rank that still begins later gets SIGTERM at once."""
    launcher = SLOW_LAUNCHER.format(deaf=deaf, seconds=seconds)
    state = ended(tmp_path, "time.sleep(30)", ("SIGINT",), launcher=launcher)
    assert (state["ending"]["signal"], state["ending"]["killed"]) == ("SIGTERM", [])
    assert [json.loads(path.read_text())["exit_code"] for path in tmp_path.rglob("rank-0.json")] == [
        -15
    ] * deaf
    assert (state["stopped"], state["ending"]["seconds"] >= 1.0) == (True, deaf)


def test_run_whose_records_cannot_all_be_read_ends_with_its_exit_status(tmp_path: Path) -> None:
    """A network disk may fail for a while."""
    state = ended(tmp_path, UNREADABLE + SAVES, ("SIGINT",))
    assert (state["ended"], state["ending"]["signal"]) == ({"reason": "stopped"}, "SIGINT")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("aws s3 cp a b", "aws"),
        ("/usr/bin/python3.12 -W ignore -u up.py --token x", "python3.12 up.py"),
        ("python -Im pkg.up --token x", "python -m pkg.up"),
        ("python -uc code token", "python"),
        ("bash -euo pipefail up.sh token", "bash up.sh"),
        ("sh -c code", "sh"),
    ],
)
def test_command_shows_no_arguments(line: str, command: str) -> None:
    assert command_of(line.split()) == command
    assert command_of(["ray::up with a title"]) == "ray::up"


def test_grace_of_nodes_is_that_of_runs() -> None:
    assert GRACE_S == STOP_GRACE_S


@pytest.mark.parametrize("apart", [False, True], ids=["in the rank's group", "in a session of its own"])
def test_process_that_a_rank_left_ends_by_itself(tmp_path: Path, apart: bool) -> None:
    state = ended(tmp_path, LEAVES.format(seconds=6, tmp=tmp_path, apart=apart))
    assert (tmp_path / "uploaded").exists()
    [left] = state["ending"]["left"]
    assert left["command"] == "sh"
    assert not left["killed"]
    assert (state["exit_code"], state["stopped"]) == (0, False)
    assert [item["pid"] for item in state["waited"]["left"]] == [left["pid"]]


def test_process_that_a_rank_left_is_killed_after_the_grace(tmp_path: Path) -> None:
    state = ended(tmp_path, LEAVES.format(seconds=60, tmp=tmp_path, apart=True), grace=0.5)
    [left] = state["ending"]["left"]
    assert left["killed"]
    assert state["exit_code"] == 0


def test_process_that_a_killed_rank_left_is_not_waited_for(tmp_path: Path) -> None:
    """A helper often waits forever for its dead rank. Leftovers of another program are named."""
    crash = LEAVES.format(seconds=60, tmp=tmp_path, apart=True) + "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    forks = "if os.fork() == 0:\n    time.sleep(60)\ntime.sleep(1)"
    state = ended(tmp_path, forks + crash)
    assert [left["command"] for left in state["ending"]["left"]] == ["sh"]
    assert state["waited"] is None


def test_sentences_on_ends_name_ranks_time_and_processes() -> None:
    left = LeftProcess(pid=7, command="aws s3 cp a b", killed=False)
    assert waiting_text(NodeEnding(signal="SIGTERM", active=(0, 1))) == (
        "ranks 0 and 1 still run; ranks are given up to 30 s to save"
    )
    assert waiting_text(NodeEnding(grace_s=60.0, left=(left,))) == (
        "its ranks have ended; waiting up to 60 s for what they left behind: aws s3 cp a b (pid 7)"
    )
    quick = NodeEnding(signal="SIGINT", seconds=0.4)
    assert list(ended_lines({"n-0": quick})) == []
    slow = NodeEnding(
        signal="SIGINT", seconds=8.2, left=(left, LeftProcess(pid=8, command="sh x", killed=True))
    )
    assert list(ended_lines({"n-0": quick, "n-1": slow})) == [
        "the ranks ended within 8.2 s of SIGINT",
        "n-1: killed what the ranks left behind: sh x (pid 8)",
        "n-1: what the ranks left behind ended by itself: aws s3 cp a b (pid 7)",
    ]
    killed = {
        "n-0": NodeEnding(signal="SIGTERM", killed=(1,)),
        "n-1": NodeEnding(signal="SIGTERM", killed=(2,)),
    }
    assert list(ended_lines(killed)) == [
        "ranks 1 and 2 did not end within 30 s of SIGTERM and were killed. Ranks that wait for each other do not end "
        "in any time, and gpuctl stop --stop-grace 0s kills them at once; --stop-grace gives ranks that save more "
        "time"
    ]
    interrupted = NodeEnding(signal="SIGINT", killed=(0, 1))
    assert " and a second Ctrl-C kills them at once; " in next(ended_lines({"n-0": interrupted}))
    assert list(ended_lines({"n-0": NodeEnding(grace_s=0.0, killed=(1,))})) == ["rank 1 was killed"]
    assert list(ended_lines({"n-0": slow, "n-1": killed["n-1"]}))[:2] == [
        "rank 2 did not end within 30 s of SIGTERM and was killed; --stop-grace gives ranks that save more time",
        "the other ranks ended within 8.2 s of SIGINT",
    ]


@pytest.mark.parametrize(
    ("begun", "ended", "line"),
    [
        (False, False, "stopping the run on every node before its ranks begin"),
        (
            True,
            False,
            "stopping the run on every node: ranks are given up to 30 s to save; Ctrl-C again kills them",
        ),
        (
            True,
            True,
            "the ranks have ended; processes that they left behind get up to 30 s; Ctrl-C again kills them",
        ),
    ],
)
def test_line_on_ctrl_c_says_which_ranks_it_is_about(begun: bool, ended: bool, line: str) -> None:
    assert interrupt_text(begun, ended, 30.0) == line
