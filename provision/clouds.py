"""Providers by name, and descriptions of clouds that need no account: shapes, prices, regions, unsupported options.

Each cloud's folder has a `description.py` with its `DESCRIPTION`, which is imported when it is used, and imports no
SDK. A new cloud is a line in a table here, and the folder that the line names.
"""

import importlib
import importlib.util
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import DriverPlan
from inventories.text import did_you_mean
from provision.errors import UnknownProvider

if TYPE_CHECKING:
    from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest
    from provision.waiting import Say

PROVIDERS: dict[str, tuple[str, str]] = {
    "local": ("provision.local.provider", "hosts on this machine, free, for trying things out"),
    "hosts": ("provision.hosts", "machines that you have already, from an inventory file"),
    "kubernetes": ("provision.kubernetes.provider", "pods in a cluster of Kubernetes that has KubeRay"),
}
"""Name → a module with `provider(folder) -> Provider`, and a description in a few words."""

CLOUDS: dict[str, str] = {
    "oci": "provision.oci.description",
    "aws": "provision.aws.description",
}
"""Name → a module with a cloud's `DESCRIPTION`. All clouds have one provider: `provision.rented.provider`."""

KUBERNETES: dict[str, str] = {
    "eks": "provision.eks.description",
    "oke": "provision.oke.description",
}
"""The same for Kubernetes as a service of a cloud: its `DESCRIPTION` names that cloud, and a provider of its own."""

RENTED = ChainMap(KUBERNETES, CLOUDS)
"""All providers that are billed, and have their record in `provision.rented.state`."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of machine, as its cloud's catalog has it."""

    name: str
    provider: str
    gpus: int
    gpu: str
    """The GPU's name, such as `A10`."""
    gpu_memory_gb: int
    """Of one GPU."""
    network: str
    """Gbps of the network that TCP goes over, as the vendor writes it: `2 x 50`. AWS: the sustained rate; its smaller
    types can burst above that. Empty: not known."""
    rdma: str = ""
    """Gbps of OCI's separate RDMA network, `16 x 200`. Empty: the shape has no such network."""
    efa: int = 0
    """AWS: number of EFA interfaces; they share the bandwidth of `network`."""
    placement_group: bool = False
    """AWS: whether a cluster placement group takes it."""
    bare_metal: bool = False
    compute_cluster: bool = False
    """OCI: whether its RDMA network works, in a compute cluster."""
    not_launched: str = ""
    """Reason why gpuctl launches no machine of this shape. Empty: it does."""
    last_driver: str | None = None
    """Last branch of NVIDIA's driver that runs its GPUs. `None`: the newest does."""
    usd_per_hour: float | None
    """List price of the whole machine, on demand. `None`: not known."""
    priced_at: str
    """Month of the price: `2026-07`."""
    price_source: str = "shipped with gpuctl"

    @property
    def network_gbps(self) -> float:
        """Gbps of `network`, all interfaces together."""
        return _gbps(self.network)

    @property
    def rdma_gbps(self) -> float:
        """Gbps of `rdma`, all interfaces together. 0: the shape has no such network."""
        return _gbps(self.rdma)


def _gbps(network: str) -> float:
    """Return 100 for `2 x 50`."""
    count, _, each = network.rpartition(" x ")
    return float(count or 1) * float(each or 0)


@dataclass(frozen=True, kw_only=True)
class PublicPrices:
    """The prices in a vendor's public list."""

    url: str
    """Address of the list."""
    usd_per_hour: dict[str, float]
    """By the shape's name."""
    disk_usd_per_gb_month: float | None = None
    """Of boot volumes. `None`: the list was not read for it, or does not have it."""


@dataclass(frozen=True, kw_only=True)
class CloudDescription:
    """A cloud, as far as it is known without an account."""

    name: str
    """The value of `--provider`."""
    about: str
    """Description in a few words, with a shape as an example."""
    sdk: str | None
    """The Python package that its control plane needs. `None`: gpuctl's own dependencies are enough."""
    control: str
    """The module that uses the SDK: see `provision.rented.interface.connect`."""

    base: str | None = None
    """The cloud whose account, network, shapes and regions it shares. `None`: its own."""
    provider: str | None = None
    """The module with `provider(folder) -> Provider`. `None`: `provision.rented.provider`."""

    shapes: tuple[Shape, ...]
    """The shapes that gpuctl knows, with their list prices."""
    shape_pattern: str
    """Names of its shapes, also of unlisted ones. No name is of two clouds."""
    nvidia_shape_pattern: str
    """Names of its shapes that have NVIDIA GPUs."""
    region_pattern: str
    """Names of its regions. No name is of two clouds."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Place, in words that all clouds share, → the region there: for a user who names another cloud's region."""
    unsupported: frozenset[str] = frozenset()
    """Fields of Spec that a cloud can honour and this one can't."""

    price_region: str | None
    """The region of the list prices. `None`: the same in all."""
    read_prices: "Callable[[str, Say], PublicPrices]"
    """Read the public price list of a region (empty where prices are the same everywhere). Raises CloudError."""
    disk_usd_per_gb_month: float
    """List price of boot volumes."""
    address_hourly_usd: float = 0.0
    """List price of a machine's public address."""
    fixed_hourly_usd: Mapping[str, float] = field(default_factory=dict)
    """List prices of resources that are billed whatever the machines do, by kind; and of machines without GPUs, by
    shape."""
    spot_share: float | None = None
    """Price of a spot machine, as a share of the list price. `None`: it varies, and the cloud's offer has it."""

    default_driver: DriverPlan | None = None
    """The driver plan of the default image of NVIDIA shapes. `None`: it depends on the account."""
    default_user: str = "ubuntu"
    """Login on machines without a record of their launch."""

    end_guards: "Callable[[CloudCluster], tuple[PlannedEnd, ...]]"
    """Mechanisms that act at the end of the cluster's time. Empty: the cluster has no time limit."""
    least_billed_s: Callable[[str], float]
    """Shortest time that a machine of a shape is billed for."""
    power_off_ends_bill: bool = False
    """Whether the bill of a machine ends if its own system powers it off."""
    bills_stopped: Callable[[str], bool] = lambda shape: False  # noqa: ARG005 - whatever the shape
    """Whether a stopped machine of a shape is billed as a running one."""
    ending_requests: "Callable[[Sequence[str]], tuple[PlannedRequest, ...]]"
    """The requests that end machines, with their boot volumes; at least one machine."""
    ending_sentence: "Callable[[CloudCluster, Offer], str]"
    """Sentences on the end of the cluster's time without gpuctl: the mechanism, and the bill after it."""
    ending_clause: "Callable[[CloudCluster, Offer], str]"
    """The same in short, for a plan."""


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return (*PROVIDERS, *RENTED)


