"""`gpuctl exec -- true` on 16 hosts beside 16 parallel OpenSSH clients, and what each part of it costs.

Twice: on 16 local hosts (asyncssh), where a connection costs a server next to nothing, and on 16 servers of OpenSSH's
own, as machines really have them. Prints the parts and the median ratio of wall times over several pairs in one run.
Exits 1 if gpuctl is slower on OpenSSH's servers; without sshd on this machine that half is left out, and said so.

    python bench/fanout.py [PAIRS]
"""

import contextlib
import getpass
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BIN = Path(sys.executable).parent
HOSTS = 16
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
PARTS = """
import json, sys, time
from pathlib import Path
marks = [time.perf_counter()]
from inventories.ansible import read_inventory
inventory = read_inventory(Path(sys.argv[1]) / "inventory.yaml")
marks.append(time.perf_counter())
import remote.connection, remote.fanout
marks.append(time.perf_counter())
machines = {machine.name: machine for machine in inventory.machines}
known = Path(sys.argv[1]) / "known_hosts"
nodes = remote.fanout.values(remote.fanout.fan_out(lambda m: remote.connection.connect(m, known), machines))
marks.append(time.perf_counter())
remote.fanout.values(remote.fanout.fan_out(lambda node: node.run("true"), nodes))
marks.append(time.perf_counter())
for node in nodes.values():
    node.close()
marks.append(time.perf_counter())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""
NAMES = ("read the inventory", "import the SSH stack", "connect to 16 hosts", "run true on 16 hosts", "close")


def gpuctl(home: Path, *words: str) -> str:
    env = {**os.environ, "GPUCTL_HOME": str(home)}
    done = subprocess.run([str(BIN / "gpuctl"), *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpuctl {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


def openssh_clients(config: Path) -> None:
    clients = [
        subprocess.Popen(["ssh", "-F", str(config), f"default-{rank}", "true"], stdin=subprocess.DEVNULL)
        for rank in range(HOSTS)
    ]
    if any(client.wait(60) != 0 for client in clients):
        sys.exit("an OpenSSH client failed")


@contextlib.contextmanager
def openssh_servers(folder: Path) -> Iterator[tuple[Path, Path]]:
    """16 sshd on loopback, in a clean home; gives an inventory of them and a known_hosts file."""
    inventory, known, servers = ["all:", "  hosts:"], [], []
    make_key(folder / "id")
    (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    try:
        for rank in range(HOSTS):
            public = make_key(folder / f"host_key_{rank}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            config = folder / f"sshd_config_{rank}"
            config.write_text(
                f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / f'host_key_{rank}'}\n"
                "PidFile none\nUsePAM no\n"
                f"AuthorizedKeysFile {folder / 'authorized_keys'}\nStrictModes no\nPasswordAuthentication no\n"
                f"SetEnv HOME={folder}\n"
            )
            servers.append(subprocess.Popen([str(SSHD), "-D", "-f", str(config)], stderr=subprocess.DEVNULL))
            known.append(f"[127.0.0.1]:{port} {public}")
            inventory += [
                f"    default-{rank}:",
                "      ansible_host: 127.0.0.1",
                f"      ansible_port: {port}",
            ]
            inventory += [
                f"      ansible_user: {getpass.getuser()}", f"      ansible_ssh_private_key_file: {folder / 'id'}",
                f"      ansible_python_interpreter: {sys.executable}",
            ]  # fmt: skip
            wait_for_port(port)
        (folder / "hosts.yaml").write_text("\n".join(inventory) + "\n")
        (folder / "known_hosts").write_text("\n".join(known) + "\n")
        yield folder / "hosts.yaml", folder / "known_hosts"
    finally:
        for server in servers:
            server.terminate()
            server.wait(10)


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def wait_for_port(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit("sshd did not come up within 10 s")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(home: Path, pairs: int, what: str) -> float:
    """Print the parts and the ratio; the cluster is up. Returns the median ratio."""
    config = home / "config"
    config.write_text(gpuctl(home, "ssh-config"))
    command = [sys.executable, "-c", PARTS, str(home / "clusters" / "default")]
    parts = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(pairs)
    ]
    print(f"{HOSTS} {what}:")
    for name, seconds in zip(NAMES, zip(*parts, strict=True), strict=True):
        print(f"  {name:22} {statistics.median(seconds) * 1000:7.1f} ms")
    rows = []
    for _ in range(pairs):
        ours = timed(lambda: gpuctl(home, "exec", "--", "true"))
        rows.append((ours, timed(lambda: openssh_clients(config))))
    ratios = [ours / theirs for ours, theirs in rows]
    print(
        f"  gpuctl exec / {HOSTS} parallel ssh: median ratio {statistics.median(ratios):.2f} "
        f"(min {min(ratios):.2f}, max {max(ratios):.2f}, {pairs} pairs); medians "
        f"{statistics.median(row[0] for row in rows):.3f} s and {statistics.median(row[1] for row in rows):.3f} s"
    )
    return statistics.median(ratios)


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gpuctl(home, "up", "--provider", "local", "--count", str(HOSTS))
        try:
            measure(home, pairs, "local hosts")
        finally:
            gpuctl(home, "down", "--yes")
    if SSHD is None:
        print("OpenSSH's servers were left out: sshd is not installed on this machine")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with openssh_servers(home) as (hosts, known):
            gpuctl(home, "up", "--hosts", str(hosts), "--known-hosts", str(known))
            ratio = measure(home, pairs, "OpenSSH servers")
            gpuctl(home, "down")
    return 0 if ratio <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
