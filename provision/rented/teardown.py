"""The removal of clusters by their tags: machines, then resources in dependency order, then the network.

Uses only the cloud's own lists, so it needs no file of ours, and changes no resource without our tags. A resource
that can't be removed stops no other: all are tried, and the rest is named.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from inventories.threads import run_all
from provision.errors import BadCredentials, Blocked, CloudError, LeftBehind, Throttled, Unclear
from provision.provider import Leftover
from provision.records import Instance, Resource
from provision.rented import tags
from provision.rented.interface import Cloud, SchedulesEnd
from provision.waiting import Clock, Progress, Reminders, Say, poll

ENDED_TIMEOUT_S = 1800.0
"""Bare-metal machines take long to end."""
BLOCKED_TIMEOUT_S = 300.0
"""Longest time that an ending resource may block another, as a network interface of an ended machine."""

User = tuple[Mapping[str, str], Collection[str]]
"""Tags of another cluster's resource, and the networks of that cluster. Empty: not known."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """The result of a teardown."""

    leftovers: tuple[Leftover, ...]
    network_users: tuple[str, ...] = ()
    """Names of other clusters that need the shared network."""


def remove(
    cloud: Cloud,
    cluster_ids: Collection[str] | None,
    *,
    clock: Clock,
    say: Say,
    network: Callable[[], AbstractContextManager[None]] = nullcontext,
    network_gone: Callable[[], None] = lambda: None,
    watch_s: float = 0.0,
    blocked_timeout_s: float = BLOCKED_TIMEOUT_S,
) -> Removed:
    """Remove clusters and, unless another cluster uses it, the shared network. Idempotent.

    Args:
        cloud: The account.
        cluster_ids: `None` for all clusters of ours.
        clock: The time.
        say: Takes lines of progress.
        network: Keeps our other commands off the shared network during its removal and `network_gone`.
        network_gone: Called after the removal of the whole network.
        watch_s: Time to watch for machines of an interrupted launch.
        blocked_timeout_s: Longest wait for a blocked resource.

    Raises:
        LeftBehind: the cloud stopped answering; the message lists the live resources.
    """
    teardown = _Teardown(cloud, cluster_ids, clock, say, blocked_timeout_s)
    return teardown.run(watch_s, network, network_gone)


