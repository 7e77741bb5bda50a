"""A run that the queue has started: its parts on this node and on others, followed until all have ended."""

import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from remote.node import end_reasons, run_state
from remote.node.queue import door, part, spool
from remote.node.queue.schedule import Entry
from remote.node.runs import supervisor


class ActiveRun:
    """Has all nodes of a run start together. A failure on one node, or a lost node, stops the others."""

    def __init__(self, entry: Entry, node: str, peers: door.Peers) -> None:
        """`node`: this one."""
        place = entry["places"][entry["place"]]
        self.entry = entry
        self.nodes: List[str] = place["nodes"]
        self._launch: Optional[Dict[str, Any]] = place["launch"]
        self._node = node
        self._others = [name for name in self.nodes if name != node]
        self._peers = peers
        self._limit = time.monotonic() + door.GATHER_S
        self._began = False
        self.error: Optional[str] = None
        """Why it can't go on, other than the end of its ranks."""

    def follow(self) -> Optional[List[Dict[str, Any]]]:
        """Start the parts, or stop them. Returns the end on each node once all have ended. Never waits for long."""
        if not self._began and self.error is None and not self._begin():
            return None
        run = self.entry["run"]
        run_dir = Path(self._launch["run_dir"]) if self._launch else None
        state = run_state.state(run_dir) if run_dir else None
        ends = self._peers.ends(self._others, run)
        lost = self._peers.silent(set(self._others) - set(ends), door.LOST_S)
        if lost and self.error is None:
            self.error = self._peers.silence(lost, door.LOST_S)
        without_files = {name for name, end in ends.items() if not end}
        if without_files and self.error is None:
            self.error = _lacking(without_files)
        own_ends = [] if state is None or state["running"] else [state]
        if self.error or any(end.get("exit_code") != 0 for end in [*own_ends, *ends.values()]):
            self._peers.order(self._others, {"run": run, "place": self.entry["place"], "order": "stop"})
            if run_dir and run_state.state(run_dir)["running"] and not (run_dir / "stop").exists():
                supervisor.tell_to_stop(run_dir, door.PEER_FAILED)
        if len(own_ends) < (state is not None) or len(ends) + len(lost) < len(self._others):
            return None
        self._peers.order(self._others, None)
        if self.nodes[0] in lost and not run_dir:  # it would have sent the notice
            part.record_failure(self.entry, self._node, str(self.error))
        if run_dir:
            supervisor.clean_up(run_dir)
            ends[self._node] = end_in(run_dir)
        return [ends.get(name, {}) for name in self.nodes]

    def _begin(self) -> bool:
        """Start the part here once all other nodes are ready, and let them start. Returns whether it has begun."""
        run = self.entry["run"]
        order = {"run": run, "place": self.entry["place"], "started_at": self.entry["started_at"]}
        missing = set(self._others) - self._peers.ready(self._others, run)
        if missing and not (self._launch and Path(self._launch["run_dir"]).exists()):
            self._peers.order(self._others, dict(order, order="ready"))
            if missing & self._peers.busy():  # `train` started a run there
                self._limit = time.monotonic() + door.GATHER_S
            if time.monotonic() > self._limit:
                silent = self._peers.silent(missing, door.FRESH_S)
                self.error = self._peers.silence(silent, door.GATHER_S) if silent else _lacking(missing)
                part.record_failure(self.entry, self._node, self.error)
            return self.error is not None
        if self._launch and not part.begin(self.entry, self.entry["place"], self.entry["started_at"]):
            return False
        self._peers.order(self._others, dict(order, order="start"))
        self._began = True
        return True


def end_in(run_dir: Path) -> Dict[str, Any]:
    """Return the state of a node's part that has ended, with the `loss` that was its last. `None`: not known."""
    from remote.node.notify import run_notices  # its imports take long

    losses = run_notices.last_losses(run_dir)
    return dict(run_state.state(run_dir), loss=losses[-1] if losses else None)


def _lacking(nodes: Set[str]) -> str:
    return "{} answers, but has no files of the run: add it again".format(", ".join(sorted(nodes)))


def as_seen(entry: Entry) -> Entry:
    """Return an entry as the files of its run show it here: the queue's process notes the end a moment later."""
    launch = entry["places"][entry["place"]]["launch"] if entry["state"] == spool.RUNNING else None
    if launch is None or not (Path(launch["run_dir"]) / "runner.json").exists():
        return entry
    state = run_state.state(Path(launch["run_dir"]))
    if state["running"] or len(entry["nodes"]) > 1:  # other nodes may not have ended
        return entry
    return dict(entry, **outcome_of([state]), ended_at=state.get("ended_at") or time.time())


def outcome_of(ends: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return `state`, `exit_code`, `error` and `loss` of an entry whose run has ended so on its nodes. Pure."""
    reasons = [end.get("ended") or {} for end in ends]
    codes = [end.get("exit_code") for end in ends]
    state = spool.SUCCEEDED if all(code == 0 for code in codes) else spool.FAILED
    if any(reason.get("reason") in end_reasons.STOPS for reason in reasons):
        state = spool.STOPPED
    failed_starts = [each["detail"] for each in reasons if each.get("reason") == end_reasons.NOT_STARTED]
    return {
        "state": state,
        "exit_code": next(filter(None, codes), None if None in codes else 0),
        "error": (failed_starts or [None])[0],
        "loss": ends[0].get("loss"),
    }
