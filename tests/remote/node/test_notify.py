"""Test a node's notices: their text by the run's files, single delivery, lost nodes, ends that are near."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import wait_for

from remote.node import process
from remote.node.network import free_port
from remote.node.notify import machine_watch, run_notices, run_watch, spool
from remote.node.notify.machine_end import MachineEnd
from remote.node.notify.run_watch import Peers, is_alive
from remote.node.runs import supervisor
from remote.shared.notify.message import notice
from tests.fakes.webhooks import Receiver, receiver

RUN = {
    "run": "20261121-054625-3fa9",
    "cluster": "default",
    "name": None,
    "script": "train.py",
    "args": [],
    "node": "gpu-0",
    "nodes": 1,
    "ranks": 2,
    "hourly_usd": 6.0,
    "started": 1000.0,
    "peers": {},
    "followers": [],
    "continues": False,
}
SETTINGS = {"secret": "s", "smtp": ""}
MACHINE = {"cluster": "default", "node": "gpu-0", "first": True, "ends_at": 10_000.0, "spot": ""}


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's folder of gpuctl."""
    monkeypatch.setattr(spool, "NODE_HOME", tmp_path)
    return tmp_path


def ended(run_dir: Path, state: dict[str, Any], **run: object) -> Any:
    return run_notices.ended(run_dir, {**RUN, **run}, {"ended_at": 4600.0, **state}, 5000.0)


def add_rank(run_dir: Path, rank: int, exit_code: int, ended_at: float, log: str) -> None:
    for name in ("ranks", "logs"):
        (run_dir / name).mkdir(exist_ok=True)
    record = {"rank": rank, "exit_code": exit_code, "ended_at": ended_at}
    (run_dir / "ranks" / f"rank-{rank}.json").write_text(json.dumps(record))
    (run_dir / "logs" / f"rank-{rank}.log").write_text(log)


def test_failure_names_the_rank_that_failed_first(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, -15, 4590.0, "Terminated\n")
    add_rank(
        tmp_path, 1, 1, 4595.0, "step 1\nTraceback …\ntorch.OutOfMemoryError: CUDA out of memory\n[W] bye\n"
    )
    (tmp_path / "metrics").mkdir()
    lines = [
        '{"loss": 2.0}',
        "no json",
        '{"loss": NaN}',
        '{"loss": "x"}',
        "[]",
        '{"loss": 1' + "0" * 400 + "}",
        '{"loss": 1.0}',
    ]
    (tmp_path / "metrics" / "rank-0.jsonl").write_text("\n".join(lines))
    made = ended(tmp_path, {"exit_code": 1, "ended": None}, continues=True)
    assert (made.type, made.tone, made.title) == ("run.failed", "bad", "train.py failed after 60 min")
    assert made.lines == (
        "rank 1: torch.OutOfMemoryError: CUDA out of memory",
        "loss █▁ 2 → 1",
        "run 20261121-054625-3fa9 on default: 1 node, 2 ranks, $6.00",
        "gpuctl restarts it if --max-restarts allows",
        "gpuctl logs 20261121-054625-3fa9",
    )
    assert made.data["first_error"] == {
        "rank": 1,
        "node": "gpu-0",
        "message": "torch.OutOfMemoryError: CUDA out of memory",
    }
    assert made.data["cost_usd"] == 6.0


@pytest.mark.parametrize(
    ("state", "nodes", "type_", "title"),
    [
        ({"exit_code": 0}, 1, "run.succeeded", "train.py succeeded after 60 min"),
        ({"exit_code": 0}, 2, "run.ended", "train.py ended well on 1 of 2 nodes after 60 min"),
        (
            {"exit_code": 1, "ended": {"reason": "stopped"}},
            1,
            "run.stopped",
            "train.py was stopped after 60 min",
        ),
        (
            {"exit_code": None, "ended": {"reason": "runner_killed"}},
            1,
            "run.failed",
            "train.py failed after 60 min",
        ),
    ],
)
def test_ends_of_a_run(tmp_path: Path, state: dict[str, Any], nodes: int, type_: str, title: str) -> None:
    made = ended(tmp_path, state, nodes=nodes, followers=["gpu-1"][: nodes - 1])
    assert (made.type, made.title) == (type_, title)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("shut_down", "its machine was shut down"),
        ("peer_failed", "another node failed"),
        (None, "it is not known why"),
    ],
)
def test_failure_without_a_rank_has_the_reason(tmp_path: Path, reason: str | None, message: str) -> None:
    made = ended(tmp_path, {"exit_code": None, "ended": {"reason": reason} if reason else None})
    assert made.data["first_error"] == {"rank": None, "node": "gpu-0", "message": message}


