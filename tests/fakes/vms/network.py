"""The network of a run: a bridge in a namespace of its own, and this process's address on it.

The bridge's namespace is held by a process that ends when this one does; with it go the bridge, all that is
plugged into it, and the interface on this side. That interface's name is the reservation of the subnet.
"""

import ipaddress
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.vms.boot import GATEWAY, INTERFACE

SWITCH = Path(__file__).with_name("switch.py")
LAPTOP = 1
OUTSIDER = 200
UPLINK = "uplink"
END_LIMIT_S = 600
"""Files are removed at the end: an environment is a hundred thousand of them."""
RULES = """\
table bridge vms {
  set dropped { type ipv4_addr . ipv4_addr; }
  chain forward {
    type filter hook forward priority 0;
    meta l4proto tcp ip saddr . ip daddr @dropped drop
  }
}
"""
"""Packets are dropped at the bridge, invisibly to the hosts, as by a security list."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """The bridge, `br0` in the namespace of its process."""

    process: "subprocess.Popen[str]"
    subnet: str
    """The first three bytes of its addresses."""
    link: str
    """This process's interface."""

    def run(self, *argv: str, text: str | None = None, check: bool = True) -> None:
        """Run a command in the bridge's namespace. Raises RuntimeError with its output, unless `check` is False."""
        done = subprocess.run([*self.enter, *argv], input=text, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the prefix of a command that runs it in the bridge's namespace."""
        return ("nsenter", f"--net=/proc/{self.process.pid}/ns/net")

    def drop(self, one: str, other: str, *, dropped: bool) -> None:
        """Begin or cease to drop TCP packets between two addresses."""
        pairs = f"{{ {one} . {other}, {other} . {one} }}"
        self.run("nft", "add" if dropped else "delete", "element", "bridge", "vms", "dropped", pairs)

    def unplug(self, ports: tuple[str, ...]) -> None:
        """Remove the existing ones of these ports, and the interfaces at their other ends."""
        for port in ports:
            self.run("ip", "link", "delete", port, check=False)


@contextmanager
def bridge(scratch: Path) -> Iterator[Switch]:
    """Run a bridge on a free subnet. `scratch` is removed at its end, and if this process is killed."""
    with held((sys.executable, "-I", "-S", str(SWITCH), str(scratch))) as process:
        subnet, link = _reserve(process.pid)
        switch = Switch(process=process, subnet=subnet, link=link)
        lines = [
            "link set lo up",
            "link add br0 type bridge",
            f"address add {subnet}.{GATEWAY}/24 dev br0",
            f"link set {UPLINK} mtu 9000 master br0 up",
            "link set br0 up",
        ]
        switch.run("ip", "-batch", "-", text="\n".join(lines))
        # So that it answers at once that other networks are unreachable.
        switch.run("sysctl", "--quiet", "net.ipv4.ip_forward=1")
        switch.run("nft", "--file", "-", text=RULES)
        subprocess.run(["ip", "address", "add", f"{subnet}.{LAPTOP}/24", "dev", link], check=True)
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        try:
            yield switch
        finally:
            # It would go with the last process of the bridge's namespace, but some time later.
            subprocess.run(["ip", "link", "delete", link], check=True)


@dataclass(frozen=True, kw_only=True)
class Outsider:
    """A machine of the subnet outside the hosts: only a network namespace."""

    process: "subprocess.Popen[str]"
    address: str

    def run(self, argv: list[str], *, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run a command of this machine in the outsider's network; the caller checks its status."""
        enter = ("nsenter", f"--net=/proc/{self.process.pid}/ns/net")
        return subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=timeout_s, check=False)


@contextmanager
def plugged_in(switch: Switch) -> Iterator[Outsider]:
    """Plug a further machine into the bridge."""
    with held(("sh", "-c", "echo; exec cat")) as process:
        outsider = Outsider(process=process, address=f"{switch.subnet}.{OUTSIDER}")
        space = f"/proc/{process.pid}/ns/net"
        peer = ("peer", "name", INTERFACE, "netns", space)
        switch.run("ip", "link", "add", "outsider", "type", "veth", *peer)
        switch.run("ip", "link", "set", "outsider", "master", "br0", "up")
        lines = [
            "link set lo up",
            f"address add {outsider.address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        argv = ["nsenter", f"--net={space}", "ip", "-batch", "-"]
        subprocess.run(argv, input="\n".join(lines), text=True, check=True)
        yield outsider


@contextmanager
def held(argv: tuple[str, ...]) -> "Iterator[subprocess.Popen[str]]":
    """Run a process in a network namespace of its own, which writes a line, and ends with its standard input."""
    process = subprocess.Popen(
        ["unshare", "--net", *argv],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        # Before that line it may not be in its namespace yet.
        if not process.stdout.readline():
            raise RuntimeError(f"'{' '.join(argv)}' did not start in a namespace")
        yield process
    finally:
        close(process)
        wait(process)


def close(process: "subprocess.Popen[str]") -> None:
    """Close a process's standard input, at which it ends. Unread input is lost."""
    with suppress(BrokenPipeError):
        process.stdin.close()


def wait(process: "subprocess.Popen[str]") -> None:
    """Wait for a process's end. Raises subprocess.TimeoutExpired."""
    process.wait(END_LIMIT_S)
    process.stdout.close()


def _reserve(switch_pid: int) -> tuple[str, str]:
    """Return a free subnet, and the interface whose name reserves it."""
    first = os.getpid() % (64 * 256)
    used = _used()
    for number in itertools.islice(_numbers(first), 64 * 256):
        high, low = 64 + number // 256, number % 256
        subnet, link = f"10.{high}.{low}", f"vms-{high}-{low}"
        if any(network.overlaps(ipaddress.ip_network(f"{subnet}.0/24")) for network in used):
            continue
        peer = ["peer", "name", UPLINK, "netns", f"/proc/{switch_pid}/ns/net"]
        done = subprocess.run(
            ["ip", "link", "add", link, "mtu", "9000", "type", "veth", *peer],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return subnet, link
        if "File exists" not in done.stderr:
            raise RuntimeError(f"ip link add {link}: {done.stderr.strip()}")
    raise RuntimeError("no /24 of 10.64.0.0/10 is free")


def _numbers(first: int) -> Iterator[int]:
    for offset in itertools.count():
        # Neighbouring process numbers should not meet.
        yield (first * 61 + offset) % (64 * 256)


def _used() -> list[ipaddress.IPv4Network]:
    """Return the networks to which this machine has a route, other than the default one."""
    output = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True).stdout
    destinations = [route["dst"] for route in json.loads(output or "[]")]
    return [ipaddress.IPv4Network(dst, strict=False) for dst in destinations if dst != "default"]
