"""The watch that ends a machine without use: decided by tables and histories, and as a process on a fake root."""

import ast
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

import openssh
import pytest
from support import wait_for

from provision.rented.launch import idle_watch
from provision.rented.launch.idle_watch import (
    Counters,
    Sample,
    State,
    begin,
    busy_cores,
    cpu_seconds,
    disk_bytes,
    gpu_in_use,
    is_over,
    living_logins,
    network_bytes,
    powers_off,
    report,
    resumed,
    step,
)
from remote.shared import constants

ROUND_S = 30.0
IDLE_S = 1800.0


def a_look(
    now_s: float,
    *,
    run: bool = False,
    queue: bool = False,
    gpu: bool | None = False,
    logins: frozenset[str] | None = frozenset(),
    cpu_s: float | None = 0.0,
    moved: int = 0,
    peer: bool | None = False,
    keep_until_s: float = 0.0,
) -> Sample:
    counters = Counters(now_s, cpu_s, {"net ens3": moved})
    return Sample(counters, {"run": run, "queue": queue, "gpu": gpu}, logins, peer, keep_until_s)


def after(state: State, *samples: Sample, idle_s: float = IDLE_S) -> State:
    for sample in samples:
        state = step(state, sample, idle_s)
    return state


@pytest.mark.parametrize(
    ("use", "last_use_s"),
    [
        ({}, 0),
        ({"run": True}, 90),
        ({"queue": True}, 90),
        ({"gpu": True}, 90),
        ({"gpu": None}, 0),
        ({"peer": True}, 90),
        ({"logins": None}, 90),
        ({"peer": None}, 90),
    ],
)
def test_each_signal_of_use_puts_the_end_off(use, last_use_s):
    state = after(begin(0), a_look(30), a_look(60), a_look(90, **use))
    assert (state.last_use_s, state.ends_at_s) == (last_use_s, last_use_s + IDLE_S)


@pytest.mark.parametrize(
    ("kind", "each_s", "busy"),
    [("cpu", 0.50, False), ("cpu", 0.51, True), ("transfer", 0.99e6, False), ("transfer", 1.01e6, True)],
)
def test_rates_are_averages_of_a_minute(monkeypatch, kind, each_s, busy):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    amounts = [int(each_s * s) if kind == "transfer" else each_s * s for s in (0, 30, 60, 90)]
    name = "moved" if kind == "transfer" else "cpu_s"
    state = after(
        begin(0), *(a_look(s, **{name: amount}) for s, amount in zip((0, 30, 60, 90), amounts, strict=True))
    )
    assert state.signals[kind] is busy
    assert (state.last_use_s == 90) is busy


@pytest.mark.parametrize(
    ("cores", "daemons", "work"), [(1, 0.5, 0.6), (8, 0.52, 0.6), (128, 0.89, 1.0), (224, 0.89, 1.0)]
)
def test_daemons_of_many_cores_are_no_use_but_one_busy_thread_is(cores, daemons, work):
    assert daemons < busy_cores(cores) < work


def test_short_burst_below_the_minute_is_no_use():
    state = after(begin(0), a_look(0), a_look(30), a_look(60, cpu_s=29.0), a_look(90, cpu_s=29.0))
    assert state.signals["cpu"] is False
    assert state.last_use_s == 0


def test_login_counts_from_the_second_look_so_that_a_question_is_no_use():
    mine, asking = frozenset({"10.0.0.9:50000"}), frozenset({"10.0.0.9:50001"})
    state = after(begin(0), a_look(30, logins=mine), a_look(60, logins=asking), a_look(90))
    assert (state.signals["login"], state.last_use_s) == (False, 0)
    assert after(begin(0), a_look(30, logins=mine), a_look(60, logins=mine)).last_use_s == 60


