"""Test every trap between a script and a run on several machines: each alone, then as many as possible at once.

Each test compares a person's view: the node, the fault, the remedy, the exit status.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from support import Done, Gpuctl, wait_for
from vm_support import begin, cluster, end_of, log_of, on_node, runs_of, wait_for_ranks

from tests.fakes.vms import Host, Net, boot, lacking, lacking_clock
from tests.integration.test_python_env import make_wheel, uv_wheel  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]
needs_clock = pytest.mark.skipif(lacking_clock() is not None, reason=lacking_clock() or "")

SKEW_S = 90
CROWD = 32
PACKAGES = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
TORCH_VERSION = version("torch").partition("+")[0]
HAND_OVER = f"import sys\nsys.path.insert(0, {str(PACKAGES)!r})\ndel sys.modules['torch']\nimport torch\n"
"""A package torch that is the one of this machine."""
TORCH = "torch-*.dist-info"
ENDS_LATE = """
import os, signal, sys, time
def told(*_):
    time.sleep(1)
    sys.exit("told to end")
signal.signal(signal.SIGTERM, told)
if os.environ["RANK"] == "1":
    raise ValueError("no such layer: 17")
time.sleep(60)
"""
FILLS = """
import os, time
if os.environ["RANK"] == "1":
    with open(os.path.expanduser("~/filled"), "wb") as file:
        while True:
            file.write(bytes(1 << 20))
time.sleep(60)
"""
COLLECTIVES = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
print("begins", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
HOG = """
import os, resource, socket, sys
first, step = int(sys.argv[1]), int(sys.argv[2])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = [socket.create_server(("0.0.0.0", port)) for port in range(first, 30_000, step)]
if os.fork():
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
import signal
signal.alarm(150)
signal.pause()
"""
"""Listens on ports from the first to 29999, until it is killed."""
LOCK = """
import fcntl, sys
with open("/var/lib/dpkg/lock-frontend", "w") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def refused(gpuctl: Gpuctl, *words: str) -> str:
    """Return the error of a `gpuctl train` that must not launch any process."""
    before = runs_of(gpuctl)
    done = gpuctl("train", *words)
    assert done.status == 1, done.err
    assert "Traceback" not in done.err
    assert runs_of(gpuctl) == before
    return done.err


def killed_runners(hosts: tuple[Host, ...], run: str) -> list[int]:
    """Kill a run's runners on the hosts, so that its ranks live on; return the ranks' pids on the hosts."""
    for host in hosts:
        runner = on_node(host, run, "runner.json")
        host.root(f"kill -9 {runner['pid']} {runner['launcher']}")
    return [on_node(host, run, f"ranks/rank-{rank}.json")["pid"] for rank, host in enumerate(hosts)]


def with_python_that_hogs(host: Host) -> None:
    """Let the host's interpreter take all ports of the rendezvous just before the probe."""
    host.root(f"cat > /usr/local/bin/hog.py <<'END'\n{HOG}END")


def wrapped_python(net: Net) -> str:
    """Write an interpreter that runs hog.py, if it exists, before the probe."""
    path = "/usr/local/bin/python-of-test"
    text = (
        '#!/bin/sh\nfor word; do last=$word; done\nif [ "$last" = probe ] && [ -e /usr/local/bin/hog.py ]; then\n'
        f'  {sys.executable} /usr/local/bin/hog.py 20000 1\nfi\nexec {sys.executable} "$@"\n'
    )
    for host in net.hosts:
        host.root(f"cat > {path} <<'END'\n{text}END\nchmod 755 {path}")
    return path


@needs_clock
def test_train_notes_and_corrects_clock_offset_of_node(gpuctl: Gpuctl, tmp_path: Path) -> None:
    gpuctl.script("ends_late.py", ENDS_LATE)
    with cluster(gpuctl, tmp_path, count=2, each={1: {"clock_skew_s": SKEW_S}}) as net:
        with_relative_sleeps(net.hosts[1])
        done = gpuctl.ok("train", "--json", "hello.py")
        result = re.search(
            r"gpu-1: the clock is off by \+(\d+\.\d) s\. Fix: check the time service there", done.err
        )
        assert result, done.err
        assert abs(float(result[1]) - SKEW_S) < 3
        assert "gpu-0: the clock" not in done.err
        ended = datetime.fromisoformat(done.json["ended_at"])
        assert abs((datetime.now(UTC) - ended).total_seconds()) < SKEW_S / 2
        # By its own clock rank 1 failed long after rank 0, which ended on request.
        failed = gpuctl("train", "--json", "ends_late.py")
        assert failed.status == 1
        assert failed.json["first_error"]["node"] == "gpu-1"
        assert "ValueError: no such layer: 17" in failed.json["first_error"]["message"]
        assert failed.json["ranks"][0]["exit_code"] == 1
        assert failed.json["seconds"]["total"] < SKEW_S / 2


