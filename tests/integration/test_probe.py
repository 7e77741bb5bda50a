"""The preflight between hosts with an address, a kernel's network and a firewall each."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl, a_machine

from inventories.disk.store import ClusterFolder
from remote.checks.probe import probe
from remote.sessions.connect import connect
from remote.sessions.session import Node
from tests.fakes.vms import lacking, vms
from tests.fakes.vms.boot import INTERFACE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
]


def findings(gpuctl: Gpuctl, net: Any) -> list[dict[str, Any]]:
    """Return the problems that `doctor --cluster` reports for the hosts."""
    hosts, known_hosts = net.inventory()
    gpuctl.ok("up", "--hosts", str(hosts), "--known-hosts", str(known_hosts))
    rows = gpuctl("doctor", "--cluster", "--json").json["findings"]
    return [row for row in rows if "can't reach" in row["detail"]]


def test_doctor_names_oci_firewall_and_working_fix(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with vms(tmp_path, count=2, firewall="oci") as net:
        (result,) = findings(gpuctl, net)
        a, b = net.hosts
        assert result["what"] == f"{a.name} and {b.name}"
        assert result["ok"] is False
        assert "they can't reach each other on the rendezvous port 2" in result["detail"]
        assert result["detail"].endswith("a firewall rejects it (EHOSTUNREACH at once)")
        # The printed manual command repairs the fault.
        command = result["fix"].partition("by hand: ")[2]
        assert command == f"sudo iptables -I INPUT -p tcp -s {a.address},{b.address} -j ACCEPT"
        for host in net.hosts:
            host.root(command.removeprefix("sudo "))
        assert findings(gpuctl, net) == []


def test_doctor_reports_dropped_packets_as_timeout(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with vms(tmp_path, count=3, firewall="none") as net:
        net.hosts[1].drop(net.hosts[0])
        (result,) = findings(gpuctl, net)
        assert result["what"] == f"{net.hosts[0].name} and {net.hosts[1].name}"
        assert result["detail"].endswith("no answer within 4 s, so something drops the packets")


def test_doctor_blames_the_node_that_drops_packets(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with vms(tmp_path, count=3, firewall="none") as net:
        a, b, c = net.hosts
        b.root(f"iptables -I INPUT -p tcp --syn -s {a.address} -j DROP")
        b.root(f"iptables -I INPUT -p tcp --syn -s {c.address} -j DROP")
        (result,) = findings(gpuctl, net)
        assert result["what"] == b.name
        assert result["detail"].startswith(f"{a.name} and {c.name} can't reach it (at {b.address}) on ports ")
        assert "sudo iptables -S INPUT" in result["fix"]


def test_doctor_detects_mtu_black_hole(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with vms(tmp_path, count=2, firewall="none") as net:
        a, b = net.hosts
        b.root(f"iptables -I INPUT -p tcp -s {a.address} -m length --length 1401:65535 -j DROP")
        (result,) = findings(gpuctl, net)
        assert "64 kB do not get through" in result["detail"]
        assert "MTU" in result["fix"]


def test_doctor_tries_the_address_that_gloo_and_nccl_take_of_an_interface(
    gpuctl: Gpuctl, tmp_path: Path
) -> None:
    with vms(tmp_path, count=2, firewall="none") as net:
        hosts, _ = net.inventory()
        text = hosts.read_text()
        for rank, host in enumerate(net.hosts):
            second = f"172.31.5.{rank + 2}"
            host.root(f"ip address add {second}/24 dev {INTERFACE}")
            host.root(f"iptables -I INPUT -p tcp -d {host.address} ! --dport 22 --syn -j DROP")
            text = text.replace(
                f"ansible_host: {host.address}", f"ansible_host: {host.address}\n      private_ip: {second}"
            )
        (net.folder / "second.yaml").write_text(text)
        gpuctl.ok(
            "up", "--hosts", str(net.folder / "second.yaml"), "--known-hosts", str(net.folder / "known_hosts")
        )
        rows = gpuctl("doctor", "--cluster", "--json").json["findings"]
        (result,) = (row for row in rows if "can't reach" in row["detail"])
        a, b = net.hosts
        assert f"not private_ip: {a.address} ({a.name}) and {b.address} ({b.name})" in result["fix"]


def test_doctor_refuses_one_machine_under_two_addresses(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with vms(tmp_path, count=1, firewall="none") as net:
        hosts, known = net.inventory()
        (host,) = net.hosts
        other = host.address.rpartition(".")[0] + ".250"
        host.root(f"ip address add {other}/24 dev {INTERFACE}")
        entry = hosts.read_text().partition("  hosts:\n")[2]
        again = entry.replace(f"    {host.name}:", "    again:").replace(host.address, other)
        hosts.write_text(hosts.read_text() + again)
        known.write_text(known.read_text() + known.read_text().replace(host.address, other))
        gpuctl.ok("up", "--hosts", str(hosts), "--known-hosts", str(known))
        rows = gpuctl("doctor", "--cluster", "--json").json["findings"]
        assert any("lists one machine 2 times" in row["detail"] for row in rows), rows


@pytest.mark.parametrize(
    "rule",
    [
        "iptables -I OUTPUT -p tcp -d {peer} --dport 1024:65535 -j DROP",
        "iptables -I OUTPUT -d {peer} -p tcp -j REJECT",
        "nft 'add table inet out; add chain inet out o {{ type filter hook output priority 0; policy accept; }}; "
        "add rule inet out o ip daddr {peer} tcp dport 1024-65535 drop'",
    ],
)
def test_doctor_names_the_firewall_that_drops_what_goes_out(
    gpuctl: Gpuctl, tmp_path: Path, rule: str
) -> None:
    with vms(tmp_path, count=2, firewall="none") as net:
        a, b = net.hosts
        a.root(rule.format(peer=b.address))
        hosts, known_hosts = net.inventory()
        gpuctl.ok("up", "--hosts", str(hosts), "--known-hosts", str(known_hosts))
        rows = gpuctl("doctor", "--cluster", "--json").json["findings"]
        (result,) = (row for row in rows if "firewall" in row["detail"])
        assert (result["what"], result["ok"]) == (a.name, False)
        assert result["detail"] == f"its own firewall drops what goes out to {b.name}"
        assert "OUTPUT" in result["fix"]


@contextmanager
def connections(net: Any) -> Iterator[dict[str, Node]]:
    """Open connections to the hosts, by name."""
    _, known_hosts = net.inventory()
    with ExitStack() as stack:
        nodes = {}
        for rank, host in enumerate(net.hosts):
            machine = a_machine(
                name=host.name, rank=rank, host=host.address, user=host.user, key_file=host.key_file
            )
            nodes[host.name] = connect(machine, ClusterFolder(known_hosts.parent))
            stack.callback(nodes[host.name].close)
        yield nodes


@pytest.mark.parametrize("silent", [False, True])
def test_probe_of_dead_node_does_not_delay_the_others(tmp_path: Path, silent: bool) -> None:
    with vms(tmp_path, count=3, firewall="none") as net, connections(net) as nodes:
        a, b, dead = net.hosts
        if silent:
            dead.drop(net.laptop)
        else:
            dead.power_off()
        began = time.monotonic()
        answers = probe(nodes, master=a.name, rendezvous_port=20001)
        assert time.monotonic() - began < 30, "it has deadlines of its own"
        assert (answers[dead.name].failure or "").startswith(f"{dead.name}: ")
        for name, peer in ((a.name, b.name), (b.name, a.name)):
            assert answers[name].failure is None
            assert {(attempt.peer, attempt.outcome) for attempt in answers[name].attempts} == {
                (peer, "connected")
            }
