"""What the rest of gpuctl asks about a cloud without asking the cloud: shapes, prices, regions, what it can't do.

Each cloud's folder has a `description.py` with its `DESCRIPTION`. That imports no SDK: what needs one is in the
module that `control` names, and is imported when it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inventories.gpu_driver import DriverPlan
from provision.pricing.price_list import Answer, Say
from provision.pricing.shape import Shape
from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest


@dataclass(frozen=True, kw_only=True)
class CloudDescription:
    """One cloud."""

    name: str
    """What `--provider` takes."""
    about: str
    """What it is, with a shape as an example."""
    sdk: str | None
    """The Python package that its control plane needs. None: none beside gpuctl's own."""
    control: str
    """The module with `connect(target, clock=…)`, which returns a `provision.rented.interface.Cloud`, and with
    `configured()`, `sdk()` and `outline(cluster, machines)`: see `provision.provider_registry`."""

    base: str | None = None
    """The cloud whose account, network, shapes and regions it has. None: its own."""
    provider: str | None = None
    """The module with `provider(folder) -> Provider`. None: `provision.rented.provider`."""

    shapes: tuple[Shape, ...]
    """Those that gpuctl knows, with their list prices."""
    shape_pattern: str
    """Names of its shapes, also those that gpuctl does not know. No name is of two clouds."""
    nvidia_shape_pattern: str
    """Names of its shapes that have NVIDIA GPUs."""
    region_pattern: str
    """Names of its regions. No name is of two clouds."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Where → its region there, in words that all clouds share: for who names another cloud's region."""
    unsupported: frozenset[str] = frozenset()
    """Fields of Spec that a cloud can honour and this one can't."""

    price_region: str | None
    """Where the list prices hold. None: everywhere."""
    read_prices: Callable[[str, Say], Answer]
    """Read the public price list of a region (empty where prices are the same everywhere). Raises CloudError."""
    disk_usd_per_gb_month: float
    """List price of boot volumes."""
    address_hourly_usd: float = 0.0
    """List price of a machine's public address."""
    spot_share: float | None = None
    """What a spot machine costs, as a share of the list price. None: it varies, and the cloud's offer has it."""

    default_driver: DriverPlan | None = None
    """The driver that the default image of NVIDIA shapes comes to. None: it depends on the account."""
    default_user: str = "ubuntu"
    """Who logs in to machines that gpuctl has no record of launching."""

    end_guards: Callable[[CloudCluster], tuple[PlannedEnd, ...]]
    """Mechanisms that act at the end of the cluster's time; empty without a time limit."""
    least_billed_s: Callable[[str], float]
    """Shortest time that a machine of a shape is billed for."""
    bills_stopped: Callable[[str], bool] = lambda shape: False  # noqa: ARG005 - whatever the shape
    """Whether a stopped machine of a shape is billed as one that runs."""
    ending_requests: Callable[[Sequence[str]], tuple[PlannedRequest, ...]]
    """The requests that end machines, with their boot volumes; at least one."""
    ending_sentence: Callable[[CloudCluster, Offer], str]
    """Sentences on the end of the cluster's time without gpuctl: the mechanism, and the bill after it."""
    ending_clause: Callable[[CloudCluster, Offer], str]
    """The same in short, for a plan."""

    @property
    def has_compartments(self) -> bool:
        """Whether its accounts have parts that resources can be in."""
        return "compartment" not in self.unsupported
