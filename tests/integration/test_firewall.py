"""Every kind of firewall, for real: a host, two peers and a stranger, each in a network namespace of its own."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from remote import firewall
from remote.errors import NodeFailed
from remote.firewall import FirewallFacts, Steps
from remote.sessions import node_payload
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.greeting import BEGIN, READY

TOOLS = (
    "unshare",
    "nsenter",
    "ip",
    "iptables-legacy",
    "iptables-nft",
    "nft",
    "ufw",
    "firewalld",
    "dbus-daemon",
)
LACKING = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
    pytest.mark.skipif(bool(LACKING), reason=f"needs {', '.join(LACKING)}"),
]

OCI_V4 = """\
# CLOUD_IMG: This file was created/modified by the Cloud Image build process
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [463:49013]
:InstanceServices - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p udp --sport 123 -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A OUTPUT -d 169.254.0.0/16 -j InstanceServices
-A InstanceServices -d 169.254.0.2/32 -p tcp -m owner --uid-owner 0 -m tcp --dport 3260 -j ACCEPT
-A InstanceServices -d 169.254.0.0/16 -p tcp -m tcp -j REJECT --reject-with tcp-reset
COMMIT
"""
V6 = """\
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
"""
NFT = """\
#!/usr/sbin/nft -f
flush ruleset

table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport 22 accept comment "the way in"
	}
	chain forward {
		type filter hook forward priority filter;
	}
}
table ip extra {
	chain late {
		ip saddr 203.0.113.0/24 drop
		tcp dport != 22 reject
	}
	chain input {
		type filter hook input priority 10; policy accept;
		ct state established accept
		jump late
	}
}
"""
NFT_BY_COMPARISON = """\
flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy accept;
		ct state established,related accept
		tcp dport > 1023 drop
	}
}
"""
DOCKER = """
iptables-nft -t nat -F
iptables-nft -t nat -X
iptables-nft -t nat -N DOCKER
iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables-nft -P FORWARD DROP
iptables-nft -N DOCKER-USER
iptables-nft -I FORWARD -j DOCKER-USER
iptables-nft -A DOCKER-USER -j RETURN
"""
FIREWALLD = """
mkdir -p /run/dbus
dbus-daemon --system --fork --nopidfile --print-pid >/run/pids
firewalld --nofork --nopid >/run/firewalld.log 2>&1 </dev/null &
echo $! >>/run/pids
timeout 30 sh -c 'until firewall-cmd --state >/run/state 2>&1; do :; done'
"""
IPTABLES = "iptables-{0}-restore /etc/iptables/rules.v4; ip6tables-{0}-restore /etc/iptables/rules.v6"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A firewall: how the host gets it at first, and what happens with it at a boot."""

    files: dict[str, str]
    first: str = ":"
    boot: str


