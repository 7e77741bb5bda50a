"""VM-like hosts: they behave as tests expect, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.fakes.vms import FIREWALLS, Host, Net, Options, lacking, lacking_clock, vms
from tests.fakes.vms.boot import enter_argv

pytestmark = pytest.mark.slow

needs_vms = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
needs_clock = pytest.mark.skipif(lacking_clock() is not None, reason=lacking_clock() or "")

LIMIT_S = 20
FILES, OWN_ONLY = ("find",), ("-xdev", "-type", "f")
"""List the files of folders, except this machine's files that are mounted there."""
MBIT_PER_S = 40
PEER_PORT = 5000
SERVER = f"""\
import socket
with socket.create_server(("", {PEER_PORT})) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].close()
"""
CLIENT = """\
import errno, socket, sys
with socket.socket() as client:
    client.settimeout(1)
    try:
        client.connect((sys.argv[1], int(sys.argv[2])))
        print("connected")
    except TimeoutError:
        print("timed out")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def ssh(net: Net, host: Host, *words: str, options: tuple[str, ...] = (), data: bytes = b"") -> str:
    """Return the output of a command that the user ran through the real client; the command must succeed."""
    done = try_ssh(net, host, *words, options=options, data=data)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def try_ssh(
    net: Net, host: Host, *words: str, options: tuple[str, ...] = (), data: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    known_hosts = net.inventory()[1]
    all_options = (
        *options, f"UserKnownHostsFile={known_hosts}", "GlobalKnownHostsFile=/dev/null", "BatchMode=yes",
        "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "IdentityAgent=none", f"IdentityFile={host.key_file}",
        f"Port={host.port}",
    )  # fmt: skip
    argv = [
        "ssh",
        "-F",
        "none",
        *(f"-o{option}" for option in all_options),
        f"{host.user}@{host.address}",
        *words,
    ]
    return subprocess.run(argv, input=data, capture_output=True, timeout=60, check=False)


def connect(host: Host, address: str, port: int) -> str:
    """Return the result of a connection from a host: `connected`, `timed out`, or the name of an error."""
    return host.root(f"/usr/bin/env python3 -c '{CLIENT}' {address} {port}").stdout.strip()


@contextmanager
def listening(host: Host) -> Iterator[None]:
    """Run a server in a host, on PEER_PORT."""
    argv = [*enter_argv(host.pid), "python3", "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            for process in psutil.Process(server.pid).children(recursive=True):
                process.kill()


def names_of(processes: list[psutil.Process]) -> set[str]:
    """Return the names of processes that still run: some that a boot has started may have ended."""
    result = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            result.add(process.name())
    return result


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    """Yield two hosts; the second one's network is slow."""
    with vms(tmp_path_factory.mktemp("vms"), count=2, each={1: {"mbit_per_s": MBIT_PER_S}}) as made:
        yield made


@needs_vms
def test_host_has_user_network_sudo_and_empty_tmp(net: Net) -> None:
    for index, host in enumerate(net.hosts):
        assert ssh(net, host, "hostname").strip() == host.name == f"gpu-{index}"
        assert ssh(net, host, "whoami").strip() == "ubuntu"
        assert ssh(net, host, "pwd").strip() == "/home/ubuntu"
        links = json.loads(ssh(net, host, "ip", "-json", "-4", "address"))
        shown = {link["ifname"]: link["addr_info"][0] for link in links}
        assert set(shown) == {"lo", "ens3", "docker0"}
        assert (shown["ens3"]["local"], shown["ens3"]["prefixlen"]) == (host.address, 24)
        assert (shown["docker0"]["local"], shown["docker0"]["prefixlen"]) == ("172.17.0.1", 16)
        assert {link["operstate"] for link in links if link["ifname"] != "lo"} == {"UP"}
        assert "127.0.1.1" in ssh(net, host, "getent", "hosts", host.name)
        assert ssh(net, host, "sudo", "-n", "id", "-u").strip() == "0"
        assert ssh(net, host, "cat", "/proc/1/comm").strip().startswith("python")
        assert ssh(net, host, *FILES, "/tmp", "/dev/shm", *OWN_ONLY) == ""
        assert ssh(net, host, "grep", "-c", "^nameserver", "/etc/resolv.conf", "||", "true").strip() == "0"


