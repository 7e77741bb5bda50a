"""The steps of a host's boot, as argument lists for its PID 1. Nothing here runs anything."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fakes.vms.options import Options

INTERFACE = "ens3"
GATEWAY = 254
"""The last byte of the bridge's own address, which is the hosts' default route and leads nowhere."""

OWN = ("/tmp", "/var/tmp", "/home", "/run", "/dev/shm")
"""Folders of which a host has its own."""

_BOUND = ("setpriv", "--bounding-set", "-sys_time,-sys_module,-sys_boot,-syslog", "--")
"""Root of a host may not set the clock, load modules or reboot: it would be this machine's."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, and its input."""

    argv: tuple[str, ...]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A host's place: its folder on disk, and its place in the network."""

    folder: Path
    index: int
    name: str
    address: str
    switch_pid: int

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    @property
    def boot_id(self) -> Path:
        return self.folder / "boot_id"

    @property
    def subnet(self) -> str:
        """Return the first three bytes of the network's addresses."""
        return self.address.rpartition(".")[0]

    @property
    def switch(self) -> str:
        return f"/proc/{self.switch_pid}/ns/net"

    @property
    def ports(self) -> tuple[str, str]:
        """Return the ports of the host's ens3 and of its container, in the bridge's namespace."""
        return f"port{self.index}", f"box{self.index}"


def start_argv(python: str, init: Path, uptime_s: int) -> tuple[str, ...]:
    """PID 1 in namespaces of its own, with an uptime that begins at 0; it is ended with this process."""
    spaces = (
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
    )
    clocks = ("--time", "--monotonic", str(-uptime_s), "--boottime", str(-uptime_s))
    return ("unshare", *spaces, *clocks, *_BOUND, python, "-I", "-S", str(init))


def enter_argv(pid: int) -> tuple[str, ...]:
    """Return the prefix of a command that runs it within a host, as root, given this machine's number of the host's
    PID 1.
    """
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time", "--root", "--wdns=/root")
    return ("nsenter", "--target", str(pid), *spaces, *_BOUND)


