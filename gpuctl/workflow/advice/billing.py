"""How long a machine takes before it trains, and the shortest time that its cloud bills. Pure."""

from collections.abc import Mapping

from provision.pricing.shape import Shape

VIRTUAL_MACHINE_S = 900.0
"""As long as `up` waits for a machine to boot, so packages and a driver have room in it. No vendor states a time."""
BARE_METAL_RUNNING_S = 1200.0
"""Bare-metal machines take up to 20 minutes until their cloud calls them running."""
MIN_BILLED_S: Mapping[tuple[str, bool], float] = {
    ("oci", False): 60.0,
    ("oci", True): 3600.0,
    ("aws", False): 60.0,
    ("aws", True): 60.0,
}
"""By provider, and whether it is bare metal.

OCI bills by the second, with GPUs or without: a virtual machine for a minute at least, a bare-metal machine for an
hour. A copy of Oracle's blog of 2020:
https://the-report.cloud/oracle-announcing-per-second-billing-for-compute-and-autonomous-database
AWS bills Linux by the second from the state `running` on, for a minute at least, and nothing while it is `pending`.
https://github.com/awsdocs/amazon-ec2-user-guide/blob/master/doc_source/ec2-instance-lifecycle.md
"""


def setup_s(shape: Shape) -> float:
    """Return the seconds from the order of a machine to the first step, at most as a rule.

    The time before `running`, which AWS does not bill, counts, too.
    """
    return VIRTUAL_MACHINE_S + (BARE_METAL_RUNNING_S if shape.bare_metal else 0.0)


def min_billed_s(shape: Shape) -> float:
    """Return the shortest time that a machine of that shape is billed for; 0 if that is not known."""
    return MIN_BILLED_S.get((shape.provider, shape.bare_metal), 0.0)
