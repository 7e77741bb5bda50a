"""`train --nnodes MIN:MAX`: machines that come while a run goes on are made ready, and then taken in.

The ranks of a run are fixed. To take machines in it ends at its next checkpoint, so that hardly a step is lost, and
another resumes with them. What can go wrong with a machine goes wrong before that, while the run is still at work.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeAlias

from gpuctl.errors import Usage
from gpuctl.tables.view import View
from gpuctl.workflow.jobs.job import Job
from gpuctl.workflow.machines.connect import connected
from gpuctl.workflow.machines.setup_state import without_setup
from gpuctl.workflow.runs.outputs.earlier import aside_of
from gpuctl.workflow.runs.prepare import gather_facts, prepare
from gpuctl.workflow.runs.prepared import Prepared
from gpuctl.workflow.runs.request.project import Project
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.strategy.fitting import most_that_fit, ranks_on
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


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What the machines of a run were made ready for, and what one more has to be."""

    view: View
    project: Project
    prepared: Prepared
    service: "Service"
    """What starts the ranks."""


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """A run that goes on, and that machines may join."""

    run: Run
    watch: "RunMonitor"
    machines: Sequence[Machine]
    """Those at work."""
    spare: Sequence[Machine]
    """Those that are ready, and that the job's strategy can't use."""
    preparation: Preparation
    job: Job
    """Its job, before this run."""

    @property
    def say(self) -> Callable[[str], None]:
        """Tells people something."""
        return self.preparation.view.note


