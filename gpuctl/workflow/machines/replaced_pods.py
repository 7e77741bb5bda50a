"""Add the pods with which KubeRay replaces lost ones to a job's inventory.

A new pod gets the rank of a lost one, and nothing else changes: only `up` makes machines or ends them. On virtual
machines `up` does all of this, as another machine costs money.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.workflow.machines.connect import connected
from gpuctl.workflow.machines.inventory_files import save_inventory
from gpuctl.workflow.machines.setup import plan_setup, set_up
from gpuctl.workflow.machines.setup_state import READY, setup_steps, without_setup
from inventories.clocks import awake_s
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError, Locked
from inventories.machine import Machine
from inventories.text import plural
from provision.errors import Throttled, Unclear
from provision.registry import pods_of
from provision.waiting import Say

if TYPE_CHECKING:
    from provision.kubernetes.pods import Pods

LOOK_S = 3.0
TELL_S = 30.0
ANSWER_S = 10.0
LOCK_S = 3600.0
"""For another command to be done with the cluster, which may be an `up` that runs the setup."""
WAIT_S = 600.0
"""Kubernetes gives up a node that is silent after five minutes, and another with GPUs takes as long to join."""


class ReplacedPods:
    """The replacements of one cluster's pods; does nothing for other machines."""

    def __init__(self, app: App, folder: ClusterFolder) -> None:
        self._app = app
        self._folder = folder
        self._known: Pods | None = None
        """Cached: each new client would run the credential plug-in again."""

    def take_in(self, say: Say) -> None:
        """Put new, ready pods into the inventory; a cluster's setup has yet to run on them.

        Raises GpuctlError, and Locked while another command holds the cluster.
        """
        pods = self._pods()
        if pods is None or not pods.replacements(self._folder.load().machines):
            return
        with self._folder.lock("train"):
            inventory = self._folder.load()
            machines = pods.replace_lost(inventory.machines)
            new = [now for was, now in zip(inventory.machines, machines, strict=True) if was.id != now.id]
            if not new:
                return
            save_inventory(self._folder, replace(inventory, machines=machines))
            self._folder.journal.append(READY, machines=[machine.id for machine in new])
        for machine in new:
            say(f"{machine.name} is now the pod {machine.id}, in the place of the lost one")

    def wait_for(self, count: int, lost: Collection[str], is_over: Callable[[], bool]) -> None:
        """Wait for `count` machines, or all, adding new pods; report a wait that ends without them.

        `lost`: names of machines that count only once they answer, or have another pod. `is_over`: whether the wait
        has lost its purpose.
        """
        say, present = self._app.output.say, list[Machine]()
        silent = {m.id for m in self._folder.load().machines if m.name in lost}
        began, tell_at, reported = awake_s(), 0.0, set[str]()
        while not is_over() and self._folder.exists():
            waits: Sequence[str] = ()
            try:
                pods = self._pods()
                if pods is None:
                    return
                self.take_in(say)
                machines = self._folder.load().machines
                ready, waits = pods.readiness(machines)
                from remote.fanout import fan_out

                with connected(self._folder, [m for m in ready if m.id in silent], at_least=0) as nodes:
                    outcomes = fan_out(
                        lambda node: node.run("true", timeout_s=ANSWER_S).exit_code == 0, nodes
                    )
                answering = frozenset(outcome.node for outcome in outcomes if outcome.value)
                present = [m for m in ready if m.id not in silent or m.name in answering]
                count = min(count, len(machines))
            except Locked:
                pass  # by another command, which may be an `up` that takes them in itself
            except (Unclear, Throttled) as error:
                waits = (str(error),)
            except GpuctlError as error:
                say(f"note: lost pods are not waited for: {error}")
                return
            waited_s = awake_s() - began
            if len(present) >= count or waited_s > WAIT_S:
                break
            if waited_s >= tell_at:
                tell_at = waited_s + TELL_S
                say(
                    f"{len(present)} of {plural(count, 'pod')} are there; the others are waited for, "
                    f"{WAIT_S / 60:.0f} minutes at most ({waited_s:.0f} s)"
                )
            for words in waits:
                if words not in reported:
                    reported.add(words)
                    say(words)
            Event().wait(LOOK_S)
        else:
            return
        if len(present) < count:
            say(
                f"note: {len(present)} of {plural(count, 'pod')} are there, and the others are waited for no longer"
            )
        self._set_up(present)

    def report_lost(self, machines: Sequence[Machine]) -> None:
        """Name the lost machines of a Ray driver's job: Ray continues without naming them."""
        try:
            pods = self._pods()
            lost = () if pods is None else pods.lost(machines)
            known = {machine.id for machine in self._folder.load().machines}
        except GpuctlError as error:
            self._app.output.say(f"note: whether all pods are still there is not known: {error}")
            return
        for machine in lost:
            hint = " `gpuctl up` takes in the one in its place." if machine.id in known else ""
            self._app.output.say(
                f"note: {machine.name} was lost: the pod {machine.id} is gone, and Ray went on without it.{hint}"
            )

    def _pods(self) -> "Pods | None":
        if self._known is None:
            self._known = pods_of(self._folder.load().provider, self._folder)
        return self._known

    def _set_up(self, machines: Sequence[Machine]) -> None:
        """Run the cluster's setup on machines that have not run it. May take as long as its lines do."""
        if not without_setup(self._folder, machines):
            return
        with self._folder.lock("train", wait_s=LOCK_S, on_wait=self._app.output.say):
            setup = plan_setup(self._app, self._folder, setup_steps(self._folder), (), machines)
            for result in set_up(self._app, self._folder, machines, setup):
                if result.status != "done":
                    self._app.output.say(f"note: {result.description()}")
