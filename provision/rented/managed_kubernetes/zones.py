"""The zone of a cluster's machines with GPUs: all in one, so that links are short. A zone has one group of nodes."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from provision.errors import (
    Blocked,
    Capacity,
    CloudError,
    CreateFailed,
    Gone,
    NoCapacity,
    Quota,
    Throttled,
)
from provision.rented.managed_kubernetes.service import CreateContext
from provision.rented.teardown import BLOCKED_TIMEOUT_S

GROUP_WITHIN_S = 2400.0
"""Longest time of a change: machines with GPUs take up to half an hour to join, and EKS itself stops after that."""


class Groups(Protocol):
    """The groups of a cluster's nodes with GPUs, by name."""

    def gpu_sizes(self) -> dict[str, int]:
        """Return the desired size of each group with GPUs, by its name."""

    def scale_down(
        self, name: str, count: int, staying_addresses: Callable[[], Collection[str]], timeout_s: float
    ) -> None:
        """Scale a group down to `count` machines, and wait while the service changes it."""

    def wait_gone(self, name: str, count: int) -> None:
        """Wait until at most `count` machines of the group exist."""

    def remove(self, name: str) -> None:
        """Remove a group that can't have its machines, so that they come up in another zone or not at all."""


def in_first_zone(
    context: CreateContext,
    groups: Groups,
    group_of: Callable[[str], str],
    count: int,
    *,
    make: Callable[[str], None],
    lack: str,
    everywhere: tuple[type[CloudError], ...] = (),
) -> None:
    """Make `count` machines in the first zone that has all of them. Raises NoCapacity if no zone has.

    A zone without enough machines is rolled back to the staying ones. If any stay, no other zone is tried.
    `group_of` returns the name of a zone's group, and `make` makes the machines in a zone. `lack`: begin of the
    message for missing machines. `everywhere`: errors that every other zone would give, too.
    """

    def scale(group: str, size: int) -> None:
        groups.scale_down(group, size, context.staying_addresses, BLOCKED_TIMEOUT_S)

    sizes = groups.gpu_sizes()
    zones = [zone.name for zone in context.offer.zones]
    used = [zone for zone in zones if sizes.get(group_of(zone))]
    elsewhere = {group: size for group, size in sizes.items() if size and group not in map(group_of, zones)}
    refused: list[str] = []
    if elsewhere and context.staying and not used:
        # Their zone is not offered now: no others can join them.
        (group, size), *_ = elsewhere.items()
        if size < count:
            raise NoCapacity(
                f"{lack} in the zone of those that there are: it is not offered now, and all are to be in one. "
                "Try later, or `gpuctl down` and `gpuctl up`."
            )
        scale(group, count)
        return

    def roll_back(group: str, staying: int) -> None:
        if not staying:
            groups.remove(group)
            return
        try:
            scale(group, staying)
        except CreateFailed as error:
            context.say(f"{group} still wants more machines: {error}")

    by_use = sorted(zones, key=lambda zone: (not sizes.get(group_of(zone)), group_of(zone) not in sizes))
    for zone in used if used and context.staying else by_use:
        try:
            make(zone)
        except (Capacity, Quota) as error:
            refused.append(f"{zone}: {error}")
            context.say(f"no machines in {zone}: {error}")
            roll_back(group_of(zone), min(context.staying, sizes.get(group_of(zone), 0)))
            if isinstance(error, everywhere):
                break
            continue
        for group, size in sizes.items():
            if size and group != group_of(zone) and not context.staying:
                roll_back(group, 0)  # an interrupted start made it
        return
    if not context.staying:
        for group in elsewhere:
            roll_back(group, 0)
    raise NoCapacity(f"{lack} together. {' '.join(refused)} Try later, another --region or shape.")


def end_machines(context: CreateContext, groups: Groups, count: int) -> None:
    """Scale all groups down to `count` machines together, and wait until the others have ended."""
    new_sizes, left = {}, count
    for group, size in groups.gpu_sizes().items():
        new_sizes[group] = min(size, left)
        left -= new_sizes[group]
        groups.scale_down(group, new_sizes[group], context.staying_addresses, GROUP_WITHIN_S)
    for group, size in new_sizes.items():
        groups.wait_gone(group, size)


@contextmanager
def remembered(ending: set[str], machine: str) -> Iterator[None]:
    """Remember a machine as ending, also if the answer is lost; not if the cloud refused it."""
    ending.add(machine)
    try:
        yield
    except (Blocked, Gone, Throttled):
        ending.discard(machine)
        raise
