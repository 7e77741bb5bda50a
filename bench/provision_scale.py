"""Measure calls and wall time of `up` and `down` of 2, 16, 64 and 256 machines on both clouds.

The clouds are the fakes of `tests/fakes`: a call takes 0.2 s, a machine 60 s until it runs, all on a clock that runs
several times as fast as this computer's, also for gpuctl's waits. The account is empty at first. Each cluster is
created and removed by its own process, which has imported the SDK and queried the cloud once before.

Next to the wall time stands the longest chain of dependent calls: the time if each call began as early as possible,
whatever else is in progress. `needs` lists the answers that a call waits for; nothing is created before the plan is
complete, as it is shown and confirmed. The cloud's own time after a call is in the chain as well: a machine's 60 s,
and on OCI 6 s for each part of a network that others need. A list of several pages is a chain. The table is checked
against the calls, so that none is missing.

Exits 1 if `up` takes more than 1.2 times its chain, if calls grow faster than N, or if a process has held more than
200 MB at any time.

    python bench/provision_scale.py [N...]
"""

import itertools
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from inventories.disk.store import ClusterFolder
from inventories.specs.spec import Spec
from provision.rented.provider import CloudProvider
from tests.fakes.client import FakeCloud, start_fake

COUNTS = (2, 16, 64, 256)
LATENCY_S, LAUNCH_S, TERMINATE_S = 0.2, 60.0, 10.0
PART_S = LAUNCH_S / 10
"""As `tests/fakes/oci` has it."""
PAGE = 100
RATIO_LIMIT, MEMORY_LIMIT_MB = 1.2, 200
SPEEDS = ((20, 8.0), (100, 5.0), (1000, 3.0))
"""Up to how many machines, how fast the clock runs: the more calls, the more their own work would count."""

Needs = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A cloud and the dependencies of its calls."""

    provider: str
    fake: Literal["oci", "aws_proxy"]
    shape: str
    needs: Needs
    """Operations that an operation depends on, by operation."""
    takes: Mapping[str, float]
    """Seconds after an operation's answer until a dependent operation can begin."""
    last: tuple[str, ...]
    """Operations whose answers complete `up`."""
    paged: frozenset[str] = frozenset()
    """Lists with PAGE machines a page."""


OCI_NETWORK = (
    "ListVcns", "ListSubnets", "ListNetworkSecurityGroups", "ListRouteTables", "ListSecurityLists",
    "ListInternetGateways", "ListNatGateways", "ListServiceGateways",
)  # fmt: skip
OCI_PLAN = ("ListImages", "ListFaultDomains", "CreateComputeCapacityReport", "GetResourceAvailability")
OCI = Kind(
    provider="oci",
    fake="oci",
    shape="VM.GPU.A10.2",
    needs={
        "ListAvailabilityDomains": (),
        "ListImages": (),
        "ListFaultDomains": ("ListAvailabilityDomains",),
        "ListShapes": ("ListAvailabilityDomains",),
        "CreateComputeCapacityReport": ("ListAvailabilityDomains",),
        "GetResourceAvailability": ("ListShapes",),
        **dict.fromkeys(OCI_NETWORK, ()),
        "CreateVcn": (*OCI_PLAN, *OCI_NETWORK),
        "GetVcn": ("CreateVcn",),
        "CreateInternetGateway": ("GetVcn",),
        "GetInternetGateway": ("CreateInternetGateway",),
        "CreateRouteTable": ("GetInternetGateway",),
        "CreateSecurityList": ("GetVcn",),
        "CreateSubnet": ("CreateRouteTable", "CreateSecurityList"),
        "GetSubnet": ("CreateSubnet",),
        "CreateNetworkSecurityGroup": ("GetVcn",),
        "GetNetworkSecurityGroup": ("CreateNetworkSecurityGroup",),
        "ListNetworkSecurityGroupSecurityRules": ("GetNetworkSecurityGroup",),
        "AddNetworkSecurityGroupSecurityRules": ("ListNetworkSecurityGroupSecurityRules",),
        "LaunchInstance": ("GetSubnet", "AddNetworkSecurityGroupSecurityRules"),
        "ListInstances": ("LaunchInstance",),
        "ListVnicAttachments": ("LaunchInstance",),
        "GetVnic": ("ListVnicAttachments",),
        "ListBootVolumes": ("LaunchInstance",),
        "ListBootVolumeAttachments": ("LaunchInstance",),
        "UpdateBootVolume": ("ListBootVolumes", "ListBootVolumeAttachments"),
    },
    takes={
        "CreateVcn": PART_S,
        "CreateInternetGateway": PART_S,
        "CreateSubnet": PART_S,
        "CreateNetworkSecurityGroup": PART_S,
        "LaunchInstance": LAUNCH_S,
    },
    last=("GetVnic", "UpdateBootVolume"),
    paged=frozenset({"ListInstances", "ListVnicAttachments", "ListBootVolumes", "ListBootVolumeAttachments"}),
)