def test_what_begins_at_the_last_moment_puts_the_end_off_by_a_look():
    idle = [a_look(s) for s in range(0, 1801, 30)]
    assert powers_off(after(begin(0), *idle))
    assert not powers_off(after(begin(0), *idle[:-1], a_look(1800, logins=frozenset({"10.0.0.9:50000"}))))
    assert not powers_off(after(begin(0), *idle[:-1], a_look(1800, cpu_s=20)))


@pytest.mark.parametrize(("keep_s", "ends_at_s"), [(3600, 3660), (600, 1800), (24 * 3600 + 1, 1800)])
def test_keep_puts_the_end_off_within_its_bound(keep_s, ends_at_s):
    state = after(begin(0), a_look(60, keep_until_s=60 + keep_s))
    assert state.ends_at_s == ends_at_s


def test_time_without_looks_is_not_time_without_use():
    state = after(begin(0), a_look(0), a_look(30), a_look(7230))
    assert state.last_use_s == 7200 - idle_watch.MAX_GAP_S


def test_watch_that_starts_again_goes_on_where_it_was():
    document = report(
        after(begin(0), a_look(30), a_look(60, run=True), a_look(90)), {"idle_s": IDLE_S, "round_s": 30}
    )
    assert (document["last_use_s"], document["over"]) == (90, False)
    assert resumed(document, 120).last_use_s == 90
    assert resumed(document, 90 + idle_watch.MAX_GAP_S + 500).last_use_s == 590
    assert resumed(document, 5).last_use_s == 5, "of the boot before"
    assert resumed({"at_s": "x"}, 7).last_use_s == resumed(None, 7).last_use_s == 7


class Use(NamedTuple):
    kind: str
    begin_s: float
    end_s: float


def history(random_: random.Random) -> list[Use]:
    """Uses of a day at random, apart by seconds or hours, until the last one."""
    uses, at_s = [], random_.uniform(0, 600)
    while at_s < 86400:
        lasts_s = random_.choice([random_.uniform(150, 1200), random_.uniform(150, 20000)])
        uses.append(
            Use(
                random_.choice(
                    ["run", "queue", "gpu", "login", "cpu", "transfer", "peer", "no ss", "no port"]
                ),
                at_s,
                at_s + lasts_s,
            )
        )
        at_s += lasts_s + random_.choice([random_.uniform(0, 1500), random_.uniform(0, 9000)])
    return uses


def sample_of(uses: list[Use], now_s: float, questioned: bool) -> Sample:
    spent_s = {"cpu": 0.0, "transfer": 0.0}
    kinds = set()
    for kind, begin_s, end_s in uses:
        if begin_s > now_s:
            break
        if kind in spent_s:
            spent_s[kind] += min(now_s, end_s) - begin_s
        elif now_s < end_s:
            kinds.add(kind)
    logins = {"10.0.0.9:50000"} if "login" in kinds else set()
    return a_look(
        now_s,
        run="run" in kinds,
        queue="queue" in kinds,
        gpu="gpu" in kinds,
        logins=None
        if "no ss" in kinds
        else frozenset(logins | ({f"10.0.0.9:{int(now_s)}"} if questioned else set())),
        cpu_s=spent_s["cpu"] + 0.1 * now_s,
        moved=int(2e6 * spent_s["transfer"] + 1e4 * now_s),
        peer=None if "no port" in kinds else "peer" in kinds,
    )


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_history_of_a_day_ends_in_use_or_outlives_its_time(seeds):
    early, late, ended = 0, 0, 0
    for seed in seeds:
        random_ = random.Random(seed)
        uses, idle_s = history(random_), random_.choice([600.0, 1800.0, 7200.0])
        state, now_s, count = begin(0), 0.0, 0
        while now_s < 130000:
            state, count = step(state, sample_of(uses, now_s, questioned=count % 20 == 0), idle_s), count + 1
            seen = [
                use for use in uses if use.begin_s <= now_s - (60 if use.kind in ("cpu", "transfer") else 0)
            ]
            last_s = max((min(now_s, use.end_s) for use in seen), default=0.0)
            if powers_off(state):
                early += now_s - last_s < idle_s
                ended += 1
                break
            late += now_s - last_s > idle_s + 600
            now_s += ROUND_S + random_.uniform(0, 15)
    assert (early, late, ended) == (0, 0, len(seeds))


