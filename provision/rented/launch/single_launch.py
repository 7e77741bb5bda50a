"""One launch of machines: sent, and waited for until all of them run, or undone as a whole."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.disk.journal import Journal
from inventories.threads import run_all
from provision.errors import (
    BadCredentials,
    Capacity,
    CloudError,
    CreateFailed,
    Denied,
    LeftBehind,
    NoCapacity,
    Quota,
    Throttled,
    Unclear,
)
from provision.records import CloudCluster, Instance, Offer
from provision.rented.interface import Cloud
from provision.rented.state import CloudState, Launch
from provision.rented.tags import LAUNCH
from provision.waiting import CLOSE_SHARE, Clock, Progress, Reminders, Say, poll

RUNNING_TIMEOUT_S = 1800.0
"""Bare-metal machines take up to 20 minutes."""
RUNNING_POLL_S = 3.0
"""Longest wait between two polls: a machine's start is most of the time of `up`."""
ENDED_TIMEOUT_S = 1800.0
UNLISTED_FACTOR = 5


class _Unanswered(Exception):
    """The cloud stopped answering while machines that it had accepted came up; its error is the cause."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """The context that all launches of a command share."""

    cloud: Cloud
    files: CloudState
    cluster: CloudCluster
    offer: Offer
    journal: Journal
    clock: Clock
    say: Say


class LaunchAttempt:
    """A launch, sent once or again; `launch` is its record on the disk."""

    def __init__(self, context: LaunchContext, launch: Launch) -> None:
        self.launch = launch
        self._cloud = context.cloud
        self._files = context.files
        self._cluster = context.cluster
        self._offer = context.offer
        self._journal = context.journal
        self._clock = context.clock
        self._say = context.say

    @property
    def is_fresh(self) -> bool:
        """Return whether the cloud may not list the machines of the last request yet."""
        sent = datetime.now(UTC) - datetime.fromisoformat(self.launch.sent_at)
        return sent.total_seconds() < self._cloud.consistency_s

    def run(self) -> set[str]:
        """Send the launch's requests and wait until all of its machines run; else undo it. Returns their ids.

        Raises Capacity, NoCapacity (the quota forbids it) or CreateFailed, chained to the cloud's error, once no
        machine is left; LeftBehind if one may be.
        """
        # Machines of an earlier sending may not be listed yet, also if this one is refused.
        again = bool(self.launch.requests) and self.is_fresh and self.launch in self._files.launches()
        launch = self._save(self.launch.sent(datetime.now(UTC)))
        self._say(f"launching {len(launch.ranks)} {self._offer.shape} in {launch.zone} …")
        ids: set[str] = set()
        unsure = True
        try:
            errors = self._send(ids)
            self._journal.append("launched", launch=launch.id, place=str(launch.zone), ids=sorted(ids))
            # After a refusal no machine can come up later; after silence it can.
            unsure = again or any(
                isinstance(error, Unclear) or not isinstance(error, CloudError) for error in errors
            )
            if errors:
                raise min(errors, key=_rank_of_error)
            self._wait_running(ids)
        except _Unanswered as error:
            # The cloud took all requests, and reported no failure: the next command continues with the machines.
            raise LeftBehind(self._what_is_left(ids, str(error.__cause__))) from error.__cause__
        except BaseException as error:
            before = self.launch.state
            try:
                self.undo(ids, unsure=unsure)
            except CloudError as second:
                if isinstance(error, Unclear | Throttled | BadCredentials):
                    # The cloud reported no failure of these machines: the next `up` continues with them.
                    self._save(replace(self.launch, state=before))
                why = f"{error or 'Interrupted.'} Undoing it did not work either: {second}"
                raise LeftBehind(self._what_is_left(ids, why)) from error
            if isinstance(error, Capacity):
                raise
            if isinstance(error, Quota):
                raise NoCapacity(f"{error} No machine is left of this attempt.") from error
            if isinstance(error, CloudError | CreateFailed):
                raise CreateFailed(f"{error} No machine is left of this attempt.") from error
            raise
        self._save(self.launch.ended("running"))
        return ids

    def _send(self, ids: set[str]) -> list[Exception]:
        """Send all requests; `ids` grows as the cloud answers. Returns the errors."""
        # One call is enough for a zone without such machines.
        for requests in (self.launch.requests[:1], self.launch.requests[1:]):
            outcomes = run_all(self._cloud.send, requests)
            for outcome in outcomes:
                if not isinstance(outcome, Exception):
                    ids.update(outcome)
            if errors := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
                return errors
        return []

    def _wait_running(self, ids: set[str]) -> None:
        """Wait until `ids` run. Raises the cloud's error of an ended machine, CreateFailed at the deadline."""
        progress = Progress(self._clock, self._say)
        for _ in poll(self._clock, RUNNING_TIMEOUT_S, longest_s=RUNNING_POLL_S, share=CLOSE_SHARE):
            try:
                states = {machine.id: machine for machine in self._machines()}
            except (Unclear, Throttled, BadCredentials) as error:
                raise _Unanswered from error
            for machine in states.values():
                if machine.id in ids and not machine.alive:
                    failure = self._cloud.failure(machine)
                    raise failure or CreateFailed(
                        f"Machine {machine.id} in {machine.zone} ended before it ran"
                        f"{f' ({machine.reason})' if machine.reason else ''}."
                    )
            waiting = [i for i in ids if i not in states or states[i].state != "running"]
            if not waiting:
                return
            progress.tell(f"{len(ids) - len(waiting)} of {len(ids)} machines run")
        listed = ", ".join(f"{i} is {states[i].state if i in states else 'not listed'}" for i in waiting)
        raise CreateFailed(f"Not all machines ran after {RUNNING_TIMEOUT_S / 60:.0f} minutes: {listed}.")

    def _what_is_left(self, ids: set[str], why: str) -> str:
        listed = ", ".join(sorted(ids)) or f"machines with the tag gpuctl-launch={self.launch.id}"
        name = self._cluster.name
        return (
            f"{why} What may be running, and billed, in {self.launch.zone}: {listed}. "
            f"`gpuctl up --cluster {name}` continues with it, `gpuctl down --cluster {name}` removes it."
        )

    def undo(self, ids: set[str], *, unsure: bool) -> None:
        """End all machines of the launch and wait until they have ended.

        `unsure`: the cloud may still act on a request, so its list is watched until it has settled. Raises LeftBehind
        at the deadline.
        """
        launch = self._save(replace(self.launch, state="undoing"))
        progress = Progress(self._clock, self._say)
        reminders = Reminders(self._clock)
        announced = watching = False
        for passed_s in poll(self._clock):
            states = {machine.id: machine.state for machine in self._machines()}
            ids = ids | set(states)
            unseen = {i for i in ids if i not in states}
            # A machine with an id comes into the cloud's lists, if late.
            unlisted = unseen if passed_s < UNLISTED_FACTOR * self._cloud.consistency_s else set()
            left = {i for i in states if states[i] != "ended"} | unlisted
            if not left and (not unsure or passed_s >= self._cloud.consistency_s):
                break
            if passed_s > ENDED_TIMEOUT_S:
                raise LeftBehind(
                    f"These machines did not end: {', '.join(sorted(left))}. They may be billed. "
                    f"`gpuctl down --cluster {self._cluster.name}` continues."
                )
            if left:
                progress.tell(f"{len(left)} machines have still to end")
            elif not watching:
                watching = True
                rest_s = self._cloud.consistency_s - passed_s
                self._say(f"a request had no answer yet: watching {rest_s:.0f} s for what may come of it …")
            if to_ask := reminders.due(i for i in left if states.get(i) != "ending"):
                if not announced:
                    announced = True
                    self._say(f"undoing the launch in {launch.zone} …")
                self._cloud.terminate(to_ask)
                # A call for a machine that the cloud does not list yet may have no effect.
                reminders.sent(i for i in to_ask if i in states)
        self._save(self.launch.ended("undone"))
        self._say(f"no machine is left of the launch in {launch.zone}")

    def _save(self, launch: Launch) -> Launch:
        self._files.save_launch(launch)
        self.launch = launch
        return launch

    def _machines(self) -> list[Instance]:
        machines = self._cloud.instances(self._cluster.id)
        return [machine for machine in machines if machine.tags.get(LAUNCH) == self.launch.id]


def _rank_of_error(error: Exception) -> int:
    """Return a sort key: lower for errors that better explain what to do."""
    kinds = (BadCredentials, Denied, Quota, CloudError)
    if isinstance(error, Unclear):
        return len(kinds) + 1
    if isinstance(error, Capacity):
        return len(kinds)
    return next((rank for rank, kind in enumerate(kinds) if isinstance(error, kind)), -1)