@needs_vms
def test_host_accepts_only_public_key_login(net: Net) -> None:
    refused = try_ssh(net, net.hosts[0], "true", options=("PubkeyAuthentication=no",))
    assert refused.returncode == 255
    assert b"Permission denied (publickey)" in refused.stderr


@needs_vms
def test_host_isolates_files_processes_and_clock(net: Net) -> None:
    item, other = net.hosts
    for path in ("/tmp/mine", "/home/ubuntu/mine", "/dev/shm/mine", "/etc/mine"):
        ssh(net, item, "sudo", "touch", path)
        assert try_ssh(net, other, "test", "-e", path).returncode == 1
        assert not Path(path).exists()
    assert str(os.getpid()) not in ssh(net, item, "ps", "-e", "-o", "pid=").split()
    # Root of a host must not set the clock of this machine.
    assert try_ssh(net, item, "sudo", "date", "--set=@0").returncode == 1
    assert item.root("date --set=@0", check=False).returncode == 1


@needs_vms
def test_host_reaps_orphan_processes(net: Net) -> None:
    pid = ssh(net, net.hosts[0], "sleep 0.1 > /dev/null 2>&1 & echo $!").strip()
    missing = f"test ! -e /proc/{pid}"
    until(lambda: net.hosts[0].root(missing, check=False).returncode == 0, "a zombie stays")


@needs_vms
def test_host_root_command_reports_exit_status_and_timeout(net: Net) -> None:
    with pytest.raises(RuntimeError, match=r"gpu-0: 'ls /nowhere' exited with 2: .*No such file"):
        net.hosts[0].root("ls /nowhere")
    with pytest.raises(TimeoutError, match=r"gpu-0: 'sleep 60' took more than 0\.2 s"):
        net.hosts[0].root("sleep 60", timeout_s=0.2)


@needs_vms
def test_host_bandwidth_is_limited_both_ways(net: Net) -> None:
    size = 6_000_000
    least_s = size * 8 / (MBIT_PER_S * 1e6) * 0.9

    def seconds(host: Host, *words: str, data: bytes = b"") -> float:
        began = time.monotonic()
        ssh(net, host, *words, options=("Compression=no",), data=data)
        return time.monotonic() - began

    fast, slow = net.hosts
    assert seconds(slow, "cat > /dev/null", data=bytes(size)) > least_s
    assert seconds(slow, "head", "-c", f"{size}", "/dev/zero") > least_s
    # A busy machine may be as slow, now and then.
    assert min(seconds(fast, "cat > /dev/null", data=bytes(size)) for _ in range(5)) < least_s


@needs_vms
def test_drop_and_undrop_control_packets_between_hosts(net: Net) -> None:
    item, other = net.hosts
    assert connect(item, other.address, other.port) == "connected"
    item.drop(other)
    assert connect(item, other.address, other.port) == "timed out"
    assert connect(other, item.address, item.port) == "timed out"
    item.undrop(other)
    assert connect(item, other.address, other.port) == "connected"


@needs_vms
def test_host_cannot_connect_out_of_the_subnet(net: Net) -> None:
    assert connect(net.hosts[0], "203.0.113.1", 443) == "ENETUNREACH"
    outside = net.outsider.run([sys.executable, "-c", CLIENT, net.hosts[0].address, "22"])
    assert outside.stdout == "connected\n"


@needs_vms
@pytest.mark.parametrize("firewall", FIREWALLS)
def test_firewall_blocks_peers_until_a_rule_is_saved(firewall: str, tmp_path: Path) -> None:
    expected = {"none": "connected", "ufw": "timed out"}.get(firewall, "EHOSTUNREACH")
    allow = {
        "none": "true",
        "oci": f"iptables -I INPUT 5 -p tcp --dport {PEER_PORT} -j ACCEPT && netfilter-persistent save",
        "nftables": f"sed -i '/tcp dport 22/a tcp dport {PEER_PORT} accept' /etc/nftables.conf",
        "ufw": f"ufw allow {PEER_PORT}/tcp",
    }
    allow["oci-legacy"] = allow["oci"]
    with vms(tmp_path, count=2, firewall=firewall) as net:
        item, other = net.hosts
        assert connect(item, other.address, other.port) == "connected"
        with listening(other):
            assert connect(item, other.address, PEER_PORT) == expected
            assert connect(other, other.address, PEER_PORT) == "connected"
        other.reboot()
        with listening(other):
            assert connect(item, other.address, PEER_PORT) == expected
        other.root(allow[firewall])
        other.reboot()
        with listening(other):
            assert connect(item, other.address, PEER_PORT) == "connected"
    assert list(tmp_path.iterdir()) == []