def config(options: Options, place: Place, *, first: bool, shared: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the configuration of PID 1. `first`: the host has not booted before. `shared`: folders shared with this
    machine.
    """
    once = (Step(argv=("sh", "-ec", options.first_boot)),) if first and options.first_boot else ()
    steps = (
        *_wiring(options, place),
        *_mounts(options, place, shared),
        *_firewall(options, first=first),
        *once,
    )
    return {
        "steps": [asdict(step) for step in steps],
        "service": ["/usr/sbin/sshd", "-D", "-e"],
        "service_log": "/var/log/auth.log",
        "port": 22,
    }


def _wiring(options: Options, place: Place) -> tuple[Step, ...]:
    """Return the steps that connect the host's interfaces while /proc still shows the bridge's namespace."""
    port, box = place.ports
    mac = "02:00:" + ":".join(f"{int(byte):02x}" for byte in place.address.split("."))
    inside = [
        f"link add {INTERFACE} mtu {options.mtu} address {mac} type veth peer name {port} netns {place.switch}",
        f"address add {place.address}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        "link set lo up",
    ]
    outside = [f"link set {port} mtu {options.mtu} master br0 up"]
    if options.docker0:
        veth = f"veth{place.index:07x}"
        inside += [
            "link add docker0 type bridge",
            "address add 172.17.0.1/16 brd 172.17.255.255 dev docker0",
            f"link add {veth} type veth peer name {box} netns {place.switch}",
            f"link set {veth} master docker0 up",
            "link set docker0 up",
        ]
        outside.append(f"link set {box} up")
    into_switch = ("nsenter", f"--net={place.switch}")
    wiring = [
        Step(argv=("hostname", place.name)),
        Step(argv=("ip", "-batch", "-"), text=_lines(inside)),
        Step(argv=(*into_switch, "ip", "-batch", "-"), text=_lines(outside)),
        Step(argv=("ip", "route", "add", "default", "via", f"{place.subnet}.{GATEWAY}")),
    ]
    if options.mbit_per_s is not None:
        shape = ("root", "tbf", "rate", f"{options.mbit_per_s}mbit", "burst", "128kb", "latency", "50ms")
        wiring.append(Step(argv=("tc", "qdisc", "add", "dev", INTERFACE, *shape)))
        wiring.append(Step(argv=(*into_switch, "tc", "qdisc", "add", "dev", port, *shape)))
    return tuple(wiring)


def hidden(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the folders that a host would not see, because the host has its own instead."""
    return tuple(path for path in folders if any(path.is_relative_to(local) for local in OWN))


def _mounts(options: Options, place: Place, shared: Sequence[Path]) -> tuple[Step, ...]:
    root = place.root
    binds: list[tuple[str, ...]] = []
    for number, path in enumerate(shared):
        existing, upper, work = (
            f"{root}{path}",
            *(f"{place.folder}/{kind}-{number}" for kind in ("upper", "work")),
        )
        layers = f"lowerdir={path},upperdir={upper},workdir={work},index=off"
        binds += [
            ("mkdir", "--parents", existing, upper, work),
            ("mount", "-t", "overlay", "-o", layers, "overlay", existing),
        ]
    layers = f"lowerdir=/,upperdir={place.upper},workdir={place.folder / 'work'},index=off"
    mounts = [
        ("mount", "-t", "overlay", "-o", layers, "overlay", f"{root}"),
        ("mount", "-t", "proc", "proc", f"{root}/proc"),
        ("mount", "-t", "sysfs", "sysfs", f"{root}/sys"),
        ("mount", "--bind", "/dev", f"{root}/dev"),
        (
            "mount",
            "-t",
            "devpts",
            "-o",
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
            "devpts",
            f"{root}/dev/pts",
        ),
        ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm"),
        ("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", f"{root}/run"),
        ("mount", "--bind", f"{place.boot_id}", f"{root}/proc/sys/kernel/random/boot_id"),
        # As systemd-tmpfiles does at each boot; before this machine's folders are mounted there.
        ("find", f"{root}/tmp", "-mindepth", "1", "-delete"),
        *binds,
        ("pivot_root", f"{root}", f"{root}/mnt"),
        ("umount", "--lazy", "/mnt"),
        ("mkdir", "--mode=0755", "/run/sshd"),
        ("mkdir", "--mode=1777", "/run/lock"),
    ]
    mounts += _pretence(options)
    if options.home_mb is not None:
        home, new = f"/home/{options.user}", "/run/home"
        mounts += [
            ("mkdir", new),
            ("mount", "-t", "tmpfs", "-o", f"size={options.home_mb}m,mode=0755", "tmpfs", new),
            ("cp", "--archive", "--no-target-directory", home, new),
            ("mount", "--move", new, home),
            ("rmdir", new),
        ]
    return tuple(Step(argv=argv) for argv in mounts)


def _pretence(options: Options) -> list[tuple[str, ...]]:
    """Hardware and a kernel that this machine does not have."""
    mounts: list[tuple[str, ...]] = []
    if options.pci:
        mounts.append(("mount", "-t", "tmpfs", "none", "/sys/bus/pci/devices"))
    for slot, device in enumerate(options.pci):
        kind, number = device.split()
        folder = f"/sys/bus/pci/devices/0000:00:{slot:02x}.0"
        for name, text in (("vendor", "0x10de"), ("class", f"0x{kind}"), ("device", f"0x{number}")):
            mounts.append(("install", "-D", "--mode=0644", "/dev/null", f"{folder}/{name}"))
            mounts.append(("sh", "-c", f"echo {text} > {folder}/{name}"))
    if options.kernel is not None:
        mounts.append(("sh", "-c", f"echo {options.kernel} > /run/osrelease"))
        mounts.append(("mount", "--bind", "/run/osrelease", "/proc/sys/kernel/osrelease"))
    return mounts


def _firewall(options: Options, *, first: bool) -> tuple[Step, ...]:
    """Return the steps by which the image's services load firewall rules at each boot, from its files."""
    match options.firewall:
        case "oci" | "oci-legacy":
            return (Step(argv=("iptables-restore", "/etc/iptables/rules.v4")),)
        case "nftables":
            return (Step(argv=("nft", "--file", "/etc/nftables.conf")),)
        case "ufw":
            if not first:
                return (Step(argv=("/lib/ufw/ufw-init", "start")),)
            return (Step(argv=("ufw", "allow", "22/tcp")), Step(argv=("ufw", "--force", "enable")))
        case "none":
            return ()


def _lines(commands: list[str]) -> str:
    return "".join(f"{command}\n" for command in commands)
