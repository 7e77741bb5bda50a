"""What a plan costs by the hour, part by part: machines, disks, public addresses, the network. Pure.

List prices, in USD, without taxes, traffic and an account's own discounts. A price that nobody stated for a region
is not known (None), and then the whole is not known either. Machines' prices are in `provision.pricing.prices`.
"""

from dataclasses import dataclass

HOURS_A_MONTH = 730.0
"""What clouds that bill a disk by the month take for one: 8,760 hours a year in twelve parts."""

OCI_STORAGE_USD_PER_GB_MONTH = 0.0255
OCI_PERFORMANCE_USD_PER_GB_MONTH = 10 * 0.0017
"""Parts B91961 and B91962 of Oracle's price list, the same in every commercial region. Boot volumes are "Balanced":
10 performance units a GB, https://www.oracle.com/cloud/storage/block-volumes/pricing/, 2026-11."""

OCI_SPOT_SHARE = 0.5
"""Preemptible machines of OCI cost half the price of others, whatever the shape and the region."""

AWS_GP3_USD_PER_GB_MONTH = 0.08
"""gp3 as it comes (3,000 IOPS, 125 MB/s), us-east-1. https://aws.amazon.com/ebs/pricing/, 2026-11."""

ADDRESS_HOURLY_USD = 0.005
"""AWS: a public IPv4 address, in every region since 2024-02. https://aws.amazon.com/vpc/pricing/, 2026-11."""

NAT_HOURLY_USD = 0.045
"""AWS: a NAT gateway without its address and its traffic, us-east-1. https://aws.amazon.com/vpc/pricing/, 2026-11."""


@dataclass(frozen=True, kw_only=True)
class PlanPrice:
    """USD an hour of everything that a cluster is billed for by the hour. None: not known."""

    machines_usd: float | None = 0.0
    disks_usd: float | None = 0.0
    addresses_usd: float | None = 0.0
    network_usd: float | None = 0.0
    """Of the network that clusters share, a NAT gateway: in whole, as it is billed while any of them lives."""
    varies: bool = False
    """Whether the machines' price changes while they run, as that of AWS's spot machines does."""
    most_machines_usd: float | None = None
    """Where it does: what they cost at most, their price on demand. None: not known, or it does not change."""

    @property
    def hourly_usd(self) -> float | None:
        """All of it together."""
        return self._sum(self.machines_usd)

    @property
    def most_hourly_usd(self) -> float | None:
        """What it can be at most; None where that is not known."""
        return self._sum(self.most_machines_usd if self.varies else self.machines_usd)

    def _sum(self, machines_usd: float | None) -> float | None:
        parts = (machines_usd, self.disks_usd, self.addresses_usd, self.network_usd)
        return None if None in parts else round(sum(part or 0.0 for part in parts), 6)


FREE = PlanPrice()
