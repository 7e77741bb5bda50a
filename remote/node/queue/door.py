"""The first node's port for the other nodes of a run from the queue: they ask it what to start and what to stop.

Each message and each answer is one line, signed with a key that only the cluster's nodes have. The others connect, so
no node needs a way to log in to another.
"""

import contextlib
import random
import secrets
import time
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from remote.node import signed_lines
from remote.shared.constants import RENDEZVOUS_PORTS
from remote.shared.files import read_json, write_json

GATHER_S = 300.0
"""Time for all nodes of a run to answer before it starts: one may be booting."""
FRESH_S = 10.0
"""An answer counts for this time."""
LOST_S = 120.0
"""A node of an active run that is silent for longer is lost, and the run is stopped."""
MAX_MESSAGE = 1 << 16
PEER_FAILED = "peer_failed"
"""Reason for the order to stop where another node failed."""


def settings_of(folder: Path, address: str) -> Dict[str, Any]:
    """Return address, port and key of the queue's door, made the first time."""
    path = folder / ".door"
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


class Gang:
    """The other nodes of the active run: their last messages, and the answer to the next ones."""

    def __init__(self, run: str, nodes: Sequence[str]) -> None:
        self.run = run
        self._order = "ready"
        self._lock = Lock()
        self._began = time.monotonic()
        self._messages: Dict[str, Dict[str, Any]] = {node: {} for node in nodes}
        self._last_message_at: Dict[str, float] = {}

    def answer(self, message: Mapping[str, Any]) -> Dict[str, Any]:
        """Take a node's message and return the order to it: `ready`, `start` or `stop`, and the run."""
        with self._lock:
            node = message.get("node")
            if node in self._messages:
                self._messages[node] = dict(message) if message.get("run") == self.run else {}
                self._last_message_at[node] = time.monotonic()
            return {"run": self.run, "order": self._order}

    def order(self, order: str) -> None:
        """Give all nodes another order: `start`, then `stop`."""
        with self._lock:
            if self._order != "stop":
                self._order = order

    def missing(self) -> List[str]:
        """Return the nodes that are not ready."""
        now = time.monotonic()
        with self._lock:
            return [
                node
                for node, message in self._messages.items()
                if not message.get("ready") or now - self._last_message_at[node] > FRESH_S
            ]

    def lost(self) -> List[str]:
        """Return the nodes that have not ended, and are silent."""
        now = time.monotonic()
        with self._lock:
            active = [node for node, message in self._messages.items() if not message.get("ended")]
            return [node for node in active if now - self._last_message_at.get(node, self._began) > LOST_S]

    def ends(self) -> Dict[str, Dict[str, Any]]:
        """Return the end of the run on each node where it has ended: `exit_code`, and `ended` with its reason."""
        with self._lock:
            return {node: each["ended"] for node, each in self._messages.items() if each.get("ended")}

    def active(self) -> List[str]:
        """Return the nodes that have not ended."""
        with self._lock:
            return [node for node, message in self._messages.items() if not message.get("ended")]


@contextlib.contextmanager
def listening(settings: Mapping[str, Any], gang: Gang) -> Iterator[None]:
    """Answer the other nodes of a run while the body runs."""
    address = (settings["address"], settings["port"])
    with signed_lines.Server(address, settings["key"].encode(), gang.answer, MAX_MESSAGE) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