IPTABLES_FILES = {"/etc/iptables/rules.v4": OCI_V4, "/etc/iptables/rules.v6": V6}
KINDS = {
    "iptables-nft": Kind(files=IPTABLES_FILES, boot=IPTABLES.format("nft")),
    "iptables-legacy": Kind(files=IPTABLES_FILES, boot=IPTABLES.format("legacy")),
    "docker": Kind(
        files=IPTABLES_FILES, first=IPTABLES.format("nft") + DOCKER, boot=IPTABLES.format("nft") + DOCKER
    ),
    "nftables": Kind(files={"/etc/nftables.conf": NFT}, boot="nft flush ruleset; nft -f /etc/nftables.conf"),
    "nftables that compares": Kind(
        files={"/etc/nftables.conf": NFT_BY_COMPARISON}, boot="nft flush ruleset; nft -f /etc/nftables.conf"
    ),
    "nftables without a last end of line": Kind(
        files={"/etc/nftables.conf": NFT.rstrip("\n")}, boot="nft flush ruleset; nft -f /etc/nftables.conf"
    ),
    "ufw": Kind(
        files={},
        first="ufw allow 22/tcp; ufw deny from 10.77.0.0/24 to any port 1:60000 proto tcp",
        boot="ufw --force disable; ufw --force enable",
    ),
    "firewalld": Kind(files={}, first=FIREWALLD, boot="firewall-cmd --reload"),
    "firewalld on iptables": Kind(
        files={},
        first="sed -i s/^FirewallBackend=.*/FirewallBackend=iptables/ /etc/firewalld/firewalld.conf\n"
        + FIREWALLD,
        boot="firewall-cmd --reload",
    ),
    "iptables and nftables at once": Kind(
        files={**IPTABLES_FILES, "/etc/nftables.conf": NFT.replace("flush ruleset", "")},
        boot="nft flush ruleset; nft -f /etc/nftables.conf; " + IPTABLES.format("legacy"),
    ),
}
PORTS = SSH, RENDEZVOUS, HIGH = 22, 29500, random.Random(7).randrange(32768, 60000)
LISTEN = """
import socket, sys
held = [socket.create_server(("::", int(p)), family=socket.AF_INET6, dualstack_ipv6=True) for p in sys.argv[1:]]
print("listening", flush=True)
sys.stdin.read()
"""
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def connect(port):
    try:
        socket.create_connection((sys.argv[1], port), timeout=1).close()
    except OSError:
        return False
    return True
