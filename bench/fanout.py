"""Compare `gpuctl exec -- true` on 2, 16 and 64 hosts with other tools, and show the cost of its parts.

The hosts are OpenSSH servers on loopback. The other tools: parallel OpenSSH clients; pssh; Ansible's `raw`; and
OpenSSH clients over open connections (ControlMaster), without handshakes. In each round all of them run once, in an
order that changes; the first does not count. Prints medians and gpuctl's ratio to each; exits 1 if gpuctl is slower
than any but the last on 16 hosts or more: on fewer its start and its imports decide, and a person notices neither.
Tools that are not installed are left out, with a note. At the end, for comparison, the same on 16 `local` hosts
(asyncssh), where a connection costs a server next to nothing.

    python bench/fanout.py [ROUNDS [HOSTS...]]
"""

import getpass
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import BIN, gpuctl, keep_byte_code, median_ratio, run, timed, turned
from bench.parts.servers import SSHD, openssh_servers

COUNTS = (2, 16, 64)
MANY = 16
LOCAL_HOSTS = 16
PSSH = shutil.which("parallel-ssh") or shutil.which("pssh")
ANSIBLE = shutil.which("ansible", path=f"{BIN}:{os.environ['PATH']}")
MULTIPLEXED = "ssh, multiplexed"
PARTS = """
import json, sys, time
from pathlib import Path
marks = [time.perf_counter()]
from inventories.ansible.inventory import read_inventory
from inventories.disk.store import ClusterFolder
inventory = read_inventory(Path(sys.argv[1]) / "inventory.yaml")
marks.append(time.perf_counter())
import remote.transport.ssh
from remote.sessions.connect import connect
from remote.fanout import fan_out, values
marks.append(time.perf_counter())
machines = {machine.name: machine for machine in inventory.machines}
cluster = ClusterFolder(Path(sys.argv[1]))
nodes = values(fan_out(lambda machine: connect(machine, cluster), machines))
marks.append(time.perf_counter())
values(fan_out(lambda node: node.run("true"), nodes))
marks.append(time.perf_counter())
for node in nodes.values():
    node.close()
marks.append(time.perf_counter())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""
NAMES = ("read the inventory", "import the SSH stack", "connect", "run true", "close")


def openssh_clients(config: Path, count: int, *options: str) -> None:
    clients = [
        subprocess.Popen(
            ["ssh", "-F", str(config), *options, f"default-{rank}", "true"], stdin=subprocess.DEVNULL
        )
        for rank in range(count)
    ]
    if any(client.wait(60) != 0 for client in clients):
        sys.exit("an OpenSSH client failed")


def inventory_of(folder: Path, ports: Sequence[int]) -> Path:
    """Write an inventory of the servers with these ports."""
    lines = ["all:", "  hosts:"]
    for rank, port in enumerate(ports):
        lines += [
            f"    default-{rank}:",
            "      ansible_host: 127.0.0.1",
            f"      ansible_port: {port}",
            f"      ansible_user: {getpass.getuser()}",
            f"      ansible_ssh_private_key_file: {folder / 'id'}",
            f"      ansible_python_interpreter: {sys.executable}",
        ]
    (folder / "hosts.yaml").write_text("\n".join(lines) + "\n")
    return folder / "hosts.yaml"


def show_parts(home: Path, rounds: int) -> None:
    """Print the cost of `gpuctl exec`'s parts, each measured in a fresh process."""
    command = [sys.executable, "-c", PARTS, str(home / "clusters" / "default")]
    parts = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(rounds)
    ]
    medians = [statistics.median(seconds) * 1000 for seconds in zip(*parts, strict=True)]
    print("  " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in zip(NAMES, medians, strict=True)))


def rivals(home: Path, count: int) -> dict[str, Callable[[], object]]:
    """Return the other tools, with the same addresses, keys and pinned host keys; opens the master connections."""
    config, sockets = home / "config", home / "s"
    config.write_text(gpuctl(home, "ssh-config"))
    tools: dict[str, Callable[[], object]] = {f"{count} parallel ssh": lambda: openssh_clients(config, count)}
    names = [f"default-{rank}" for rank in range(count)]
    if PSSH is not None:
        (home / "names").write_text("\n".join(names) + "\n")
        words = [PSSH, "-h", str(home / "names"), "-p", str(count), "-x", f"-F {config}", "true"]
        tools["pssh"] = lambda: run(words)
    if ANSIBLE is not None:
        (home / "ansible.ini").write_text("\n".join(names) + "\n")
        raw = [ANSIBLE, "all", "-i", str(home / "ansible.ini"), "-f", str(count), "-m", "raw", "-a", "true"]
        arguments = f"-F {config} -o ControlMaster=no"
        tools["ansible -m raw"] = lambda: run(raw, ANSIBLE_SSH_ARGS=arguments)
    sockets.mkdir(exist_ok=True)
    shared = ["-o", f"ControlPath={sockets}/%n", "-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
    openssh_clients(config, count, *shared)
    tools[MULTIPLEXED] = lambda: openssh_clients(config, count, *shared)
    return tools


def close_masters(home: Path) -> None:
    for socket_path in (home / "s").glob("*"):
        subprocess.run(
            ["ssh", "-o", f"ControlPath={socket_path}", "-O", "exit", "x"], capture_output=True, check=False
        )


def measure(home: Path, count: int, rounds: int, kind: str) -> list[str]:
    """Print the parts and the ratios of a running cluster. Returns a sentence for each tool that is faster."""
    clients = {"gpuctl exec": lambda: gpuctl(home, "exec", "--", "true"), **rivals(home, count)}
    try:
        print(f"{count} {kind}:")
        show_parts(home, rounds)
        for client in clients.values():
            client()
        times: dict[str, list[float]] = {name: [] for name in clients}
        for number in range(rounds):
            for name in turned(list(clients), number):
                times[name].append(timed(clients[name])[0])
    finally:
        close_masters(home)
    ours = times.pop("gpuctl exec")
    print(f"  {'gpuctl exec':18} {statistics.median(ours) * 1000:7.0f} ms")
    ahead = []
    for name, theirs in times.items():
        ratio = median_ratio(ours, theirs)
        print(
            f"  {name:18} {statistics.median(theirs) * 1000:7.0f} ms   gpuctl / this: median ratio {ratio:.2f}",
            flush=True,
        )
        if ratio > 1 and name != MULTIPLEXED and count >= MANY:
            ahead.append(f"{name} is faster on {count} {kind}")
    return ahead


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        keep_byte_code(folder)
        return compare()


def compare() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    counts = tuple(map(int, sys.argv[2:])) or COUNTS
    ahead = []
    for name, program in (("pssh", PSSH), ("ansible", ANSIBLE)):
        if program is None:
            print(f"{name} was left out: it is not installed on this machine")
    if SSHD is None:
        print("OpenSSH's servers were left out: sshd is not installed on this machine")
    for count in counts if SSHD else ():
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            with openssh_servers(home, [home] * count) as ports:
                hosts = inventory_of(home, ports)
                gpuctl(home, "up", "--hosts", str(hosts), "--known-hosts", str(home / "known_hosts"))
                ahead += measure(home, count, rounds, "OpenSSH servers")
                gpuctl(home, "down")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gpuctl(home, "up", "--provider", "local", "--count", str(LOCAL_HOSTS))
        try:
            measure(home, LOCAL_HOSTS, rounds, "local hosts")
        finally:
            gpuctl(home, "down", "--yes")
    for sentence in ahead:
        print(sentence, file=sys.stderr)
    return 1 if ahead else 0


if __name__ == "__main__":
    sys.exit(main())
