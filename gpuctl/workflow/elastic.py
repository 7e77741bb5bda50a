"""`train --nnodes MIN:MAX`: machines that come while a run goes on are made ready, and then taken in.

The ranks of a run are fixed. To take machines in it ends at its next checkpoint, so that hardly a step is lost, and
another goes on with them. What can go wrong with a machine goes wrong before that, while the run is still at work.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeAlias

from gpuctl.workflow.connect import connected
from inventories.errors import InventoryError, Locked
from inventories.machine import Inventory, Machine
from inventories.run import Run
from inventories.store import ClusterFolder

if TYPE_CHECKING:
    from remote.session import Node

LOOK_S = 2.0
"""Between two looks at the inventory, and then at the run's checkpoints."""
AGAIN_S = 60.0
"""A machine that did not answer, or could not be made ready, is tried again that much later."""


MakeReady: TypeAlias = 'Callable[[Inventory, "Mapping[str, Node]", Sequence[Machine]], None]'
"""Gets connections to the machines at work and to those that are to join them, and which these are.

Raises RemoteError where they can't take part.
"""


@dataclass(frozen=True, kw_only=True)
class Going:
    """A run that goes on, and what there is to be done with more machines."""

    run: Run
    machines: Sequence[Machine]
    """Those at work."""
    make_ready: MakeReady
    stop: Callable[[], None] | None
    """Stops the run on every node. None: machines that are ready take part at once."""
    say: Callable[[str], None]


class Growth:
    """Looks out for more machines, for all runs of a command, one after the other."""

    def __init__(self, folder: ClusterFolder, *, most: int, python: str | None) -> None:
        """`most`: so many machines at most take part. `python`: their interpreter; None: each one's own."""
        self._folder = folder
        self._most = most
        self._python = python
        self._over = Event()
        self._thread: Thread | None = None
        self._not_before: dict[tuple[str, str, int], float] = {}
        """Machines that were of no use → monotonic time until which they are left alone."""
        self._said: set[str] = set()
        self.joining: Sequence[Machine] = ()
        """The machines for which the run was stopped."""

    @contextmanager
    def during(self, going: Going) -> Iterator[None]:
        """Look out for as long as the body runs, in a thread of its own."""
        self.settle()
        self._over.clear()
        self.joining = ()
        self._thread = Thread(
            target=self._work, args=(going,), daemon=True, name=f"growth of {going.run.run}"
        )
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()

    def settle(self) -> None:
        """Wait until nothing is made ready any more."""
        if self._thread is not None:
            self._thread.join()

    def leave_out(self, machines: Sequence[Machine]) -> None:
        """Leave these machines alone for a while."""
        for machine in machines:
            self._not_before[_key(machine)] = time.monotonic() + AGAIN_S

    def _work(self, going: Going) -> None:
        at_work = list(going.machines)
        while not self._over.wait(LOOK_S):
            joining = self._make_ready(going, at_work)
            if not joining:
                continue
            at_work += joining
            if going.stop is None:
                going.say(f"{_names(joining)} can be used from here on")
                continue
            going.say(
                f"{_names(joining)} can take part: run {going.run.run} ends at its next checkpoint to go on"
            )
            if self._wait_for_checkpoint(going):
                self.joining = joining
                going.stop()
            return

    def _make_ready(self, going: Going, at_work: Sequence[Machine]) -> Sequence[Machine]:
        """Make those machines ready that are not at work, as many as may be; the ones that now are."""
        from remote.errors import RemoteError

        candidates: Sequence[Machine] = ()
        joining: Sequence[Machine] = ()
        try:
            inventory = self._folder.load()
            candidates = self._candidates(inventory, at_work)
            if not candidates:
                return ()
            with connected(self._folder, [*at_work, *candidates], at_least=len(at_work) + 1) as nodes:
                joining = [machine for machine in candidates if machine.name in nodes]
                with self._folder.lock("train"):
                    going.make_ready(inventory, nodes, joining)
        except Locked:
            return ()  # by an `up` that may be adding some
        except InventoryError as error:
            self._say_once(going, f"no more machines can be looked for: {error}")
            return ()
        except RemoteError as error:
            self.leave_out(candidates)
            if joining:
                self._say_once(going, f"{_names(joining)} can't take part yet: {error}")
            return ()
        self.leave_out([machine for machine in candidates if machine not in joining])
        return joining

    def _say_once(self, going: Going, text: str) -> None:
        if text not in self._said and not self._over.is_set():
            self._said.add(text)
            going.say(text)

    def _candidates(self, inventory: Inventory, at_work: Sequence[Machine]) -> Sequence[Machine]:
        """The machines that may join, by rank."""
        taken, now = {machine.name for machine in at_work}, time.monotonic()
        free = [
            replace(machine, python=self._python) if self._python else machine
            for machine in sorted(inventory.machines, key=lambda machine: machine.rank)
            if machine.name not in taken and self._not_before.get(_key(machine), now) <= now
        ]
        return free[: self._most - len(at_work)]

    def _wait_for_checkpoint(self, going: Going) -> bool:
        """Return once the run has written one after this call; False where it is over before that.

        A script's counts once it was the same in two looks: until then it may be half written.
        """
        from remote import checkpoints
        from remote.errors import RemoteError

        [first] = [machine for machine in going.machines if machine.name == going.run.nodes[0].name]
        seen: list[tuple[str, int] | None] = []
        while not self._over.is_set():
            try:
                with connected(self._folder, [first]) as nodes:
                    while not self._over.wait(LOOK_S):
                        [found] = checkpoints.on_node(nodes[first.name], [going.run])
                        seen.append(None if found is None else (found.newest, found.written_ns))
                        settled = going.run.built_in or seen[-1:] == seen[-2:-1]
                        if seen[-1] not in (None, seen[0]) and settled:
                            return True
            except RemoteError:
                self._over.wait(LOOK_S)  # whoever follows the run says what is wrong with the node
        return False


def _names(machines: Sequence[Machine]) -> str:
    return ", ".join(machine.name for machine in machines)


def _key(machine: Machine) -> tuple[str, str, int]:
    return machine.name, machine.host, machine.port
