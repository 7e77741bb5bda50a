"""In which zone a cluster's machines with GPUs are: all in one, so that their links are short."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from provision.errors import Capacity, CloudError, NoCapacity, Quota
from provision.provider import Say

T = TypeVar("T")


def in_first_zone(
    zones: Sequence[str],
    sizes: Mapping[str, int],
    kept: int,
    make: Callable[[str], T],
    take_back: Callable[[str, int], None],
    *,
    what: str,
    say: Say,
    everywhere: tuple[type[CloudError], ...] = (),
) -> T:
    """What `make` returns for the first zone that has all machines.

    `sizes`: how many the group of a zone wants, by zone, where it has a group. `kept`: how many machines are at work;
    with any, no other zone is tried. `take_back` leaves so many in the group of a zone that has not as many as are
    wanted. `everywhere`: what would be the same in any other zone. Raises NoCapacity where no zone has them; `what`:
    those, in words.
    """
    used = [zone for zone in zones if sizes.get(zone)]
    refused: list[str] = []
    for zone in used if used and kept else order(zones, sizes):
        try:
            made = make(zone)
        except (Capacity, Quota) as error:
            refused.append(f"{zone}: {error}")
            say(f"no machines in {zone}: {error}")
            take_back(zone, min(kept, sizes.get(zone, 0)))
            if isinstance(error, everywhere):
                break
            continue
        for other in used:
            if other != zone and not kept:
                take_back(other, 0)  # a start there was cut off
        return made
    raise NoCapacity(f"{what} together. {' '.join(refused)} Try later, another --region or shape.")


def order(zones: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Zones whose group wants machines, then those that have a group, then the others. Pure."""
    return sorted(zones, key=lambda zone: (not sizes.get(zone), zone not in sizes))
