"""Running the job as a node does: a copy of the package alone in a folder, real processes, real torchrun."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import train


@dataclass(frozen=True, kw_only=True)
class Ran:
    status: int
    out: str
    err: str
    run_dir: Path


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing of ours but `train/`, as it is pushed."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(
        Path(train.__file__).parent, folder / "train", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


@pytest.fixture(scope="session")
def start(node: Path) -> Callable[..., contextlib.AbstractContextManager[subprocess.Popen[str]]]:
    """Start a Python process in that folder; it and its children are gone when the block ends."""

    @contextlib.contextmanager
    def started(
        *argv: str, run_dir: Path, python: str = sys.executable, **environ: str
    ) -> Iterator[subprocess.Popen[str]]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("GPUCTL_", "OMP_"))
        }
        process = subprocess.Popen(
            [python, *argv],
            cwd=node,
            env=clean
            | {
                "PYTHONPATH": str(node),
                "GPUCTL_RUN_DIR": str(run_dir),
                "GPUCTL_METRICS": str(run_dir / "metrics.jsonl"),
            }
            | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
            | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    return started


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port on loopback that nothing listens on."""
    return _free_port


@pytest.fixture(scope="session")
def run(start, free_port) -> Callable[..., Ran]:
    """Run `python -m train` to its end, or with `ranks`, torchrun; `script` is a file to start instead."""

    def ran(
        *args: str,
        run_dir: Path,
        ranks: int | None = None,
        script: Path | None = None,
        timeout_s: float = 200,
        python: str = sys.executable,
        **environ: str,
    ) -> Ran:
        launcher = []
        if ranks is not None:
            launcher = [
                *("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
                *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            ]
        job = [str(script)] if script else ["-m", "train"]
        with start(*launcher, *job, *args, run_dir=run_dir, python=python, **environ) as process:
            out, err = process.communicate(timeout=timeout_s)
        return Ran(status=process.returncode, out=out, err=err, run_dir=run_dir)

    return ran


@pytest.fixture(scope="session")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a script that is the job, but for a change to it; `here` is True on rank 1 only."""

    def make(change: str) -> Path:
        path = tmp_path_factory.mktemp("changed") / "changed.py"
        path.write_text(
            "import os, runpy, time\n"
            "import torch\n"
            "from train.reporting.timing import StepTimer\n"
            "here = os.environ.get('RANK') == '1'\n"
            f"{change}\n"
            "runpy.run_module('train', run_name='__main__', alter_sys=True)\n"
        )
        return path

    return make