AWS_PLAN = ("DescribeInstanceTypeOfferings", "DescribeAvailabilityZones", "DescribeImages")
AWS_NETWORK = (
    "DescribeVpcs", "DescribeInternetGateways", "DescribeRouteTables", "DescribeSubnets",
    "DescribeSecurityGroups", "DescribeKeyPairs", "DescribePlacementGroups",
)  # fmt: skip
AWS = Kind(
    provider="aws",
    fake="aws_proxy",
    shape="g5.12xlarge",
    needs={
        "GetCallerIdentity": (),
        "DescribeInstanceTypes": (),
        "DescribeInstanceTypeOfferings": (),
        "DescribeAvailabilityZones": (),
        "GetParameter": ("DescribeInstanceTypes",),
        "DescribeImages": ("GetParameter",),
        **dict.fromkeys(AWS_NETWORK, ()),
        "CreateVpc": (*AWS_PLAN, "DescribeVpcs"),
        "CreateInternetGateway": (*AWS_PLAN, "DescribeInternetGateways"),
        "AttachInternetGateway": ("CreateVpc", "CreateInternetGateway"),
        "CreateRouteTable": ("CreateVpc", "DescribeRouteTables"),
        "CreateRoute": ("CreateRouteTable", "AttachInternetGateway"),
        "CreateSubnet": ("CreateVpc",),
        "AssociateRouteTable": ("CreateSubnet", "CreateRouteTable"),
        "CreateSecurityGroup": ("CreateVpc", "DescribeSecurityGroups"),
        "AuthorizeSecurityGroupIngress": ("CreateSecurityGroup",),
        "AuthorizeSecurityGroupEgress": ("CreateSecurityGroup",),
        "ImportKeyPair": (*AWS_PLAN, "DescribeKeyPairs"),
        "CreatePlacementGroup": (*AWS_PLAN, "DescribePlacementGroups"),
        "RunInstances": (
            "CreateRoute", "AssociateRouteTable", "AuthorizeSecurityGroupIngress",
            "AuthorizeSecurityGroupEgress", "ImportKeyPair", "CreatePlacementGroup",
        ),
        "DescribeInstances": ("RunInstances",),
    },
    takes={"RunInstances": LAUNCH_S},
    last=("DescribeInstances",),
)  # fmt: skip


KINDS = (OCI, AWS)


class Wrong(Exception):
    """The measurement is invalid."""


class FastClock:
    """A clock that runs `speed` times as fast as this computer's."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def now(self) -> float:
        return time.monotonic() * self._speed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._speed)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Calls, simulated seconds and memory of an `up` and its `down`."""

    count: int
    up_s: float
    chain_s: float
    up_calls: int
    down_s: float
    down_calls: int
    memory_mb: float

    @property
    def ratio(self) -> float:
        return self.up_s / self.chain_s


