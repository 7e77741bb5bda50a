"""What a cluster costs by the hour: machines with GPUs, the machine beside them, the control plane. Pure."""

from dataclasses import dataclass, replace

from provision.clouds import base_of, describe
from provision.pricing.plan_price import PlanPrice
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Offer
from provision.rented.planning import planned_resources


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The two groups of machines, each with disks and addresses."""

    gpus: PlanPrice
    cpu: PlanPrice
    control_plane_usd: float

    @property
    def whole(self) -> PlanPrice:
        """All of it, with the network and the control plane."""
        varies = self.gpus.varies
        return PlanPrice(
            machines_usd=_sum(self.gpus.machines_usd, self.cpu.machines_usd),
            disks_usd=_sum(self.gpus.disks_usd, self.cpu.disks_usd),
            addresses_usd=_sum(self.gpus.addresses_usd, self.cpu.addresses_usd),
            network_usd=self.gpus.network_usd,
            control_plane_usd=self.control_plane_usd,
            varies=varies,
            most_machines_usd=_sum(self.gpus.most_machines_usd, self.cpu.machines_usd) if varies else None,
        )

    @property
    def cpu_usd(self) -> float | None:
        """The machine beside those with GPUs, its disk and its address."""
        return _sum(self.cpu.machines_usd, self.cpu.disks_usd, self.cpu.addresses_usd)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The machine of the operators and of Ray's head, and the control plane."""

    cpu_usd: float | None
    """An hour of the machine. None: not known in that region."""
    cpu_disk_gb: int
    control_plane_usd: float


def of(prices: Prices, cluster: CloudCluster, offer: Offer, count: int, beside: Beside) -> Parts:
    """Of `count` machines with GPUs, and what comes with them."""
    provider, region = base_of(cluster.target.provider), cluster.target.region
    disk_month_usd = prices.disk_usd_per_gb_month(provider, region)
    found = prices.of(cluster.shape, region)
    on_demand_usd = found.usd_per_hour if found else None
    varies = cluster.spot and describe(provider).spot_share is None
    gpus = planned_resources.price_of(
        cluster,
        offer,
        count,
        offer.hourly_usd if cluster.spot else on_demand_usd,
        varies=varies,
        most_usd=on_demand_usd if varies else None,
        disk_usd_per_gb_month=disk_month_usd,
    )
    cpu = planned_resources.price_of(
        cluster,
        replace(offer, disk_gb=beside.cpu_disk_gb),
        1,
        beside.cpu_usd,
        disk_usd_per_gb_month=disk_month_usd,
    )
    return Parts(gpus=gpus, cpu=cpu, control_plane_usd=beside.control_plane_usd)


def _sum(*parts: float | None) -> float | None:
    return None if None in parts else round(sum(part or 0.0 for part in parts), 6)