SS = """\
0      0               10.0.0.5:22          203.0.113.9:50000
\t cubic wscale:7,7 rto:204 rtt:0.031/0.013 lastsnd:20 lastrcv:61004 lastack:20 rcv_space:65483
0      0          [::ffff:10.0.0.5]:22     [::ffff:203.0.113.9]:50001
\t cubic wscale:7,7 rto:204 lastsnd:20 lastrcv:900000 lastack:20
0      36              10.0.0.5:22          203.0.113.9:50002
\t cubic wscale:7,7 rto:204 lastack:20 rcv_space:65483
"""


def test_login_that_sends_nothing_for_minutes_is_not_alive():
    assert living_logins(SS, str) == {"203.0.113.9:50000", "203.0.113.9:50002"}
    assert living_logins("", str) == frozenset()


@pytest.mark.parametrize(
    ("titles", "is_login"),
    [
        (["sshd: ubuntu [priv]", "sshd: ubuntu@pts/0 "], True),
        (["sshd-session: ubuntu [priv]", "sshd-session: ubuntu@notty"], True),
        (["sshd: ubuntu [priv]", "sshd: ubuntu "], True),
        (["", ""], True),
        ([], True),
        (["sshd: [accepted]     "], False),
        (["sshd: unknown [priv]", "sshd: unknown [net]  "], False),
        (["/usr/lib/openssh/sshd-session -D -R"], False),
    ],
)
def test_connection_counts_only_after_its_client_logged_in(titles, is_login):
    users = ",".join(f'("sshd",pid={pid},fd=4)' for pid in range(len(titles)))
    shown = f"0 0 10.0.0.5:22 192.0.2.1:4000 users:({users})\n\t lastrcv:20\n"
    assert living_logins(shown, lambda pid: titles[int(pid)]) == ({"192.0.2.1:4000"} if is_login else set())


@openssh.needs_sshd
def test_client_of_a_real_sshd_counts_once_it_logged_in(tmp_path):
    """Check a scanner that only connects, and a login without a terminal, as sshd and ss show both."""
    key = openssh.new_key(tmp_path / "key")
    with (
        openssh.sshd(tmp_path / "sshd") as server,
        socket.create_connection(("127.0.0.1", server.port)) as scanner,
    ):
        settings = {
            **idle_watch.DEFAULTS,
            "home": str(tmp_path),
            "user": "u",
            "cluster": "c",
            "ssh_port": server.port,
            "port": 0,
        }
        machine = idle_watch.Machine(settings)
        assert scanner.recv(4) == b"SSH-"
        assert machine.sample().logins == frozenset()
        server.authorize(key)
        options = (
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            f"UserKnownHostsFile={tmp_path}/hosts",
        )
        login = subprocess.Popen(["ssh", *options, "-i", key, "-p", str(server.port), "-N", "127.0.0.1"])
        try:
            wait_for(lambda: len(machine.sample().logins or ()) == 1, what="the login")
        finally:
            login.kill()
            login.wait()
            machine._open_socket().close()


def test_port_of_another_program_leaves_the_use_of_peers_unknown_and_is_reported(tmp_path):
    with Watched(tmp_path, idle_s=0.5) as watched, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        settings = json.loads((tmp_path / "settings.json").read_text())
        machine = idle_watch.Machine(settings | {"port": other.getsockname()[1]})
        assert machine._heard_peer() is False, "no peers"
        (watched.node_home / constants.IDLE_PEERS).write_text('{"peers": ["127.0.0.1"]}')
        assert machine._heard_peer() is None
    state = after(begin(0), a_look(30, peer=None, logins=None))
    assert report(state, settings)["problems"] == (idle_watch.LOGINS_UNKNOWN, idle_watch.PEERS_UNKNOWN)
    assert state.shows_use, "the peers get to know of logins that are not known"
    assert not after(begin(0), a_look(30, peer=None)).shows_use


