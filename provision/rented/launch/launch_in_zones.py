"""The launch of a cluster's machines: all missing ones in one zone, or no machine, whatever crashed before.

Never more machines than requested: a launch is on the disk with its token before it is sent, an interrupted one is
sent again unchanged, and a failed one is removed before the next zone is tried.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from inventories import codec
from inventories.text import dollars
from provision.errors import (
    Capacity,
    CloudError,
    CreateFailed,
    Gone,
    LeftBehind,
    NoCapacity,
    ProvisionError,
    RefusedPlan,
    TokenSpent,
)
from provision.records import Infrastructure, Instance, NewMachine, Zone
from provision.rented.ends import idle_settings, power_off_at
from provision.rented.find_or_create import TOKEN_LIFE_S
from provision.rented.interface import SchedulesEnd
from provision.rented.launch.single_launch import (
    ENDED_TIMEOUT_S,
    RUNNING_TIMEOUT_S,
    LaunchAttempt,
    LaunchContext,
)
from provision.rented.launch.user_data import user_data
from provision.rented.state import Launch
from provision.ssh_keys import new_key
from provision.waiting import CLOSE_SHARE, Reminders, poll


def ensure_running(
    context: LaunchContext,
    count: int,
    *,
    end: Collection[str],
    infrastructure_at: Callable[[Zone], Infrastructure],
    public_key: str,
) -> tuple[Instance, ...]:
    """Launch the missing machines of the ranks 0 … `count`-1. Returns all machines, with addresses.

    `end`: ids of the machines that the plan ends. `infrastructure_at` prepares a zone, and may be called again.

    Raises:
        RefusedPlan: a machine of a higher rank is not in `end`.
        NoCapacity: no zone has them, or the account's quota forbids them; no machine of the attempts is left.
        CreateFailed: any other failure; no machine of the attempts is left.
        LeftBehind: a machine is left.
    """
    return _Launching(context, end, infrastructure_at, public_key).ensure_running(count)


class _Launching:
    def __init__(
        self,
        context: LaunchContext,
        end: Collection[str],
        infrastructure_at: Callable[[Zone], Infrastructure],
        public_key: str,
    ) -> None:
        self._context = context
        self._cloud = context.cloud
        self._files = context.files
        self._cluster = context.cluster
        self._offer = context.offer
        self._clock = context.clock
        self._say = context.say
        self._end = end
        self._infrastructure_at = infrastructure_at
        self._public_key = public_key
        self._made: set[str] = set()
        """Ids of machines that this command has brought up."""

    def ensure_running(self, count: int) -> tuple[Instance, ...]:
        try:
            for launch in self._files.launches():
                if not launch.settled:
                    self._settle(launch, count)
            have = self._by_rank(count)
            # Until no pool makes a machine in place of a missing one.
            while len(have) < count and self._cluster.expires_at and isinstance(self._cloud, SchedulesEnd):
                alive = [machine.id for machine in have.values()]
                self._cloud.forget_ended(self._cluster.id, alive, self._say)
                have = self._by_rank(count)
                if [machine.id for machine in have.values()] == alive:
                    break
            missing = tuple(rank for rank in range(count) if rank not in have)
            if missing:
                # New machines join the zone of the others.
                zones = tuple({machine.zone: None for machine in have.values()}) or self._offer.zones
                self._launch_in_some_zone(missing, zones[:1] if have else zones)
            machines = self._all_running(count, {rank: machine.id for rank, machine in have.items()})
            if missing and self._cluster.expires_at:
                self._by_rank(count)  # a pool may have replaced a machine that was lost in between
            return machines
        except LeftBehind:
            raise
        except ProvisionError as error:
            if not self._made:
                self._say_network_bill()
            if not self._made or not isinstance(error, CloudError):
                raise
            raise LeftBehind(
                f"{error} These machines run, and are billed: {', '.join(sorted(self._made))}. "
                f"`gpuctl up --cluster {self._cluster.name}` continues with them, `gpuctl down --cluster "
                f"{self._cluster.name}` removes them."
            ) from error

    def _say_network_bill(self) -> None:
        """Say that the network is billed without machines: it stays for the next try."""
        if not self._offer.network_hourly_usd:
            return
        try:
            machines = self._cloud.instances(self._cluster.id)
        except CloudError:
            return  # the error that is about to be raised says more
        if all(machine.state == "ended" for machine in machines):
            usd = dollars(self._offer.network_hourly_usd)
            self._say(
                "the private network stays for the next try: its NAT gateway, if it was made, is billed, about "
                f"{usd} an hour, until `gpuctl down --cluster {self._cluster.name}` removes it"
            )

    def _launch_in_some_zone(self, ranks: tuple[int, ...], zones: Sequence[Zone]) -> None:
        for zone in zones:
            began = self._clock.now()
            try:
                self._launch_in(ranks, zone)
                return
            except Capacity as error:
                seconds = self._clock.now() - began
                after = f"{zone}: no capacity ({error.code or 'no capacity'}) after {seconds:.1f} s"
                self._say(f"{after}: {_first_sentence(error)}")
        tried = ", ".join(map(str, zones))
        raise NoCapacity(
            f"No zone in {self._cluster.target.region} has {len(ranks)} {self._offer.shape} now: tried {tried}. "
            "No machine is left of the attempts. Try later, another --region, or another shape: `gpuctl shapes`."
        )

    def _launch_in(self, ranks: tuple[int, ...], zone: Zone) -> None:
        for last in (False, True):
            try:
                self._run(self._new_launch(ranks, zone))
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
                    expires_at=power_off_at(self._cluster),
                    idle=idle_settings(self._cluster),
                    peer_cidr=infrastructure.ids.get("peer_cidr"),
                    boot_commands=self._offer.boot_commands,
                    record=codec.to_json(self._cluster),
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
        """Complete an interrupted launch, remove its machines, or leave them to their tags."""
        self._say(f"continuing the launch in {launch.zone} that was interrupted …")
        age = datetime.now(UTC) - datetime.fromisoformat(launch.began_at)
        if launch.is_undone(count, self._cloud.consistency_s):
            attempt = LaunchAttempt(self._context, launch)
            attempt.undo(set(), unsure=attempt.is_fresh)
        elif max(launch.ranks) >= count or age.total_seconds() > TOKEN_LIFE_S:
            # Its machines are found by their tags. Another computer may use them.
            self._files.save_launch(launch.ended("running"))
        else:
            try:
                self._run(launch)
            except Capacity as error:
                self._say(f"{launch.zone}: {_first_sentence(error)}")
            except CreateFailed as error:
                if not isinstance(error.__cause__, TokenSpent | Gone):
                    raise

    def _run(self, launch: Launch) -> None:
        self._made |= LaunchAttempt(self._context, launch).run()

    def _by_rank(self, count: int) -> dict[int, Instance]:
        """Return the cluster's machines by rank, once ending machines and machines without a rank have ended."""
        reminders = Reminders(self._clock)
        for _ in poll(self._clock, ENDED_TIMEOUT_S):
            machines = [m for m in self._cloud.instances(self._cluster.id) if m.state != "ended"]
            have: dict[int, Instance] = {}
            for machine in sorted(machines, key=lambda m: (m.launched_at, m.id)):
                if machine.alive and machine.rank is not None and machine.rank < count:
                    have.setdefault(machine.rank, machine)
            excess = [m for m in machines if m not in have.values()]
            if not excess:
                return have
            if unplanned := [
                m for m in excess if m.alive and (m.rank or 0) >= count and m.id not in self._end
            ]:
                names = ", ".join(f"{self._cluster.name}-{machine.rank}" for machine in unplanned)
                raise RefusedPlan(
                    f"Machines that are not in this plan were made by another computer, and were not ended: {names}. "
                    "Run `gpuctl up` again for a new plan."
                )
            if surplus := reminders.due(m.id for m in excess if m.alive):
                self._say(f"ending {', '.join(surplus)}, which no rank needs …")
                self._cloud.terminate(surplus)
                reminders.sent(surplus)
        raise LeftBehind(
            f"Waited {ENDED_TIMEOUT_S / 60:.0f} minutes for machines to end: "
            f"{', '.join(f'{m.id} is {m.state}' for m in excess)}. Run `gpuctl up` again."
        )

    def _all_running(self, count: int, known: dict[int, str]) -> tuple[Instance, ...]:
        """Return the machines of all ranks, each running and with its address. `known`: their ids, by rank."""
        for _ in poll(self._clock, RUNNING_TIMEOUT_S, share=CLOSE_SHARE):
            listed = {machine.id: machine for machine in self._cloud.instances(self._cluster.id)}
            by_rank = {m.rank: m for m in listed.values() if m.alive and m.rank is not None}
            for rank, had in known.items():
                if rank not in by_rank and had in listed:
                    raise CreateFailed(
                        f"Machine {had} of rank {rank} ended"
                        f"{f' ({listed[had].reason})' if listed[had].reason else ''}. The others are kept, and "
                        "billed: `gpuctl up` again replaces it, `gpuctl down` removes all."
                    )
            known = known | {rank: machine.id for rank, machine in by_rank.items()}
            lost = [rank for rank in range(count) if rank not in by_rank]
            machines = [by_rank[rank] for rank in range(count) if rank in by_rank]
            if not lost and all(machine.state == "running" for machine in machines):
                ready = self._cloud.with_addresses(machines)
                public = self._cluster.public_ip
                if all(machine.private_ip and (machine.public_ip or not public) for machine in ready):
                    return ready
        raise CreateFailed(
            f"Not all of {count} machines run with an address after {RUNNING_TIMEOUT_S / 60:.0f} "
            f"minutes{f'; rank {lost[0]} is not there' if lost else ''}. They are kept, and billed: "
            "`gpuctl up` again waits on, `gpuctl down` removes them."
        )


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].rstrip(".") + "."
