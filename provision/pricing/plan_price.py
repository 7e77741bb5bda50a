"""What a plan costs by the hour, part by part: machines, disks, public addresses, the network. Pure.

List prices, in USD, without taxes, traffic and an account's own discounts. A price that nobody stated for a region
is not known (None), and then the whole is not known either. Machines' prices are in `provision.pricing.prices`.
"""

from dataclasses import dataclass

HOURS_A_MONTH = 730.0
"""Hours of a month in gpuctl's prices of disks, which clouds state for a month: a year's 8,760 in twelve parts."""


@dataclass(frozen=True, kw_only=True)
class PlanPrice:
    """USD an hour of everything that a cluster is billed for by the hour. None: not known."""

    machines_usd: float | None = 0.0
    disks_usd: float | None = 0.0
    addresses_usd: float | None = 0.0
    network_usd: float | None = 0.0
    """Of the network that clusters share, a NAT gateway: in whole, as it is billed while any of them lives."""
    control_plane_usd: float | None = 0.0
    """Of Kubernetes as a service, billed as long as the cluster is there, be there machines or none."""
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
        parts = (machines_usd, self.disks_usd, self.addresses_usd, self.network_usd, self.control_plane_usd)
        return None if None in parts else round(sum(part or 0.0 for part in parts), 6)


FREE = PlanPrice()
