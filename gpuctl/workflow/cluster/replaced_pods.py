"""Pods that KubeRay makes in the place of lost ones: a job takes them in by itself.

It gives new pods the ranks of lost ones, and changes nothing else: only `up` makes machines or ends them. On virtual
machines all of it is left to `up`, as another one costs money.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.cluster.setup import plan_setup, set_up
from gpuctl.workflow.cluster.unprepared_machines import READY, setup_steps, without_setup
from gpuctl.workflow.cluster.up import save_inventory
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError
from inventories.machine import Machine
from provision.errors import Denied
from provision.provider_registry import pods_of

if TYPE_CHECKING:
    from provision.kubernetes.pods import Pods

LOOK_S = 3.0
TELL_S = 30.0
WAIT_S = 600.0
"""Kubernetes gives up a node that is silent after five minutes, and another with GPUs takes as long to join."""


class ReplacedPods:
    """Those of one cluster; where its machines are no pods, nothing is done."""

    def __init__(self, app: App, folder: ClusterFolder) -> None:
        self._app = app
        self._folder = folder
        self._known: Pods | None = None
        """One for a job: a client asks a program for its token."""

    def take_in(self) -> None:
        """Have the new pods that are ready in the inventory. Raises GpuctlError, Locked where an `up` is at it."""
        pods = self._pods()
        if pods is None or not pods.in_place(self._folder.load().machines):
            return
        with self._folder.lock("train"):
            inventory = self._folder.load()
            machines = pods.take_in(inventory.machines)
            new = [now for was, now in zip(inventory.machines, machines, strict=True) if was.id != now.id]
            if not new:
                return
            save_inventory(self._folder, replace(inventory, machines=machines))
            self._folder.journal.append(READY, machines=[machine.id for machine in new])
        for machine in new:
            self._app.output.say(f"{machine.name} is now the pod {machine.id}, in the place of the lost one")

    def wait_for(self, count: int, lost: Collection[str], is_over: Callable[[], bool]) -> None:
        """Wait until so many machines are there, taking in new pods; say why where the wait ends without.

        `lost`: names of those that count only once they answer, or have another pod. `is_over`: nobody wants them
        any more.
        """
        say = self._app.output.say
        silent = {machine.id for machine in self._folder.load().machines if machine.name in lost}
        began, tell_at, told = time.monotonic(), 0.0, set[str]()
        while not is_over() and self._folder.exists():
            try:
                pods = self._pods()
                if pods is None:
                    return
                self.take_in()
                ready, waits = pods.how_far(self._folder.load().machines)
                there = [one for one in ready if one.id not in silent or self._answers(one)]
            except Denied as error:
                say(f"note: whether lost pods come back can't be seen: {error}")
                return
            except GpuctlError as error:
                there, waits = [], [str(error)]
            if len(there) >= count:
                self._set_up(there)
                return
            waited_s = time.monotonic() - began
            how_far = f"{len(there)} of {plural(count, 'pod')} are there"
            if waited_s > WAIT_S:
                say(f"note: {how_far} after {waited_s:.0f} s, and no longer is waited for the others")
                return
            if waited_s >= tell_at:
                tell_at = waited_s + TELL_S
                say(
                    f"{how_far}; the others are waited for, {WAIT_S / 60:.0f} minutes at most ({waited_s:.0f} s)"
                )
            for words in waits:
                if words not in told:
                    told.add(words)
                    say(words)
            Event().wait(LOOK_S)

    def tell_of_lost(self, machines: Sequence[Machine]) -> None:
        """Say which of the machines that a Ray driver had are lost: Ray goes on without them, and names none."""
        try:
            pods = self._pods()
            lost = () if pods is None else pods.gone(machines)
        except GpuctlError as error:
            self._app.output.say(f"note: whether all pods are still there is not known: {error}")
            return
        for machine in lost:
            self._app.output.say(
                f"note: {machine.name} was lost: the pod {machine.id} is gone. Ray goes on without it, and "
                "`gpuctl up` takes in the one in its place."
            )

    def _pods(self) -> "Pods | None":
        if self._known is None:
            self._known = pods_of(self._folder.load().provider, self._folder)
        return self._known

    def _answers(self, machine: Machine) -> bool:
        from remote.errors import RemoteError
        from remote.sessions.connect import connect

        try:
            connect(machine, self._folder).close()
        except RemoteError:
            return False
        return True

    def _set_up(self, machines: Sequence[Machine]) -> None:
        """Run the cluster's setup on those that have not run it."""
        if not without_setup(self._folder, machines):
            return
        with self._folder.lock("train", on_wait=self._app.output.say):
            setup = plan_setup(self._app, self._folder, setup_steps(self._folder), (), machines)
            for one in set_up(self._app, self._folder, machines, setup):
                if one.status != "done":
                    self._app.output.say(f"note: {one.told()}")
