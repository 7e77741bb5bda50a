"""In which zone a cluster's machines with GPUs are: all in one, so that links are short. A zone has one group."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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
from provision.rented.managed_kubernetes.service import Work


def in_first_zone(
    work: Work,
    sizes: Mapping[str, int],
    name: Callable[[str], str],
    count: int,
    *,
    make: Callable[[str], None],
    scale: Callable[[str, int], None],
    remove: Callable[[str], None],
    what: str,
    everywhere: tuple[type[CloudError], ...] = (),
) -> None:
    """Have `count` machines in the first zone that has all, by `make`.

    `sizes`: how many a group wants, by its name, which `name` tells of a zone. A zone that has not as many as are
    wanted is brought back to the machines at work: `scale` changes its group, `remove` ends it; with any at work, no
    other zone is tried. `everywhere`: what would be the same in any other zone. Raises NoCapacity where no zone has
    them; `what`: those, in words.
    """
    zones = [zone.name for zone in work.offer.zones]
    used = [zone for zone in zones if sizes.get(name(zone))]
    elsewhere = {group: size for group, size in sizes.items() if size and group not in map(name, zones)}
    refused: list[str] = []
    if elsewhere and work.kept and not used:
        # Their zone is not offered now: no others can join them.
        (group, size), *_ = elsewhere.items()
        if size < count:
            raise NoCapacity(
                f"{what} in the zone of those that there are: it is not offered now, and all are to be in one. "
                "Try later, or `gpuctl down` and `gpuctl up`."
            )
        scale(group, count)
        return

    def take_back(group: str, kept: int) -> None:
        if not kept:
            remove(group)
            return
        try:
            scale(group, kept)
        except CreateFailed as error:
            work.say(f"{group} still wants more machines: {error}")

    by_use = sorted(zones, key=lambda zone: (not sizes.get(name(zone)), name(zone) not in sizes))
    for zone in used if used and work.kept else by_use:
        try:
            make(zone)
        except (Capacity, Quota) as error:
            refused.append(f"{zone}: {error}")
            work.say(f"no machines in {zone}: {error}")
            take_back(name(zone), min(work.kept, sizes.get(name(zone), 0)))
            if isinstance(error, everywhere):
                break
            continue
        for group, size in sizes.items():
            if size and group != name(zone) and not work.kept:
                take_back(group, 0)  # a start there was cut off
        return
    if not work.kept:
        for group in elsewhere:
            take_back(group, 0)
    raise NoCapacity(f"{what} together. {' '.join(refused)} Try later, another --region or shape.")


def end_machines(
    sizes: Mapping[str, int],
    count: int,
    *,
    scale: Callable[[str, int], None],
    wait_gone: Callable[[str, int], None],
) -> None:
    """Leave so many machines in all groups together, and wait until the others have gone. `sizes`: by group."""
    stay, left = {}, count
    for group, size in sizes.items():
        stay[group] = min(size, left)
        left -= stay[group]
        scale(group, stay[group])
    for group, few in stay.items():
        wait_gone(group, few)


@contextmanager
def remembered(told: set[str], machine: str) -> Iterator[None]:
    """Remember a machine as told to end, also where the answer is lost; one that the cloud refused was not told."""
    told.add(machine)
    try:
        yield
    except (Blocked, Gone, Throttled):
        told.discard(machine)
        raise