@dataclass
class _Teardown:
    _cloud: Cloud
    _cluster_ids: Collection[str] | None
    _clock: Clock
    _say: Say
    _blocked_timeout_s: float
    _live: dict[str, str] = field(default_factory=dict)
    """Existing resources: id → kind."""
    _networks: dict[str, str] = field(default_factory=dict)
    """The last known network of each resource: id → id."""

    def run(
        self,
        watch_s: float,
        network: Callable[[], AbstractContextManager[None]],
        network_gone: Callable[[], None],
    ) -> Removed:
        try:
            leftovers = self._end_machines(watch_s)
            if leftovers:
                # The machines still block the rest; a try would only wait for them.
                return Removed(leftovers=(*leftovers, *self._held_by(leftovers)))
            leftovers = self._delete(lambda resource: self._ours(resource.tags))
            if any(left.kind == "instance" for left in leftovers):
                known = {left.id for left in leftovers}
                held = [left for left in self._held_by(leftovers) if left.id not in known]
                return Removed(leftovers=(*leftovers, *held))
            with network():
                if leftovers:
                    # Without machines nothing needs the private network's gateway, which may cost money.
                    return Removed(leftovers=(*leftovers, *self._delete(_is_private_network)))
                # Another user's cluster may begin at any moment; then the network is theirs.
                # A resource that was made just before its cluster's end may be listed only now, and block it.
                rest = self._delete(
                    lambda resource: self._ours(resource.tags) or tags.is_shared(resource.tags)
                )
                users = tuple(sorted({user[tags.CLUSTER] for user, _ in self._other_users()}))
                removed = Removed(leftovers=rest, network_users=users)
                if not removed.leftovers and not removed.network_users:
                    network_gone()
                return removed
        except CloudError as error:
            if not self._live:
                raise
            listed = ", ".join(f"{kind} {resource_id}" for resource_id, kind in sorted(self._live.items()))
            fix = "" if isinstance(error, BadCredentials) else " Run the command again."
            raise LeftBehind(f"{error} What may still be there, and billed: {listed}.{fix}") from error

    def _held_by(self, machines: Sequence[Leftover]) -> list[Leftover]:
        """Return the resources that these machines block: their own, and parts of the network for them alone."""
        users = self._other_users()
        reason = f"Instance {next(left.id for left in machines if left.kind == 'instance')} is still there."
        return [
            _left(resource, reason)
            for resource in self._resources()
            if self._ours(resource.tags)
            or (_is_private_network(resource) and not _is_needed(resource, users))
        ]

    def _ours(self, of: Mapping[str, str]) -> bool:
        if not tags.is_of(of, self._cloud.name):
            return False
        return self._cluster_ids is None or of.get(tags.CLUSTER_ID) in self._cluster_ids

    def _machines(self) -> list[Instance]:
        cluster_id = (
            next(iter(self._cluster_ids)) if self._cluster_ids and len(self._cluster_ids) == 1 else None
        )
        machines = [machine for machine in self._cloud.instances(cluster_id) if self._ours(machine.tags)]
        for machine in machines:
            if machine.state == "ended":
                self._live.pop(machine.id, None)
            else:
                self._live[machine.id] = "instance"
        return machines

    def _end_machines(self, watch_s: float) -> tuple[Leftover, ...]:
        """End all machines and wait. Returns the machines that did not end."""
        progress = Progress(self._clock, self._say)
        reminders = Reminders(self._clock)
        refused: dict[str, str] = {}
        watching = False
        for passed_s in poll(self._clock):
            left = [machine for machine in self._machines() if machine.state != "ended"]
            if not left and passed_s >= watch_s:
                return ()
            if left and (passed_s > ENDED_TIMEOUT_S or all(machine.id in refused for machine in left)):
                late = f"It did not end within {ENDED_TIMEOUT_S / 60:.0f} minutes."
                return tuple(
                    Leftover(kind="instance", id=machine.id, reason=refused.get(machine.id, late))
                    for machine in left
                )
            if left:
                progress.tell(f"{len(left)} machines have still to end")
            if to_end := reminders.due(m.id for m in left if m.alive and m.id not in refused):
                refused |= self._terminate(to_end, reminders)
            if not left and not watching:
                watching = True
                self._say(
                    f"an `up` was interrupted: watching {watch_s - passed_s:.0f} s for what may still come of it …"
                )
        raise AssertionError("polls without a deadline do not end")

    def _terminate(self, ids: Sequence[str], reminders: Reminders) -> dict[str, str]:
        """Terminate all; after a refusal one by one, so that one machine does not keep the others."""
        try:
            if isinstance(self._cloud, SchedulesEnd):
                self._cloud.end_pools(self._cluster_ids)
            self._cloud.terminate(ids)
            reminders.sent(ids)
            return {}
        except BadCredentials:
            raise
        except (Throttled, Unclear):
            return {}  # the next poll shows the effect
        except CloudError as error:
            if len(ids) == 1:
                return {ids[0]: str(error)}
        refused: dict[str, str] = {}
        for outcome in run_all(lambda machine_id: self._terminate([machine_id], reminders), ids):
            if isinstance(outcome, Exception):
                raise outcome
            refused |= outcome
        return refused

    def _delete(self, selected: Callable[[Resource], bool]) -> tuple[Leftover, ...]:
        """Delete resources stage by stage. Blocked ones are tried again until the deadline.

        Parts of the shared network that another cluster needs stay, and are no leftovers.
        """
        began = self._clock.now()
        timeout_s = self._blocked_timeout_s
        progress = Progress(self._clock, self._say)
        for _ in poll(self._clock):
            resources = [resource for resource in self._resources() if selected(resource)]
            self._live |= {resource.id: resource.kind for resource in resources}
            problems, needed = self._delete_by_stage(resources)
            resources = [resource for resource in resources if resource.id not in needed]
            if not resources:
                return ()
            # A resource that waits for a slow one may itself be blocked for the whole time after it.
            slowest_s = max(resource.ends_within_s for resource in resources)
            timeout_s = max(timeout_s, self._blocked_timeout_s + slowest_s)
            late = self._clock.now() > began + timeout_s
            left = [resource for resource in resources if resource.id in self._live]
            final = any(not isinstance(error, Blocked | Throttled | Unclear) for error in problems.values())
            if left and (final or late):
                first = next(resource for resource in left if resource.id in problems)
                waiting = f"The {first.kind} {first.id} has to go first."
                users = self._other_users()
                return tuple(
                    _left(resource, str(problems.get(resource.id, waiting)))
                    for resource in left
                    if not _is_needed(resource, users)
                )
            if late:
                return tuple(
                    _left(resource, "It was deleted, and is still listed.") for resource in resources
                )
            if problems:
                minutes = timeout_s / 60
                progress.tell(f"waiting, at most {minutes:.0f} minutes: {next(iter(problems.values()))}")
                # A machine of ours that the lists did not show before may block it.
                if stuck := self._end_machines(0.0):
                    return (
                        *stuck,
                        *(
                            _left(resource, str(problems.get(resource.id, "It is in use.")))
                            for resource in left
                        ),
                    )
        raise AssertionError("polls without a deadline do not end")

    def _delete_by_stage(self, resources: Sequence[Resource]) -> tuple[dict[str, Exception], set[str]]:
        """Delete the resources of a stage, and continue with the next stage if all were deleted.

        Returns the errors by id, and the ids of the parts of the shared network that other clusters need; these are
        searched before each of its stages.
        """
        problems: dict[str, Exception] = {}
        needed: set[str] = set()
        for stage in sorted({resource.stage for resource in resources}):
            now = [resource for resource in resources if resource.stage == stage]
            if any(tags.is_shared(resource.tags) for resource in now):
                users = self._other_users()
                needed |= {resource.id for resource in now if _is_needed(resource, users)}
                now = [resource for resource in now if resource.id not in needed]
            for resource, outcome in zip(now, run_all(self._cloud.delete, now), strict=True):
                if isinstance(outcome, BadCredentials):
                    raise outcome
                if isinstance(outcome, Exception):
                    problems[resource.id] = outcome
                else:
                    self._live.pop(resource.id, None)
            if problems:
                break
        return problems, needed

    def _resources(self) -> list[Resource]:
        """Return our resources, each with its last known network: a detached one still belongs to it."""
        resources = self._cloud.resources()
        self._networks |= {
            resource.id: resource.network for resource in resources if resource.network is not None
        }
        return [replace(resource, network=self._networks.get(resource.id)) for resource in resources]

    def _other_users(self) -> list[User]:
        """Return the tags of resources of our other clusters, with their networks."""
        resources = [resource for resource in self._resources() if tags.is_clusters(resource.tags)]
        networks: dict[str, set[str]] = {}
        for resource in resources:
            if resource.network is not None:
                networks.setdefault(resource.tags[tags.CLUSTER_ID], set()).add(resource.network)
        tag_sets = [resource.tags for resource in resources]
        tag_sets += [machine.tags for machine in self._cloud.instances() if machine.state != "ended"]
        return [
            (of, networks.get(of[tags.CLUSTER_ID], set()))
            for of in tag_sets
            if tags.is_clusters(of) and not self._ours(of)
        ]


def _is_needed(resource: Resource, users: Sequence[User]) -> bool:
    """Return whether other clusters need a part of a shared network: its private parts, only private clusters.

    A race may have made several networks: a cluster needs its own, as far as that is known.
    """
    if not tags.is_shared(resource.tags):
        return False
    return any(
        (tags.is_private(of) or not tags.is_private(resource.tags))
        and (resource.network is None or not networks or resource.network in networks)
        for of, networks in users
    )


def _is_private_network(resource: Resource) -> bool:
    return tags.is_shared(resource.tags) and tags.is_private(resource.tags)


def _left(resource: Resource, reason: str) -> Leftover:
    return Leftover(kind=resource.kind, id=resource.id, reason=reason)
