"""Run gpuctl as a person does, with helpers for tests."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from forks import Forks

from gpuctl.global_options import Options
from gpuctl.output import Output
from inventories.disk.store import Store
from inventories.machine import Inventory, Machine
from inventories.runs.result import Result, Seconds, TrainSummary
from inventories.runs.run import Run, RunNode

BIN = Path(sys.executable).parent
STARTED: "list[subprocess.Popen[str]]" = []
"""The commands that tests have started and not run to their end."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A gpuctl command that ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)


@dataclass(frozen=True, kw_only=True)
class Gpuctl:
    """The installed command, with a home and a working folder of its own."""

    home: Path
    cwd: Path
    forks: Forks | None = None
    """Source of forked commands; `None`: each command is the installed program."""

    @property
    def env(self) -> dict[str, str]:
        """Return the command's environment, without the developer's own settings."""
        return {**clean_env(), "GPUCTL_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "100"}

    def start(self, *words: str, cwd: Path | None = None, **options: Any) -> "subprocess.Popen[str]":
        """Start a command in a session of its own; the caller ends it."""
        return self.start_program(BIN / "gpuctl", *words, cwd=cwd, **options)

    def start_program(
        self, *words: str | Path, cwd: Path | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        """Start any program as `start` does a command."""
        process = subprocess.Popen(
            words,
            cwd=cwd or self.cwd,
            env={**self.env, **options.pop("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        STARTED.append(process)
        return process

    def __call__(self, *words: str, timeout_s: float = 120, cwd: Path | None = None, **options: Any) -> Done:
        """Run a command to its end."""
        process: Any
        if self.forks is None:
            process = self.start(*words, cwd=cwd, **options)
        else:
            env = {**self.env, **options.pop("env", {})}
            process = self.forks.start(words, env=env, cwd=cwd or self.cwd, **options)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"gpuctl {' '.join(words)} hung:\n{out}\n{err}") from None
        return Done(status=process.returncode, out=out, err=err)

    def ok(self, *words: str, **options: Any) -> Done:
        """Run a command that must succeed."""
        done = self(*words, **options)
        assert done.status == 0, f"gpuctl {' '.join(words)}: {done.status}\n{done.out}\n{done.err}"
        return done

    def script(self, name: str, text: str) -> Path:
        """Write a file into the working folder."""
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def kill_host(self, name: str) -> None:
        """End all that runs on a local host of the default cluster, as a power cut does."""
        kill_all(str(self.home / "clusters" / "default" / "local" / name))

    def run_folder(self, run: str) -> Path:
        """Return a run's folder on this computer."""
        return self.home / "runs" / run


def end_started() -> None:
    """End the commands that a test which failed has left going; others of its file would fail for them."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def clean_env() -> dict[str, str]:
    """Return the environment without the developer's own settings of gpuctl and of the clouds."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUCTL_", "AWS_", "OCI_"))
    }


def a_run(**fields: Any) -> Run:
    """Return the record of a run of a script on one node, with these fields changed."""
    usual = Run(
        run="20261121-054625-3fa9",
        cluster="default",
        mode="torchrun",
        script="my.py",
        args=(),
        nodes=(RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run"),),
        master_addr="127.0.0.1",
        master_port=20001,
        started_at="2026-11-21T05:46:25+00:00",
    )
    return replace(usual, **fields)


def a_machine(**fields: Any) -> Machine:
    """Return the record of a running machine, with these fields changed; its id is its name."""
    name, host = fields.get("name", "gpu-0"), fields.get("host", "127.0.0.1")
    usual = {"rank": 0, "state": "running", "user": "me", "private_ip": host, "gpus": 0, "id": name}
    return Machine(**{"name": name, "host": host} | usual | fields)


def an_inventory(*machines: Machine, **fields: Any) -> Inventory:
    """Return the inventory of a cluster of these machines, with these fields changed."""
    usual = {"cluster": "default", "provider": "hosts", "created_at": "2026-11-21T05:46:25+00:00"}
    return Inventory(**usual | {"machines": machines} | fields)


def a_result(**fields: Any) -> Result:
    """Return the successful result of such a run, with these fields changed."""
    usual = Result(
        run="20261121-054625-3fa9",
        cluster="default",
        mode="torchrun",
        script="my.py",
        status="succeeded",
        exit_code=0,
        nnodes=1,
        nproc_per_node=1,
        world_size=1,
        started_at="2026-11-21T05:46:25+00:00",
        ended_at="2026-11-21T05:46:41+00:00",
        seconds=Seconds(total=16.0),
        train=TrainSummary(),
        ranks=(),
        first_error=None,
        cost_usd=0.0,
        dir="/home/me/.gpuctl/runs/20261121-054625-3fa9",
    )
    return replace(usual, **fields)


def drawn(table: Any) -> str:
    """Return a table as it is printed without a terminal."""
    out = io.StringIO()
    Output(Options(no_color=True), stdout=out).table(table)
    return out.getvalue()


def frameworks_python(*modules: str) -> str:
    """Return the interpreter that has the frameworks and these modules; skip the test without such an interpreter."""
    path = os.environ.get("GPUCTL_FRAMEWORKS_PYTHON", "")
    if not path:
        pytest.skip(
            "there is no $GPUCTL_FRAMEWORKS_PYTHON, an interpreter with what `make test-deep` installs"
        )
    imports = f"import {', '.join(modules)}"
    result = subprocess.run([path, "-c", imports], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"{path} lacks a framework: {result.stderr.strip().splitlines()[-1]}")
    return path


def begin_run(store: Store, cluster: str = "work") -> str:
    """Record a run that may be active, as its node is unreachable; return its id."""
    folder = store.new_run(datetime.now(UTC))
    node = RunNode(name="work-0", rank=0, nproc=1, first_rank=0, run_dir="/nowhere")
    folder.save_run(a_run(run=folder.id, cluster=cluster, nodes=(node,)))
    return folder.id


def wait_for(condition: Callable[[], Any], *, what: str, deadline_s: float = 60) -> Any:
    """Poll until the condition is true, and return its value."""
    limit = time.monotonic() + deadline_s
    while time.monotonic() < limit:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {deadline_s} s")


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie has ended."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def holders_of(*paths: str) -> list[int]:
    """Return the processes that hold one of these files open."""
    holders = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(path.readlink()) in paths for path in (folder / "fd").iterdir()):
                holders.append(int(folder.name))
    return holders


def processes_with(*markers: str) -> list[int]:
    """Return pids of live processes whose command line or environment holds all markers, unique to the test."""
    import psutil

    result = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            texts = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if all(any(marker in text for text in texts) for marker in markers):
            result.append(process.pid)
    return result


def kill_all(marker: str) -> None:
    """SIGKILL for the processes of `processes_with`; some may end with others."""
    for pid in processes_with(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def interrupt(process: "subprocess.Popen[str]") -> None:
    """Ctrl-C for a process that was started with `Gpuctl.start`."""
    os.kill(process.pid, signal.SIGINT)
