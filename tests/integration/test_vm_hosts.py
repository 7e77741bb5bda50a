"""Test machines as clouds ship them: two hosts with separate kernel namespaces and the traps of real images.

Each trap is shown twice: its effect on torchrun by hand or on a run, and gpuctl's handling.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import Gpuctl
from vm_support import ALLREDUCE, begin, cluster, log_of, up

from tests.fakes.vms import Host, Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

RENDEZVOUS_PORT = 29511
PORTS = (1024, 5000, 20_000, 24_999, RENDEZVOUS_PORT, 33_333, 50_000, 65_535)
"""Sample of the ports that the rendezvous, gloo and NCCL may take."""
LISTEN = """
import socket, sys, time
kept = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("listening")
time.sleep(60)
"""
TRY = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=2).close()
    except OSError:
        print(port)
"""


@pytest.fixture
def oci(tmp_path: Path) -> Iterator[Net]:
    """Two hosts as OCI's Ubuntu image is: 127.0.1.1, docker0, ens3, and a firewall that ends in REJECT."""
    with vms(tmp_path, count=2, firewall="oci") as net:
        yield net


def ssh(net: Net, host: Host, *command: str) -> "subprocess.Popen[str]":
    """Start the system's ssh, as a user without gpuctl does."""
    _, known_hosts = net.inventory()
    options = [
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "BatchMode=yes",
        "-i",
        str(host.key_file),
    ]
    return subprocess.Popen(
        ["ssh", *options, f"{host.user}@{host.address}", shlex.join(command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun_by_hand(net: Net, deadline_s: int) -> list[tuple[int, str]]:
    """torchrun on both hosts as its manual has it, ended after the deadline: exit statuses and output."""
    script = "/tmp/allreduce.py"
    for host in net.hosts:
        host.root(f"cat > {script} <<'END'\n{ALLREDUCE}END")
    options = ["--nnodes=2", f"--master-addr={net.hosts[0].address}", f"--master-port={RENDEZVOUS_PORT}"]
    launch = ["timeout", str(deadline_s), sys.executable, "-m", "torch.distributed.run", *options]
    ranks = [
        ssh(net, host, "env", "GLOO_SOCKET_IFNAME=ens3", *launch, f"--node-rank={rank}", script)
        for rank, host in enumerate(net.hosts)
    ]
    outputs = [rank.communicate(timeout=deadline_s + 30)[0] for rank in ranks]
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


def closed_ports(net: Net, host: Host) -> list[int]:
    """Return the ports of PORTS that a machine outside the cluster can't reach though a process listens there."""
    listening = ssh(net, host, sys.executable, "-uc", LISTEN, *map(str, PORTS))
    with listening:
        try:
            first = listening.stdout.readline()
            assert first == "listening\n", first + listening.stdout.read()
            tried = net.outsider.run([sys.executable, "-c", TRY, host.address, *map(str, PORTS)])
            return [int(word) for word in tried.stdout.split()]
        finally:
            listening.kill()


def test_train_works_behind_firewall_that_blocks_torchrun(gpuctl: Gpuctl, oci: Net) -> None:
    for host in oci.hosts:  # no connection may take the ports that are tried at the end
        host.root(f"sysctl -w net.ipv4.ip_local_reserved_ports={','.join(map(str, PORTS))}")
    before = [host.root("iptables-save").stdout for host in oci.hosts]
    saved = [host.root("cat /etc/iptables/rules.v4").stdout for host in oci.hosts]
    by_hand = torchrun_by_hand(oci, deadline_s=15)
    assert all(status != 0 and "sum 2" not in output for status, output in by_hand), by_hand

    up(gpuctl, oci)
    done = gpuctl.ok("train", "--json", "--", "--epochs", "1")
    assert done.json["world_size"] == 2
    assert done.json["status"] == "succeeded"
    assert "let in (" in done.err
    by_hand = torchrun_by_hand(oci, deadline_s=60)
    assert all("sum 2" in output for _, output in by_hand), by_hand

    assert [closed_ports(oci, host) for host in oci.hosts] == [list(PORTS)] * 2
    again = gpuctl.ok("train", "--json", "--", "--epochs", "1")
    assert "let in (" not in again.err

    oci.hosts[1].reboot()
    after_boot = gpuctl.ok("train", "--json", "--", "--epochs", "1")
    assert "let in (" not in after_boot.err, "what was opened has to outlive a boot"

    gpuctl.ok("down", "--yes")
    assert [rules_of(host.root("iptables-save").stdout) for host in oci.hosts] == [
        rules_of(b) for b in before
    ]
    assert [host.root("cat /etc/iptables/rules.v4").stdout for host in oci.hosts] == saved


def rules_of(saved: str) -> list[str]:
    """Return the rules of a save, without its counters and dates."""
    return [line.split(" [")[0] for line in saved.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    "kind", [pytest.param("oci", marks=pytest.mark.whole), "oci-legacy", "nftables", "ufw"]
)
def test_train_opens_firewall_and_down_closes_it(gpuctl: Gpuctl, tmp_path: Path, kind: str) -> None:
    with vms(tmp_path, count=2, firewall=kind) as net:
        up(gpuctl, net)
        gpuctl.script("allreduce.py", ALLREDUCE)
        done = gpuctl.ok("train", "--json", "allreduce.py")
        assert "let in (" in done.err
        assert "sum 2" in log_of(gpuctl, done.json["run"], 0)
        assert closed_ports(net, net.hosts[0]) == list(PORTS)
        assert "the cluster's rules go" in gpuctl.ok("down", "--yes").err


def test_down_keeps_cluster_if_firewall_cannot_be_closed(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, firewall="oci") as net:
        gpuctl.ok("train", "hello.py")
        net.hosts[1].power_off()
        down = gpuctl("down", "--yes", "--json")
        assert down.status == 4
        assert [(left["kind"], left["id"]) for left in down.json["leftovers"]] == [("firewall", "gpu-1")]
        assert "gpuctl down --forget" in down.err
        assert len(gpuctl.ok("status", "--json").json["machines"]) == 2

        net.hosts[1].power_on()
        net.hosts[1].wait_for_boot()
        again = gpuctl.ok("down", "--yes", "--json")
        assert again.json["leftovers"] == []
        assert "gpu-1: firewall: the cluster's rules go" in again.err
        assert "gpu-0: firewall" not in again.err, "what is closed is not asked again"


def test_down_forget_drops_unreachable_machine(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, firewall="oci") as net:
        gpuctl.ok("train", "hello.py")
        net.hosts[0].power_off()
        down = gpuctl.ok("down", "--yes", "--forget")
        assert "gpu-0: forgotten, though it may still let the cluster's machines in" in down.err
        assert not (gpuctl.home / "clusters" / "default").exists()


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (
            "chown root {home} && chmod 755 {home}",
            ("up",),
            "gpuctl keeps its files in the login user's home folder, and can't write there: [Errno 13] Permission",
        ),
        (
            "install -d -o {user} {home}/.gpuctl-node && "
            "mount -t tmpfs -o noexec,mode=700,uid=$(id -u {user}) tmpfs {home}/.gpuctl-node",
            ("train", "--requirements", "requirements.txt", "hello.py"),
            "no environment can be built, as the file system of {home}/.gpuctl-node is mounted noexec",
        ),
        (
            "mv /usr/bin/sudo /usr/bin/sudo.not",
            ("doctor", "--cluster"),
            "by hand, as root: iptables -I INPUT -p tcp -s ",
        ),
    ],
    ids=["read-only", "noexec", "no sudo"],
)
def test_home_or_sudo_that_a_host_lacks_is_named(
    gpuctl: Gpuctl, tmp_path: Path, command: str, words: tuple[str, ...], sentence: str
) -> None:
    gpuctl.script("hello.py", "print('hi')\n")
    gpuctl.script("requirements.txt", "colorama\n")
    with vms(tmp_path, count=2, firewall="oci") as net:
        home = f"/home/{net.hosts[0].user}"
        for host in net.hosts:
            host.root(command.format(home=home, user=host.user))
        hosts, known_hosts = net.inventory(python=sys.executable)
        made = gpuctl("up", "--hosts", str(hosts), "--known-hosts", str(known_hosts))
        done = made if words == ("up",) else gpuctl(*words)
        output = " ".join((done.out + done.err).split())
        assert sentence.format(home=home) in output, output
        assert "is no Python there" not in output
        assert done.status != 0


def test_run_goes_on_while_this_computer_has_no_network(gpuctl: Gpuctl, tmp_path: Path) -> None:
    offline_s = 50  # longer than a node may be silent, and connecting again may take
    with cluster(gpuctl, tmp_path, count=2) as net:
        process, _ = begin(gpuctl, net.hosts, "steps.py", str(offline_s + 15))
        shown = ip("-oneline", "-4", "address", "show", "to", f"{net.laptop}/32").split()
        device, address = shown[1], shown[3]
        with ExitStack() as undone:
            undone.callback(ip, "address", "add", address, "dev", device)
            ip("address", "del", address, "dev", device)
            # The system then says "Network is unreachable", whatever other route it has.
            undone.callback(ip, "route", "del", "throw", net.subnet)
            ip("route", "add", "throw", net.subnet)
            time.sleep(offline_s)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert err.count("connection lost, reconnecting") == 2
        assert json.loads(out)["status"] == "succeeded"


def ip(*words: str) -> str:
    """Run iproute2 on this machine, and return its output."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