def test_train_names_process_that_took_rendezvous_port(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2, python=None) as net:
        python = wrapped_python(net)
        with_python_that_hogs(net.hosts[0])
        output = refused(gpuctl, "--python", python, "hello.py")
        result = re.search(
            r"gpu-0: the port 2\d{4} was taken by \S*python\S* /usr/local/bin/hog\.py 20000 1 \(pid (\d+)\)\. "
            r"Fix: run the command again: it picks another port\.",
            output,
        )
        assert result, output
        end_hog(net.hosts[0], result[1])
        net.hosts[0].root(f"cat > /tmp/hog.py <<'END'\n{HOG}END\n{sys.executable} /tmp/hog.py 20001 2")
        run = gpuctl.ok("train", "--json", "--python", python, "allreduce.py").json["run"]
        assert on_node(net.hosts[0], run, "runner.json")
        port = re.search(r'"master_port": (\d+)', (gpuctl.run_folder(run) / "run.json").read_text())
        assert port
        assert int(port[1]) % 2 == 0


def end_hog(host: Host, pid: str) -> None:
    host.root(f"kill {pid}; rm /usr/local/bin/hog.py")
    wait_for(lambda: not host.root(f"ps -p {pid} -o pid=", check=False).stdout, what="the end of the hog")


def test_train_warns_of_ranks_left_by_earlier_run(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2) as net:
        gpuctl.ok("train", "--detach", "steps.py", "600")
        run = wait_for_ranks(gpuctl, net.hosts)
        pids = killed_runners(net.hosts, run)
        done = gpuctl.ok("train", "hello.py")
        for host, pid in zip(net.hosts, pids, strict=True):
            assert re.search(
                rf"{host.name}: a process of the run {run}, which is over, is left: \S*python\S* .*steps.py.* "
                rf"\(pid {pid}\)\. Fix: gpuctl stop {run}; if it is still there: gpuctl exec -- kill {pid} on that",
                done.err,
            ), done.err
        gpuctl("stop", run)
        for host, pid in zip(net.hosts, pids, strict=True):
            assert not host.root(f"ps -p {pid} -o pid=", check=False).stdout
        assert "is left" not in gpuctl.ok("train", "hello.py").err


def test_train_refuses_different_torch_versions(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2) as net:
        with_other_torch(net.hosts[1])
        output = refused(gpuctl, "hello.py")
        assert re.search(
            r"The run can't start:\n  gpu-1: torch is 2\.1\.0\+other here, and \S+ on gpu-0\. "
            r"Fix: install the same version on all nodes",
            output,
        ), output


def with_relative_sleeps(host: Host) -> None:
    """libfaketime can't sleep until a time, as Python does."""
    line = "import select, time; time.sleep = lambda s, wait=select.select: wait([], [], [], s) and None"
    host.root(f"echo {shlex.quote(line)} > {PACKAGES}/sleeps.pth")


def with_other_torch(host: Host) -> None:
    host.root(
        f"cd {PACKAGES} && mkdir /srv/torch && mv {TORCH} /srv/torch/ && mkdir torch-2.1.0+other.dist-info"
    )


def with_own_torch(host: Host) -> None:
    host.root(f"cd {PACKAGES} && rmdir torch-2.1.0+other.dist-info && mv /srv/torch/{TORCH} .")


def test_train_reports_full_disk_before_and_during_a_run(gpuctl: Gpuctl, tmp_path: Path) -> None:
    gpuctl.script("fills.py", FILLS)
    with cluster(gpuctl, tmp_path, count=2, each={1: {"home_mb": 80}}) as net:
        fill_home(net.hosts[1])
        output = refused(gpuctl, "hello.py")
        assert re.search(
            r"gpu-1: the disk is full: \d\.\d MB free in /home/ubuntu\. Fix: free at least 50 MB", output
        ), output
        net.hosts[1].root("rm /home/ubuntu/full")
        failed = gpuctl("train", "--json", "fills.py")
        assert failed.status == 1
        assert failed.json["first_error"]["node"] == "gpu-1"
        assert failed.json["first_error"]["message"] == "the disk is full (0 kB free)"
        net.hosts[1].root("rm /home/ubuntu/filled")
        gpuctl.ok("train", "hello.py")


def fill_home(host: Host) -> None:
    host.root(f"head -c 1G /dev/zero > /home/{host.user}/full", check=False)


