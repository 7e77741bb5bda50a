"""Making the machines of a cluster: all that are missing or none, in one zone, whatever crashed before.

Never more machines than were asked for: a launch is on the disk with its token before it is sent, an
interrupted one is sent again as it was, and a failed one is gone before the next zone is tried.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.store import Journal
from provision.clock import Clock
from provision.cloud.find_or_create import TOKEN_LIFE_S
from provision.cloud.interface import Cloud
from provision.cloud.records import CloudCluster, Infrastructure, Instance, NewMachine, Offer, Zone
from provision.cloud.state import CloudState, Launch
from provision.cloud.tags import LAUNCH
from provision.cloud.user_data import user_data
from provision.errors import (
    BadCredentials,
    Capacity,
    CloudError,
    CreateFailed,
    Denied,
    Gone,
    LeftBehind,
    NoCapacity,
    ProvisionError,
    Quota,
    Throttled,
    TokenSpent,
    Unclear,
)
from provision.parallel import run_all
from provision.progress import Progress
from provision.provider import Say
from provision.retry import CLOSE_SHARE, PollWaits, Reminders
from provision.ssh_keys import new_key

RUNNING_TIMEOUT_S = 1800.0
"""Bare-metal machines take up to 20 minutes."""
RUNNING_POLL_S = 3.0
"""A machine's first minute is looked at closely: it is most of what `up` takes."""
ENDED_TIMEOUT_S = 1800.0
UNLISTED_FACTOR = 5


class _Unheard(Exception):
    """The cloud stopped answering while machines that it had accepted came up; its error is the cause."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A launch that did not work out."""

    zone: Zone
    code: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.zone}: no capacity ({self.code}) after {self.seconds:.1f} s"


