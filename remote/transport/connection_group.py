"""The machines of a cluster as a `fabric.Group`: with the concurrency of every other fan-out."""

from collections.abc import Callable, Sequence
from typing import Any

import fabric
from fabric.exceptions import GroupException

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.threads import MAX_AT_ONCE
from remote.fanout import fan_out
from remote.transport.pinned_connection import PinnedConnection


class PinnedGroup(fabric.Group):  # type: ignore[misc] # Fabric has no types
    """A connection to each machine. A method raises GroupException where it failed on one, with every outcome."""

    def __init__(
        self,
        machines: Sequence[Machine] = (),
        cluster: ClusterFolder | None = None,
        *,
        at_once: int = MAX_AT_ONCE,
    ) -> None:
        super().__init__()
        self.at_once = at_once
        if cluster is not None:
            self.extend(PinnedConnection(machine, cluster) for machine in machines)

    def get(self, *args: Any, **kwargs: Any) -> fabric.GroupResult:  # noqa: ANN401 - Fabric's own
        """Get a file of each machine, into a folder of the machine's name unless another place is given."""
        if len(args) < 2 and "local" not in kwargs:
            return self.map(lambda box: box.get(*args, local=f"{box.machine.name}/", **kwargs))
        return self.map(lambda box: box.get(*args, **kwargs))

    def close(self) -> None:
        """Close all connections."""
        self.map(lambda box: box.close())

    def _do(self, method: str, *args: Any, **kwargs: Any) -> fabric.GroupResult:  # noqa: ANN401 - Fabric's own
        return self.map(lambda box: getattr(box, method)(*args, **kwargs))

    def map(self, work: Callable[[PinnedConnection], Any]) -> fabric.GroupResult:
        """Call `work` with each connection, in threads. Raises GroupException with every outcome where one failed."""

        def call(box: PinnedConnection) -> Any:  # noqa: ANN401 - what the method returns
            try:
                return work(box)
            except Exception as error:  # noqa: BLE001 - a group's result holds the errors
                return error

        boxes = {str(number): box for number, box in enumerate(self)}
        outcomes = fan_out(call, boxes, at_once=self.at_once)
        results = fabric.GroupResult(
            (box, outcome.value) for box, outcome in zip(boxes.values(), outcomes, strict=True)
        )
        if results.failed:
            raise GroupException(results)
        return results
