"""Simulate machines on this one: network namespaces with slow links, and GPUs of a given speed.

Needs root, `ip`, `tc`, `nsenter` and `unshare`. The job in them is the real one, on gloo.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from train.advice.machines import Machines
from train.advice.speed import ATTAINED, LINK_SHARES
from train.reporting.gpu_peaks import Peaks

ROOT = Path(__file__).parents[2]
RANK = Path(__file__).with_name("planted_rank.py")
LIMIT_S = 300.0
"""For a job to end."""
PORT = 29400
SUBNET = "10.99.0"
FIRST = f"{SUBNET}.1"
"""Address of the first machine, inside the namespaces."""
MTU, BURST = 9000, "20kb"
"""A burst goes through at once, and must be small compared with a message."""
FAST_GB_S = 1000.0
"""Bandwidth of unlimited links: no time."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Machines of a shape that nobody rents out."""

    count: int
    ranks: int
    """Ranks on each machine."""
    rate: float
    """Operations a second of a rank."""
    between_mb_s: float = 0.0
    """Bandwidth between machines in each direction, 10**6 bytes a second; 0: a single machine."""
    within_mb_s: float = 0.0
    """Bandwidth between the ranks of a machine; 0: a single rank."""

    @property
    def machines(self) -> Machines:
        """Return data-sheet figures whose ranges have these rates in the middle."""
        peak = self.rate / _middle(ATTAINED) / 1e12
        sheet = {"tflops": {"fp32": peak}, "gb_s": FAST_GB_S}
        return Machines(
            shape="planted",
            count=self.count,
            gpus=self.ranks,
            gpu="planted",
            gpu_memory_gb=64.0,
            between_gb_s=self.between_mb_s / 1000 / _middle(LINK_SHARES) or None,
            hourly_usd=None,
            peaks=Peaks(**sheet, link_gb_s=self.within_mb_s / 1000 / _middle(LINK_SHARES) or FAST_GB_S),
            backend="gloo",
        )


def lacking() -> str | None:
    """Return what is missing on this machine, or `None`."""
    absent = [program for program in ("ip", "tc", "nsenter", "unshare") if shutil.which(program) is None]
    return ", ".join(absent) or ("root" if os.geteuid() else None)


def measured_step_s(planted: Planted, words: Sequence[str], tp: int) -> float:
    """Return the median time of a step of the job with these options. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder, _namespaces(planted) as spaces, ExitStack() as held:
        processes = []
        for rank in range(planted.count * planted.ranks):
            place = Path(folder, str(rank))
            place.mkdir()
            log = held.enter_context((place / "log").open("w"))
            node, local = divmod(rank, planted.ranks)
            env = {
                **os.environ,
                **_variables(planted, rank, local),
                "GPUCTL_RUN_DIR": str(place),
                "GPUCTL_METRICS": str(place / "metrics"),
            }
            argv = [*_enter(spaces[node]), sys.executable, str(RANK), str(planted.rate), str(tp), *words]
            process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            held.callback(_end, process)
            processes.append(process)
        for rank, process in enumerate(processes):
            if process.wait(LIMIT_S):
                raise RuntimeError(
                    f"rank {rank} failed:\n{Path(folder, str(rank), 'log').read_text()[-3000:]}"
                )
        return _p50_s(Path(folder, "0", "metrics"))


def _middle(ends: tuple[float, float]) -> float:
    return float((ends[0] * ends[1]) ** 0.5)


def _variables(planted: Planted, rank: int, local: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(planted.count * planted.ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(planted.ranks),
        "MASTER_ADDR": FIRST if planted.count > 1 else "127.0.0.1",
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": "eth0" if planted.count > 1 else "lo",
        "OMP_NUM_THREADS": "1",
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _p50_s(metrics: Path) -> float:
    """Return the median step time from the job's last line."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    medians = [line["step_ms"]["p50"] for line in lines if isinstance(line.get("step_ms"), dict)]
    return float(medians[-1]) / 1000


@contextmanager
def _namespaces(planted: Planted) -> "Iterator[list[int]]":
    """Make one network namespace for each machine; yields processes in them. They end with these processes."""
    with ExitStack() as held:
        spaces = [held.enter_context(_space()) for _ in range(planted.count)]
        for space in spaces:
            _run(space, "ip", "link", "set", "lo", "mtu", str(MTU), "up")
            if planted.ranks > 1 and planted.within_mb_s:
                # All ranks of a machine share the link, in both directions.
                _shape(space, "lo", planted.ranks * planted.within_mb_s)
        if planted.count > 1:
            first, second = spaces
            peer = ["type", "veth", "peer", "name", "eth0", "netns", f"/proc/{second}/ns/net"]
            _run(first, "ip", "link", "add", "eth0", *peer)
            for number, space in enumerate(spaces, 1):
                _run(space, "ip", "address", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
                _run(space, "ip", "link", "set", "eth0", "mtu", str(MTU), "up")
                _shape(space, "eth0", planted.between_mb_s)
        yield spaces


def _shape(space: int, device: str, mb_s: float) -> None:
    """Limit a device's send rate."""
    limits = ["rate", f"{mb_s * 8:.0f}mbit", "burst", BURST, "latency", "50ms"]
    _run(space, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits)


@contextmanager
def _space() -> Iterator[int]:
    """Hold a network namespace by a process in it."""
    argv = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if not holder.stdout.readline():  # before that line the process may not be in its namespace yet
            raise RuntimeError("no network namespace can be made here: it needs root")
        try:
            yield holder.pid
        finally:
            holder.stdin.close()


def _enter(space: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{space}/ns/net")


def _run(space: int, *argv: str) -> None:
    done = subprocess.run([*_enter(space), *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
