"""Compare the time before the launch of `gpuctl train` on fresh machines and on prepared ones.

Two hosts like OCI's Ubuntu image (firewall, interface, hostname), in network namespaces; without Linux and root, two
local hosts, with a note. Prints the parts and the ratio of again to first; exits 1 if connecting, preparing (facts,
firewall, environment, code) and the preflight together take 2 s or more again.

    python bench/second_run.py [RUNS]
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import gpuctl
from tests.fakes.vms import lacking, vms

LIMIT_S = 2.0
PARTS = ("connect", "prepare", "preflight")
SCRIPT = "print('ready')\n"


@contextmanager
def cluster(home: Path) -> Iterator[str]:
    """Yield the description of two hosts that are up."""
    if sentence := lacking():
        gpuctl(home / "home", "up", "--provider", "local", "--count", "2")
        yield f"two local hosts ({sentence})"
        return
    with vms(home, count=2, firewall="oci") as net:
        hosts_file, known_hosts = net.inventory(python=sys.executable)
        gpuctl(home / "home", "up", "--hosts", str(hosts_file), "--known-hosts", str(known_hosts))
        yield "two hosts as OCI's Ubuntu image is"
        gpuctl(home / "home", "down", "--yes")


def train(home: Path) -> dict[str, float]:
    """Return the seconds of a run's parts before its launch."""
    seconds = json.loads(gpuctl(home / "home", "train", "--json", "ready.py", cwd=home / "project"))[
        "seconds"
    ]
    return {part: seconds[part] for part in PARTS}


def show(name: str, seconds: dict[str, float]) -> None:
    total = sum(seconds.values())
    shares = ", ".join(f"{part} {value:.2f} s ({value / total:.0%})" for part, value in seconds.items())
    print(f"{name:>6}: {total:.2f} s = {shares}", flush=True)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "project").mkdir()
        (home / "project" / "ready.py").write_text(SCRIPT)
        with cluster(home) as description:
            print(description)
            first = train(home)
            show("first", first)
            later = []
            for _ in range(runs):
                later.append(train(home))
                show("again", later[-1])
        if lacking():
            gpuctl(home / "home", "down", "--yes")
    totals = [sum(seconds.values()) for seconds in later]
    again = statistics.median(totals)
    ratio = again / sum(first.values())
    print(
        f"again / first: {ratio:.2f}; again: median {again:.2f} s (min {min(totals):.2f}, max {max(totals):.2f}, "
        f"{runs} runs, limit {LIMIT_S:.0f} s)"
    )
    return 0 if again < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
