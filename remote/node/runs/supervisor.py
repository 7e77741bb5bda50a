"""A run on a node: started so that it outlives the connection, and ended without a trace.

The supervisor is the parent of the launcher (torchrun, …). It lives in a session of its own, writes
`runner.json` (its pid and birth) when it starts and `exit.json` when the launcher has ended and nothing
that descends from it is left.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Set, Tuple

from remote.node import end_reasons, process
from remote.node.home_folder import NODE_HOME, folders_named_in
from remote.node.run_state import placed_for, runs_in_the_way, state, why_stopped
from remote.node.runs import ending
from remote.node.storage import outputs
from remote.shared import constants, frames
from remote.shared.files import read_json, temporary_beside, write_json

RESERVE_BYTES = 64 * 1024
"""Kept aside so that the exit status can be written on a full disk."""
LOW_DISK_BYTES = 1024 * 1024
STARTING = ".starting"
"""In the run's folder: its launcher may have started, whatever else is missing there. It names the supervisor."""
REASON = "reason.json"
"""In the run's folder: why its launcher failed, where that knows it."""


class Stopped(Exception):
    """The supervisor got an order to stop."""


def launch(spec: Dict[str, Any]) -> None:
    """Start the run of `spec` and return when it is under way: run_dir, node, argv, env, path_prefix, code, record.

    Making the run's folder is the claim: a second call, after a lost answer, starts nothing, and neither does one
    for a run that was stopped before it began. One run at a time on a GPU: under the lock nobody else's can begin.
    Checkpoints that were placed for it, and that it did not move in, are removed.
    Raises OSError with a sentence where it could not be started.
    """
    run_dir = Path(spec["run_dir"])
    NODE_HOME.mkdir(mode=0o700, exist_ok=True)
    with open(str(NODE_HOME / "launch.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for record in (NODE_HOME / constants.RUNS).glob("*/{}/runner.json".format(spec["node"])):
                ended = state(record.parent).get("ended") or {}
                if ended.get("reason") == end_reasons.RUNNER_KILLED:
                    clean_up(record.parent)
            busy_runs = [run for run in runs_in_the_way(spec.get("gpus", [])) if run != run_dir.parent.name]
            if busy_runs:
                raise OSError("the run {} is going on here".format(busy_runs[0]))
            try:
                run_dir.mkdir(mode=0o700)
            except FileExistsError:
                return
            if spec.get("record"):
                write_json(run_dir / constants.RUN_RECORD, spec["record"])
            for name in (constants.METRICS, constants.RANKS, constants.ARTIFACTS):
                (run_dir / name).mkdir(mode=0o700)
            placed = placed_for(run_dir)
            if placed.is_dir():
                placed.rename(run_dir / constants.CHECKPOINTS)
            else:
                (run_dir / constants.CHECKPOINTS).mkdir(mode=0o700)
            if spec.get("code"):
                outputs.begin(run_dir, spec["code"])
            start(spec, run_dir)
        finally:
            shutil.rmtree(str(placed_for(run_dir)), ignore_errors=True)


def start(spec: Dict[str, Any], run_dir: Path) -> None:
    """Fork the supervisor and wait until its launcher runs; `run_dir` is there. Raises OSError with a sentence."""
    (run_dir / constants.LOGS).mkdir(mode=0o700)
    (run_dir / ".reserve").write_bytes(b"\0" * RESERVE_BYTES)
    died = "the supervisor died before it could start {}".format(spec["argv"][0])
    process.start_detached(lambda answers: _supervise(spec, run_dir, answers), died)


def _supervise(spec: Dict[str, Any], run_dir: Path, answers: int) -> None:
    """The supervisor itself: start the launcher, wait, clean up, write the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Unlike SIG_IGN, the launcher does not inherit it.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    # Kept in mind until it is said that the run is under way: who stops it sooner has not made its start fail.
    early: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: early.append(number))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    environment = {**os.environ, **spec["env"], constants.LAUNCHED_VARIABLE: str(time.time())}
    if spec.get("path_prefix"):
        environment["PATH"] = spec["path_prefix"] + os.pathsep + environment.get("PATH", os.defpath)
    log = os.open(
        str(run_dir / constants.LOGS / "{}.log".format(spec["node"])),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o600,
    )
    process.adopt_orphans()
    process.allow_open_files()  # DataLoader workers hand each batch over as open files
    identity = {
        "pid": os.getpid(),
        "birth": process.birth(os.getpid()),
        "boot_id": process.boot_id(),
        "init_birth": process.birth(1),
    }
    try:
        # Fails if the queue has started another supervisor, as this one was stuck.
        with open(str(run_dir / STARTING), "x") as starting:
            json.dump(identity, starting)
        launcher = subprocess.Popen(
            spec["argv"], cwd=str(run_dir), env=environment, stdout=log, stderr=log, start_new_session=True
        )
    except OSError as error:
        os.write(answers, "{} could not be started: {}".format(spec["argv"][0], error).encode())
        return
    end = ending.Ending(run_dir, launcher, ending.grace_of(run_dir, spec))
    record = {
        **identity,
        "launcher": launcher.pid,
        "launcher_birth": process.birth(launcher.pid),
        "grace_s": ending.grace_of(run_dir, spec),
        "uses": sorted(folders_used(spec)),
        "gpus": spec.get("gpus", []),
    }
    try:
        write_json(run_dir / "runner.json", record)
    except OSError as error:
        # Nobody could find the run again, so it must not go on.
        process.signal_group(launcher.pid, signal.SIGKILL)
        os.write(answers, str(error).encode())
        return
    with contextlib.suppress(BrokenPipeError):  # the process that launched it was killed
        os.write(answers, b"ok")
    os.close(answers)
    _end_run(run_dir, end, early)


def _end_run(run_dir: Path, end: ending.Ending, early: List[int]) -> None:
    """Wait for the launcher's end or an order to stop, end all processes, and write the exit status.

    `early`: not empty if the order has come.
    """
    exit_code, stopped, not_ours, stop_ordered, ended_at = None, False, False, False, None
    try:
        try:
            signal.signal(signal.SIGTERM, _raise_stopped)
            if early or _is_told(run_dir):
                raise Stopped
            exit_code = end.watch()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except Stopped:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            # Decided at once: the nodes' failures lead to each other's stop.
            stopped, not_ours = True, not _is_told(run_dir)
        if stopped:
            exit_code = end.stop(_signal_of_stop(run_dir))
        stop_ordered = _is_told(run_dir) and not not_ours
        ended_at = time.time()
        end.finish(wait=not not_ours)
        if not not_ours:  # a machine that goes down has no time for it
            # The run's end is more important, and is reported.
            with contextlib.suppress(OSError, RuntimeError):
                outputs.keep(run_dir)
    finally:
        process.kill_descendants(ending.KILLED_S)
        failed = end_reasons.ended(end_reasons.RUNNER_KILLED) if exit_code is None else None
        ended = end_reasons.ended(end_reasons.SHUT_DOWN) if not_ours else failed
        _write_exit(run_dir, exit_code, stop_ordered, ended, ended_at or time.time(), end.document())


def forget_place(run_dir: Path) -> None:
    """Remove the place: it may hold secrets of the user's, and is of no use once the ranks have begun."""
    if (run_dir / constants.PLACE).exists():
        (run_dir / constants.PLACE).unlink()


def explain(run_dir: Path, ended: Dict[str, Any]) -> None:
    """For a launcher that fails and knows why."""
    write_json(run_dir / REASON, ended)


def _is_told(run_dir: Path) -> bool:
    """Return whether an order to stop exists. False, too, if the disk does not answer."""
    return os.path.exists(str(run_dir / "stop"))


def _signal_of_stop(run_dir: Path) -> signal.Signals:
    """Return the signal that ranks get: SIGINT where a person pressed Ctrl-C, as in a terminal, else SIGTERM."""
    with contextlib.suppress(OSError):
        if read_json(run_dir / "stop").get("signal") == signal.SIGINT.name:
            return signal.SIGINT
    return signal.SIGTERM


def _raise_stopped(_number: int, _frame: object) -> None:
    raise Stopped


def _write_exit(
    run_dir: Path,
    exit_code: Optional[int],
    stopped: bool,
    ended: Optional[Dict[str, Any]],
    ended_at: Optional[float],
    end: Optional[Dict[str, Any]],
) -> None:
    """Write `exit.json` at the very end, on a full disk too; a full disk is the reason if no other is known.

    `ended_at`: `None` if not known.
    """
    free_bytes, told_at = LOW_DISK_BYTES, None
    with contextlib.suppress(OSError):
        disk = os.statvfs(str(run_dir))
        free_bytes = disk.f_bavail * disk.f_frsize
        os.unlink(str(run_dir / ".reserve"))
    full = end_reasons.ended(end_reasons.DISK_FULL, free_bytes=free_bytes)
    with contextlib.suppress(OSError):
        order = run_dir / "stop"
        told_at = order.stat().st_mtime if stopped and order.exists() else None
        known = ended or read_json(run_dir / REASON) or (full if free_bytes < LOW_DISK_BYTES else None)
        ended = known if exit_code != 0 else None
        if stopped and ended is None:
            ended = why_stopped(run_dir)
    write_json(
        run_dir / "exit.json",
        {
            "exit_code": exit_code,
            "ended_at": ended_at,
            "boot_id": process.boot_id(),
            "stopped": stopped,
            "stopped_at": told_at,
            "ended": ended,
            "ending": end,
        },
    )


def record_failed_start(run_dir: Path, program: str, detail: str) -> None:
    """Write the exit status of a run that could not be started, unless it has one."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (run_dir / "exit.json").exists():
        ended = end_reasons.ended(end_reasons.NOT_STARTED, program=program, detail=detail)
        _write_exit(run_dir, None, False, ended, time.time(), None)


def folders_used(spec: Dict[str, Any]) -> Set[Tuple[str, str]]:
    """Return gpuctl's folders that a launch uses, such as its environment and its code."""
    code = spec.get("code") or {}
    texts = [
        *spec["argv"],
        spec.get("path_prefix") or "",
        code.get("root") or "",
        *map(str, spec["env"].values()),
    ]
    return folders_named_in("\0".join(texts).encode())


def tell_to_stop(
    run_dir: Path,
    reason: str = end_reasons.STOPPED,
    signal_name: str = "SIGTERM",
    grace_s: Optional[float] = None,
    facts: Optional[Dict[str, Any]] = None,
) -> None:
    """Tell the run to end, also one that is just being started. Returns at once.

    `signal_name`: of that for its ranks. `grace_s`: how long these may take from it on. `None`: as the launch set.
    `facts`: of the reason.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if grace_s is not None:
        with contextlib.suppress(OSError):  # on a full disk the grace stays as it is
            write_json(run_dir / constants.STOP_GRACE, {"grace_s": grace_s})
    stop = run_dir / "stop"
    if not stop.exists():  # time, reason and signal are the ones of the first call
        temporary = temporary_beside(stop)
        try:
            temporary.write_text(
                json.dumps(dict(end_reasons.ended(reason, **(facts or {})), signal=signal_name))
            )
        except OSError:  # an empty file finds room on a full disk, too
            temporary.touch()
        temporary.replace(stop)
    if state(run_dir)["running"]:
        try:
            os.kill(read_json(run_dir / "runner.json")["pid"], signal.SIGTERM)
        except ProcessLookupError:
            return  # it ended between the two looks


def wait_for_end(run_dir: Path, deadline_s: float) -> Dict[str, Any]:
    """Wait until the run has ended, and end the remains of a killed supervisor. Returns the final state."""
    now = state(run_dir)
    limit = time.monotonic() + deadline_s
    while now["running"] and time.monotonic() < limit:
        process.wait_for_end([now["pid"]], 0.1)
        now = state(run_dir)
    if not now["running"]:
        clean_up(run_dir)
    return now


def clean_up(run_dir: Path) -> None:
    """Do the work of a killed supervisor: end the rest of its run, and write its end. Without effect after an end."""
    supervisor = read_json(run_dir / "runner.json")
    if not supervisor or (run_dir / "exit.json").exists() or supervisor["boot_id"] != process.boot_id():
        return
    ended = state(run_dir).get("ended")
    ending.kill_ranks(ending.read_records(run_dir).values())
    forget_place(run_dir)
    if process.birth(supervisor["launcher"]) in (None, supervisor["launcher_birth"]):
        process.signal_group(supervisor["launcher"], signal.SIGKILL)
    # Once only: later, another program may have the launcher's pid.
    with contextlib.suppress(OSError):
        _write_exit(run_dir, None, False, ended, None, None)


def command_stop(request: Dict[str, Any], output: BinaryIO) -> None:
    """`stop`: tell the run to end and say so, with the grace of its ranks; then say how it ended."""
    run_dir = Path(request["run_dir"])
    reason, signal_name = request.get("reason", end_reasons.STOPPED), request.get("signal", "SIGTERM")
    running = _running(run_dir)
    tell_to_stop(run_dir, reason, signal_name, request.get("grace_s"))
    grace_s = ending.grace_of(run_dir, read_json(run_dir / "runner.json"))
    frames.write(output, {"t": frames.ORDERED, "grace_s": grace_s, "running": running})
    state = wait_for_end(run_dir, grace_s + float(request["deadline_s"]))
    frames.write(output, {"t": frames.STOPPED, "state": state})


def command_run_state(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `run_state`: whether the run is `running` here; `None` if it is unknown, as before its launch."""
    frames.write(output, {"t": frames.STATE, "running": _running(Path(request["run_dir"]))})


def _running(run_dir: Path) -> Optional[bool]:
    known = any((run_dir / name).exists() for name in ("runner.json", "exit.json", "stop"))
    return bool(state(run_dir)["running"]) if known else None
