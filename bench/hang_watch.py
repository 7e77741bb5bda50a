"""Measure what the watch for hangs costs a training step.

The same script of two ranks runs on two clusters of two local hosts, watched and with `--hang-after off`. Both stay
up, and take a few steps each in turn, so that other load on this machine affects both alike. The script writes no
metrics: then the watch has to ask the flight recorder, which costs most. Prints the median ratio of a step's time;
the ratio of the CPU time of all steps, which hardly depends on other load; and the CPU time of the watch itself, as a
share of a core. Exits 1 if the last two together are above 0.5 %.

    python bench/hang_watch.py [PAIRS [STEPS]]
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import gpuctl, turned

LIMIT = 0.005
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist

folder, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
weights, gradient = torch.randn(512, 512), torch.randn(100_000)
orders, answers = open(f"{folder}/orders-{rank}"), open(f"{folder}/answers-{rank}", "w", buffering=1)
for _ in orders:
    began = time.perf_counter()
    for _ in range(steps):
        for _ in range(4):
            weights @ weights
            dist.all_reduce(gradient)
    print(time.perf_counter() - began, time.process_time(), file=answers)
"""
"""A script that takes its steps on each order."""


class Job:
    """A run that takes steps on request."""

    def __init__(self, home: Path, name: str, steps: int, *options: str) -> None:
        self._home, self._name = home, name
        self._folder = home / name
        self._folder.mkdir()
        for rank in (0, 1):
            os.mkfifo(self._folder / f"orders-{rank}")
            os.mkfifo(self._folder / f"answers-{rank}")
        (self._folder / "train.py").write_text(SCRIPT)
        self._gpuctl("up", "--provider", "local", "--count", "2")
        run = self._gpuctl("train", "--json", "--detach", *options, "train.py", str(self._folder), str(steps))
        self.run: str = json.loads(run)["run"]
        self._orders = [(self._folder / f"orders-{rank}").open("w", buffering=1) for rank in (0, 1)]
        self._answers = [(self._folder / f"answers-{rank}").open() for rank in (0, 1)]

    def take_steps(self) -> tuple[float, float]:
        """Return seconds for the steps, and all CPU seconds of the ranks so far, also between steps."""
        for orders in self._orders:
            print("go", file=orders)
        seconds = [[float(word) for word in answers.readline().split()] for answers in self._answers]
        return max(wall for wall, _ in seconds), sum(cpu for _, cpu in seconds)

    def watch_cpu_s(self) -> float:
        """Return the CPU time of the watches so far."""
        files = self._home.glob(
            f"clusters/{self._name}/local/*/home/.gpuctl-node/runs/{self.run}/*/hangs/watched"
        )
        times = [psutil.Process(int(file.read_text())).cpu_times() for file in files]
        return sum(cpu.user + cpu.system for cpu in times)

    def end(self) -> None:
        for orders in self._orders:
            orders.close()
        self._gpuctl("logs", "-f", self.run)
        self._gpuctl("down", "--yes")

    def _gpuctl(self, *words: str) -> str:
        return gpuctl(self._home, "--cluster", self._name, *words, cwd=self._folder)


@contextmanager
def job(home: Path, name: str, steps: int, *options: str) -> Iterator[Job]:
    made = Job(home, name, steps, *options)
    try:
        yield made
    finally:
        made.end()


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with (
        tempfile.TemporaryDirectory() as folder,
        job(Path(folder), "watched", steps) as watched,
        job(Path(folder), "off", steps, "--hang-after", "off") as off,
    ):
        before = {}
        for side in (watched, off, watched, off):
            _, before[side.run] = side.take_steps()  # warm-up
        began, used_s = time.monotonic(), watched.watch_cpu_s()
        ratios, step_s, cpu = [], [], dict(before)
        for number in range(pairs):
            took = {}
            for side in turned((off, watched), number):
                took[side.run], cpu[side.run] = side.take_steps()
            ratios.append(took[watched.run] / took[off.run])
            step_s.append(took[off.run] / steps)
        wall_s = time.monotonic() - began
        share = (watched.watch_cpu_s() - used_s) / 2 / wall_s
        cpu_ratio = (cpu[watched.run] - before[watched.run]) / (cpu[off.run] - before[off.run])
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(
        f"a step of {statistics.median(step_s) * 1000:.1f} ms with 4 collectives, {pairs} pairs of {steps} steps"
    )
    print(f"time of a step with the watch / without: {ratio:.4f} (quartiles {low:.4f} to {high:.4f})")
    print(f"CPU time of the ranks with the watch / without: {cpu_ratio:.4f}")
    print(f"the watch itself: {share:.3%} of a core on each node")
    cost = cpu_ratio - 1 + share
    print(f"CPU time together: {cost:+.2%} (limit {LIMIT:.1%})")
    return 0 if cost <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
