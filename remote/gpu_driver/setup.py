"""Seeing to the driver of a machine's GPUs: waiting for it, or installing it between two reboots at most."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inventories.clocks import awake_s
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from inventories.specs.gpu_driver import DriverPlan
from remote.checks import readiness
from remote.errors import BadAnswer, ConnectionLost, NodeFailed
from remote.facts import Facts, gather
from remote.gpu_driver import decision
from remote.gpu_driver.decision import Limits, Observed
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.sessions.wait_for_boot import connect_booting, span

Say = Callable[[str], None]
RETURN_S = 900.0
"""For a machine with an ordered reboot: bare metal takes longest."""


@dataclass(frozen=True, kw_only=True)
class DriverOutcome:
    """A machine whose driver was seen to."""

    facts: Facts
    """As they are now."""
    problem: str | None
    """The problem of its driver and the fix, with the machine's name. `None`: all of its GPUs work."""


def see_to_driver(
    machine: Machine,
    cluster: ClusterFiles,
    peers: tuple[str, ...],
    facts: Facts,
    *,
    plan: DriverPlan,
    free: bool,
    limits: Limits,
    return_s: float = RETURN_S,
    judged: bool = True,
    say: Say,
) -> DriverOutcome:
    """Block until the machine's GPUs work as the plan says, or it is clear that they will not.

    `facts`: its facts. `free`: it may be changed and rebooted, as far as its runs allow. `return_s`: how long it may
    take to come back from a reboot. `judged`: cloud-init has to have ended well then.
    Raises what `connect_booting` and `facts_after_reboot` raise.
    """
    task = _Task(machine, cluster, peers, plan=plan, limits=limits, return_s=return_s, judged=judged, say=say)
    state = Observed(facts=facts, wanted=machine.gpus, free=free and not facts.active_runs)
    try:
        return task.work(state)
    except (BadAnswer, NodeFailed) as error:
        return DriverOutcome(facts=facts, problem=str(error))
    finally:
        task.close()


@dataclass
class _Task:
    """The work on one machine, with a connection that is opened when it is needed."""

    machine: Machine
    cluster: ClusterFiles
    peers: tuple[str, ...]
    plan: DriverPlan
    limits: Limits
    return_s: float
    say: Say
    judged: bool = True
    _open: Node | None = None

    def close(self) -> None:
        """Close the connection, if one is open."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def work(self, state: Observed) -> DriverOutcome:
        """Step after step, until it is done or given up."""
        name, began, next_s = self.machine.name, awake_s(), readiness.QUIET_S
        while True:
            match decision.next_step(self.plan, state, self.limits):
                case "done":
                    if note := decision.another_version(self.plan, state):
                        self.say(f"note: {name}: {note}")
                    return DriverOutcome(facts=state.facts, problem=None)
                case "give up":
                    return DriverOutcome(facts=state.facts, problem=f"{name}: {decision.sentence(state)}")
                case "install":
                    problem = self._install()
                    if problem is not None:
                        return DriverOutcome(facts=state.facts, problem=f"{name}: {problem}")
                    state = replace(state, installed=True, rebooted=False)
                case "reboot":
                    # Minutes may have passed: somebody may have rebooted it, or use it.
                    now = replace(state, facts=self._facts())
                    if decision.in_use(now.facts) and not decision.works(now):
                        return DriverOutcome(facts=now.facts, problem=f"{name}: {decision.sentence(now)}")
                    if decision.waits_for_reboot(now, before=state.facts.boot_id):
                        now = replace(now, facts=self._reboot(now))
                    state = replace(now, rebooted=True, waited_s=0.0)
                    began, next_s = awake_s(), readiness.QUIET_S
                case "wait":
                    waited_s = awake_s() - began
                    if waited_s > next_s:
                        next_s = waited_s + readiness.EVERY_S
                        self.say(
                            f"waiting for the GPU driver of {name} … ({waited_s:.0f} s, at most "
                            f"{span(self.limits.appear_s)})"
                        )
                    time.sleep(self.limits.poll_s)
                    facts = self._facts()
                    state = replace(state, facts=facts, waited_s=awake_s() - began)

    def _node(self) -> Node:
        if self._open is None:
            self._open = connect_booting(self.machine, self.cluster, deadline_s=self.return_s, say=self.say)
        return self._open

    def _facts(self) -> Facts:
        """The machine's facts; over another connection where this one breaks."""
        try:
            return gather(self._node(), self.peers)
        except ConnectionLost:
            self.close()
            return gather(self._node(), self.peers)

    def _reboot(self, state: Observed) -> Facts:
        """Reboot once; the facts of the next boot."""
        why = "its driver was installed" if state.installed else "the GPU driver waits for a reboot"
        self.say(f"{self.machine.name}: {why}; rebooting once …")
        readiness.reboot(self._node())
        self.close()
        return readiness.facts_after_reboot(
            self.machine,
            self.cluster,
            self.peers,
            boot_id=state.facts.boot_id,
            deadline_s=self.return_s,
            say=self.say,
            judged=self.judged,
        )

    def _install(self) -> str | None:
        """Have the driver installed, or follow who does that already. `None`: it is; else why it is not."""
        attempt, limit = os.urandom(8).hex(), awake_s() + self.limits.install_s
        name = self.machine.name
        self.say(
            f"{name}: installing the NVIDIA driver with Ubuntu's packages; that takes minutes, at most "
            f"{span(self.limits.install_s)} …"
        )
        while True:
            try:
                result = self._follow(attempt, max(1.0, limit - awake_s()))
            except ConnectionLost:
                # The installation does not depend on it.
                self.close()
                if awake_s() < limit:
                    time.sleep(self.limits.poll_s)
                    continue
                result = {"state": "going on"}
            try:
                if result["state"] == "installed":
                    packages = [str(package) for package in result["packages"]]
                    self.say(f"{name}: installed {', '.join(packages)}")
                    return None
                return decision.failure(result, self.limits)
            except (KeyError, TypeError, ValueError) as error:
                raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> BadAnswer:
        return BadAnswer(f"{self.machine.name}: no answer about its driver that can be read: {error!r}.")

    def _follow(self, attempt: str, follow_s: float) -> Mapping[str, Any]:
        """Follow an installation to its end, and report its progress."""
        request = {
            "attempt": attempt,
            "version": self.plan.version,
            "mirror_s": self.limits.mirror_s,
            "lock_s": self.limits.lock_s,
            "follow_s": follow_s,
        }
        result: Mapping[str, Any] | None = None
        next_s = readiness.EVERY_S
        bounds = Bounds(total_s=follow_s + readiness.SLACK_S)
        with self._node().stream("driver", request, bounds=bounds) as talk:
            for header, _ in talk.frames():
                result = header.get("result") or result
                try:
                    since_s = float(header.get("since_s", 0.0))
                except (TypeError, ValueError) as error:
                    raise self._unreadable(error) from error
                if result is None and since_s > next_s:
                    next_s = since_s + readiness.EVERY_S
                    doing = decision.progress(str(header.get("phase")), str(header.get("detail")))
                    self.say(
                        f"{self.machine.name}: installing the NVIDIA driver: {doing} … "
                        f"({span(since_s)}, at most {span(self.limits.install_s)})"
                    )
        if result is None:
            raise BadAnswer(f"{self.machine.name}: no answer about the installation of its driver.")
        return result