def test_losses_of_a_script_without_metrics_are_those_of_its_lines(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, 0, 4595.0, "step 1/2 loss 2.0\nval loss 9.0\rstep 2/2 loss 1.0\nbye\n")
    made = ended(tmp_path, {"exit_code": 0, "ended": None})
    assert (made.data["loss"], made.lines[0]) == ([2.0, 1.0], "loss █▁ 2 → 1")


def test_stop_for_a_hang_has_the_reason(tmp_path: Path) -> None:
    made = ended(tmp_path, {"exit_code": 1, "ended": {"reason": "stopped_hung"}}, name="wide")
    assert (made.type, made.lines[0]) == ("run.stopped", "it hung")
    assert (made.title, made.data["script"]) == ("wide was stopped after 60 min", "train.py")


def test_run_that_continues_on_more_machines_has_not_ended(tmp_path: Path) -> None:
    assert ended(tmp_path, {"exit_code": 1, "ended": {"reason": "resized"}}) is None


def a_notice(event: str = "run ended") -> Any:
    return notice(event, type="run.ended", at=1.0, tone="good", title="t", lines=[], data={})


def test_event_is_sent_once_whoever_notices_it(home: Path, server: Receiver) -> None:
    targets = [server.url + "/a", server.url + "/b"]
    threads = [
        threading.Thread(target=spool.post, args=(a_notice(), targets, SETTINGS, "run")) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(request.path for request in server.requests) == ["/a", "/b"]
    assert spool.undelivered() == []
    spool.post(a_notice("another"), targets, SETTINGS, "run")
    assert len(server.requests) == 4
    files = list((home / "notices").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_failed_delivery_is_kept_without_the_secret(home: Path, server: Receiver) -> None:
    server.answers += [500, 404]
    spool.post(a_notice(), [f"{server.url}/s3cret"], SETTINGS, "run", (0.01,))
    (record,) = spool.undelivered("run")
    assert (record["state"], record["attempts"], record["detail"]) == ("failed", 2, "HTTP status 404")
    assert record["target"] == f"{server.url}/…"
    assert spool.undelivered("another run") == []
    assert all("s3cret" not in path.read_text() for path in (home / "notices").iterdir())


def test_delivery_that_a_restart_cut_off_is_reported(home: Path) -> None:
    (home / "notices").mkdir()
    record = {
        "state": "waiting",
        "about": "run",
        "at": 1.0,
        "pid": 1,
        "birth": "of another boot",
        "detail": "",
    }
    (home / "notices" / "evt_1-2.json").write_text(json.dumps({**record, "next_at": 2.0}))
    (found,) = spool.undelivered()
    assert (found["state"], found["detail"], found["next_at"]) == ("failed", "its process ended", None)


def test_record_that_a_full_disk_left_empty_is_reported(home: Path) -> None:
    (home / "notices").mkdir()
    (home / "notices" / "evt_1-2.json").touch()
    (record,) = spool.undelivered()
    assert record["detail"].endswith("so it is not known whether it arrived")
    assert spool.undelivered("run") == []


def test_notice_is_sent_if_its_file_can_not_be_made(home: Path, server: Receiver) -> None:
    (home / "notices").write_text("in the way")
    spool.post(a_notice(), [server.url], SETTINGS, "run")
    assert len(server.requests) == 1


def test_run_that_did_not_start_is_sent(home: Path, server: Receiver) -> None:
    run_dir = home / "runs" / str(RUN["run"]) / "gpu-0"
    supervisor.record_failed_start(run_dir, "python", "there is no Python")
    for _ in range(2):
        run_watch.begin(run_dir, notify_of(server))
    wait_for(lambda: server.requests, what="the notice")
    assert server.types() == ["run.failed"]
    assert server.requests[0].json["data"]["text"].startswith("there is no Python\n")


def notify_of(server: Receiver) -> dict[str, Any]:
    return {
        "targets": [server.url],
        "settings": SETTINGS,
        "run": RUN,
        "machine": {**MACHINE, "ends_at": None},
    }


def test_run_that_saves_after_sigterm_is_sent_when_it_has_ended(home: Path, server: Receiver) -> None:
    run_dir = home / "runs" / str(RUN["run"]) / "gpu-0"
    run_dir.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as supervisor_process:
        pid = supervisor_process.pid
        supervisor_record = {"pid": pid, "birth": process.birth(pid), "boot_id": process.boot_id()}
        watch = os.fork()
        if watch == 0:
            try:
                run_watch.TICK_S = 0.05
                run_watch.RunWatch(run_dir, notify_of(server)).keep_on(supervisor_record)
            finally:
                os._exit(0)
        wait_for(lambda: catches_sigterm(watch), what="the watch")
        os.kill(watch, signal.SIGTERM)
        assert process.lives_on(watch, str(process.birth(watch)), 0.5)
        assert server.requests == []
        (run_dir / "exit.json").write_text('{"exit_code": 0, "ended": null}')
        supervisor_process.kill()
    os.waitpid(watch, 0)
    assert server.types() == ["run.succeeded"]


@pytest.mark.parametrize(
    ("exit_code", "reason", "type_", "line"),
    [
        (0, None, "run.succeeded", ""),
        (1, None, "run.failed", "rank 3 on gpu-1: ValueError: no data\n"),
        (1, {"reason": "peer_failed"}, "run.failed", "rank 3 on gpu-1: ValueError: no data\n"),
    ],
)
def test_run_on_two_nodes_ends_as_the_other_node_reports(
    home: Path, server: Receiver, exit_code: int, reason: object, type_: str, line: str
) -> None:
    way = {"address": "127.0.0.1", "port": free_port("127.0.0.1")[0], "key": "k"}
    first, other = (home / "runs" / str(RUN["run"]) / node for node in ("gpu-0", "gpu-1"))
    for run_dir, code, ending in ((first, -9 if reason else 0, reason), (other, exit_code, None)):
        run_dir.mkdir(parents=True)
        (run_dir / "exit.json").write_text(json.dumps({"exit_code": code, "ended": ending}))
    add_rank(other, 3, exit_code, 1.0, "ValueError: no data\n")
    run = {**RUN, "nodes": 2, "followers": ["gpu-1"]}
    run_watch.begin(other, {"ends": way, "run": {"node": "gpu-1"}})
    run_watch.begin(first, {**notify_of(server), "run": run, "ends": way})
    wait_for(lambda: server.requests, what="the notice")
    assert server.types() == [type_]
    assert server.requests[0].json["data"]["text"].startswith(line)


def catches_sigterm(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_damaged_files_do_not_stop_the_notice_of_the_end(home: Path, server: Receiver) -> None:
    run_dir = home / "runs" / str(RUN["run"]) / "gpu-0"
    run_dir.mkdir(parents=True)
    (run_dir / "exit.json").write_text('{"exit_code": 0, "ended": null, "ended_at": "soon"}')
    run_watch.begin(run_dir, notify_of(server))
    wait_for(lambda: server.requests, what="the notice")
    assert server.types() == ["run.ended"]
    assert "its files can't be read" in server.requests[0].json["data"]["title"]


def test_claim_is_released_if_no_process_can_be_started(
    home: Path, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = home / "runs" / str(RUN["run"]) / "gpu-0"
    run_dir.mkdir(parents=True)
    (run_dir / "exit.json").write_text('{"exit_code": 0, "ended": null}')
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", lambda: (_ for _ in ()).throw(BlockingIOError()))
        run_watch.begin(run_dir, notify_of(server))
    run_watch.begin(run_dir, notify_of(server))
    wait_for(lambda: server.requests, what="the notice")


def test_machine_watch_finishes_its_notices_when_it_is_ended(home: Path, server: Receiver) -> None:
    server.answers += [500]
    request = {
        "targets": [server.url],
        "settings": SETTINGS,
        "machine": {**MACHINE, "ends_at": time.time() + 60},
    }
    watch = os.fork()
    if watch == 0:
        try:
            machine_watch.TICK_S = 0.05
            machine_watch.watch(request)
        finally:
            os._exit(0)
    wait_for(lambda: server.requests, what="the first attempt")
    os.kill(watch, signal.SIGTERM)
    os.waitpid(watch, 0)
    assert server.types() == ["machines.ending"] * 2


def test_node_is_lost_after_a_minute_without_an_answer() -> None:
    times = iter([100.0, 110.0, 121.0, 142.0, 163.0, 184.0, 205.0, 226.0])
    answers = {"address of gpu-1": True, "address of gpu-2": True, "address of gpu-3": False}
    addresses = {name.rpartition(" ")[2]: name for name in answers}
    peers = Peers(addresses, answers=lambda address: answers[address], clock=lambda: next(times))
    assert peers.newly_lost() == []
    answers["address of gpu-1"] = False
    assert [peers.newly_lost() for _ in range(5)] == [[], [], [], [("gpu-1", 63.0)], []]
    answers["address of gpu-1"] = True
    assert [peers.newly_lost() for _ in range(2)] == [[], []]


def test_open_port_and_refusal_are_answers() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert is_alive("127.0.0.1", port)
        listener.listen()
        assert is_alive("127.0.0.1", port)
    assert not is_alive("255.255.255.255", port)


def machine(tmp_path: Path, **changes: object) -> MachineEnd:
    return MachineEnd({**MACHINE, **changes}, idle_state=str(tmp_path / "state.json"))


@pytest.mark.parametrize(("now", "titles"), [(9000.0, 0), (9400.0, 1), (9999.0, 1), (10_000.0, 0)])
def test_end_of_the_time_is_announced_ten_minutes_ahead(tmp_path: Path, now: float, titles: int) -> None:
    notices = machine(tmp_path).poll(now)
    assert len(notices) == titles
    for made in notices:
        assert made.title.startswith("The machines of default end in ")
        assert (made.type, made.data["ends_at"]) == ("machines.ending", 10_000.0)


def test_other_machines_leave_the_end_of_the_time_to_the_first(tmp_path: Path) -> None:
    assert machine(tmp_path, first=False).poll(9999.0) == []


def test_end_for_want_of_use_has_one_notice_while_idle(tmp_path: Path) -> None:
    end = machine(tmp_path, ends_at=None)
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def ids(left_s: float, last_use_s: float) -> set[str]:
        watch = {"ends_at_s": boot_s + left_s, "last_use_s": last_use_s}
        (tmp_path / "state.json").write_text(json.dumps(watch))
        return {made.id for made in end.poll(time.time())}

    assert ids(900, 5.0) == set()
    assert len(ids(200, 5.0) | ids(190, 5.0)) == 1
    assert ids(200, 5.0) != ids(200, 700.0)


def test_spot_machine_that_is_taken_is_announced(tmp_path: Path, server: Receiver) -> None:
    requests = []

    def answer(handler: Any) -> None:
        requests.append((handler.command, handler.path, handler.headers.get("X-aws-ec2-metadata-token")))
        body = (
            b"TOKEN"
            if handler.command == "PUT"
            else b'{"action": "terminate", "time": "1970-01-01T02:00:00Z"}'
        )
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    server.other = answer
    end = MachineEnd({**MACHINE, "ends_at": None, "spot": "aws"}, metadata=server.url)
    (made,) = end.poll(7100.0)
    assert made.title == "gpu-0 of default ends in 100 s: AWS takes the spot machine"
    assert requests == [
        ("PUT", "/latest/api/token", None),
        ("GET", "/latest/meta-data/spot/instance-action", "TOKEN"),
    ]
    assert MachineEnd({**MACHINE, "spot": ""}, metadata=server.url).poll(7100.0) == []


def test_metadata_without_an_action_or_a_server_is_no_end(server: Receiver) -> None:
    assert MachineEnd({**MACHINE, "ends_at": None, "spot": "aws"}, metadata=server.url).poll(0.0) == []
    end = MachineEnd({**MACHINE, "ends_at": None, "spot": "aws"}, metadata="http://127.0.0.1:1")
    assert end.poll(0.0) == []
