"""The queue on a node that is not the first: it starts its part of a run when the first node says so."""

import contextlib
import math
import random
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Optional, Sequence

from remote.node import run_state
from remote.node.queue import active_run, crontab, door, lasting, part
from remote.node.queue.spool import following
from remote.node.runs import supervisor
from remote.shared import frames
from remote.shared.files import TEMPORARY, read_json, write_json

POLL_S = 0.5
ADDING_S = 600.0
"""A part may be here for this time before the first node has its entry."""
FORGET_S = 24 * 3600.0
"""A part whose run is not active may be here for this time if the first node does not answer."""
SLOW_S = 1.0
"""Between questions to a first node that does not answer: its queue may not have begun."""
PARTS_SHOWN = 100
"""Number of parts in a message."""


def command_queue_follow(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_follow`: keep this node's part of `entries` (run, places) until the first node starts them.

    `door`: address, port and key of the first node, for all parts (null: as before). `keep`: runs of the queue;
    other parts are removed unless their run is active here. `keep_new`: new ones are not, as another computer may
    be adding their entries now. `restarts`: have cron continue after a restart.
    """
    folder = following(request["node"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    follower = Follower(request["node"], folder)
    for path in [*folder.glob("*.json"), *folder.glob(TEMPORARY + "*")]:
        with contextlib.suppress(FileNotFoundError):  # the follower's process has just removed it
            old = not request["keep_new"] or _age_s(path) > ADDING_S
            if path.stem not in request["keep"] and old and not follower.is_active(path.stem):
                path.unlink()
    if request["door"]:
        write_json(folder / door.SETTINGS, request["door"])
    for entry in request["entries"]:
        write_json(folder / (entry["run"] + ".json"), part.with_session(entry))
    restarts = crontab.install(request["node"]) if request["restarts"] else None
    begin(request["node"])
    frames.write(output, {"t": frames.DONE, "restarts": restarts})


def begin(node: str) -> None:
    """Have a process that follows the first node, if a part of a run waits here. Returns at once."""
    folder = following(node)
    if any(folder.glob("*.json")):
        lasting.begin(folder / ".follower", lambda _lock: Follower(node, folder).work())


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


class Follower:
    """Asks the first node for orders, and carries them out."""

    def __init__(self, node: str, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._order: Dict[str, Any] = {"run": None}
        """The last order."""
        self._answered_at = time.monotonic()

    def work(self) -> None:
        """Follow orders until no part of a run waits here."""
        while True:
            runs = sorted(path.stem for path in self._folder.glob("*.json"))
            if not runs:
                crontab.remove(self._node)
                return
            settings = read_json(self._folder / door.SETTINGS)
            answer = door.ask(settings, self._message(runs)) if settings else None
            if answer is not None:
                self._answered_at = time.monotonic()
                for run in answer["over"]:
                    self._forget(run)
                self._order = answer
                self._obey()
            elif time.monotonic() - self._answered_at > FORGET_S:
                for run in runs:
                    if not self.is_active(run):
                        self._forget(run, older_than_s=FORGET_S)
            time.sleep(POLL_S if answer is not None else SLOW_S)

    def _read(self, run: Optional[str]) -> Dict[str, Any]:
        """Return this node's part of a run. Empty: no part."""
        return read_json(self._folder / "{}.json".format(run))

    def _run_dir(self, run: Optional[str]) -> Optional[Path]:
        """Return the folder of a run here, at each of its places. `None`: this node has no part."""
        launches = [place["launch"] for place in self._read(run).get("places", []) if place["launch"]]
        return Path(launches[0]["run_dir"]) if launches else None

    def is_active(self, run: str) -> bool:
        """Return whether the run has begun here, and has not ended."""
        run_dir = self._run_dir(run)
        return run_dir is not None and run_state.state(run_dir)["running"] is True

    def _message(self, runs: Sequence[str]) -> Dict[str, Any]:
        """Return the report to the first node: on the run of its last order, and on the parts of `runs` here."""
        run, ended = self._order["run"], None
        run_dir = self._run_dir(run)
        begun = run_dir is not None and run_dir.exists()
        busy = bool(set(run_state.active_runs()) - {run}) or (part.disk_is_full() and not begun)
        if run_dir is not None and begun and not run_state.state(run_dir)["running"]:
            supervisor.clean_up(run_dir)
            end = active_run.end_in(run_dir)
            ended = {key: end.get(key) for key in ("exit_code", "ended", "loss")}
        elif run_dir is None and run:
            ended = {}  # the first node must not wait for its end
        parts = random.sample(runs, min(len(runs), PARTS_SHOWN))  # of long queues, others each time
        ready = run_dir is not None and not busy
        return {"node": self._node, "run": run, "busy": busy, "ready": ready, "ended": ended, "parts": parts}

    def _obey(self) -> None:
        """Start or stop this node's part of a run. A second order changes nothing."""
        run_dir = self._run_dir(self._order["run"])
        if run_dir is None:
            return
        if self._order["order"] == "stop":
            supervisor.tell_to_stop(run_dir, door.PEER_FAILED)
        elif self._order["order"] == "start":
            part.begin(self._read(self._order["run"]), self._order["place"], self._order["started_at"])

    def _forget(self, run: str, *, older_than_s: float = -math.inf) -> None:
        """Remove the part of a run that has ended, and stop it here: the first node may have lost this one."""
        run_dir, path = self._run_dir(run), self._folder / "{}.json".format(run)
        if run_dir is not None and self.is_active(run):
            supervisor.tell_to_stop(run_dir, door.PEER_FAILED)
        with contextlib.suppress(FileNotFoundError):
            if _age_s(path) > older_than_s:
                path.unlink()