ports = [int(p) for p in sys.argv[2:]]
print(json.dumps([port for port, open in zip(ports, ThreadPoolExecutor(8).map(connect, ports)) if open]))
"""


class Place:
    """Separate namespaces for the network and the mounts, open as long as their holder's input."""

    def __init__(self) -> None:
        hold = "import sys; print(flush=True); sys.stdin.read()"
        argv = ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, "-c", hold]
        self.holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        self.sh("ip link set lo up")

    def argv(self, *words: str) -> list[str]:
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", *words]

    def sh(self, script: str) -> str:
        done = subprocess.run(
            self.argv("sh", "-ec", script), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    def try_ports(self, address: str) -> "subprocess.Popen[bytes]":
        argv = self.argv(sys.executable, "-c", CONNECT, address, *map(str, PORTS))
        return subprocess.Popen(argv, stdout=subprocess.PIPE)

    def close(self) -> None:
        self.holder.communicate(timeout=10)


NOTHING = Steps(steps=(), reason="only to read")


class Host(Place):
    """The host with the firewall: 10.77.0.1 and fd77::1, with a separate /etc and /run."""

    name = "host"
    user: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.sh(f"""
            cp -a /etc {folder}/etc; mount --bind {folder}/etc /etc; mount -t tmpfs tmpfs /run
            mkdir -p /etc/iptables /run/home
            ip link add br0 type bridge; ip link set br0 up
            ip addr add 10.77.0.1/24 dev br0; ip addr add fd77::1/64 dev br0 nodad
        """)
        argv = self.argv(sys.executable, "-c", LISTEN, *map(str, PORTS))
        self.listener = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.listener.stdout.readline()

    def plug(self, other: Place, number: int) -> None:
        self.sh(f"""
            ip link add port{number} type veth peer name eth0 netns {other.holder.pid}
            ip link set port{number} master br0 up
        """)
        other.sh(f"""
            ip link set eth0 up
            ip addr add 10.77.0.{number}/24 dev eth0; ip addr add fd77::{number}/64 dev eth0 nodad
        """)

    def call(self, command: str, request: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The node's part as it is sent over SSH, and a session's Node as far as it is needed."""
        line = node_payload.first_command("/usr/bin/python3", command)
        done = subprocess.run(
            self.argv(*self.user, "env", "HOME=/run/home", "sh", "-c", line),
            input=BEGIN + node_payload.to_send(installed=False) + frames.encode(request),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise NodeFailed(f"host: {done.stderr.decode().splitlines()[-1]}.")
        stream = io.BytesIO(done.stdout.partition(READY + b"0\n")[2])
        ((answer, _),) = frames.decode(stream.readline, stream.read)
        return answer

    def do(self, plan: Steps = NOTHING) -> FirewallFacts:
        return firewall.apply(cast("Node", self), plan)

    def snapshot(self) -> list[str]:
        """Return all filter rules and the files that store them, without counters."""
        return self.sh("""
            for backend in legacy nft; do for family in ip ip6; do
                ${family}tables-$backend-save | sed '/^#/d; s/ \\[[0-9]*:[0-9]*\\]//'
            done; done
            nft list ruleset | sed 's/packets [0-9]* bytes [0-9]*//'
            cat /etc/iptables/* /etc/nftables.conf /etc/ufw/user.rules /etc/ufw/user6.rules || true
            firewall-cmd --list-all-zones 2>/dev/null && firewall-cmd --permanent --list-all-zones || true
        """).splitlines()

    def close(self) -> None:
        self.sh("if [ -f /run/pids ]; then kill $(cat /run/pids); fi")
        self.listener.communicate(timeout=10)
        super().close()


@dataclass(frozen=True, kw_only=True)
class World:
    host: Host
    peers: list[Place]
    stranger: Place

    def reach(self, *addresses: str) -> list[list[int]]:
        """Return the ports that the peers and the stranger reach, for each of the host's addresses."""
        tries = [
            [place.try_ports(address) for address in addresses or ("10.77.0.1", "fd77::1")]
            for place in (*self.peers, self.stranger)
        ]
        result = [[json.loads(each.communicate(timeout=60)[0]) for each in place] for place in tries]
        assert all(each == place[0] for place in result for each in place), "IPv4 and IPv6 differ"
        return [place[0] for place in result]


PEERS = ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"]
SHUT = [[SSH], [SSH], [SSH]]
OPEN = [[*PORTS], [*PORTS], [SSH]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    places: list[Place] = []
    try:
        host = Host(tmp_path)
        places.append(host)
        for number in (2, 3, 9):
            places.append(Place())
            host.plug(places[-1], number)
        yield World(host=host, peers=places[1:3], stranger=places[3])
    finally:
        for place in places:
            place.close()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_firewall_admits_peers_only_and_is_restored(world: World, kind: Kind) -> None:
    host = world.host
    for path, text in kind.files.items():
        host.sh(f"cat >{path} <<'END'\n{text}END\n" if text.endswith("\n") else f"printf %s '{text}' >{path}")
    host.sh(kind.first)
    host.sh(kind.boot)
    at_first = host.snapshot()
    assert world.reach() == SHUT

    plan = firewall.ensure_open(cast("Node", host), host.do(), owner="a", peers=PEERS)
    assert plan.steps
    assert world.reach() == OPEN

    again = firewall.open_steps(host.do(), owner="a", peers=PEERS)
    assert (again.steps, again.reason) == ((), "the firewall lets 4 peers in already")

    host.sh(kind.boot)
    assert world.reach() == OPEN
    assert firewall.open_steps(host.do(), owner="a", peers=PEERS).steps == ()

    host.do(firewall.open_steps(host.do(), owner="b", peers=PEERS[:1]))
    host.do(firewall.open_steps(host.do(), owner="a", peers=PEERS[1:2]))
    assert world.reach("10.77.0.1") == OPEN, "b's peer, and the one that a kept"
    host.do(firewall.close_steps(host.do(), owner="a"))
    assert world.reach("10.77.0.1") == [[*PORTS], [SSH], [SSH]], "b's peer alone"
    host.do(firewall.close_steps(host.do(), owner="b"))
    assert world.reach() == SHUT
    assert host.snapshot() == at_first
    assert firewall.close_steps(host.do(), owner="a").steps == ()


def test_ensure_open_repairs_ufw_rules_missing_in_kernel(world: World) -> None:
    host = world.host
    for command in (KINDS["ufw"].first, KINDS["ufw"].boot):
        host.sh(command)
    firewall.ensure_open(cast("Node", host), host.do(), owner="a", peers=PEERS)
    for spoil in (
        "iptables -D ufw-user-input 1",
        "ufw prepend deny from 10.77.0.0/24 to any port 1000:61000 proto tcp",
    ):
        host.sh(spoil)
        assert world.reach("10.77.0.1") == SHUT
        assert firewall.ensure_open(cast("Node", host), host.do(), owner="a", peers=PEERS).steps
        assert world.reach() == OPEN
        assert firewall.open_steps(host.do(), owner="a", peers=PEERS).steps == ()
    host.sh("iptables -I ufw-before-input -p tcp -s 10.77.0.0/24 --dport 1024: -j DROP")
    with pytest.raises(NodeFailed, match=r"its firewall still keeps peers out"):
        firewall.ensure_open(cast("Node", host), host.do(), owner="a", peers=PEERS)


def test_open_steps_are_empty_when_nothing_is_filtered(world: World) -> None:
    world.host.sh("iptables-nft -A INPUT -s 203.0.113.0/24 -p tcp --dport 22 -j DROP; ufw disable")
    plan = firewall.open_steps(world.host.do(), owner="a", peers=PEERS)
    assert (plan.steps, plan.reason) == ((), "nothing filters incoming connections")


def with_oci_rules(host: Host) -> Host:
    host.sh(f"cat >/etc/iptables/rules.v4 <<'END'\n{OCI_V4}END\niptables-nft-restore /etc/iptables/rules.v4")
    return host


def test_apply_refuses_if_rules_file_changed_meanwhile(world: World) -> None:
    host = with_oci_rules(world.host)
    plan = firewall.open_steps(host.do(), owner="a", peers=PEERS[:1])
    assert len(plan.steps) == 2
    host.sh("echo '# mine' >>/etc/iptables/rules.v4")
    before = host.snapshot()
    with pytest.raises(NodeFailed, match=r"rules.v4 was changed by something else in the meantime"):
        host.do(plan)
    assert host.snapshot() == before


def test_apply_keeps_mode_owner_and_symlink_of_rules_file(world: World) -> None:
    host = with_oci_rules(world.host)
    host.sh("cd /etc/iptables; mv rules.v4 real; ln -s real rules.v4; chown nobody real; chmod 640 real")
    host.do(firewall.open_steps(host.do(), owner="a", peers=PEERS[:1]))
    assert host.sh("cd /etc/iptables; readlink rules.v4; stat -c '%U %a' real; ls -A") == (
        "real\nnobody 640\nreal\nrules.v4\n"
    )
    assert "10.77.0.2" in host.sh("cat /etc/iptables/real")


def test_printed_shell_commands_open_the_firewall(world: World) -> None:
    host = with_oci_rules(world.host)
    plan = firewall.open_steps(host.do(), owner="a", peers=PEERS[:2])
    host.sh(plan.shell().replace("sudo ", ""))
    assert world.reach("10.77.0.1") == OPEN
    assert firewall.open_steps(host.do(), owner="a", peers=PEERS[:2]).steps == ()


@pytest.mark.skipif(shutil.which("sudo") is None, reason="needs sudo")
def test_ensure_open_uses_passwordless_sudo(world: World) -> None:
    host = with_oci_rules(world.host)
    host.sh("echo 'nobody ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-nobody; chown -R nobody /run/home")
    host.user = ("setpriv", "--reuid=nobody", "--clear-groups")
    firewall.ensure_open(cast("Node", host), host.do(), owner="a", peers=PEERS[:2])
    assert world.reach("10.77.0.1") == OPEN


def test_apply_without_root_shows_commands_for_an_admin(world: World) -> None:
    host = with_oci_rules(world.host)
    plan = firewall.open_steps(host.do(), owner="a", peers=PEERS[:2])
    host.sh("chown -R nobody /run/home")
    host.user = ("setpriv", "--reuid=nobody", "--clear-groups")
    with pytest.raises(NodeFailed) as refused:
        host.do(plan)
    assert str(refused.value).startswith("host: root is needed, and ")
    assert str(refused.value).endswith(plan.shell())