class ElasticScaler:
    """Looks out for more machines, for all runs of a job, one after the other."""

    def __init__(
        self, folder: ClusterFolder, request: TrainRequest, take_in: "Callable[[Say], None]" = lambda _: None
    ) -> None:
        """`take_in` brings machines into the inventory that came by themselves in the place of lost ones."""
        self._folder = folder
        self._request = request
        self._take_in = take_in
        self._take_in_at = 0.0
        """The time from which it is called again."""
        self._take_in_failed = 0
        """How often in a row."""
        self._over = Event()
        self._thread: Thread | None = None
        self._active: ActiveRun | None = None
        self._facts: dict[str, Facts] = {}
        """Of the machines at work in the active run, and of those that were made ready to join it."""
        self._ready: Sequence[Machine] = ()
        self._at_it = ""
        """Name of the machine that is being made ready."""
        self._nodes: Mapping[str, Node] = {}
        """The connections with which it is."""
        self._tries: dict[Key, tuple[int, float]] = {}
        """Machines that were of no use → how often, and the time until which they are left alone."""
        self._said: set[str] = set()
        self._ask_at = 0.0
        """The time from which the machines at work are asked again whether they still are."""

    @property
    def joining(self) -> tuple[str, ...]:
        """The machines for which the run that is over was ended."""
        stopped_for_resize = self._active is not None and self._active.watch.stopped_for_resize
        return tuple(machine.name for machine in self._ready) if stopped_for_resize else ()

    @contextmanager
    def during(self, active: ActiveRun) -> Iterator[None]:
        """Look out for as long as the body runs, in a thread of its own; `settle` comes between two."""
        self._over.clear()
        self._active, self._ready, self._ask_at = active, (), awake_s() + ASK_S
        self._facts = dict(active.preparation.prepared.facts)
        self._thread = Thread(
            target=self._look_out, args=(active,), daemon=True, name=f"elastic scaler of {active.run.run}"
        )
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()

    def settle(self, say: Callable[[str], None]) -> None:
        """Wait until nothing is made ready any more."""
        if self._thread is not None:
            self._thread.join(LOOK_S)
            if self._thread.is_alive() and self._at_it:
                say(f"{self._at_it} is still being made ready; it takes part in what follows")
            self._thread.join()

    def stop(self) -> None:
        """Break off what is being made ready, and return once nothing of it holds the cluster."""
        self._over.set()
        if self._thread is not None:
            while self._thread.is_alive():
                for node in self._nodes.values():
                    node.close()
                self._thread.join(LOOK_S)

    def _look_out(self, active: ActiveRun) -> None:
        at_work, spare = list(active.machines), list(active.spare)
        while not self._over.wait(LOOK_S):
            try:
                if self._request.drives or len(at_work) < self._request.max_nodes:
                    self._take_in_others(active)
                inventory = self._folder.load()
                if self._request.drives:
                    at_work = self._those_left(inventory, at_work)
            except (InventoryError, OSError) as error:
                self._say_once(active, f"no more machines can be looked for: {error}")
                continue
            there = {_key(machine) for machine in inventory.machines}
            spare = [machine for machine in spare if _key(machine) in there]
            candidates = self._candidates(inventory, [*at_work, *spare], active.job.barred)
            made_ready = [machine for machine in candidates if self._try(active, at_work, machine)]
            spare += made_ready
            try:
                ready = self._usable(active, at_work, spare) if made_ready else []
            except Usage as error:
                self._say_once(active, f"no machine can be added: {error}")
                continue
            if not ready:
                continue
            names = ", ".join(machine.name for machine in ready)
            if self._request.drives:
                at_work, spare = [*at_work, *ready], []
                active.say(f"{names} can be used from here on")
                continue
            run = active.run.run
            active.say(f"{names} can take part: run {run} ends at its next checkpoint, then the job resumes")
            if self._wait_for_checkpoint(active):
                self._ready = ready
                active.watch.stop_for_resize()
            return

    def _take_in_others(self, active: ActiveRun) -> None:
        """Have machines in the inventory that came in the place of lost ones, where it is time to look."""
        if awake_s() < self._take_in_at:
            return
        wait_s = ASK_S
        try:
            self._at_it = "a machine in the place of a lost one"
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
            self._at_it = ""
        self._take_in_at = awake_s() + wait_s

    def _usable(
        self, active: ActiveRun, at_work: Sequence[Machine], spare: Sequence[Machine]
    ) -> Sequence[Machine]:
        """Return those of the spare machines that the next run would use. Says why where it could use none."""
        together = sorted([*at_work, *spare], key=lambda machine: machine.rank)
        ranks = [ranks_on(self._request, self._facts[machine.name]) for machine in together]
        most, why = most_that_fit(self._request, ranks)
        if most <= len(at_work):
            names = ", ".join(machine.name for machine in spare)
            self._say_once(active, f"{names} can't be used until more machines are added: {why}")
            return []
        taken = {machine.name for machine in together[:most]}
        return [machine for machine in spare if machine.name in taken]

    def _those_left(self, inventory: Inventory, at_work: Sequence[Machine]) -> list[Machine]:
        """Those at work but for the ones that are gone, and now and then those that say they are not any more.

        One that does not answer may be at work.
        """
        from remote.fanout import fan_out

        takes_part = launcher_of(self._request.mode).takes_part
        there = {_key(machine) for machine in inventory.machines}
        first, *others = (machine for machine in at_work if _key(machine) in there or machine is at_work[0])
        if others and awake_s() >= self._ask_at:
            with connected(self._folder, others, at_least=0) as nodes:
                idle = {outcome.node for outcome in fan_out(takes_part, nodes) if outcome.value is False}
            others = [machine for machine in others if machine.name not in idle]
            self._ask_at = awake_s() + ASK_S
        return [first, *others]

    def _try(self, active: ActiveRun, at_work: Sequence[Machine], machine: Machine) -> bool:
        """Make a machine ready that is not at work; whether it is now. One that is not is left alone for a while."""
        from remote.errors import RemoteError
        from remote.runs.node_state import stop_on_node

        all_there = False
        try:
            with (
                connected(self._folder, [machine]) as alone,
                # One that was lost does not keep others out where the run goes on without it.
                connected(self._folder, at_work, at_least=1 if self._request.drives else None) as others,
                self._folder.lock("train"),
            ):
                all_there, self._at_it, self._nodes = True, machine.name, {**others, **alone}
                for part in active.job.lost.get(machine.name, ()):
                    stop_on_node(alone[machine.name], part, reason=Reason.PEER_FAILED)  # nobody ordered it
                self._make_ready(active, self._nodes, machine)
        except Locked:
            return False  # by an `up` that may be adding some
        except (RemoteError, InventoryError, OSError) as error:
            self._leave_out(machine)
            if all_there:
                self._say_once(active, f"{machine.name} can't take part yet: {error}")
            return False
        finally:
            self._at_it, self._nodes = "", {}
        self._tries.pop(_key(machine), None)
        return True

    def _make_ready(self, active: ActiveRun, nodes: "Mapping[str, Node]", machine: Machine) -> None:
        """Make a machine ready to join those at work, and have it join what a driver uses.

        Raises RemoteError where it can't take part.
        """
        from remote.checks import preflight
        from remote.errors import NodeFailed

        preparation, request, master = active.preparation, self._request, active.machines[0]
        if master.name not in nodes:
            raise NodeFailed(f"{master.name}, the first of the run's machines, is not there any more.")
        if without_setup(self._folder, [machine]):
            raise NodeFailed("the setup of the cluster has not ended well on it: `gpuctl up` runs it.")
        others = {name: node for name, node in nodes.items() if name != machine.name}
        inventory, project = self._folder.load(), preparation.project
        ready = prepare(
            preparation.view,
            self._folder,
            inventory,
            {machine.name: nodes[machine.name]},
            project,
            gather_facts(inventory, nodes, on_cpu=project.on_cpu),
            beside=others,
            env_names=request.env,
            aside=aside_of(request, datetime.now(UTC), first=False),
        )
        if active_runs := ready.facts[machine.name].active_runs:
            raise NodeFailed(f"the run {active_runs[0]} is still active there.")
        together = {**{name: self._facts[name] for name in others}, **ready.facts}
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
            preparation.service.join(nodes, machine, together)
        self._facts.update(ready.facts)

    def _candidates(
        self, inventory: Inventory, at_work: Sequence[Machine], barred: Collection[str] = ()
    ) -> Sequence[Machine]:
        """The machines that may join, by rank."""
        taken, now = {machine.name for machine in at_work}.union(barred), awake_s()
        python = self._request.python
        free = [
            replace(machine, python=python) if python else machine
            for machine in sorted(inventory.machines, key=lambda machine: machine.rank)
            if machine.name not in taken and self._tries.get(_key(machine), (0, now))[1] <= now
        ]
        return free[: max(0, self._request.max_nodes - len(at_work))]

    def _leave_out(self, machine: Machine) -> None:
        """Leave a machine alone for a while, which grows."""
        tries, _ = self._tries.get(_key(machine), (0, 0.0))
        self._tries[_key(machine)] = (tries + 1, awake_s() + _wait_s(tries))

    def _say_once(self, active: ActiveRun, text: str) -> None:
        if text not in self._said and not self._over.is_set():
            self._said.add(text)
            active.say(text)

    def _wait_for_checkpoint(self, active: ActiveRun) -> bool:
        """Return once the run has written one after this call; False where it is over before that.

        A script's counts once it was the same in two looks: until then it may be half written. And not while another
        command works on the cluster, for which the next run would have to wait.
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
                        found = held.found
                        newest = None if found is None else (found.newest, found.written_ns)
                        if progress is None:
                            progress = NewCheckpoint(
                                newest, settle_s=0.0 if active.run.built_in else SETTLE_S
                            )
                        elif progress.is_whole(newest, awake_s()) and self._is_free():
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


class NewCheckpoint:
    """Tells from one look at a run's checkpoints to the next whether there is a new one, as a whole."""

    def __init__(self, newest: "tuple[str, int] | None", *, settle_s: float) -> None:
        """`newest`: its name and time of writing; `None` for none. `settle_s`: it may go on changing for so long."""
        self._first = self._last = newest
        self._settle_s = settle_s
        self._since: float | None = None
        """When the first new one was seen."""

    def is_whole(self, newest: "tuple[str, int] | None", now: float) -> bool:
        """Whether what is the newest now is new, and whole. `now`: as `awake_s`."""
        before, self._last = self._last, newest
        if newest is None or newest == self._first:
            return False
        self._since = now if self._since is None else self._since
        return newest == before or now - self._since >= self._settle_s


def _wait_s(tries: int) -> float:
    """How long what has failed so often before is left alone."""
    return min(AGAIN_S * 2.0**tries, AGAIN_AT_MOST_S)


def _key(machine: Machine) -> Key:
    return machine.name, machine.host, machine.port