class Launching:
    """The machines of one cluster. `infrastructure_at` prepares a zone and may be called again."""

    def __init__(
        self,
        cloud: Cloud,
        folder: CloudState,
        cluster: CloudCluster,
        offer: Offer,
        *,
        infrastructure_at: Callable[[Zone], Infrastructure],
        public_key: str,
        journal: Journal,
        clock: Clock,
        say: Say,
    ) -> None:
        self._journal = journal
        self._cloud = cloud
        self._folder = folder
        self._cluster = cluster
        self._offer = offer
        self._infrastructure_at = infrastructure_at
        self._public_key = public_key
        self._clock = clock
        self._say = say
        self._made: set[str] = set()
        """Ids of machines that this command has brought up."""

    def fill(self, count: int) -> tuple[Instance, ...]:
        """Bring the cluster to running machines of the ranks 0 … `count`-1; returns them, with addresses.

        Raises NoCapacity where no zone has them or the account's quota forbids them, CreateFailed for
        anything else, both with no machine left of the failed attempts, and LeftBehind where one is.
        """
        try:
            return self._filled(count)
        except LeftBehind:
            raise
        except ProvisionError as error:
            if not self._made:
                self._tell_what_is_billed()
            if not self._made or not isinstance(error, CloudError):
                raise
            raise LeftBehind(
                f"{error} These machines run, and are billed: {', '.join(sorted(self._made))}. "
                f"`gpuctl up --cluster {self._cluster.name}` goes on with them, `gpuctl down --cluster "
                f"{self._cluster.name}` removes them."
            ) from error

    def _tell_what_is_billed(self) -> None:
        """Where no machine needs it: the network, which the next try would need again."""
        if not self._offer.network_hourly_usd:
            return
        try:
            machines = self._cloud.instances(self._cluster.id)
        except CloudError:
            return  # the error that is about to be raised says more
        if all(machine.state == "ended" for machine in machines):
            self._say(
                "the private network stays for the next try: its NAT gateway, if it was made, is billed, about "
                f"${self._offer.network_hourly_usd:.2g} an hour, until `gpuctl down --cluster {self._cluster.name}` "
                "removes it"
            )

    def _filled(self, count: int) -> tuple[Instance, ...]:
        for launch in self._folder.launches():
            if not launch.settled:
                self._settle(launch, count)
        have = self._by_rank(count)
        missing = tuple(rank for rank in range(count) if rank not in have)
        if missing:
            # Machines that join stand where the others are.
            zones = tuple({machine.zone: None for machine in have.values()}) or self._offer.zones
            self._launch_in_some_zone(missing, zones[:1] if have else zones)
        return self._all_running(count, {rank: machine.id for rank, machine in have.items()})

    def _launch_in_some_zone(self, ranks: tuple[int, ...], zones: Sequence[Zone]) -> None:
        attempts: list[Attempt] = []
        for zone in zones:
            began = self._clock.now()
            try:
                self._launch_in(ranks, zone)
                return
            except Capacity as error:
                attempt = Attempt(
                    zone=zone, code=error.code or "no capacity", seconds=self._clock.now() - began
                )
                attempts.append(attempt)
                self._say(f"{attempt}: {_first_sentence(error)}")
        tried = ", ".join(str(attempt.zone) for attempt in attempts)
        raise NoCapacity(
            f"No zone in {self._cluster.target.region} has {len(ranks)} {self._offer.shape} now: tried {tried}. "
            "No machine is left of the attempts. Try later, another --region, or another shape: `gpuctl shapes`."
        )

    def _launch_in(self, ranks: tuple[int, ...], zone: Zone) -> None:
        for last in (False, True):
            try:
                self._attempt(self._new_launch(ranks, zone))
                return
            except CreateFailed as error:
                # The network was removed under us, by the `down` of the last cluster that used it.
                if last or not isinstance(error.__cause__, Gone):
                    raise

    def _new_launch(self, ranks: tuple[int, ...], zone: Zone) -> Launch:
        infrastructure = self._infrastructure_at(zone)
        token = secrets.token_hex(16)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        shared = new_key() if self._cloud.one_user_data else None
        keys = [shared or new_key() for _ in ranks]
        machines = [
            NewMachine(
                name=f"{self._cluster.name}-{rank}",
                rank=rank,
                user_data=user_data(
                    user=self._offer.user,
                    authorized_key=self._public_key,
                    host_private_key=key.private,
                    host_public_key=key.public,
                    ssh_port=self._cluster.ssh_port,
                    expires_at=self._cluster.expires_at,
                    peer_cidr=infrastructure.ids.get("peer_cidr"),
                    boot_commands=self._offer.boot_commands,
                ),
            )
            for rank, key in zip(ranks, keys, strict=True)
        ]
        return Launch(
            id=token,
            zone=zone,
            ranks=ranks,
            user=self._offer.user,
            host_keys=tuple(key.public for key in keys),
            requests=self._cloud.requests(self._cluster, self._offer, infrastructure, zone, token, machines),
            began_at=now,
            sent_at=now,
            state="open",
        )

    def _settle(self, launch: Launch, count: int) -> None:
        """Bring an interrupted launch to its end: all of its machines, or none."""
        self._say(f"going on with the launch in {launch.zone} that was interrupted …")
        now = datetime.now(UTC)
        if launch.state == "undoing" or max(launch.ranks) >= count:
            self._undo(launch, set(), unsure=self._is_fresh(launch))
        elif (now - datetime.fromisoformat(launch.began_at)).total_seconds() > TOKEN_LIFE_S:
            self._folder.save_launch(launch.ended("running"))  # what is there of it is found by its tags
        else:
            try:
                self._attempt(launch)
            except Capacity as error:
                self._say(f"{launch.zone}: {_first_sentence(error)}")
            except CreateFailed as error:
                if not isinstance(error.__cause__, TokenSpent | Gone):
                    raise

    def _is_fresh(self, launch: Launch) -> bool:
        """Whether machines of its last sending may not be listed yet."""
        sent = datetime.now(UTC) - datetime.fromisoformat(launch.sent_at)
        return sent.total_seconds() < self._cloud.consistency_s

    def _attempt(self, launch: Launch) -> None:
        """Send the launch's requests and wait until all of its machines run; else undo it.

        Raises Capacity, NoCapacity (the quota forbids it) or CreateFailed, chained to the cloud's error, once
        nothing is left; LeftBehind where something may be.
        """
        # What an earlier sending made may not be listed yet, also where this one is refused.
        again = bool(launch.requests) and self._is_fresh(launch) and launch in self._folder.launches()
        launch = launch.sent(datetime.now(UTC))
        self._folder.save_launch(launch)
        self._say(f"launching {len(launch.ranks)} {self._offer.shape} in {launch.zone} …")
        ids: set[str] = set()
        unsure = True
        try:
            errors = self._send(launch, ids)
            self._journal.append("launched", launch=launch.id, place=str(launch.zone), ids=sorted(ids))
            # After a refusal nothing can come up later; after silence it can.
            unsure = again or any(
                isinstance(error, Unclear) or not isinstance(error, CloudError) for error in errors
            )
            if errors:
                raise min(errors, key=_rank_of_error)
            self._wait_running(launch, ids)
        except _Unheard as error:
            # All was accepted, and nothing bad is known of it: it stays, for the next command to go on with.
            raise LeftBehind(self._what_is_left(launch, ids, str(error.__cause__))) from error.__cause__
        except BaseException as error:
            self._undo_after(launch, ids, error, unsure=unsure)
            if isinstance(error, Capacity):
                raise
            if isinstance(error, Quota):
                raise NoCapacity(f"{error} No machine is left of this attempt.") from error
            if isinstance(error, CloudError | CreateFailed):
                raise CreateFailed(f"{error} No machine is left of this attempt.") from error
            raise
        self._folder.save_launch(launch.ended("running"))
        self._made |= ids

    def _send(self, launch: Launch, ids: set[str]) -> list[Exception]:
        """Send all requests; `ids` grows as the cloud answers. Returns what went wrong."""
        # A zone that has none of these machines is told by one call.
        for requests in (launch.requests[:1], launch.requests[1:]):
            outcomes = run_all(self._cloud.send, requests)
            for outcome in outcomes:
                if not isinstance(outcome, Exception):
                    ids.update(outcome)
            if errors := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
                return errors
        return []

    def _wait_running(self, launch: Launch, ids: set[str]) -> None:
        """Wait until `ids` run. Raises what the cloud says of one that ended, CreateFailed at the deadline."""
        deadline = self._clock.now() + RUNNING_TIMEOUT_S
        waits = PollWaits(longest_s=RUNNING_POLL_S, share=CLOSE_SHARE)
        progress = Progress(self._clock, self._say)
        while True:
            try:
                states = {machine.id: machine for machine in self._machines(launch)}
            except (Unclear, Throttled, BadCredentials) as error:
                raise _Unheard from error
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
            if self._clock.now() > deadline:
                told = ", ".join(
                    f"{i} is {states[i].state if i in states else 'not listed'}" for i in waiting
                )
                raise CreateFailed(
                    f"Not all machines ran after {RUNNING_TIMEOUT_S / 60:.0f} minutes: {told}."
                )
            self._clock.sleep(waits.next())

    def _undo_after(self, launch: Launch, ids: set[str], error: BaseException, *, unsure: bool) -> None:
        try:
            self._undo(launch, ids, unsure=unsure)
        except CloudError as second:
            if isinstance(error, Unclear | Throttled | BadCredentials):
                # Nothing was said against these machines: the next `up` goes on with them.
                self._folder.save_launch(launch)
            why = f"{error or 'Interrupted.'} Undoing it did not work either: {second}"
            raise LeftBehind(self._what_is_left(launch, ids, why)) from error

    def _what_is_left(self, launch: Launch, ids: set[str], why: str) -> str:
        listed = ", ".join(sorted(ids)) or f"machines with the tag gpuctl-launch={launch.id}"
        name = self._cluster.name
        return (
            f"{why} What may be running, and billed, in {launch.zone}: {listed}. "
            f"`gpuctl up --cluster {name}` goes on with it, `gpuctl down --cluster {name}` removes it."
        )

    def _undo(self, launch: Launch, ids: set[str], *, unsure: bool) -> None:
        """End all machines of the launch and wait until they have ended.

        `unsure`: a request may still be on its way, so the cloud's list is watched until it has settled.
        Raises LeftBehind at the deadline.
        """
        launch = replace(launch, state="undoing")
        self._folder.save_launch(launch)
        began = self._clock.now()
        waits = PollWaits()
        progress = Progress(self._clock, self._say)
        reminders = Reminders(self._clock)
        told_of = watching = False
        while True:
            states = {machine.id: machine.state for machine in self._machines(launch)}
            ids = ids | set(states)
            passed_s = self._clock.now() - began
            told = {i for i in ids if i not in states}
            # What the cloud has given an id comes into its lists, be it late.
            unlisted = told if passed_s < UNLISTED_FACTOR * self._cloud.consistency_s else set()
            left = {i for i in states if states[i] != "ended"} | unlisted
            if not left and (not unsure or passed_s >= self._cloud.consistency_s):
                break
            if passed_s > ENDED_TIMEOUT_S:
                raise LeftBehind(
                    f"These machines did not end: {', '.join(sorted(left))}. They may be billed. "
                    f"`gpuctl down --cluster {self._cluster.name}` goes on."
                )
            if left:
                progress.tell(f"{len(left)} machines have still to end")
            elif not watching:
                watching = True
                rest_s = self._cloud.consistency_s - passed_s
                self._say(f"a request had no answer yet: watching {rest_s:.0f} s for what may come of it …")
            if to_ask := reminders.due(i for i in left if states.get(i) != "ending"):
                if not told_of:
                    told_of = True
                    self._say(f"undoing the launch in {launch.zone} …")
                self._cloud.terminate(to_ask)
                # A call for a machine that the cloud does not list yet may have gone unheard.
                reminders.asked(i for i in to_ask if i in states)
            self._clock.sleep(waits.next())
        self._folder.save_launch(launch.ended("undone"))
        self._say(f"no machine is left of the launch in {launch.zone}")

    def _by_rank(self, count: int) -> dict[int, Instance]:
        """The cluster's machines by rank, once whatever ends has ended and what is nobody's is gone."""
        deadline = self._clock.now() + ENDED_TIMEOUT_S
        waits = PollWaits()
        reminders = Reminders(self._clock)
        while True:
            machines = [m for m in self._cloud.instances(self._cluster.id) if m.state != "ended"]
            have: dict[int, Instance] = {}
            for machine in sorted(machines, key=lambda m: (m.launched_at, m.id)):
                if machine.alive and machine.rank is not None and machine.rank < count:
                    have.setdefault(machine.rank, machine)
            others = [m for m in machines if m not in have.values()]
            if not others:
                return have
            if self._clock.now() > deadline:
                raise LeftBehind(
                    f"Waited {ENDED_TIMEOUT_S / 60:.0f} minutes for machines to end: "
                    f"{', '.join(f'{m.id} is {m.state}' for m in others)}. Run `gpuctl up` again."
                )
            if surplus := reminders.due(m.id for m in others if m.alive):
                self._say(f"ending {', '.join(surplus)}, which no rank needs …")
                self._cloud.terminate(surplus)
                reminders.asked(surplus)
            self._clock.sleep(waits.next())

    def _all_running(self, count: int, seen: dict[int, str]) -> tuple[Instance, ...]:
        """The machines of all ranks, each running and with its address. `seen`: ids that there were."""
        deadline = self._clock.now() + RUNNING_TIMEOUT_S
        waits = PollWaits(share=CLOSE_SHARE)
        while True:
            listed = {machine.id: machine for machine in self._cloud.instances(self._cluster.id)}
            found = {m.rank: m for m in listed.values() if m.alive and m.rank is not None}
            for rank, had in seen.items():
                if rank not in found and had in listed:
                    raise CreateFailed(
                        f"Machine {had} of rank {rank} ended"
                        f"{f' ({listed[had].reason})' if listed[had].reason else ''}. The others are kept, and "
                        "billed: `gpuctl up` again replaces it, `gpuctl down` removes all."
                    )
            seen = seen | {rank: machine.id for rank, machine in found.items()}
            lost = [rank for rank in range(count) if rank not in found]
            machines = [found[rank] for rank in range(count) if rank in found]
            if not lost and all(machine.state == "running" for machine in machines):
                ready = self._cloud.with_addresses(machines)
                if all(self._has_address(machine) for machine in ready):
                    return ready
            if self._clock.now() > deadline:
                raise CreateFailed(
                    f"Not all of {count} machines run with an address after {RUNNING_TIMEOUT_S / 60:.0f} "
                    f"minutes{f'; rank {lost[0]} is not there' if lost else ''}. They are kept, and billed: "
                    "`gpuctl up` again waits on, `gpuctl down` removes them."
                )
            self._clock.sleep(waits.next())

    def _has_address(self, machine: Instance) -> bool:
        return bool(machine.private_ip and (machine.public_ip or not self._cluster.public_ip))

    def _machines(self, launch: Launch) -> list[Instance]:
        machines = self._cloud.instances(self._cluster.id)
        return [machine for machine in machines if machine.tags.get(LAUNCH) == launch.id]


def _rank_of_error(error: Exception) -> int:
    """The lower, the more it says about what to do."""
    kinds = (BadCredentials, Denied, Quota, CloudError)
    if isinstance(error, Unclear):
        return len(kinds) + 1
    if isinstance(error, Capacity):
        return len(kinds)
    return next((rank for rank, kind in enumerate(kinds) if isinstance(error, kind)), -1)


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].rstrip(".") + "."