def about(name: str) -> str:
    """Return the description of a provider in a few words."""
    return PROVIDERS[name][1] if name in PROVIDERS else describe(name).about


def check_name(name: str) -> None:
    """Raise UnknownProvider for a name that no provider of this build has."""
    if name not in names():
        raise UnknownProvider(
            f"This build of gpuctl has no provider '{name}'{did_you_mean(name, names()) or '.'} "
            f"Give {' or '.join(names())} with `--provider`."
        )


def describe(cloud: str) -> CloudDescription:
    """Return the description of a cloud. Raises UnknownProvider."""
    if cloud in PROVIDERS:
        raise UnknownProvider(
            f"Provider {cloud} rents nothing, so no account has clusters of it. `gpuctl clusters` lists them, and "
            f"`gpuctl down --cluster NAME` removes one. Accounts are those of {' and '.join(CLOUDS)}."
        )
    if cloud not in RENTED:
        raise UnknownProvider(f"There is no cloud '{cloud}'. Give {' or '.join(RENTED)}.")
    description: CloudDescription = importlib.import_module(RENTED[cloud]).DESCRIPTION
    return description


def descriptions() -> tuple[CloudDescription, ...]:
    """Return the descriptions of all clouds of virtual machines."""
    return tuple(describe(name) for name in CLOUDS)


def installed(cloud: str) -> bool:
    """Return whether the cloud's SDK can be imported, without importing it."""
    package = describe(cloud).sdk
    return package is None or importlib.util.find_spec(package) is not None


def refuse_missing(provider: str, package: str) -> None:
    """Raise UnknownProvider if a provider's Python package can't be imported."""
    if importlib.util.find_spec(package) is None:
        raise UnknownProvider(
            f"Provider {provider} needs the Python package '{package}'. Install it beside gpuctl: "
            f"`pip install {package}`."
        )


def base_of(name: str) -> str:
    """Return the cloud whose account, network, shapes and regions a provider has: `aws` for `eks`, else itself."""
    return (describe(name).base or name) if name in KUBERNETES else name


def cloud_of(region: str) -> str | None:
    """Return the cloud that has regions of such a name: `oci`, `aws`. `None`: OCI's short names are nobody's."""
    return next((cloud.name for cloud in descriptions() if re.fullmatch(cloud.region_pattern, region)), None)


def likely_cloud_of(region: str) -> str | None:
    """Return the cloud of a region, as `cloud_of`. `None`: it may be a misspelt region of another cloud.

    `us-esat-1` has the form of OCI's names, and is like AWS's `us-east-1`.
    """
    owner = cloud_of(region)
    if owner is None or region in describe(owner).regions.values():
        return owner
    foreign = [name for cloud in descriptions() if cloud.name != owner for name in cloud.regions.values()]
    return None if did_you_mean(region, foreign) else owner


def refuse_foreign(region: str | None, provider: str) -> None:
    """Raise InvalidInput for a region of another cloud."""
    owner = likely_cloud_of(region) if region else None
    provider = base_of(provider)
    if owner is None or owner == provider:
        return
    ours = describe(provider).regions
    near = [ours[at] for at, name in describe(owner).regions.items() if name == region and at in ours]
    hint = f" Near it is {near[0]}." if near else ""
    raise InvalidInput(f"{region} is a region of {owner.upper()}, not of {provider.upper()}.{hint}")


def price_region(provider: str, region: str | None) -> str | None:
    """Return the region of a cloud's prices for machines in `region`. `None`: prices are the same everywhere."""
    default = describe(provider).price_region
    return None if default is None else region or default


def refresh_command(provider: str, region: str | None) -> str:
    """Return the command that asks a cloud for its prices, in the region where prices differ by region.

    Empty for a provider without prices, such as `kubernetes`.
    """
    if provider not in RENTED:
        return ""
    prices_of = price_region(provider, region)
    return f"gpuctl shapes --refresh-prices --provider {base_of(provider)}" + (
        f" --region {prices_of}" if prices_of else ""
    )
