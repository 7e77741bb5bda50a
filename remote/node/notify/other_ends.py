"""The ends of a run on its other nodes, which report them to the first one: that sends the notice of its end."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Optional

from remote.node import process, signed_lines
from remote.node.notify import run_notices
from remote.node.run_state import state

MAX_MESSAGE = 8192
TICK_S = 5.0
PAUSE_S = 2.0
"""Between two attempts to report."""
WAIT_S = 300.0
"""The first node waits for reports for this time after its own end, as torchrun does for its other agents."""
CAUSE_S = 15.0
"""If another node's failure ended the run, the first node waits this time for its error."""


class OtherEnds:
    """The reports of the other nodes, as the first one gets them."""

    def __init__(self, nodes: Iterable[str], way: Optional[Mapping[str, Any]]) -> None:
        """`nodes`: the others. `way`: `address`, `port` and `key` for their reports; `None`: no node reports."""
        self.reports: Dict[str, Mapping[str, Any]] = {}
        self._nodes = set(nodes)
        self._complete = threading.Event()
        self._hears = False
        if way is not None:
            with contextlib.suppress(
                OSError
            ):  # the port is in use: the notice says that no node has reported
                place, key = (way["address"], way["port"]), way["key"].encode()
                server = signed_lines.Server(place, key, self._answer, MAX_MESSAGE)
                threading.Thread(target=server.serve_forever, daemon=True).start()
                self._hears = True

    @staticmethod
    def awaited_s(end: Mapping[str, Any]) -> float:
        """Return the time for which a notice of the first node's `end` waits for reports."""
        if run_notices.succeeded(end):
            return WAIT_S
        return CAUSE_S if run_notices.is_victim(end) else 0.0

    def missing(self) -> bool:
        """Return whether a node may still report."""
        return self._hears and not self._complete.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait until all nodes have reported, or for this time."""
        self._complete.wait(timeout_s)

    def _answer(self, message: Dict[str, Any]) -> Dict[str, Any]:
        self.reports[message["node"]] = message
        if self._nodes <= set(self.reports):
            self._complete.set()
        return {}


def report(run_dir: Path, node: str, way: Mapping[str, Any], supervisor: Mapping[str, Any]) -> None:
    """Report how the run ended on this node, once its supervisor has ended. `supervisor`: empty: it did not start."""
    while supervisor and process.lives_on(supervisor["pid"], supervisor["birth"], TICK_S):
        pass
    now = state(run_dir)
    message = {"node": node, "exit_code": now.get("exit_code"), "ended": now.get("ended"), "error": None}
    if message["exit_code"] != 0:
        message["error"] = run_notices.first_error(run_dir, node)
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        with contextlib.suppress(OSError, ValueError):
            place, key = (way["address"], way["port"]), way["key"].encode()
            if signed_lines.ask(place, key, message, MAX_MESSAGE) is not None:
                return
        time.sleep(PAUSE_S)
