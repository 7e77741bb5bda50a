"""A run that is ended while it is being started: it was started, and then ended."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from node_here import ROOT
from support import processes_with

from remote.node import end_reasons, process, run_state
from remote.node.runs import supervisor
from remote.node.storage import leftovers, outputs
from remote.shared import trees

LAUNCH = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from remote.node.runs import supervisor
run_dir = Path({run_dir!r})

def shut_down(event, arguments):
    if event == "subprocess.Popen":
        os.kill(os.getpid(), signal.SIGTERM)

def stop(event, arguments):
    if event == "open" and arguments[0] == str(run_dir) and not (run_dir / "stop").exists():
        supervisor.tell_to_stop(run_dir, "resized")  # the supervisor can be found from here on

sys.addaudithook({hook})
supervisor.launch(dict(run_dir=str(run_dir), node="gpu-0", argv={argv!r}, env=dict()))
json.dump(supervisor.wait_for_end(run_dir, 30), sys.stdout)
"""


@pytest.mark.parametrize(
    ("hook", "stopped", "reason"), [("stop", True, "resized"), ("shut_down", False, end_reasons.SHUT_DOWN)]
)
def test_run_stopped_during_launch_is_recorded_as_started(
    tmp_path: Path, hook: str, stopped: bool, reason: str
) -> None:
    run_dir = tmp_path / ".gpuctl-node" / "runs" / "20261121-060000-0000" / "gpu-0"
    argv = [shutil.which("sh"), "-c", "sleep 60", str(tmp_path)]
    code = LAUNCH.format(root=str(ROOT), run_dir=str(run_dir), argv=argv, hook=hook)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert (ended["running"], ended["stopped"], ended["ended"]) == (False, stopped, {"reason": reason})
    assert not processes_with(str(tmp_path))


def test_processes_of_a_run_may_open_as_many_files_as_the_node_allows(tmp_path: Path) -> None:
    run_dir, limits = tmp_path / "run" / "gpu-0", tmp_path / "limits"
    argv = ["/bin/sh", "-c", f"ulimit -Sn > {limits}; ulimit -Hn >> {limits}"]
    code = LAUNCH.format(root=str(ROOT), run_dir=str(run_dir), argv=argv, hook="lambda *_: None")
    small = ["/bin/sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh"]
    subprocess.run(
        [*small, sys.executable, "-I", "-c", code],
        env={"HOME": str(tmp_path)},
        timeout=60,
        check=True,
        stdout=-3,
    )
    soft, hard = limits.read_text().split()
    assert soft == hard != "256"


def test_files_of_the_supervisor_are_no_outputs_and_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's tasks run in the folder of its supervisor, and what they write there is listed."""
    run_dir = tmp_path / "daemons-1"
    code = LAUNCH.format(root=str(ROOT), run_dir=str(run_dir), argv=["/bin/true"], hook="lambda *_: None")
    subprocess.run(
        [sys.executable, "-I", "-c", code], env={"HOME": str(tmp_path)}, timeout=60, check=True, stdout=-3
    )
    known = tmp_path / "ray" / "gpu-0" / "node.json"
    known.parent.mkdir(parents=True)
    known.write_text(json.dumps({"run_dir": str(run_dir), "temp_dir": str(tmp_path)}))
    monkeypatch.setattr(outputs, "NODE_HOME", tmp_path)
    assert (run_dir / "exit.json").exists()
    assert outputs.written_by_tasks("gpu-0", {}, 0) == []
    assert list(trees.walk(run_dir, leftovers.HERE_TOO + leftovers.OWN_FILES)) == []


LISTS = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from remote.node.runs import supervisor
from remote.node.storage import outputs
run_dir, project = Path({run_dir!r}), {project!r}
outputs.LATE_S = 0.2

def hangs(event, arguments):
    if event == "os.scandir" and str(arguments[0]).startswith(project):
        time.sleep(60)

def breaks(event, arguments):
    if event == "os.scandir" and str(arguments[0]).startswith(project):
        raise ValueError("what nobody thought of")

