"""A run on a node: started so that it outlives the connection, and ended without a trace.

The runner is the parent of the launcher (torchrun, …). It lives in a session of its own, writes
`runner.json` (its pid and birth) when it starts and `exit.json` when the launcher has ended and nothing
that descends from it is left.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional

from remote.node import frames, process
from remote.node.files import read_json, write_json

RESERVE_BYTES = 64 * 1024
"""Kept aside so that the exit status can be written on a full disk."""
LOW_DISK_BYTES = 1024 * 1024


class Stopped(Exception):
    """The runner was told to stop."""


def launch(spec: Dict[str, Any]) -> None:
    """Start the run of `spec` and return when it is under way: run_dir, node, launcher, argv, env, path_prefix.

    Making the run's folder is the claim: a second call, after a lost answer, starts nothing; and a run that was
    stopped before it began never begins. Raises OSError with a sentence where it could not be started.
    """
    run_dir = Path(spec["run_dir"])
    run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        if (run_dir / "runner.json").exists():
            return
        raise OSError("the run was stopped before it began") from None
    for name in ("logs", "metrics", "ranks", "artifacts"):
        (run_dir / name).mkdir(mode=0o700)
    # The environment may hold secrets: it goes to the processes, and to no file.
    write_json(run_dir / "launch.json", {"launcher": spec["launcher"], "argv": spec["argv"]})
    (run_dir / ".reserve").write_bytes(b"\0" * RESERVE_BYTES)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        if os.fork() == 0:
            status = 1
            try:
                _supervise(spec, run_dir, writer)
                status = 0
            finally:
                os._exit(status)
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    if answer != "ok":
        raise OSError(answer or "the runner died before it could start {}".format(spec["argv"][0]))


def _supervise(spec: Dict[str, Any], run_dir: Path, answers: int) -> None:
    """The runner itself: start the launcher, wait, clean up, write the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_stopped)
    exit_code, stopped = None, False
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    environment = dict(os.environ, **spec["env"])
    if spec.get("path_prefix"):
        environment["PATH"] = spec["path_prefix"] + os.pathsep + environment.get("PATH", os.defpath)
    log = os.open(
        str(run_dir / "logs" / "{}.log".format(spec["node"])), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    process.adopt_orphans()
    try:
        launcher = subprocess.Popen(
            spec["argv"], cwd=str(run_dir), env=environment, stdout=log, stderr=log, start_new_session=True
        )
    except OSError as error:
        os.write(answers, "{} could not be started: {}".format(spec["argv"][0], error).encode())
        return
    try:
        identity = {"pid": os.getpid(), "birth": process.birth(os.getpid()), "boot_id": process.boot_id()}
        launched = {"launcher": launcher.pid, "launcher_birth": process.birth(launcher.pid)}
        write_json(run_dir / "runner.json", dict(identity, **launched))
        os.write(answers, b"ok")
        os.close(answers)
        if (run_dir / "stop").exists():
            raise Stopped
        exit_code = launcher.wait()
    except Stopped:
        stopped = True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if stopped:
        exit_code = _terminate(launcher, run_dir, float(spec.get("grace_s", 10)))
    _end_ranks(run_dir, signal.SIGKILL)
    process.kill_descendants(deadline_s=10)
    _write_exit(run_dir, exit_code, stopped or (run_dir / "stop").exists())


def _raise_stopped(_number: int, _frame: object) -> None:
    raise Stopped


def _end_ranks(run_dir: Path, number: int) -> None:
    """Signal the process groups of the run's ranks, as their records name them.

    A group's id is not given to another process while any of the group lives; where its leader is not the one
    that was recorded, the whole group is gone and the id is somebody else's.
    """
    for path in sorted((run_dir / "ranks").glob("rank-*.json")):
        record = read_json(path)
        if "group" in record and process.birth(record["group"]) in (None, record["birth"]):
            process.signal_group(record["group"], number)


def _terminate(launcher: "subprocess.Popen[bytes]", run_dir: Path, grace_s: float) -> int:
    """Ask launcher and ranks to end; after the grace they are killed. Returns the launcher's exit status."""
    process.signal_group(launcher.pid, signal.SIGTERM)
    _end_ranks(run_dir, signal.SIGTERM)
    try:
        return launcher.wait(grace_s)
    except subprocess.TimeoutExpired:
        _end_ranks(run_dir, signal.SIGKILL)
        process.signal_group(launcher.pid, signal.SIGKILL)
        return launcher.wait()


def _write_exit(run_dir: Path, exit_code: Optional[int], stopped: bool) -> None:
    """The last act: `exit.json`, on a full disk too."""
    disk = os.statvfs(str(run_dir))
    full = disk.f_bavail * disk.f_frsize < LOW_DISK_BYTES
    reserve = run_dir / ".reserve"
    if reserve.exists():
        reserve.unlink()
    failure = "the disk is full ({} kB free)".format(disk.f_bavail * disk.f_frsize // 1024) if full else None
    write_json(
        run_dir / "exit.json",
        {
            "exit_code": exit_code,
            "ended_at": time.time(),
            "boot_id": process.boot_id(),
            "stopped": stopped,
            "failure": failure if exit_code else None,
        },
    )


def state(run_dir: Path) -> Dict[str, Any]:
    """`running` with the runner's `pid`; else what `exit.json` says, or why there is none."""
    runner = read_json(run_dir / "runner.json")
    ended = read_json(run_dir / "exit.json")
    if ended:
        return dict(ended, running=False)
    if not runner:
        gone = "the run was never started here, or its folder {} is gone".format(run_dir)
        return {"running": False, "exit_code": None, "failure": gone}
    if runner["boot_id"] != process.boot_id():
        return {"running": False, "exit_code": None, "failure": "the machine was rebooted during the run"}
    if process.alive(runner["pid"], runner["birth"]):
        return {"running": True, "pid": runner["pid"]}
    # It may have ended between the two looks.
    ended = read_json(run_dir / "exit.json")
    if ended:
        return dict(ended, running=False)
    return {"running": False, "exit_code": None, "failure": "the runner was killed from outside"}


def stop(run_dir: Path, deadline_s: float) -> Dict[str, Any]:
    """End the run, also one that is just being started. Idempotent. Returns the final state."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    (run_dir / "stop").touch()
    now = state(run_dir)
    if now["running"]:
        os.kill(read_json(run_dir / "runner.json")["pid"], signal.SIGTERM)
        limit = time.monotonic() + deadline_s
        while now["running"] and time.monotonic() < limit:
            time.sleep(0.02)
            now = state(run_dir)
    if not now["running"]:
        clean_up(run_dir)
    return now


def clean_up(run_dir: Path) -> None:
    """Do what a killed runner could not: end what is left of its run. Nothing where the runner ended by itself."""
    runner = read_json(run_dir / "runner.json")
    if not runner or (run_dir / "exit.json").exists() or runner["boot_id"] != process.boot_id():
        return
    _end_ranks(run_dir, signal.SIGKILL)
    if process.birth(runner["launcher"]) in (None, runner["launcher_birth"]):
        process.signal_group(runner["launcher"], signal.SIGKILL)


def active_runs(runs_dir: Path) -> List[str]:
    """Ids of the runs that are going on on this node."""
    return [
        path.parent.name for path in sorted(runs_dir.glob("*/runner.json")) if state(path.parent)["running"]
    ]


def command_start(request: Dict[str, Any], output: BinaryIO) -> None:
    """`start`: launch, then say so."""
    launch(request)
    frames.write(output, {"t": "started"})


def command_stop(request: Dict[str, Any], output: BinaryIO) -> None:
    """`stop`: end the run, then say how it ended."""
    ended = stop(Path(request["run_dir"]), float(request["deadline_s"]))
    frames.write(output, {"t": "stopped", "state": json.loads(json.dumps(ended))})
