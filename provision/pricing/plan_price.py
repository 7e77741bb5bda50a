"""The hourly price of a plan, part by part: machines, disks, public addresses, the network. Pure.

List prices, in USD, without taxes, traffic and an account's own discounts. A price without a source for the region is
not known (`None`), and then neither is the sum. Prices of machines are in `provision.pricing.prices`.
"""

from dataclasses import dataclass

HOURS_A_MONTH = 730.0
"""Hours of a month in gpuctl's prices of disks, which clouds state for a month: a year's 8,760 in twelve parts."""


@dataclass(frozen=True, kw_only=True)
class PlanPrice:
    """USD an hour of all resources of a cluster that are billed by the hour. `None`: not known."""

    machines_usd: float | None = 0.0
    disks_usd: float | None = 0.0
    addresses_usd: float | None = 0.0
    network_usd: float | None = 0.0
    """The shared network's NAT gateway: the whole price, as it is billed while any cluster lives."""
    control_plane_usd: float | None = 0.0
    """Kubernetes as a service, billed for the life of the cluster, with or without machines."""
    varies: bool = False
    """Whether the machines' price changes while they run, as that of AWS's spot machines does."""
    most_machines_usd: float | None = None
    """Highest price of machines whose price varies, on demand. `None`: not known, or the price does not vary."""

    @property
    def hourly_usd(self) -> float | None:
        """Return the sum."""
        return self._with_machines(self.machines_usd)

    @property
    def most_hourly_usd(self) -> float | None:
        """Return the highest sum. `None`: not known."""
        return self._with_machines(self.most_machines_usd if self.varies else self.machines_usd)

    def __add__(self, other: "PlanPrice") -> "PlanPrice":
        """Return the price of both; `other` does not vary."""
        most_usd = _sum(self.most_machines_usd, other.machines_usd) if self.varies else None
        return PlanPrice(
            machines_usd=_sum(self.machines_usd, other.machines_usd),
            disks_usd=_sum(self.disks_usd, other.disks_usd),
            addresses_usd=_sum(self.addresses_usd, other.addresses_usd),
            network_usd=_sum(self.network_usd, other.network_usd),
            control_plane_usd=_sum(self.control_plane_usd, other.control_plane_usd),
            varies=self.varies,
            most_machines_usd=most_usd,
        )

    def _with_machines(self, machines_usd: float | None) -> float | None:
        rest = (self.disks_usd, self.addresses_usd, self.network_usd, self.control_plane_usd)
        return _sum(machines_usd, *rest)


def _sum(*parts: float | None) -> float | None:
    return None if None in parts else round(sum(part or 0.0 for part in parts), 6)


FREE = PlanPrice()
