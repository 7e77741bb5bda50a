"""Test the hook in a rank's Python: it starts and ends unnoticed, and writes the stacks on request."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from remote.node.hangs import why
from remote.node.hangs.rank_files import HOOK_FOLDER, has_joined, hook_environment, rank_files

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the hook's signal needs Linux")
SHOW = """
import json, os, sys
print(json.dumps({
    "path": [path for path in sys.path if "rank_hook" in path], "variables": sorted(
        name for name in os.environ if name in ("PYTHONPATH", "GPUCTL_RANK_HOOK")),
    "pythonpath": os.environ.get("PYTHONPATH"), "own": getattr(sys, "own", None),
    "finders": len([one for one in sys.meta_path if type(one).__name__ == "Finder"])}))
"""
IN_C = """
import ctypes, threading, time
def busy():
    print("begins", flush=True)
    ctypes.PyDLL(None).sleep(60)
    print("disturbed", flush=True)
    time.sleep(60)
threading.Thread(target=ctypes.CDLL(None).sleep, args=[60], daemon=True).start()
busy()
"""
FAKE_SERVER = """
import sys
import threading
import time
class _WorkerServer:
    def __init__(self, path, port):
        open(path, "w").write("started")
"""
STORE = """
import os, sys, torch.distributed
from torch.distributed import TCPStore, HashStore
class Own(TCPStore):
    def __init__(self, port):
        super().__init__("127.0.0.1", port, None, True)
"""
FOR_ONE_RANK = """
import socket, traceback
from datetime import timedelta
TCPStore("127.0.0.1", 0, 1, True)
TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
torch.distributed.FileStore(sys.argv[0] + "store", 1)
HashStore()
port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
for place in ("tcp://127.0.0.1:" + str(port), "file://" + sys.argv[0] + "other"):
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    torch.distributed.destroy_process_group()
"""
WITH_ERRORS = """
try:
    TCPStore(1)
except TypeError as error:
    assert "TCPStore" in str(error)
null, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
os.dup2(null, 2)
try:
    TCPStore("127.0.0.1", 1, 2, False, timedelta(seconds=0.1))
except torch.distributed.DistError:
    text = traceback.format_exc()
os.dup2(stderr, 2)
assert text.count("File ") == 1, text
"""


def environment(run_dir: Path, **own: str) -> dict[str, str]:
    """Return the rank's variables: this process's, `own`, and the hook's."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    return {**variables, **hook_environment(variables, run_dir, 0)}


def run(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


def test_hook_leaves_no_trace_and_is_not_in_children(tmp_path: Path) -> None:
    env = environment(tmp_path)
    report = json.loads(run(SHOW, env))
    assert report == {"path": [], "variables": [], "pythonpath": None, "own": None, "finders": 1}
    child = json.loads(
        run(
            f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {SHOW!r}], text=True))",
            env,
        )
    )
    assert child["finders"] == 0


def test_users_own_sitecustomize_and_python_path_are_kept(tmp_path: Path) -> None:
    local = tmp_path / "own"
    local.mkdir()
    (local / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    report = json.loads(run(SHOW, environment(tmp_path, PYTHONPATH=str(local))))
    assert report["own"] == str(local / "sitecustomize.py")
    assert report["pythonpath"] == str(local)


@pytest.mark.parametrize(
    ("code", "joined"),
    [
        ("print('no torch')", False),
        ("import torch; os = __import__('os'); os._exit(0)", False),
        (STORE + FOR_ONE_RANK + WITH_ERRORS, False),
        (f"{STORE}TCPStore('127.0.0.1', 0, None, True).set('a', 'b'); os._exit(0)", True),
        (f"{STORE}TCPStore('127.0.0.1', 0, world_size=2, is_master=True, wait_for_workers=False)", True),
        (f"{STORE}Own(0).set('a', 'b')", True),
        (f"{STORE}torch.distributed.FileStore(sys.argv[0] + 'store', 2)", True),
        (
            f"{STORE}child = os.fork()\nif not child: TCPStore('127.0.0.1', 0, None, True)\nelse: os.wait()",
            True,
        ),
    ],
)
def test_hook_notes_whether_the_process_has_joined_others(tmp_path: Path, code: str, joined: bool) -> None:
    pytest.importorskip("torch")
    assert has_joined(tmp_path, 0) is None
    run(code.replace("sys.argv[0]", repr(str(tmp_path / "s"))), environment(tmp_path))
    assert has_joined(tmp_path, 0) is joined


def test_hook_is_not_there_with_the_watch_off(tmp_path: Path) -> None:
    env = environment(tmp_path, GPUCTL_HANG_AFTER="off")
    assert HOOK_FOLDER not in env.get("PYTHONPATH", "")
    assert not (tmp_path / "hangs").exists()


def test_users_flight_recorder_settings_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TORCH_FR_BUFFER_SIZE" not in hook_environment({"TORCH_FR_BUFFER_SIZE": "0"}, tmp_path, 0)
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    assert hook_environment(os.environ, tmp_path, 0)["TORCH_FR_BUFFER_SIZE"] == "2000"


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_users_flight_recorder_settings_win_by_their_older_names(
    tmp_path: Path, older: str, newer: str
) -> None:
    assert newer in hook_environment({}, tmp_path, 0)
    assert not {older, newer} & set(hook_environment({older: "own"}, tmp_path, 0))


@pytest.mark.parametrize("deep", ["", "d" * 120])
def test_worker_server_starts_with_torch_distributed_however_long_its_path(tmp_path: Path, deep: str) -> None:
    package = tmp_path / "own" / "torch"
    (package / "_C").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_C" / "__init__.py").write_text("")
    (package / "_C" / "_distributed_c10d.py").write_text(FAKE_SERVER)
    (package / "distributed.py").write_text("import torch._C._distributed_c10d\n")
    run_dir = tmp_path / deep
    run_dir.mkdir(exist_ok=True)
    env = environment(run_dir, PYTHONPATH=str(tmp_path / "own"))
    run("import torch.distributed, sys; assert torch.distributed.__spec__.name == 'torch.distributed'", env)
    assert Path(rank_files(run_dir, 0) + ".sock").read_text() == "started"
    assert not Path(rank_files(run_dir, 0) + ".problem").exists()


def test_script_goes_on_where_the_hook_fails(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "hangs").rmdir()
    assert run("print('goes on')", env) == "goes on\n"


CRASHES = """
import ctypes, faulthandler, sys
assert faulthandler.is_enabled()
if len(sys.argv) > 1:
    faulthandler.enable(open(sys.argv[1], "w"))
def load_batch():
    ctypes.string_at(0)
load_batch()
"""


@linux
@pytest.mark.parametrize("chosen", [False, True])
def test_stack_at_a_crash_goes_to_the_log_unless_the_script_chose_a_file(
    tmp_path: Path, chosen: bool
) -> None:
    file = tmp_path / "own.txt"
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, *([str(file)] if chosen else [])],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGSEGV
    report, other = (file.read_text(), done.stderr) if chosen else (done.stderr, "")
    assert report.startswith("Fatal Python error: Segmentation fault\n")
    assert " in load_batch\n" in report
    assert other == ""


