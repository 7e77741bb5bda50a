"""Helpers for tests of gpuctl on VM-like hosts."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import Done, Gpuctl, wait_for

from tests.fakes.vms import Host, Net, vms

ALLREDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
HELLO = "import os\nprint('hello of rank', os.environ['RANK'])\n"
ENDLESS = ("--model", "mlp", "--epochs", "100000", "--checkpoint-every", "1", "--threads", "1")
"""Arguments of the built-in job, which trains until it is stopped."""
STEPS = """
import os, sys, time
print("begins", os.environ["RANK"], flush=True)
limit = time.monotonic() + float(sys.argv[1])
while time.monotonic() < limit:
    time.sleep(0.1)
print("ends", flush=True)
"""
"""A script that sleeps for the number of seconds in its argument."""


def up(gpuctl: Gpuctl, net: Net, *, python: str | None = sys.executable) -> None:
    """Create a cluster of the hosts."""
    hosts_file, known_hosts = net.inventory(python=python)
    gpuctl.ok("up", "--provider", "hosts", "--hosts", str(hosts_file), "--known-hosts", str(known_hosts))


@contextmanager
def cluster(
    gpuctl: Gpuctl, folder: Path, *, python: str | None = sys.executable, **options: Any
) -> Iterator[Net]:
    """Yield a cluster of fresh hosts, with the scripts of this module in the project."""
    for name, text in {"allreduce.py": ALLREDUCE, "hello.py": HELLO, "steps.py": STEPS}.items():
        gpuctl.script(name, text)
    with vms(folder, **options) as net:
        up(gpuctl, net, python=python)
        yield net


def runs_of(gpuctl: Gpuctl) -> list[Path]:
    """Return the folders of all runs, oldest first."""
    return sorted((gpuctl.home / "runs").glob("*"))


def wait_for_ranks(gpuctl: Gpuctl, hosts: tuple[Host, ...], word: str = "begins") -> str:
    """Blocks until the latest run's script has printed `word` on each host; the run's id."""

    def at_work(host: Host) -> bool:
        logs = f"/home/{host.user}/.gpuctl-node/runs/{run}/{host.name}/logs/rank-*.log"
        return host.root(f"grep -q {word} {logs}", check=False).returncode == 0

    run = wait_for(lambda: runs_of(gpuctl), what="a run")[-1].name
    wait_for(lambda: all(map(at_work, hosts)), what=f"{word!r} of all ranks")
    return str(run)


def begin(gpuctl: Gpuctl, hosts: tuple[Host, ...], *words: str) -> "tuple[subprocess.Popen[str], str]":
    """Start `gpuctl train`, wait until all ranks take steps, and return the process and the run's id."""
    before = len(runs_of(gpuctl))
    process = gpuctl.start("train", "--json", *words)
    wait_for(lambda: len(runs_of(gpuctl)) > before or process.poll() is not None, what="the run")
    assert process.poll() is None, process.communicate()
    return process, wait_for_ranks(gpuctl, hosts)


def end_of(process: "subprocess.Popen[str]", *, timeout_s: float = 120) -> Done:
    """Wait for the command to end, and return its output and status."""
    out, err = process.communicate(timeout=timeout_s)
    return Done(status=process.returncode, out=out, err=err)


def log_of(gpuctl: Gpuctl, run: str, rank: int) -> str:
    """Return the local copy of a rank's log."""
    return (gpuctl.run_folder(run) / "logs" / f"rank-{rank}.log").read_text()


def on_node(host: Host, run: str, name: str) -> Any:
    """Return a JSON file of a run, as stored on the node."""
    return json.loads(host.root(f"cat /home/{host.user}/.gpuctl-node/runs/{run}/{host.name}/{name}").stdout)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that may be growing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def resumed_by(gpuctl: Gpuctl, run: str) -> list[str]:
    """Return the ids of the run that this run resumed, of the run before it, and so on."""
    result: list[str] = []
    while (run := json.loads((gpuctl.run_folder(run) / "run.json").read_text())["resumed_from"]) is not None:
        result.append(run)
    return result


def run_on(
    gpuctl: Gpuctl, nodes: int, after: str, process: "subprocess.Popen[str]"
) -> Callable[[], str | None]:
    """Return a poll for a run later than `after` that takes steps on that number of nodes, by its id."""

    def look() -> str | None:
        for folder in sorted((gpuctl.home / "runs").glob("*")):
            steps = [line for line in lines(folder / "metrics" / "rank-0.jsonl") if "step" in line]
            if (
                folder.name > after
                and steps
                and len(json.loads((folder / "run.json").read_text())["nodes"]) == nodes
            ):
                return folder.name
        assert process.poll() is None, process.communicate()
        return None

    return look