def test_train_prints_firewall_command_for_user_without_sudo(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2, firewall="oci", each={1: {"sudo": False}}) as net:
        output = refused(gpuctl, "allreduce.py")
        assert "gpu-0: firewall: 1 peer let in (" in output
        assert "gpu-1: what the firewall does can't be read" in output
        assert "The run can't start:\n  gpu-1: gpu-0 can't reach it" in output
        assert "a firewall rejects it" in output
        do_as_administrator(net.hosts[1], output)
        run = gpuctl.ok("train", "--json", "allreduce.py").json["run"]
        assert "sum 2" in log_of(gpuctl, run, 0)


def do_as_administrator(host: Host, said: str) -> None:
    """Type the commands that were named, of the firewall that is in use on the host."""
    commands = re.findall(r"^sudo (iptables-nft .*)$", said, re.MULTILINE)
    assert len(commands) == 1, said
    host.root(commands[0])


def test_train_works_without_sudo_if_nothing_is_filtered(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2, sudo=False):
        assert gpuctl.ok("train", "--json", "hello.py").json["status"] == "succeeded"


def test_exec_succeeds_despite_ssh_server_limits(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=1, sshd=("MaxStartups 10:30:100", "MaxSessions 2")) as net:
        (host,) = net.hosts
        with ExitStack() as strangers:  # enough connections without a login that the server refuses new ones
            for _ in range(10):
                strangers.enter_context(socket.create_connection((host.address, host.port), timeout=10))
            started = [gpuctl.start("exec", "--", "echo", "there") for _ in range(CROWD)]
            ends = [end_of(process) for process in started]
        assert [(end.status, end.out, end.err) for end in ends] == [(0, "there\n", "")] * CROWD
        assert "MaxStartups" in host.root("cat /var/log/auth.log").stdout, "nobody was hung up on"


def test_logs_reports_lost_node_and_run_completes(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2) as net:
        gpuctl.ok("train", "--detach", "steps.py", "45")
        run = wait_for_ranks(gpuctl, net.hosts)
        following = gpuctl.start("logs", "-f")
        assert "begins" in following.stdout.readline()
        net.hosts[1].drop(net.laptop)
        began = time.monotonic()
        output = following.stderr.readline()
        assert time.monotonic() - began < 60
        assert re.match(
            r"gpu-1 could not be asked: the node was lost and could not be .*: "
            r"(nothing was heard for 15 s|a message did not end within 15 s)",
            output,
        ), output
        assert net.hosts[1].root("pgrep --full steps.py").stdout, "the job goes on"
        assert end_of(following).status == 1
        assert gpuctl.ok("runs", "--json").json["runs"][-1]["status"] == "running"
        net.hosts[1].undrop(net.laptop)
        assert "ends" in gpuctl.ok("logs", "-f").out
        assert gpuctl.ok("results", run, "--json").json["runs"][0]["status"] == "succeeded"


def test_train_reports_packets_dropped_between_nodes(gpuctl: Gpuctl, tmp_path: Path) -> None:
    gpuctl.script("collectives.py", COLLECTIVES)
    with cluster(gpuctl, tmp_path, count=2) as net:
        # torch waits as long as the script lets it, by default half an hour; a person need not.
        process, _ = begin(gpuctl, net.hosts, "collectives.py", "1800")
        net.hosts[0].drop(net.hosts[1])
        assert gpuctl.ok("stop", "--json").json["status"] == "stopped"
        assert end_of(process, timeout_s=30).status == 1
        output = refused(gpuctl, "hello.py")
        assert re.search(
            r"they can't reach each other on the rendezvous port \d+ and ports .*: no answer within 4 s, so "
            r"something drops the packets\. Fix: let in all TCP from the other nodes in the firewall between them",
            output,
        ), output


def test_train_reports_lost_large_packets_and_mtu_mismatch(gpuctl: Gpuctl, tmp_path: Path) -> None:
    """Host 1's interface sends 9000 bytes at once but its switch port takes 1500; the same for all other hosts."""
    with cluster(gpuctl, tmp_path, count=2, each={0: {"mtu": 9000}}) as net:
        other = net.hosts[1]
        other.root("ip link set ens3 mtu 9000")
        for host in net.hosts:
            # A network card, too, segments packets before the bridge sees them.
            host.root("ip link set ens3 gso_max_segs 1")
        output = refused(gpuctl, "hello.py")
        assert (
            "gpu-1: the connection broke" in output
            and "Logging in worked, and the first larger amount" in output
        ), output
        assert "large packets are lost on the way" in output
        other.root(f"ip route add {net.laptop} dev ens3 mtu lock 1500 advmss 1460")
        output = refused(gpuctl, "hello.py")
        assert "it connects, but 64 kB do not get through: the MTU on the way is smaller" in output
        other.root("ip link set ens3 mtu 1500")
        done = gpuctl.ok("train", "allreduce.py")
        assert (
            "gpu-1: the MTU is 1500 here, and 9000 on gpu-0. Fix: as root, set the same on all nodes"
            in done.err
        )


