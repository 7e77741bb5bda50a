"""The queue on a node that is not the first: it starts its part of a run when the first node says so."""

import contextlib
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Optional

from remote.node import run_state
from remote.node.queue import crontab, door, lasting
from remote.node.queue.spool import following
from remote.node.runs import start, supervisor
from remote.shared import frames
from remote.shared.files import read_json, write_json

POLL_S = 0.5
ADDING_S = 600.0
"""A part may be here for this time before the first node has its entry."""
SLOW_S = 5.0
"""Between questions to a first node that does not answer: no run on several nodes is active."""


def command_queue_follow(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_follow`: keep this node's part of `entries` (run, launch) until the first node starts them.

    `door`: address, port and key of the first node. `keep`: runs of the queue; other parts are removed
    (null: no part is). `restarts`: have cron continue after a restart.
    """
    folder = following(request["node"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.glob("*.json"):
        old = not request["keep"] or time.time() - path.stat().st_mtime > ADDING_S
        if request["keep"] is not None and path.stem not in request["keep"] and old:
            path.unlink()
    for entry in request["entries"]:
        uses = sorted(supervisor.folders_used(entry["launch"]))
        write_json(folder / (entry["run"] + ".json"), dict(entry, door=request["door"], uses=uses))
    begin(request["node"])
    if request["restarts"]:
        crontab.install(request["node"])
    frames.write(output, {"t": frames.DONE})


def begin(node: str) -> None:
    """Have a process that follows the first node, if a part of a run waits here. Returns at once."""
    folder = following(node)
    if any(folder.glob("*.json")):
        lasting.begin(folder / ".follower", lambda _lock: Follower(node, folder).work())


class Follower:
    """Asks the first node for orders, and carries them out."""

    def __init__(self, node: str, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._run: Optional[str] = None
        """The run of the last order."""

    def work(self) -> None:
        """Follow orders until no part of a run waits here."""
        while True:
            paths = sorted(self._folder.glob("*.json"))
            if not paths:
                crontab.remove(self._node)
                return
            entry = read_json(self._folder / "{}.json".format(self._run)) or read_json(paths[-1])
            answer = door.ask(entry["door"], self._message())
            if answer is not None and answer["run"]:
                self._obey(answer["run"], answer["order"])
            time.sleep(POLL_S if answer is not None else SLOW_S)

    def _message(self) -> Dict[str, Any]:
        """Return the report to the first node on the run of its last order."""
        entry = read_json(self._folder / "{}.json".format(self._run))
        message: Dict[str, Any] = {"node": self._node, "run": self._run, "ready": False, "ended": None}
        if not entry:
            return message
        run_dir = Path(entry["launch"]["run_dir"])
        other_runs = set(run_state.active_runs()) - {self._run}
        message["ready"] = not other_runs
        if run_dir.exists():
            state = run_state.state(run_dir)
            if not state["running"]:
                message["ended"] = {"exit_code": state.get("exit_code"), "ended": state.get("ended")}
        return message

    def _obey(self, run: str, order: str) -> None:
        """Start or stop this node's part of a run. A second order changes nothing."""
        if run != self._run:
            self._forget_ended()
            self._run = run
        entry = read_json(self._folder / (run + ".json"))
        if not entry:
            return
        launch = entry["launch"]
        run_dir = Path(launch["run_dir"])
        if order == "stop":
            supervisor.tell_to_stop(run_dir, door.PEER_FAILED)
        elif order == "start" and not run_dir.exists():
            try:
                start.start(launch)
            except OSError as error:
                supervisor.record_failed_start(run_dir, launch["argv"][0], str(error))

    def _forget_ended(self) -> None:
        """Remove the part of the last run, which has ended: the first node asks for another one."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / "{}.json".format(self._run)).unlink()
