"""The first node's port for the other nodes of the queue: they ask it what to start and what to stop.

Each message and each answer is one line, signed with a key that only the cluster's nodes have. The others connect, so
no node needs a way to log in to another.
"""

import contextlib
import random
import secrets
import time
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Set

from remote.node import signed_lines
from remote.shared.constants import RENDEZVOUS_PORTS
from remote.shared.files import read_json, write_json

SETTINGS = ".door"
GATHER_S = 300.0
"""Time for the nodes of a run to answer before it starts: one may be booting."""
FRESH_S = 10.0
"""An answer counts for this time."""
LOST_S = 120.0
"""A node of an active run that is silent for longer is lost, and the run is stopped."""
MAX_MESSAGE = 1 << 16
PEER_FAILED = "peer_failed"
"""Reason for the order to stop where another node failed."""


def settings_of(folder: Path, address: str) -> Dict[str, Any]:
    """Return address, port and key of the queue's door, made the first time."""
    path = folder / SETTINGS
    known = read_json(path)
    if known.get("address") == address:
        return known
    port = random.choice(RENDEZVOUS_PORTS)  # noqa: S311
    made = {"address": address, "port": port, "key": secrets.token_hex(16)}
    write_json(path, made)
    return made


def ask(door: Mapping[str, Any], message: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Send a message to the first node and return its answer. `None`: no answer."""
    address = (door["address"], door["port"])
    try:
        return signed_lines.ask(address, door["key"].encode(), message, MAX_MESSAGE)
    except (OSError, ValueError):
        return None


class Peers:
    """The other nodes: their last messages, and the orders to them."""

    def __init__(self, ended: Callable[[], Set[str]]) -> None:
        """`ended`: returns the runs that the queue is done with."""
        self._ended = ended
        self._lock = Lock()
        self.closed: Optional[str] = None
        """Why the door can't be opened."""
        self._expected_since: Dict[str, float] = {}
        self._messages: Dict[str, Dict[str, Any]] = {}
        self._last_message_at: Dict[str, float] = {}
        self._orders: Dict[str, Dict[str, Any]] = {}

    def answer(self, message: Mapping[str, Any]) -> Dict[str, Any]:
        """Take a node's message and return the order to it, with `over`: its parts of runs that have ended."""
        ended = self._ended()
        with self._lock:
            node = str(message["node"])
            self._messages[node] = dict(message)
            self._last_message_at[node] = time.monotonic()
            over = [run for run in message["parts"] if run in ended]
            return dict(self._orders.get(node) or {"run": None}, over=over)

    def expect(self, nodes: Iterable[str]) -> None:
        """Have the silence of these nodes count from now on, and that of no others: only they have a part."""
        now = time.monotonic()
        with self._lock:
            self._expected_since = {node: self._expected_since.get(node, now) for node in nodes}

    def order(self, nodes: Iterable[str], order: Optional[Dict[str, Any]]) -> None:
        """Give nodes another order: `run`, `order` (`ready`, `start` or `stop`), its `place` and `started_at`."""
        with self._lock:
            self._orders.update({node: order or {"run": None} for node in nodes})

    def ready(self, nodes: Iterable[str], run: str) -> Set[str]:
        """Return the nodes that answer, and can start the run now."""
        with self._lock:
            return {
                node
                for node in nodes
                if self._is_fresh(node)
                and self._messages[node].get("run") == run
                and self._messages[node]["ready"]
            }

    def idle(self) -> Set[str]:
        """Return the nodes that answer, and can start a run: no other run is active there."""
        with self._lock:
            return {
                node for node in self._messages if self._is_fresh(node) and not self._messages[node]["busy"]
            }

    def busy(self) -> Set[str]:
        """Return the nodes that answer, and can't start a run now."""
        with self._lock:
            return {node for node in self._messages if self._is_fresh(node) and self._messages[node]["busy"]}

    def with_parts(self) -> Set[str]:
        """Return the nodes that answer, and have parts of runs."""
        with self._lock:
            return {node for node in self._messages if self._is_fresh(node) and self._messages[node]["parts"]}

    def silent(self, nodes: Iterable[str], longer_than_s: float) -> Set[str]:
        """Return the nodes that sent no message for longer than this, since they are expected."""
        with self._lock:
            now, long_ago = time.monotonic(), float("-inf")
            return {
                node
                for node in nodes
                if now - self._last_message_at.get(node, long_ago) > longer_than_s
                and now - self._expected_since.get(node, long_ago) > longer_than_s
            }

    def ends(self, nodes: Iterable[str], run: str) -> Dict[str, Dict[str, Any]]:
        """Return the end of the run on each node where it has ended: `exit_code`, and `ended` with its reason.

        Empty: the node answers, but has no part of the run.
        """
        with self._lock:
            messages = {node: self._messages.get(node, {}) for node in nodes}
        return {
            node: message["ended"]
            for node, message in messages.items()
            if message.get("run") == run and message["ended"] is not None
        }

    def silence(self, nodes: Iterable[str], seconds: float) -> str:
        """Return the sentence on nodes that do not answer."""
        silent = "{} did not answer the first node for {:.0f} s".format(", ".join(sorted(nodes)), seconds)
        return silent + (": " + self.closed if self.closed else "")

    def _is_fresh(self, node: str) -> bool:
        return time.monotonic() - self._last_message_at.get(node, float("-inf")) <= FRESH_S


@contextlib.contextmanager
def listening(settings: Mapping[str, Any], peers: Peers) -> Iterator[None]:
    """Answer the other nodes while the body runs."""
    address = (settings["address"], settings["port"])
    with signed_lines.Server(address, settings["key"].encode(), peers.answer, MAX_MESSAGE) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