def test_train_names_node_that_rebooted_during_the_run(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2) as net:
        process, _ = begin(gpuctl, net.hosts, "steps.py", "60")
        net.hosts[1].reboot()
        output = failure_of_the_node(end_of(process, timeout_s=60))
        assert output.startswith("the run was ended by SIGTERM: the machine was shut down")
        process, _ = begin(gpuctl, net.hosts, "steps.py", "60")
        net.hosts[1].power_off()
        net.hosts[1].power_on()
        net.hosts[1].wait_for_boot()
        assert failure_of_the_node(end_of(process)) == "the machine was rebooted during the run"
        assert gpuctl.ok("train", "--json", "hello.py").json["status"] == "succeeded"


def failure_of_the_node(done: Done) -> str:
    """Return the report on node 1, which caused the run's failure."""
    assert done.status == 1
    assert done.json["status"] == "failed"
    error = done.json["first_error"]
    assert (error["node"], error["rank"]) == ("gpu-1", None)
    return str(error["message"])


@contextmanager
def locked_dpkg(host: Host) -> Iterator[None]:
    """Hold dpkg's lock on the host, as a running package update does."""
    holding = subprocess.Popen(
        [*boot.enter_argv(host.pid), sys.executable, "-c", LOCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holding:
        assert holding.stdout.readline() == "held\n"
        yield
        assert holding.poll() is None
        holding.communicate()
        assert holding.returncode == 0


def test_train_works_while_dpkg_is_locked(gpuctl: Gpuctl, tmp_path: Path, uv_wheel: Path) -> None:  # noqa: F811
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    os.link(uv_wheel, wheels / uv_wheel.name)
    make_wheel(wheels, "tiny")
    make_wheel(wheels, "torch", TORCH_VERSION, code=HAND_OVER)
    gpuctl.script("uses.py", "import tiny, torch\nprint('torch', torch.__version__, 'tiny', tiny.VERSION)\n")
    with cluster(gpuctl, tmp_path, count=2, python=None) as net, locked_dpkg(net.hosts[1]):
        words = ("train", "--json", "--wheels", str(wheels), "--pip", "tiny", "--pip", "torch")
        done = gpuctl.ok(*words, "uses.py")
        assert "built in" in done.err
        assert "tiny 1.0" in log_of(gpuctl, done.json["run"], 1)


@needs_clock
def test_train_reports_all_problems_at_once(gpuctl: Gpuctl, tmp_path: Path) -> None:
    each = {
        0: {"home_mb": 120},
        1: {"firewall": "oci", "sudo": False, "clock_skew_s": SKEW_S, "mtu": 1400},
    }
    sshd = ("MaxStartups 10:30:100", "MaxSessions 2")
    with (
        cluster(gpuctl, tmp_path, python=None, count=2, each=each, sshd=sshd) as net,
        locked_dpkg(net.hosts[1]),
    ):
        first, second = net.hosts
        python = ("--python", wrapped_python(net))
        with_relative_sleeps(second)
        gpuctl.ok("train", *python, "--skip-preflight", "--detach", "steps.py", "600")
        run = wait_for_ranks(gpuctl, net.hosts)
        pids = killed_runners(net.hosts, run)
        fill_home(first)
        with_other_torch(second)
        with_python_that_hogs(first)

        output = refused(gpuctl, *python, "hello.py")
        notes, fatal = output.split("The run can't start:")
        hog = re.search(r"gpu-0: the port \d+ was taken by .*hog\.py.* \(pid (\d+)\)\.", fatal)
        assert hog, output
        assert "gpu-0: the disk is full: " in fatal
        assert "gpu-1: torch is 2.1.0+other here" in fatal
        assert "gpu-1: gpu-0 can't reach it" in fatal
        assert "a firewall rejects it" in fatal
        assert "gpu-1: what the firewall does can't be read" in notes
        assert f"gpu-1: the clock is off by +{SKEW_S}." in notes
        assert "gpu-1: the MTU is 1400 here, and 1500 on gpu-0." in notes
        for host, pid in zip(net.hosts, pids, strict=True):
            left = rf"{host.name}: a process of the run {run}, which is over, is left: .*steps\.py.* \(pid {pid}\)"
            assert re.search(left, notes), output

        end_hog(first, hog[1])
        first.root("rm /home/ubuntu/full")
        with_own_torch(second)
        do_as_administrator(second, output)
        gpuctl("stop", run)
        done = gpuctl.ok("train", "--json", *python, "allreduce.py")
        assert "is left" not in done.err
        assert "sum 2" in log_of(gpuctl, done.json["run"], 1)
