"""Telling a run's nodes to stop: each by a thread of its own, again where that fails, and why."""

from collections.abc import Callable, Collection, Mapping
from threading import Thread

from inventories.clocks import awake_s
from inventories.runs.end_reasons import Reason
from inventories.runs.run import RunNode
from remote.errors import NodeFailed, RemoteError
from remote.runs.node_state import stop_on_node
from remote.runs.observer import Observer
from remote.sessions.session import Node

STOP_RETRY_S = 2.0


class Stopping:
    """The nodes of a run that are to stop."""

    def __init__(
        self, parts: Mapping[str, RunNode], connection: Callable[[str], Node], observer: Observer
    ) -> None:
        """`connection` gives a node's, and may raise RemoteError."""
        self._parts = parts
        self._connection = connection
        self._observer = observer
        self._orders: dict[str, tuple[Thread, float]] = {}
        """Nodes with an order on its way → its thread, and its begin, as `awake_s`."""
        self.reasons: dict[str, Reason] = {}
        """Nodes that are to stop → why."""
        self.ordered: set[str] = set()
        """Nodes that know it."""
        self._interrupted = False
        self._kills: dict[str, bool] = {}
        """Nodes whose ranks are to be killed at once → whether they know it."""

    @property
    def busy(self) -> bool:
        """Return whether an order to stop is on its way to a node."""
        return any(thread.is_alive() for thread, _ in self._orders.values())

    def stop(self, name: str, reason: Reason, *, interrupted: bool = False) -> None:
        """Have a node stop; returns at once. The first reason counts. `interrupted`: its ranks get SIGINT."""
        self._interrupted |= interrupted
        if name not in self.reasons:
            self.reasons[name] = reason
            self._observer.node(name, "stopping")
            self._start(name)

    def kill(self, names: Collection[str]) -> None:
        """Have the ranks of these nodes, which are to stop, killed at once; returns at once."""
        for name in self.reasons.keys() & set(names):
            self._kills[name] = False
            self._start(name)

    def try_again(self, names: Collection[str]) -> None:
        """Retry the order to stop on nodes where it failed a moment ago."""
        kills = {name for name, known in self._kills.items() if not known}
        for name in ((self.reasons.keys() - self.ordered) | kills) & set(names):
            thread, since = self._orders[name]
            if not thread.is_alive() and awake_s() - since > STOP_RETRY_S:
                self._start(name)

    def leave(self) -> None:
        """Do not wait for orders on their way."""
        self._orders.clear()

    def tell(self, name: str, reason: Reason, grace_s: float | None = None) -> None:
        """Tell a node, and wait until it has stopped."""

        def on_told() -> None:
            self.ordered.add(name)
            if grace_s is not None:
                self._kills[name] = True

        try:
            stop_on_node(
                self._connection(name),
                self._parts[name],
                reason=reason,
                interrupted=self._interrupted and reason is Reason.STOPPED,
                grace_s=grace_s,
                on_told=on_told,
            )
        except NodeFailed as error:
            self._observer.note(str(error))
        except RemoteError as error:
            if name not in self.ordered:
                self._observer.note(f"{name} could not be told to stop: {error}")

    def _start(self, name: str) -> None:
        words = (name, self.reasons[name], 0.0 if name in self._kills else None)
        thread = Thread(target=self.tell, args=words, daemon=True, name=f"stop {name}")
        self._orders[name] = (thread, awake_s())
        thread.start()
