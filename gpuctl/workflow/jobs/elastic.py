"""`train --nnodes MIN:MAX`: prepare machines that are added during a run, and resume the job with them.

A run's ranks are fixed. To use more machines, the run ends at its next checkpoint, so that hardly a step is lost, and
another resumes with them. Failures of a new machine happen before that, while the run is still active.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeAlias

from gpuctl.errors import Usage
from gpuctl.tables.view import View
from gpuctl.workflow.jobs.job import Job
from gpuctl.workflow.machines.connect import connected
from gpuctl.workflow.machines.setup_state import without_setup
from gpuctl.workflow.runs.prepare import gather_facts, prepare
from gpuctl.workflow.runs.request.launchable import Launchable
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.strategy.fitting import max_that_fit, ranks_on
from inventories.clocks import awake_s
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError, InventoryError, Locked
from inventories.machine import Inventory, Machine
from inventories.runs.end_reasons import Reason
from inventories.runs.run import Run
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from provision.waiting import Say
    from remote.facts import Facts
    from remote.launchers import Service
    from remote.runs.monitor import RunMonitor
    from remote.sessions.session import Node

LOOK_S = 2.0
"""Time between two polls of the inventory, and then of the run's checkpoints."""
AGAIN_S = 60.0
"""Time until the second try to prepare a machine that failed; it doubles from try to try."""
AGAIN_AT_MOST_S = 900.0
ASK_S = 20.0
"""Time between two checks that the active machines still are, if others join during the run."""
SETTLE_S = 30.0
"""Time after its first new checkpoint at which a script that always writes checkpoints is stopped all the same."""

Key: TypeAlias = tuple[str, str, int]
"""Identity of a machine, also if another gets its name: name, host, port."""


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """A run in progress, which machines may join."""

    run: Run
    watch: "RunMonitor"
    machines: Sequence[Machine]
    """Its active machines."""
    spare: Sequence[Machine]
    """Ready machines that the job's strategy can't use."""
    view: View
    launchable: Launchable
    facts: "Mapping[str, Facts]"
    """Of its active machines, as they were prepared."""
    service: "Service"
    """The launcher's service."""
    job: Job
    """Its job, before this run."""

    @property
    def say(self) -> Callable[[str], None]:
        """Return the function that prints a note."""
        return self.view.note