def test_machine_whose_ss_fails_does_not_end(tmp_path):
    watched = Watched(tmp_path, idle_s=0.5)
    watched.tool("ss", "exit 1")
    began_s = idle_watch.now_s()
    with watched:
        wait_for(lambda: watched.state()["last_use_s"] > began_s + 2, what="four times the idle time")
        assert not watched.ended()
        assert watched.state()["problems"] == [idle_watch.LOGINS_UNKNOWN]


@pytest.mark.parametrize(
    ("utilization", "processes", "busy"),
    [
        (None, None, None),
        ("", "", None),
        ("0, 0\n0, 0\n", "", False),
        ("0, 0\n4, 0\n", "812\n", False),
        ("0, 0\n5, 0\n", "812\n", True),
        ("99, 0\n", "", False),
        ("99, 0\n", None, True),
        ("[N/A], [N/A]\n", "812\n", True),
        ("[N/A], [N/A]\n", "", False),
    ],
)
def test_gpu_is_in_use_by_a_process_that_works(utilization, processes, busy):
    assert gpu_in_use(utilization, processes) is busy


def test_kernel_counters_are_read():
    tick = os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(f"cpu  {tick} 0 {tick} 900 5 0 {tick} 7 0 0\ncpu0 1 1 1 1\n") == 3.0
    assert cpu_seconds("") is None
    assert disk_bytes(" 259 0 nvme0n1 5 0 16 9 3 0 8 1 0 1 1\n 7 0 loop0 1\n") == {"disk nvme0n1": 24 * 512}
    dev = "Inter-| Receive\n face |bytes\n    lo: 9 0 0 0 0 0 0 0 9 0\n  ens3:100 0 0 0 0 0 0 0 23 0\n"
    assert network_bytes(dev) == {"net ens3": 123}


