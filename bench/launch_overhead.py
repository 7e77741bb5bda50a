"""Measure what `gpuctl train` adds to a launch by hand.

The same one-epoch job on the same two prepared local hosts, in pairs: `gpuctl train`, and the two torchrun commands
that a person would start over plain ssh. Prints the median ratio of wall times; exits 1 above 1.0.

    python bench/launch_overhead.py [PAIRS]
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import gpuctl, spread, timed, turned

LIMIT = 1.0
JOB = ["--epochs", "1"]


def by_hand(config: Path, launches: list[dict[str, object]]) -> None:
    """Run a person's commands in two terminals: cd, two variables, torchrun."""
    port = str(random.randint(20000, 29999))
    terminals = []
    for rank, node in enumerate(launches):
        variables = {name: node["env"][name] for name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")}  # type: ignore[index]
        command = (
            f"cd {node['cwd']} && {' '.join(f'{name}={value}' for name, value in variables.items())} "
            f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank {rank} "
            f"--master-addr 127.0.0.1 --master-port {port} -m train {' '.join(JOB)}"
        )
        words = ["ssh", "-F", str(config), str(node["node"]), command]
        terminals.append(
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    for terminal in terminals:
        _, error = terminal.communicate(timeout=120)
        if terminal.returncode != 0:
            sys.exit(f"torchrun by hand failed:\n{error}")


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gpuctl(home, "up", "--provider", "local", "--count", "2")
        try:
            config = home / "config"
            config.write_text(gpuctl(home, "ssh-config"))
            launches = json.loads(gpuctl(home, "train", "--dry-run", "--json", "--", *JOB))["nodes"]
            # A warm-up of each: code sent, files in the page cache.
            gpuctl(home, "train", "--", *JOB)
            by_hand(config, launches)
            ways: dict[str, Callable[[], object]] = {
                "hand": partial(by_hand, config, launches),
                "ours": partial(gpuctl, home, "train", "--", *JOB),
            }
            rows = []
            for pair in range(pairs):
                seconds = {name: timed(ways[name])[0] for name in turned(list(ways), pair)}
                rows.append((seconds["ours"], seconds["hand"]))
                print(f"pair {pair + 1}: gpuctl {rows[-1][0]:.2f} s, by hand {rows[-1][1]:.2f} s", flush=True)
        finally:
            gpuctl(home, "down", "--yes")
    ratios = [ours / hand for ours, hand in rows]
    shown = spread(ratios, 3, f"{pairs} pairs, limit {LIMIT}")
    ours_s, hand_s = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"gpuctl train / torchrun by hand: median ratio {shown}; medians {ours_s:.2f} s and {hand_s:.2f} s")
    return 0 if statistics.median(ratios) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
