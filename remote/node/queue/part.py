"""A node's part of a run from the queue: started once, whatever was killed before."""

import contextlib
import errno
import os
import shutil
import signal
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict

from remote.node import process, run_state
from remote.node.home_folder import NODE_HOME
from remote.node.runs import start, supervisor
from remote.shared.constants import RUN_ID_VARIABLE, RUNS
from remote.shared.files import read_json

POLL_S = 0.05
CUT_OFF = "it was cut off as it started"
BEGIN_S = 10.0
"""A supervisor writes its first file within this time."""


def begin(entry: Dict[str, Any], place: int, started_at: float) -> bool:
    """Start the part of a run at a place, unless it has started before. Returns False if it has to wait.

    It waits if another run has the node now, or the disk is full. If it can't start, this is recorded as its end.
    """
    # So that runs and their notices are as `train` would have them, and not as who started this process.
    os.environ.clear()
    os.environ.update(entry["session"])
    run, launch = entry["run"], entry["places"][place]["launch"]
    run_dir = Path(launch["run_dir"])
    if run_dir.exists():
        if _has_begun(run_dir):
            return True
        # A killed process was about to start them. Its ranks must not live when others start.
        starting = read_json(run_dir / supervisor.STARTING)
        alive = starting and process.alive(starting["pid"], starting["birth"])
        for pid in [*([starting["pid"]] if alive else []), *process.with_variable(RUN_ID_VARIABLE, run)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if (run_dir / supervisor.STARTING).exists():  # a second start might do its work twice
            record_failure(entry, launch["node"], CUT_OFF)
            return True
        shutil.rmtree(str(run_dir), ignore_errors=True)
    started = datetime.fromtimestamp(started_at, timezone.utc)
    launch["record"]["started_at"] = started.isoformat(timespec="milliseconds")
    if launch.get("notify"):
        launch["notify"]["run"]["started"] = started_at
    try:
        start.start(launch)
    except OSError as error:
        if (run_dir / "runner.json").exists():  # it runs, without one of its watches
            return True
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            shutil.rmtree(str(run_dir), ignore_errors=True)
            return False
        if set(run_state.active_runs()) - {run}:  # `train` started it in between
            return False
        record_failure(entry, launch["node"], str(error))
    return True


def disk_is_full() -> bool:
    """Return whether no run can start here, as its first files find no room."""
    disk = os.statvfs(str(NODE_HOME))
    return disk.f_bavail * disk.f_frsize < supervisor.LOW_DISK_BYTES


def with_session(entry: Dict[str, Any]) -> Dict[str, Any]:
    """Return an entry with the environment of this session, and gpuctl's folders that it uses on this node."""
    launches = [place["launch"] for place in entry["places"] if place["launch"]]
    uses = sorted({used for launch in launches for used in supervisor.folders_used(launch)})
    session = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    return dict(entry, uses=uses, session=session)


def record_failure(entry: Dict[str, Any], node: str, why: str) -> None:
    """Record on this node, and notify, that a run could not start, or was lost; it need not have a part here."""
    launches = [place["launch"] for place in entry["places"] if place["launch"]]
    launch: Dict[str, Any] = launches[0] if launches else {"argv": [entry["script"]]}
    run_dir = NODE_HOME / RUNS / entry["run"] / node
    supervisor.record_failed_start(run_dir, launch["argv"][0], why)
    targets = entry.get("notify") or launch.get("notify")
    if targets:
        from remote.node.notify import run_watch  # its imports take long

        targets["run"]["started"] = entry.get("started_at", targets["run"]["started"])
        run_watch.begin(run_dir, targets)


def _has_begun(run_dir: Path) -> bool:
    """Return whether the run has a supervisor, has ended, or was stopped; wait if it is about to begin."""
    limit = time.monotonic() + BEGIN_S
    while not any((run_dir / name).exists() for name in ("runner.json", "exit.json", "stop")):
        # The folder's age counts, too: this process may be killed each few seconds.
        if time.monotonic() > limit or time.time() - run_dir.stat().st_mtime > BEGIN_S:
            return False
        time.sleep(POLL_S)
    return True