class ElasticScaler:
    """Looks for more machines, for all runs of a job in turn."""

    def __init__(
        self, folder: ClusterFolder, request: TrainRequest, take_in: "Callable[[Say], None]" = lambda _: None
    ) -> None:
        """`take_in` adds the replacements of lost machines to the inventory."""
        self._folder = folder
        self._request = request
        self._take_in = take_in
        self._take_in_at = 0.0
        """Time of its next call."""
        self._take_in_failed = 0
        """Number of failures in a row."""
        self._over = Event()
        self._thread: Thread | None = None
        self._active: ActiveRun | None = None
        self._facts: dict[str, Facts] = {}
        """Facts of the run's active machines, and of machines that are ready to join it."""
        self._ready: Sequence[Machine] = ()
        self._preparing = ""
        """Name of the machine in preparation."""
        self._nodes: Mapping[str, Node] = {}
        """Its connections."""
        self._tries: dict[Key, tuple[int, float]] = {}
        """Machines that failed → number of tries, and the time until which they are left alone."""
        self._printed: set[str] = set()
        self._ask_at = 0.0
        """Time of the next check that the active machines still are."""

    @property
    def joining(self) -> tuple[str, ...]:
        """Return the machines for which the last run was ended."""
        stopped_for_resize = self._active is not None and self._active.watch.stopped_for_resize
        return tuple(machine.name for machine in self._ready) if stopped_for_resize else ()

    @contextmanager
    def during(self, active: ActiveRun) -> Iterator[None]:
        """Look for machines while the body runs, in a thread; call `settle` between two runs."""
        self._over.clear()
        self._active, self._ready, self._ask_at = active, (), awake_s() + ASK_S
        self._facts = dict(active.facts)
        self._thread = Thread(
            target=self._look_out, args=(active,), daemon=True, name=f"elastic scaler of {active.run.run}"
        )
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()

    def settle(self, say: Callable[[str], None]) -> None:
        """Wait until no machine is in preparation."""
        if self._thread is not None:
            self._thread.join(LOOK_S)
            if self._thread.is_alive() and self._preparing:
                say(f"{self._preparing} is still being made ready; it takes part in what follows")
            self._thread.join()

    def stop(self) -> None:
        """Interrupt a preparation in progress, and return once it has released the cluster."""
        self._over.set()
        if self._thread is not None:
            while self._thread.is_alive():
                for node in self._nodes.values():
                    node.close()
                self._thread.join(LOOK_S)

    def _look_out(self, active: ActiveRun) -> None:
        working, spare = list(active.machines), list(active.spare)
        while not self._over.wait(LOOK_S):
            try:
                if self._request.drives or len(working) < self._request.max_nodes:
                    self._add_replacements(active)
                inventory = self._folder.load()
                if self._request.drives:
                    working = self._remaining(inventory, working)
            except (InventoryError, OSError) as error:
                self._say_once(active, f"no more machines can be looked for: {error}")
                continue
            current = {_key(machine) for machine in inventory.machines}
            spare = [machine for machine in spare if _key(machine) in current]
            candidates = self._candidates(inventory, [*working, *spare], active.job.barred)
            made_ready = [machine for machine in candidates if self._try(active, working, machine)]
            spare += made_ready
            try:
                ready = self._usable(active, working, spare) if made_ready else []
            except Usage as error:
                self._say_once(active, f"no machine can be added: {error}")
                continue
            if not ready:
                continue
            names = ", ".join(machine.name for machine in ready)
            if self._request.drives:
                working, spare = [*working, *ready], []
                active.say(f"{names} can be used from here on")
                continue
            run = active.run.run
            active.say(f"{names} can take part: run {run} ends at its next checkpoint, then the job resumes")
            if self._wait_for_checkpoint(active):
                self._ready = ready
                active.watch.stop_for_resize()
            return

    def _add_replacements(self, active: ActiveRun) -> None:
        """Add the replacements of lost machines to the inventory, at most once in a while."""
        if awake_s() < self._take_in_at:
            return
        wait_s = ASK_S
        try:
            self._preparing = "a machine in the place of a lost one"
            self._take_in(active.say)
        except Locked:
            pass  # by another command, which may be an `up` that takes them in itself
        except (GpuctlError, OSError) as error:
            wait_s = _wait_s(self._take_in_failed)
            self._take_in_failed += 1
            self._say_once(active, f"machines in the place of lost ones can't be taken in yet: {error}")
        else:
            self._take_in_failed = 0
        finally:
            self._preparing = ""
        self._take_in_at = awake_s() + wait_s

    def _usable(
        self, active: ActiveRun, working: Sequence[Machine], spare: Sequence[Machine]
    ) -> Sequence[Machine]:
        """Return the spare machines that the next run would use. If it could use none, print the reason."""
        together = sorted([*working, *spare], key=lambda machine: machine.rank)
        ranks = [ranks_on(self._request, self._facts[machine.name]) for machine in together]
        count, why = max_that_fit(self._request, ranks)
        if count <= len(working):
            names = ", ".join(machine.name for machine in spare)
            self._say_once(active, f"{names} can't be used until more machines are added: {why}")
            return []
        chosen = {machine.name for machine in together[:count]}
        return [machine for machine in spare if machine.name in chosen]

    def _remaining(self, inventory: Inventory, working: Sequence[Machine]) -> list[Machine]:
        """Return the active machines without deleted ones and, now and then, without idle ones.

        A machine that does not answer may be active.
        """
        from remote.fanout import fan_out

        takes_part = launcher_of(self._request.mode).takes_part
        current = {_key(machine) for machine in inventory.machines}
        first, *remaining = (m for m in working if _key(m) in current or m is working[0])
        if remaining and awake_s() >= self._ask_at:
            with connected(self._folder, remaining, at_least=0) as nodes:
                idle = {outcome.node for outcome in fan_out(takes_part, nodes) if outcome.value is False}
            remaining = [machine for machine in remaining if machine.name not in idle]
            self._ask_at = awake_s() + ASK_S
        return [first, *remaining]

    def _try(self, active: ActiveRun, working: Sequence[Machine], machine: Machine) -> bool:
        """Prepare an idle machine and return whether it is ready. A machine that failed is left alone for a while."""
        from remote.errors import RemoteError
        from remote.runs.node_state import stop_on_node

        all_there = False
        try:
            with (
                connected(self._folder, [machine]) as alone,
                # A lost machine does not keep others out if the run continues without it.
                connected(self._folder, working, at_least=1 if self._request.drives else None) as connections,
                self._folder.lock("train"),
            ):
                all_there, self._preparing, self._nodes = True, machine.name, {**connections, **alone}
                for part in active.job.lost.get(machine.name, ()):
                    stop_on_node(alone[machine.name], part, reason=Reason.PEER_FAILED)  # nobody ordered it
                self._make_ready(active, self._nodes, machine)
        except Locked:
            return False  # by an `up` that may be adding machines
        except (RemoteError, InventoryError, OSError) as error:
            self._leave_out(machine)
            if all_there:
                self._say_once(active, f"{machine.name} can't take part yet: {error}")
            return False
        finally:
            self._preparing, self._nodes = "", {}
        self._tries.pop(_key(machine), None)
        return True

    def _make_ready(self, active: ActiveRun, nodes: "Mapping[str, Node]", machine: Machine) -> None:
        """Prepare a machine to join the active ones, and add it to a driver's cluster.

        Raises RemoteError if it can't take part.
        """
        from remote.checks import preflight
        from remote.errors import NodeFailed

        request, master = self._request, active.machines[0]
        if master.name not in nodes:
            raise NodeFailed(f"{master.name}, the first of the run's machines, is not there any more.")
        if without_setup(self._folder, [machine]):
            raise NodeFailed("the setup of the cluster has not ended well on it: `gpuctl up` runs it.")
        active_nodes = {name: node for name, node in nodes.items() if name != machine.name}
        inventory = self._folder.load()
        ready = prepare(
            active.view,
            self._folder,
            inventory,
            {machine.name: nodes[machine.name]},
            active.launchable,
            gather_facts(inventory, nodes, on_cpu=request.on_cpu),
            active=active_nodes,
        )
        if active_runs := ready.facts[machine.name].active_runs:
            raise NodeFailed(f"the run {active_runs[0]} is still active there.")
        together = {**{name: self._facts[name] for name in active_nodes}, **ready.facts}
        preflight.check(
            together,
            None,
            master=master,
            note=active.say,
            mode=request.mode,
            env_names=request.env,
            expected=ready.expected,
        )
        if request.drives:
            active.service.join(nodes, machine, together)
        self._facts.update(ready.facts)

    def _candidates(
        self, inventory: Inventory, working: Sequence[Machine], barred: Collection[str] = ()
    ) -> Sequence[Machine]:
        """Return the machines that may join, by rank."""
        excluded, now = {machine.name for machine in working}.union(barred), awake_s()
        python = self._request.python
        free = [
            replace(machine, python=python) if python else machine
            for machine in sorted(inventory.machines, key=lambda machine: machine.rank)
            if machine.name not in excluded and self._tries.get(_key(machine), (0, now))[1] <= now
        ]
        return free[: max(0, self._request.max_nodes - len(working))]

    def _leave_out(self, machine: Machine) -> None:
        """Leave a machine alone for a while, longer from time to time."""
        tries, _ = self._tries.get(_key(machine), (0, 0.0))
        self._tries[_key(machine)] = (tries + 1, awake_s() + _wait_s(tries))

    def _say_once(self, active: ActiveRun, text: str) -> None:
        if text not in self._printed and not self._over.is_set():
            self._printed.add(text)
            active.say(text)

    def _wait_for_checkpoint(self, active: ActiveRun) -> bool:
        """Wait until the run has written a checkpoint after this call; return False if it ends before that.

        A script's checkpoint counts once two polls agree: until then it may be half written. And not while another
        command holds the cluster, for which the next run would have to wait.
        """
        from remote.errors import RemoteError
        from remote.files import checkpoints

        [first] = [machine for machine in active.machines if machine.name == active.run.nodes[0].name]
        progress: NewCheckpoint | None = None
        while not self._over.is_set():
            try:
                with connected(self._folder, [first]) as nodes:
                    while not self._over.wait(LOOK_S):
                        [held] = checkpoints.on_node(nodes[first.name], [active.run])
                        checkpoint = held.found
                        newest = None if checkpoint is None else (checkpoint.newest, checkpoint.written_ns)
                        if progress is None:
                            progress = NewCheckpoint(
                                newest, settle_s=0.0 if active.run.built_in else SETTLE_S
                            )
                        elif progress.is_whole(newest, awake_s()) and self._is_free():
                            return True
            except RemoteError:
                self._over.wait(LOOK_S)  # the command that follows the run reports a broken node
        return False

    def _is_free(self) -> bool:
        """Return whether no other command holds the cluster."""
        try:
            with self._folder.lock("train", wait_s=0.0):
                return True
        except Locked:
            return False


class NewCheckpoint:
    """Detect a new, complete checkpoint, from poll to poll."""

    def __init__(self, newest: "tuple[str, int] | None", *, settle_s: float) -> None:
        """`newest`: name and time of writing; `None`: no checkpoint. `settle_s`: maximum time of its changes."""
        self._first = self._last = newest
        self._settle_s = settle_s
        self._since: float | None = None
        """Time of the first poll with a new one."""

    def is_whole(self, newest: "tuple[str, int] | None", now: float) -> bool:
        """Return whether the newest checkpoint is new and complete. `now`: as `awake_s`."""
        before, self._last = self._last, newest
        if newest is None or newest == self._first:
            return False
        self._since = now if self._since is None else self._since
        return newest == before or now - self._since >= self._settle_s


def _wait_s(tries: int) -> float:
    """Return the time for which a machine is left alone after this number of failed tries."""
    return min(AGAIN_S * 2.0**tries, AGAIN_AT_MOST_S)


def _key(machine: Machine) -> Key:
    return machine.name, machine.host, machine.port
