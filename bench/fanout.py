"""What each part of `gpuctl exec -- true` on 16 local hosts costs, beside 16 parallel OpenSSH clients.

Prints the parts, then the median ratio over several pairs in one run; exits 1 if gpuctl is slower.

    python bench/fanout.py [PAIRS]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BIN = Path(sys.executable).parent
HOSTS = 16
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


def openssh(config: Path) -> None:
    clients = [
        subprocess.Popen(["ssh", "-F", str(config), f"default-{rank}", "true"], stdin=subprocess.DEVNULL)
        for rank in range(HOSTS)
    ]
    if any(client.wait(60) != 0 for client in clients):
        sys.exit("an OpenSSH client failed")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gpuctl(home, "up", "--provider", "local", "--count", str(HOSTS))
        try:
            config = home / "config"
            config.write_text(gpuctl(home, "ssh-config"))
            cluster = home / "clusters" / "default"
            measure = [sys.executable, "-c", PARTS, str(cluster)]
            parts = [
                json.loads(subprocess.run(measure, capture_output=True, check=True).stdout)
                for _ in range(pairs)
            ]
            for name, seconds in zip(NAMES, zip(*parts, strict=True), strict=True):
                print(f"{name:22} {statistics.median(seconds) * 1000:7.1f} ms")
            rows = []
            for _ in range(pairs):
                ours = timed(lambda: gpuctl(home, "exec", "--", "true"))
                rows.append((ours, timed(lambda: openssh(config))))
        finally:
            gpuctl(home, "down", "--yes")
    ratios = [ours / theirs for ours, theirs in rows]
    ratio = statistics.median(ratios)
    print(
        f"gpuctl exec / {HOSTS} parallel ssh: median ratio {ratio:.3f} (min {min(ratios):.3f}, max "
        f"{max(ratios):.3f}, {pairs} pairs, limit 1); medians "
        f"{statistics.median(row[0] for row in rows):.3f} s and {statistics.median(row[1] for row in rows):.3f} s"
    )
    return 0 if ratio <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
