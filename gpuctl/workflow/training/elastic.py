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
from inventories.ended import Reason
from inventories.errors import InventoryError, Locked
from inventories.machine import Inventory, Machine
from inventories.run import Run, RunNode
from inventories.store import ClusterFolder

if TYPE_CHECKING:
    from remote.runs.monitor import Watch
    from remote.sessions.session import Node

LOOK_S = 2.0
"""Between two looks at the inventory, and then at the run's checkpoints."""
AGAIN_S = 60.0
"""A machine that did not answer, or could not be made ready, is tried again after so long, then after twice that."""
AGAIN_AT_MOST_S = 900.0
ASK_S = 20.0
"""Between two looks whether the machines at work still are, where others join while the run goes on."""
SETTLE_S = 30.0
"""A script that always writes to its checkpoints is stopped all the same, so long after the first that is new."""

Key: TypeAlias = tuple[str, str, int]
"""Of a machine, also where another gets its name: name, host, port."""
MakeReady: TypeAlias = 'Callable[[Inventory, "Mapping[str, Node]", Machine], None]'
"""Gets connections to the machines at work and to the one that is to join them, and which that is.

Raises RemoteError where it can't take part.
"""


@dataclass(frozen=True, kw_only=True)
class Going:
    """A run that goes on, and what there is to be done with more machines."""

    run: Run
    watch: "Watch"
    machines: Sequence[Machine]
    """Those at work."""
    make_ready: MakeReady
    takes_part: "Callable[[Node], bool] | None"
    """Tells whether a machine at work still is, where others join while the run goes on. None: it ends for them."""
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
        self._going: Going | None = None
        self._ready: Sequence[Machine] = ()
        self._at_it = ""
        """Name of the machine that is being made ready."""
        self._tries: dict[Key, tuple[int, float]] = {}
        """Machines that were of no use → how often, and the monotonic time until which they are left alone."""
        self._said: set[str] = set()
        self._ask_at = 0.0
        """The monotonic time from which the machines at work are asked again whether they still are."""
        self.barred: frozenset[str] = frozenset()
        """Names of machines with which a run could not begin though they were ready: they are not tried again."""
        self.lost: dict[str, list[RunNode]] = {}
        """Machines that were lost → their parts in the runs, which may be going on there."""

    @property
    def joining(self) -> Sequence[Machine]:
        """The machines for which the run that is over was ended."""
        return self._ready if self._going is not None and self._going.watch.gave_way else ()

    @property
    def lost_one(self) -> bool:
        """Whether the run that is over lost a machine."""
        records = self._going.watch.records.values() if self._going is not None else ()
        return any(record.lost or record.reason is Reason.REBOOTED for record in records)

    @contextmanager
    def during(self, going: Going) -> Iterator[None]:
        """Look out for as long as the body runs, in a thread of its own; `settle` comes between two."""
        self._over.clear()
        self._going, self._ready, self._ask_at = going, (), time.monotonic() + ASK_S
        self._thread = Thread(
            target=self._work, args=(going,), daemon=True, name=f"growth of {going.run.run}"
        )
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            for part in going.run.nodes:
                if part.name in going.watch.lost:
                    self.lost.setdefault(part.name, []).append(part)

    def settle(self, say: Callable[[str], None]) -> None:
        """Wait until nothing is made ready any more."""
        if self._thread is not None:
            self._thread.join(LOOK_S)
            if self._thread.is_alive() and self._at_it:
                say(f"{self._at_it} is still being made ready; it takes part in what follows")
            self._thread.join()

    def bar(self, machines: Sequence[Machine]) -> None:
        """Leave these machines alone from now on."""
        self.barred |= {machine.name for machine in machines}

    def _work(self, going: Going) -> None:
        at_work = list(going.machines)
        while not self._over.wait(LOOK_S):
            try:
                inventory = self._folder.load()
                if going.takes_part is not None:
                    at_work = self._those_left(inventory, at_work, going.takes_part)
            except (InventoryError, OSError) as error:
                self._say_once(going, f"no more machines can be looked for: {error}")
                continue
            ready = [
                machine
                for machine in self._candidates(inventory, at_work)
                if self._try(going, at_work, machine)
            ]
            if not ready:
                continue
            names = ", ".join(machine.name for machine in ready)
            if going.takes_part is not None:
                at_work += ready
                going.say(f"{names} can be used from here on")
                continue
            going.say(f"{names} can take part: run {going.run.run} ends at its next checkpoint to go on")
            if self._wait_for_checkpoint(going):
                self._ready = ready
                going.watch.give_way()
            return

    def _those_left(
        self, inventory: Inventory, at_work: Sequence[Machine], takes_part: "Callable[[Node], bool]"
    ) -> list[Machine]:
        """Those at work but for the ones that are gone, and now and then those that say they are not any more.

        One that does not answer may be at work.
        """
        from remote.sessions.fanout import fan_out

        there = {_key(machine) for machine in inventory.machines}
        first, *others = (machine for machine in at_work if _key(machine) in there or machine is at_work[0])
        if others and time.monotonic() >= self._ask_at:
            with connected(self._folder, others, at_least=0) as nodes:
                idle = {outcome.node for outcome in fan_out(takes_part, nodes) if outcome.value is False}
            others = [machine for machine in others if machine.name not in idle]
            self._ask_at = time.monotonic() + ASK_S
        return [first, *others]

    def _try(self, going: Going, at_work: Sequence[Machine], machine: Machine) -> bool:
        """Make a machine ready that is not at work; whether it is now. One that is not is left alone for a while."""
        from remote.errors import RemoteError
        from remote.runs.state import stop_on_node

        all_there = False
        try:
            with (
                connected(self._folder, [machine]) as alone,
                # One that was lost does not keep others out where the run goes on without it.
                connected(self._folder, at_work, at_least=None if going.takes_part is None else 1) as others,
                self._folder.lock("train"),
            ):
                all_there, self._at_it = True, machine.name
                for part in self.lost.get(machine.name, ()):
                    stop_on_node(alone[machine.name], part)
                going.make_ready(self._folder.load(), {**others, **alone}, machine)
        except Locked:
            return False  # by an `up` that may be adding some
        except (RemoteError, InventoryError, OSError) as error:
            self._leave_out(machine)
            if all_there:
                self._say_once(going, f"{machine.name} can't take part yet: {error}")
            return False
        finally:
            self._at_it = ""
        self.lost.pop(machine.name, None)
        self._tries.pop(_key(machine), None)
        return True

    def _candidates(self, inventory: Inventory, at_work: Sequence[Machine]) -> Sequence[Machine]:
        """The machines that may join, by rank."""
        taken, now = {machine.name for machine in at_work} | self.barred, time.monotonic()
        free = [
            replace(machine, python=self._python) if self._python else machine
            for machine in sorted(inventory.machines, key=lambda machine: machine.rank)
            if machine.name not in taken and self._tries.get(_key(machine), (0, now))[1] <= now
        ]
        return free[: max(0, self._most - len(at_work))]

    def _leave_out(self, machine: Machine) -> None:
        """Leave a machine alone for a while, which grows."""
        tries, _ = self._tries.get(_key(machine), (0, 0.0))
        wait_s = min(AGAIN_S * 2**tries, AGAIN_AT_MOST_S)
        self._tries[_key(machine)] = (tries + 1, time.monotonic() + wait_s)

    def _say_once(self, going: Going, text: str) -> None:
        if text not in self._said and not self._over.is_set():
            self._said.add(text)
            going.say(text)

    def _wait_for_checkpoint(self, going: Going) -> bool:
        """Return once the run has written one after this call; False where it is over before that.

        A script's counts once it was the same in two looks: until then it may be half written. And not while another
        command works on the cluster, for which the next run would have to wait.
        """
        from remote.errors import RemoteError
        from remote.files import checkpoints

        [first] = [machine for machine in going.machines if machine.name == going.run.nodes[0].name]
        news: News | None = None
        while not self._over.is_set():
            try:
                with connected(self._folder, [first]) as nodes:
                    while not self._over.wait(LOOK_S):
                        [found] = checkpoints.on_node(nodes[first.name], [going.run])
                        newest = None if found is None else (found.newest, found.written_ns)
                        if news is None:
                            news = News(newest, settle_s=0.0 if going.run.built_in else SETTLE_S)
                        elif news.whole(newest, time.monotonic()) and self._is_free():
                            return True
            except RemoteError:
                self._over.wait(LOOK_S)  # whoever follows the run says what is wrong with the node
        return False

    def _is_free(self) -> bool:
        """Whether no other command works on the cluster."""
        try:
            with self._folder.lock("train", wait_s=0.0):
                return True
        except Locked:
            return False


class News:
    """Tells from one look at a run's checkpoints to the next whether there is a new one, as a whole."""

    def __init__(self, newest: "tuple[str, int] | None", *, settle_s: float) -> None:
        """`newest`: its name and time of writing; None for none. `settle_s`: it may go on changing for so long."""
        self._first = self._last = newest
        self._settle_s = settle_s
        self._since: float | None = None
        """When the first new one was seen."""

    def whole(self, newest: "tuple[str, int] | None", now: float) -> bool:
        """Whether what is the newest now is new, and whole. `now`: monotonic."""
        before, self._last = self._last, newest
        if newest is None or newest == self._first:
            return False
        self._since = now if self._since is None else self._since
        return newest == before or now - self._since >= self._settle_s


def _key(machine: Machine) -> Key:
    return machine.name, machine.host, machine.port
