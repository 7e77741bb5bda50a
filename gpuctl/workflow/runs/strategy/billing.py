"""The time from the order of a machine to its first step, and the shortest time that its cloud bills."""

from provision.clouds import CLOUDS, Shape, describe

VIRTUAL_MACHINE_S = 900.0
"""The time that `up` waits for a boot, so it covers packages and a driver. No vendor states a time."""
BARE_METAL_RUNNING_S = 1200.0
"""Bare-metal machines take up to 20 minutes until their cloud calls them running."""


def setup_s(shape: Shape) -> float:
    """Return the seconds from the order of a machine to the first step, at most as a rule.

    The time before `running`, which AWS does not bill, counts, too.
    """
    return VIRTUAL_MACHINE_S + (BARE_METAL_RUNNING_S if shape.bare_metal else 0.0)


def min_billed_s(shape: Shape) -> float:
    """Return the shortest time that a machine of that shape is billed for; 0 if that is not known."""
    return describe(shape.provider).least_billed_s(shape.name) if shape.provider in CLOUDS else 0.0
