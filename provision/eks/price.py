"""What a cluster of EKS costs by the hour: machines with GPUs, the machine beside them, the control plane. Pure."""

from dataclasses import dataclass, replace

from provision.cloud.planning import planned_resources
from provision.cloud.records import CloudCluster, Offer
from provision.eks import requests
from provision.eks.description import CONTROL_PLANE_HOURLY_USD, CPU_MACHINE_USD
from provision.pricing.plan_price import PlanPrice
from provision.pricing.prices import Prices


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The two groups of machines, each with disks and addresses."""

    gpus: PlanPrice
    cpu: PlanPrice

    @property
    def whole(self) -> PlanPrice:
        """All of it, with the network and the control plane."""
        varies = self.gpus.varies
        return PlanPrice(
            machines_usd=_sum(self.gpus.machines_usd, self.cpu.machines_usd),
            disks_usd=_sum(self.gpus.disks_usd, self.cpu.disks_usd),
            addresses_usd=_sum(self.gpus.addresses_usd, self.cpu.addresses_usd),
            network_usd=self.gpus.network_usd,
            control_plane_usd=CONTROL_PLANE_HOURLY_USD,
            varies=varies,
            most_machines_usd=_sum(self.gpus.most_machines_usd, self.cpu.machines_usd) if varies else None,
        )

    @property
    def cpu_usd(self) -> float | None:
        """The machine beside those with GPUs, its disk and its address."""
        return _sum(self.cpu.machines_usd, self.cpu.disks_usd, self.cpu.addresses_usd)


def of(prices: Prices, cluster: CloudCluster, offer: Offer, count: int) -> Parts:
    """Of `count` machines with GPUs, and what comes with them."""
    region = cluster.target.region
    disk_month_usd = prices.disk_usd_per_gb_month("aws", region)
    found = prices.of(cluster.shape, region)
    on_demand_usd = found.usd_per_hour if found else None
    gpus = planned_resources.price_of(
        cluster,
        offer,
        count,
        offer.hourly_usd if cluster.spot else on_demand_usd,
        varies=cluster.spot,
        most_usd=on_demand_usd if cluster.spot else None,
        disk_usd_per_gb_month=disk_month_usd,
    )
    cpu = planned_resources.price_of(
        cluster,
        replace(offer, disk_gb=requests.CPU_DISK_GB),
        1,
        cpu_machine_usd(prices, region),
        disk_usd_per_gb_month=disk_month_usd,
    )
    return Parts(gpus=gpus, cpu=cpu)


def cpu_machine_usd(prices: Prices, region: str | None) -> float | None:
    """What the machine of the operators costs an hour. None: not known in that region."""
    found = prices.of(requests.CPU_TYPE, region)
    if found is not None:
        return found.usd_per_hour
    return CPU_MACHINE_USD if region == "us-east-1" else None


def _sum(*parts: float | None) -> float | None:
    return None if None in parts else round(sum(part or 0.0 for part in parts), 6)