def chain_s(kind: Kind, count: int) -> float:
    """Return the duration of the longest chain of dependent calls."""
    pages = -(-count // PAGE)

    @cache
    def answered(operation: str) -> float:
        ready = [answered(need) + kind.takes.get(need, 0.0) for need in kind.needs[operation]]
        return max(ready, default=0.0) + LATENCY_S * (pages if operation in kind.paged else 1)

    return max(map(answered, kind.last))


def check_table(kind: Kind, calls: Sequence[Mapping[str, Any]], speed: float) -> None:
    """Check that the table has exactly the actual calls, and that none came before its dependencies."""
    made: dict[str, list[float]] = {}
    for call in calls:
        made.setdefault(call["operation"], []).append(call["at"])
    if made.keys() != kind.needs.keys():
        sys.exit(
            f"{kind.provider}: `needs` is not of these calls: {', '.join(made.keys() ^ kind.needs.keys())}"
        )
    for operation, needs in kind.needs.items():
        for need in needs:
            if max(made[operation]) < min(made[need]) + LATENCY_S / speed:
                raise Wrong(f"{kind.provider}: {operation} does not need {need}")


def measure(kind: Kind, cloud: FakeCloud, home: Path, count: int) -> Run:
    """Measure `up` and `down` of `count` machines, the network included; runs in its own process."""
    speed = next(speed for max_count, speed in SPEEDS if count <= max_count)
    cloud.settings(
        latency_s=LATENCY_S, launch_s=LAUNCH_S, terminate_s=TERMINATE_S, page_size=PAGE, speed=speed
    )
    spec = Spec(shape=kind.shape, count=count, ssh_cidr="127.0.0.1/32")
    # The SDK's import takes a good part of a second, and would take several of a fast clock's.
    CloudProvider(kind.provider, ClusterFolder(home / "clusters" / "warm-up")).plan(spec, None)

    folder = ClusterFolder(home / "clusters" / f"of-{count}")
    clock = FastClock(speed)
    cloud.forget_calls()
    began = clock.now()
    provider = CloudProvider(kind.provider, folder, clock=clock)
    machines = provider.create(provider.plan(spec, None), folder.journal)
    up_s = clock.now() - began
    calls = cloud.calls()
    live = {instance["id"] for instance in cloud.live_instances()}
    if len(machines) != count or live != {machine.id for machine in machines}:
        raise Wrong(f"{kind.provider}: {len(live)} of {count} machines run")
    check_table(kind, calls, speed)

    cloud.forget_calls()
    began = clock.now()
    leftovers = CloudProvider(kind.provider, folder, clock=clock).destroy()
    down_s = clock.now() - began
    if leftovers or cloud.owned():
        raise Wrong(f"{kind.provider}: `down` left {cloud.owned()}")
    return Run(
        count=count,
        up_s=up_s,
        chain_s=chain_s(kind, count),
        up_calls=len(calls),
        down_s=down_s,
        down_calls=len(cloud.calls()),
        memory_mb=peak_mb(),
    )


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def problems(kind: Kind, runs: Sequence[Run]) -> list[str]:
    """Return the broken limits."""
    broken = [
        f"`up` of {run.count} took {run.ratio:.2f} times its chain, above {RATIO_LIMIT}"
        for run in runs
        if run.ratio > RATIO_LIMIT
    ]
    for less, more in itertools.pairwise(runs):
        for name, was, now in (
            ("up", less.up_calls, more.up_calls),
            ("down", less.down_calls, more.down_calls),
        ):
            if now / was > more.count / less.count:
                broken.append(f"calls of `{name}` grow from {was} to {now} for {more.count} machines")
    peak_mb = max(run.memory_mb for run in runs)
    if peak_mb > MEMORY_LIMIT_MB:
        broken.append(f"{peak_mb:.0f} MB of memory, above {MEMORY_LIMIT_MB}")
    return [f"{kind.provider}: {problem}" for problem in broken]


def bench(kind: Kind, cloud: FakeCloud, home: Path, counts: Sequence[int]) -> list[Run]:
    """Measure one cloud."""
    runs = []
    for count in counts:
        # A process that has begun others with threads must not be forked.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            runs.append(fresh.submit(measure, kind, cloud, home, count).result())
    return runs


def show(kind: Kind, runs: Sequence[Run]) -> None:
    """Print one cloud's table."""
    print(f"{kind.provider}, {kind.shape}; simulated seconds")
    print("    N   up wall    chain  ratio  calls  calls/N  down wall  calls  calls/N  peak memory")
    for run in runs:
        print(
            f"{run.count:5d} {run.up_s:7.1f} s {run.chain_s:6.1f} s {run.ratio:6.3f} {run.up_calls:6d} "
            f"{run.up_calls / run.count:8.1f} {run.down_s:8.1f} s {run.down_calls:6d} "
            f"{run.down_calls / run.count:8.1f} {run.memory_mb:9.0f} MB"
        )
    first, last = runs[0], runs[-1]
    print(
        f"  up / longest chain of dependent calls: {max(run.ratio for run in runs):.2f} at most (limit "
        f"{RATIO_LIMIT}); for {last.count / first.count:.0f} times the machines "
        f"{last.up_calls / first.up_calls:.1f} times the calls; at most "
        f"{max(run.memory_mb for run in runs):.0f} MB (limit {MEMORY_LIMIT_MB})",
        flush=True,
    )


def main() -> int:
    counts = tuple(int(word) for word in sys.argv[1:]) or COUNTS
    # Do not use the developer's accounts.
    for name in [name for name in os.environ if name.startswith(("GPUCTL_", "AWS_", "OCI_"))]:
        del os.environ[name]
    broken = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        clouds = [stack.enter_context(start_fake(kind.fake, home)) for kind in KINDS]
        for cloud in clouds:
            os.environ.update(cloud.env)
        # Side by side: both are asleep nearly all of the time.
        with ThreadPoolExecutor(len(KINDS)) as pool:
            homes = [home / kind.provider for kind in KINDS]
            for kind, runs in zip(
                KINDS, pool.map(bench, KINDS, clouds, homes, [counts] * len(KINDS)), strict=True
            ):
                show(kind, runs)
                broken += problems(kind, runs)
    for problem in broken:
        print(problem, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