sys.addaudithook({hook})
code = dict(root=project, folder=".")
supervisor.launch(dict(run_dir=str(run_dir), node="gpu-0", argv=["/bin/sh", "-c", "exit 0"], env=dict(), code=code))
json.dump(supervisor.wait_for_end(run_dir, 30), sys.stdout)
"""


@pytest.mark.parametrize("hook", ["hangs", "breaks"])
def test_run_ends_well_though_what_it_wrote_can_not_be_listed(tmp_path: Path, hook: str) -> None:
    run_dir = tmp_path / ".gpuctl-node" / "runs" / "20261121-060000-0000" / "gpu-0"
    project = tmp_path / "project"
    project.mkdir()
    code = LISTS.format(root=str(ROOT), run_dir=str(run_dir), project=str(project), hook=hook)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert (ended["running"], ended["exit_code"]) == (False, 0)
    listing = json.loads((run_dir / "outputs.json").read_text())
    assert (listing["whole"], listing["listed"]) == (False, [])


def test_first_order_to_stop_is_the_one_that_counts(tmp_path: Path) -> None:
    run_dir = tmp_path / "gpu-0"
    supervisor.tell_to_stop(run_dir, "peer_failed")
    supervisor.tell_to_stop(run_dir)
    state = run_state.state(run_dir)
    assert (state["running"], state["stopped"], state["ended"]) == (False, True, {"reason": "peer_failed"})
    assert [path.name for path in run_dir.iterdir()] == ["stop"]


def test_order_to_stop_on_a_full_disk_is_empty(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert run_state.state(tmp_path)["ended"] == {"reason": end_reasons.STOPPED}


CLAIM = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from remote.node.home_folder import NODE_HOME
from remote.node.runs import supervisor

def launch(run, gpus):
    run_dir = NODE_HOME / "runs" / run / "gpu-0"
    try:
        supervisor.launch(dict(run_dir=str(run_dir), node="gpu-0", argv=["sleep", "60"], env=dict(), gpus=gpus))
    except OSError as error:
        return str(error)
    return "started"

print(launch("20261121-060000-0000", ["a", "b"]), launch("20261121-060001-0000", ["b", "c"]), sep="\\n")
print(launch("20261121-060002-0000", ["c"]), launch("20261121-060003-0000", []), sep="\\n")
for run in ("20261121-060000-0000", "20261121-060002-0000"):
    supervisor.tell_to_stop(NODE_HOME / "runs" / run / "gpu-0")
    supervisor.wait_for_end(NODE_HOME / "runs" / run / "gpu-0", 30)
print(launch("20261121-060004-0000", []))
supervisor.tell_to_stop(NODE_HOME / "runs" / "20261121-060004-0000" / "gpu-0")
"""


def test_node_refuses_a_run_on_gpus_that_another_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", CLAIM.format(root=str(ROOT))], capture_output=True, text=True, timeout=60,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    refused = "the run 20261121-060000-0000 is going on here"
    assert done.stdout.splitlines() == ["started", refused, "started", refused, "started"], done.stderr


def test_rest_of_a_killed_supervisors_run_is_ended_once(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as killed:
        pass
    record = {"pid": killed.pid, "birth": "0", "boot_id": process.boot_id(), "init_birth": process.birth(1)}

    def clean_up(launcher: "subprocess.Popen[bytes]") -> None:
        launched = {"launcher": launcher.pid, "launcher_birth": process.birth(launcher.pid)}
        (tmp_path / "runner.json").write_text(json.dumps({**record, **launched}))
        supervisor.clean_up(tmp_path)

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as launcher:
        clean_up(launcher)
        assert launcher.wait(10) == -signal.SIGKILL
    ended = json.loads((tmp_path / "exit.json").read_text())
    assert (ended["ended"], ended["ended_at"]) == ({"reason": "runner_killed"}, None)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        clean_up(stranger)
        assert stranger.poll() is None, "its pid was the launcher's"
        stranger.kill()