def test_watch_is_python_3_6_without_a_wall_clock_and_agrees_with_the_nodes_part():
    source = Path(idle_watch.__file__).read_text()
    ast.parse(source, feature_version=(3, 6))
    assert abs(idle_watch.now_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert "time.time(" not in source
    assert "datetime" not in source
    assert idle_watch.DEFAULTS["folder"] + "/state.json" == constants.IDLE_STATE
    for name in (
        constants.IDLE_KEEP,
        constants.IDLE_PEERS,
        constants.NODE_FOLDER,
        constants.RUNS + "/*/*/runner.json",
    ):
        assert f'"{name}"' in source


class Watched:
    """A fake root, with the watch as a process of its own. Its hours are seconds."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder, self.home, self.proc = folder, folder / "home", folder / "proc"
        self.node_home = self.home / ".gpuctl-node"
        for path in (self.node_home, self.proc / "net", self.proc / "sys/kernel/random", folder / "bin"):
            path.mkdir(parents=True)
        (self.proc / "stat").write_text("cpu  10 0 10 1000 0 0 0 0 0 0\n")
        (self.proc / "diskstats").write_text(" 259 0 nvme0n1 5 0 16 9 3 0 8 1 0 1 1\n")
        (self.proc / "net/dev").write_text("a\nb\n  ens3:100 0 0 0 0 0 0 0 23 0\n")
        (self.proc / "sys/kernel/random/boot_id").write_text("boot-1\n")
        self.tool("systemctl", f'echo "$@" >> {folder}/calls')
        self.tool("ss", f"cat {folder}/ss 2>/dev/null; true")
        self.tool("nvidia-smi", f"cat {folder}/gpus")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("", 0))
            self.port = free.getsockname()[1]
        defaults = {
            "cluster": "c1",
            "idle_s": 1.0,
            "user": "me",
            "ssh_port": 22,
            "power_off": True,
            "round_s": 0.1,
        }
        places = {
            "home": str(self.home),
            "proc": str(self.proc),
            "folder": str(folder / "run"),
            "port": self.port,
        }
        (folder / "settings.json").write_text(json.dumps(defaults | places | settings))
        self.process: subprocess.Popen[bytes] | None = None

    def tool(self, name: str, body: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def __enter__(self) -> Self:
        argv = [sys.executable, "-I", idle_watch.__file__, str(self.folder / "settings.json")]
        self.process = subprocess.Popen(argv, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def state(self) -> dict[str, object]:
        path = self.folder / "run/state.json"
        wait_for(path.exists, what="the watch")
        document: dict[str, object] = json.loads(path.read_text())
        return document

    def ended(self) -> bool:
        calls = self.folder / "calls"
        return calls.exists() and "--no-block poweroff" in calls.read_text()


def test_watch_powers_an_unused_machine_off_whose_setup_failed(tmp_path):
    watched = Watched(tmp_path)
    watched.node_home.rmdir()
    with watched:
        wait_for(watched.ended, what="the watch")
        signals = watched.state()["signals"]
    assert signals == {
        "run": False,
        "queue": False,
        "login": False,
        "gpu": None,
        "cpu": False,
        "transfer": False,
    }


def test_machine_whose_power_off_ends_no_bill_only_reports_its_end(tmp_path):
    with Watched(tmp_path, power_off=False) as watched:
        wait_for(lambda: watched.state()["over"], what="the watch")
        assert not watched.ended()


@pytest.mark.slow
def test_machine_lives_while_a_run_a_queue_a_login_or_a_peer_use_it(tmp_path):
    """Check one use after the other, each longer than the idle time."""
    watched = Watched(tmp_path, idle_s=2.0)
    run = watched.node_home / "runs/r1/gpu-0"
    run.mkdir(parents=True)
    (watched.proc / "77").mkdir()
    (watched.proc / "77/stat").write_text("77 (a) b) S " + " ".join(["1"] * 18) + " 4711 0\n")
    (run / "runner.json").write_text(json.dumps({"pid": 77, "birth": "4711", "boot_id": "boot-1"}))
    (watched.node_home / constants.IDLE_PEERS).write_text('{"peers": ["127.0.0.1"]}')

    def expect_alive(signal: str) -> None:
        wait_for(lambda: watched.state()["signals"].get(signal), what=signal)  # type: ignore[attr-defined]
        time.sleep(2.5)
        assert watched.state()["signals"][signal]  # type: ignore[index]
        assert not watched.ended(), signal

    with watched:
        expect_alive("run")
        (watched.node_home / "queue/gpu-0").mkdir(parents=True)
        (watched.node_home / "queue/gpu-0/0001.json").write_text("{}")
        (run / "exit.json").write_text("{}")
        expect_alive("queue")
        (tmp_path / "ss").write_text(SS)
        (watched.node_home / "queue/gpu-0/0001.json").unlink()
        expect_alive("login")
        (tmp_path / "gpus").write_text("87, 3\n")
        (tmp_path / "ss").unlink()
        expect_alive("gpu")
        (tmp_path / "gpus").unlink()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            for _ in range(30):
                peer.sendto(b"gpuctl busy c1", ("127.0.0.1", watched.port))
                time.sleep(0.1)
            assert not watched.ended(), "a peer is in use"
            deadline = time.monotonic() + 30
            while not watched.ended() and time.monotonic() < deadline:
                peer.sendto(b"gpuctl busy other-cluster", ("127.0.0.1", watched.port))
                time.sleep(0.1)
        assert watched.ended(), "another cluster's use is none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "path", "text"),
    [
        ("cpu", "stat", "cpu  900000 0 10 1000 0 0 0 0 0 0\n"),
        ("transfer", "diskstats", " 259 0 nvme0n1 5 0 16 9 3 0 9000000 1 0 1 1\n"),
        ("transfer", "net/dev", "a\nb\n  ens3:9900000000 0 0 0 0 0 0 0 23 0\n"),
    ],
)
def test_machine_with_idle_gpus_lives_while_its_cpu_or_a_transfer_is_busy(tmp_path, kind, path, text):
    with Watched(tmp_path, idle_s=2.0) as watched:
        (tmp_path / "gpus").write_text("0, 0\n")
        wait_for(lambda: watched.state()["signals"].get("gpu") is False, what="the GPUs")
        (watched.proc / path).write_text(text)
        wait_for(lambda: watched.state()["signals"].get(kind), what=kind)
        time.sleep(4)
        assert watched.state()["signals"][kind]
        assert not watched.ended()


@pytest.mark.slow
@openssh.needs_sshd
def test_open_terminal_without_input_counts_until_its_client_hangs(tmp_path, monkeypatch):
    """Check a terminal that nobody types in, and the same with its client stopped, as a computer that hangs."""
    monkeypatch.setattr(idle_watch, "ALIVE_S", 4.0)
    key = openssh.new_key(tmp_path / "key")
    with openssh.sshd(tmp_path / "sshd", "ClientAliveInterval 1", "ClientAliveCountMax 1000") as server:
        server.authorize(key)

        def logins() -> frozenset[str]:
            filter_ = f"( sport = :{server.port} )"
            listed = idle_watch.Commands().output("ss", "-tinpH", "state", "established", filter_)
            return living_logins(listed, lambda pid: Path(f"/proc/{pid}/cmdline").read_text())

        options = (
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            f"UserKnownHostsFile={tmp_path}/hosts",
        )
        ssh = ("ssh", *options, "-tt", "-i", key, "-p", str(server.port), "127.0.0.1", "sleep 600")
        client = subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            wait_for(logins, what="the login")
            time.sleep(9)
            assert logins(), "a terminal that is only open counts"
            client.send_signal(signal.SIGSTOP)
            wait_for(lambda: not logins(), what="the end of a login that hung")
            client.send_signal(signal.SIGCONT)
            wait_for(logins, what="the client")
        finally:
            client.kill()
            client.communicate()


def test_watch_reports_use_to_its_peers_alone(tmp_path):
    watched = Watched(tmp_path, idle_s=60.0)
    (watched.node_home / "queue/gpu-0").mkdir(parents=True)
    (watched.node_home / "queue/gpu-0/0001.json").write_text("{}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.3", watched.port))
        peer.settimeout(20)
        (watched.node_home / constants.IDLE_PEERS).write_text('{"peers": ["127.0.0.3", "no address"]}')
        with watched:
            assert peer.recv(100) == b"gpuctl busy c1"


def test_hanging_nvidia_smi_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(idle_watch, "COMMAND_S", 0.2)
    hang = tmp_path / "nvidia-smi"
    hang.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\nexec sleep 5\n")
    hang.chmod(0o755)
    commands = idle_watch.Commands()
    assert commands.output(str(hang)) is None
    commands._hung[str(hang)].wait()
    assert commands.output("false") is None
    assert commands.output("echo", "yes") == "yes\n"


@pytest.mark.parametrize("round_s", [30, 90])
def test_machine_ends_whatever_time_a_look_takes(round_s: int) -> None:
    state = begin(0)
    for now_s in range(0, 7200, round_s):
        state = step(state, a_look(now_s), 1800)
    assert is_over(state)


@pytest.mark.parametrize("content", ['{"until_s": 1' + "0" * 400 + "}", "[" * 60000, "\ud800", "fifo"])
def test_file_of_the_user_that_is_no_document_stops_nothing(tmp_path: Path, content: str) -> None:
    home = tmp_path / ".gpuctl-node"
    home.mkdir()
    if content == "fifo":
        os.mkfifo(home / "idle-keep.json")
    else:
        (home / "idle-keep.json").write_text(content, errors="surrogatepass")
    settings = {**idle_watch.DEFAULTS, "home": str(tmp_path), "user": "u", "cluster": "c", "ssh_port": 22}
    assert idle_watch.Machine(settings)._keep_until_s() == 0.0