@linux
def test_signal_tells_the_stacks_of_a_rank_in_c_code(tmp_path: Path) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", IN_C], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    try:
        assert rank.stdout.readline() == "begins\n"
        stacks = why.stacks_by_signal(rank.pid, rank_files(tmp_path, 0) + ".stacks")
        assert "in busy" in stacks
        assert rank.poll() is None
    finally:
        rank.kill()
        assert rank.communicate()[0] == ""


THREADS = """
import threading, time
def deep(frames):
    return deep(frames - 1) if frames else time.sleep(60)
for _ in range(60):
    threading.Thread(target=deep, args=(95,), daemon=True).start()
def main_thread():
    print("begins", flush=True)
    time.sleep(60)
main_thread()
"""


@linux
def test_stacks_are_whole_where_a_busy_machine_delays_them(tmp_path: Path) -> None:
    """The main thread's stack comes last; the process is stopped once the first lines exist."""
    path = Path(rank_files(tmp_path, 0) + ".stacks")
    rank = subprocess.Popen(
        [sys.executable, "-c", THREADS], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )

    def hold_up() -> None:
        limit = time.monotonic() + 10
        while path.stat().st_size == 0 and time.monotonic() < limit:
            pass
        rank.send_signal(signal.SIGSTOP)
        time.sleep(10 * why.QUIET_S)
        rank.send_signal(signal.SIGCONT)

    try:
        assert rank.stdout.readline() == "begins\n"
        busy = threading.Thread(target=hold_up)
        busy.start()
        stacks = why.stacks_by_signal(rank.pid, str(path))
        busy.join()
        assert "in main_thread" in stacks
    finally:
        rank.kill()
        rank.communicate()


CLOSES = """
import os, time
os.closerange(3, {most})
own = [open("own-{{}}.txt".format(number), "w") for number in range({most})]
print("begins", flush=True)
time.sleep(60)
"""


@linux
@pytest.mark.parametrize(("open_files", "has_stacks"), [(64, True), (1024, False)])
def test_stacks_never_get_into_a_file_of_the_scripts(
    tmp_path: Path, open_files: int, has_stacks: bool
) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n" + CLOSES.format(
        most=open_files
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank.stdout.readline() == "begins\n"
        stacks = why.stacks_by_signal(rank.pid, rank_files(tmp_path, 0) + ".stacks")
        assert ("in <module>" in stacks) == has_stacks
        assert [path for path in tmp_path.glob("own-*.txt") if path.stat().st_size] == []
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.communicate()


@linux
def test_process_without_the_hook_gets_no_signal(tmp_path: Path) -> None:
    (tmp_path / "rank-0.stacks").touch()
    with subprocess.Popen(["sleep", "60"]) as rank:
        assert why.stacks_by_signal(rank.pid, str(tmp_path / "rank-0.stacks")) == ""
        assert rank.poll() is None
        rank.kill()


GLOO_AT_WORK = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
works = [dist.all_reduce(torch.ones(20_000), async_op=True) for _ in range(300)]
del works
sys.exit(3)
"""


@linux
@pytest.mark.slow
def test_script_that_ends_while_gloo_is_at_work_has_its_own_exit_status(tmp_path: Path) -> None:
    """Without the hook, torch's thread asks for the interpreter's lock while Python shuts down, and aborts."""
    words = [sys.executable, "-c", GLOO_AT_WORK]
    ended = [
        subprocess.run([*words, str(tmp_path / f"store-{number}")], env=env, capture_output=True, timeout=60)
        for number, env in enumerate([environment(tmp_path)] * 3)
    ]
    assert [item.returncode for item in ended] == [3, 3, 3], ended[0].stderr
