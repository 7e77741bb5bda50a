"""Test the built-in job's ranks as forks of torchrun: a fork's end, its signals, and its environment."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BEGIN = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from remote.node.runs.fork import Fork
from remote.node.process import wait_for_end

def ended(child):
    while child.poll() is None:
        wait_for_end([child.pid], 10)
    return child.poll()
"""


def python(script: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("work", "code"),
    [("lambda: 0", 0), ("lambda: 3", 3), ("lambda: 1 / 0", 1), ("lambda: os.kill(os.getpid(), 9)", -9)],
)
def test_fork_tells_how_the_child_ended(work: str, code: int) -> None:
    script = f"sys.stderr = open(os.devnull, 'w'); print(ended(Fork({work})))"
    assert python(script).communicate(timeout=30)[0].split() == [str(code)]


def test_fork_passes_signals_to_the_child_alone_while_it_is_at_work() -> None:
    script = "child = Fork(signal.pause); print(child.pid, flush=True); print(ended(child), flush=True)"
    with python(script) as process:
        assert int(process.stdout.readline()) != process.pid
        process.send_signal(signal.SIGTERM)
        assert (process.communicate(timeout=30)[0].split(), process.returncode) == (["-15"], 0)


def test_fork_lets_a_signal_end_the_parent_once_all_is_written() -> None:
    script = """
child = Fork(lambda: 0)
ended(child)
print('over', flush=True)
sys.stdin.read()
print('written', flush=True)
child.let_go()
"""
    with python(script) as process:
        assert process.stdout.readline() == "over\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == "written\n"
        assert process.returncode == -signal.SIGTERM


JOB = """
import os

import torch
if PLANTED == "broken" and "RANK" not in os.environ:
    raise RuntimeError("operator torchvision::nms does not exist")
if PLANTED == "cuda":  # as a use of CUDA before the fork leaves it
    torch.cuda._is_in_bad_fork = lambda: True
"""
MAIN = """
import json, os, sys
at_start = sorted(name for name in ("torch", "train.job") if name in sys.modules)
folder = os.environ["GPUCTL_RUN_DIR"]
print(json.dumps({
    "rank": os.environ["RANK"], "modules": at_start, "words": sys.argv[1:], "cwd": os.getcwd(),
    "sockets": sum("socket" in os.path.realpath("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")),
    "path": os.environ.get("PYTHONPATH"), "metrics": os.environ["GPUCTL_METRICS"],
}))
if PLANTED == "fails" and os.environ["RANK"] == "1":
    sys.exit(3)
if PLANTED == "fails":
    import signal
    signal.pause()
"""


def launched(tmp_path: Path, planted: str) -> tuple[int, list[dict[str, object]], list[dict[str, object]]]:
    """Return torchrun's exit status for two ranks, each rank's output, and their records."""
    job, run_dir = tmp_path / "project", tmp_path / "run"
    (job / "train").mkdir(parents=True)
    for name, text in (("__init__", ""), ("job", JOB), ("__main__", MAIN)):
        (job / "train" / f"{name}.py").write_text(f"PLANTED = {planted!r}\n{text}")
    for name in ("ranks", "metrics", "logs"):
        (run_dir / name).mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from remote.node.__main__ import run; run(sys.argv[1:])"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    words = ["forked_ranks", str(run_dir), str(job), *options, "--", "train", "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-u", "-c", code, *words],
        env={
            **os.environ,
            "GPUCTL_RUN_DIR": str(run_dir),
            "PYTHONPATH": "/user's",
            "GPUCTL_LAUNCHED_AT": "96.5",
        },
        check=False,
        timeout=120,
        capture_output=True,
        start_new_session=True,
    )
    logs = [(run_dir / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    records = [json.loads((run_dir / "ranks" / f"rank-{rank}.json").read_bytes()) for rank in range(2)]
    return done.returncode, [json.loads(log.splitlines()[0]) for log in logs], records


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["", "cuda", "broken"])
def test_forked_ranks_are_as_ranks_of_torchrun_but_have_torch_already(tmp_path: Path, planted: str) -> None:
    status, output, records = launched(tmp_path, planted)
    assert (status, [record["exit_code"] for record in records]) == (0, [0, 0])
    assert [rank["rank"] for rank in output] == ["0", "1"]
    for number, rank in enumerate(output):
        assert rank["modules"] == ([] if planted else ["torch", "train.job"]), "it needs a process of its own"
        assert (rank["words"], rank["cwd"], rank["path"]) == (
            ["--epochs", "1"],
            f"{tmp_path}/project",
            "/user's",
        )
        assert rank["metrics"] == f"{tmp_path}/run/metrics/rank-{number}.jsonl"
        local = 0 if planted else 1  # the hook's; the planted rank has not come to torch
        assert rank["sockets"] == local, "torchrun's own are closed"


@pytest.mark.slow
def test_forked_ranks_end_with_the_one_that_fails(tmp_path: Path) -> None:
    status, _, records = launched(tmp_path, "fails")
    assert status == 1
    assert [record["exit_code"] for record in records] == [-signal.SIGTERM, 3]