@needs_vms
def test_reboot_keeps_home_but_not_tmp_and_processes(tmp_path: Path) -> None:
    with vms(tmp_path, count=1) as net:
        (host,) = net.hosts
        read = ("cat", "/proc/sys/kernel/random/boot_id")
        before = ssh(net, host, *read).strip()
        assert before == host.boot_id
        ssh(net, host, "touch kept /tmp/lost; setsid sleep 600 > /dev/null 2>&1 &")
        host.reboot()
        assert ssh(net, host, *read).strip() == host.boot_id != before
        assert ssh(net, host, "ls", "/home/ubuntu").split() == ["kept"]
        assert ssh(net, host, *FILES, "/tmp", *OWN_ONLY) == ""
        assert "sleep" not in host.root("ps -e -o comm=").stdout.split()
        assert float(host.root("cat /proc/uptime").stdout.split()[0]) < LIMIT_S
        host.power_off()
        with pytest.raises(RuntimeError, match="gpu-0 is off"):
            host.root("true")
        host.power_on()
        host.wait_for_boot()
        assert ssh(net, host, "ls").split() == ["kept"]


@needs_vms
def test_host_options_restrict_sudo_disk_mtu_and_sshd(tmp_path: Path) -> None:
    options = Options(
        sudo=False, home_mb=8, docker0=False, mtu=1400, own_name="address", sshd=("MaxSessions 1",)
    )
    with vms(tmp_path, count=1, **vars(options)) as net:
        (host,) = net.hosts
        assert try_ssh(net, host, "sudo", "-n", "true").returncode == 1
        full = try_ssh(net, host, "head -c 9000000 /dev/zero > large")
        assert b"No space left on device" in full.stderr
        links = json.loads(ssh(net, host, "ip", "-json", "link"))
        assert {link["ifname"]: link["mtu"] for link in links} == {"lo": 65536, "ens3": 1400}
        assert ssh(net, host, "getent", "hosts", host.name).split()[0] == host.address
        assert "maxsessions 1\n" in host.root("/usr/sbin/sshd -T").stdout


@needs_vms
def test_host_that_fails_to_boot_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)gpu-1 did not boot.*Bad configuration option: Nonsense"),
        vms(tmp_path, count=2, each={1: {"sshd": ("Nonsense yes",)}}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@needs_clock
def test_clock_skew_option_shifts_the_host_clock(tmp_path: Path) -> None:
    with vms(tmp_path, count=1, clock_skew_s=-300) as net:
        assert -310 < float(ssh(net, net.hosts[0], "date", "+%s.%N")) - time.time() < -295


HOLDER = """\
import json, sys
from pathlib import Path
from tests.fakes.vms import vms
with vms(Path(sys.argv[1]), count=2) as net:
    print(json.dumps([net.subnet, net.hosts[0].switch.link]), flush=True)
    sys.stdin.read()
    if sys.argv[2] == "raise":
        raise SystemExit(3)
"""


@needs_vms
@pytest.mark.parametrize(("way", "status"), [("return", 0), ("raise", 3), ("kill", -signal.SIGKILL)])
def test_vms_leave_nothing_after_return_error_or_kill(
    way: str, status: int, net: Net, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), way]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        subnet, link = json.loads(holder.stdout.readline())
        assert subnet != net.subnet
        assert Path("/sys/class/net", link).exists()
        processes = psutil.Process(holder.pid).children(recursive=True)
        assert {"sshd", "unshare"} <= names_of(processes)
        if way == "kill":
            holder.kill()
        else:
            holder.stdin.close()
        assert holder.wait(LIMIT_S) == status
    until(lambda: not any(process.is_running() for process in processes), f"left: {processes}")
    until(lambda: not Path("/sys/class/net", link).exists(), f"{link} is left")
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    # The other hosts of this machine go on.
    assert ssh(net, net.hosts[0], "echo", "on") == "on\n"
