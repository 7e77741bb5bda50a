"""What `up` and `down` of 2, 16, 64 and 256 machines take on both clouds, in calls and in wall time.

The clouds are the fakes of `tests/fakes`: each call takes 0.2 s, a machine 60 s until it runs, all on a clock that
runs several times as fast as this computer's, which gpuctl's own waits follow. Nothing of ours is there before.

Beside the wall time stands the longest chain of dependent calls: what it would take if each call began the moment
it could, whatever else is on its way. NEEDS says which answers a call waits for; nothing is made before the plan
is there, as it is shown and asked about. What the cloud takes by itself after a call is in the chain as well: a
machine's 60 s, and on OCI 6 s for each part of a network that others build upon. A list of several pages is a chain
by itself. The table is compared with the calls that were made, so that none can be forgotten.

Exits 1 where `up` takes more than 1.2 times its chain, where calls grow faster than N, or where this process, with
both SDKs in it, has held more than 200 MB at any time.

    python bench/provision_scale.py [N...]
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from inventories.spec import Spec
from inventories.store import ClusterFolder
from provision.cloud_provider import CloudProvider
from tests.fakes.client import FakeCloud, start_fake

COUNTS = (2, 16, 64, 256)
LATENCY_S, LAUNCH_S, TERMINATE_S = 0.2, 60.0, 10.0
PART_S = LAUNCH_S / 10
"""As `tests/fakes/oci` has it."""
PAGE = 100
RATIO_LIMIT, MEMORY_LIMIT_MB = 1.2, 200
SPEED, SPEED_OF_MANY, MANY = 10.0, 5.0, 100
"""How fast the clock runs: slower where the calls' own work would otherwise count too much."""

Needs = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A cloud and what its calls wait for."""

    provider: str
    fake: Literal["oci", "aws_proxy"]
    shape: str
    needs: Needs
    """Operation → those whose answers it needs."""
    takes: Mapping[str, float]
    """What the cloud takes after an operation's answer until the next one can build upon it."""
    last: str
    """Once it is answered, `up` is over."""
    paged: frozenset[str] = frozenset()
    """Lists that have PAGE machines a page."""


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
    },
    takes={
        "CreateVcn": PART_S,
        "CreateInternetGateway": PART_S,
        "CreateSubnet": PART_S,
        "CreateNetworkSecurityGroup": PART_S,
        "LaunchInstance": LAUNCH_S,
    },
    last="GetVnic",
    paged=frozenset({"ListInstances", "ListVnicAttachments"}),
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
    last="DescribeInstances",
)  # fmt: skip


class FastClock:
    """A clock on which `speed` seconds pass in one of this computer's."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def now(self) -> float:
        return time.monotonic() * self._speed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._speed)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one `up` and its `down` took, in simulated seconds."""

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
    """How long the longest chain of dependent calls takes."""
    pages = -(-count // PAGE)

    @cache
    def answered(operation: str) -> float:
        ready = [answered(need) + kind.takes.get(need, 0.0) for need in kind.needs[operation]]
        return max(ready, default=0.0) + LATENCY_S * (pages if operation in kind.paged else 1)

    return answered(kind.last)


def check_table(kind: Kind, calls: Sequence[Mapping[str, Any]], speed: float) -> None:
    """The table has the calls that were made, and none of them came before what it needs."""
    made: dict[str, list[float]] = {}
    for call in calls:
        made.setdefault(call["operation"], []).append(call["at"])
    if made.keys() != kind.needs.keys():
        sys.exit(
            f"{kind.provider}: NEEDS is not of these calls: {', '.join(made.keys() ^ kind.needs.keys())}"
        )
    for operation, needs in kind.needs.items():
        for need in needs:
            if max(made[operation]) < min(made[need]) + LATENCY_S / speed:
                sys.exit(f"{kind.provider}: {operation} does not need {need}")


def measure(kind: Kind, cloud: FakeCloud, home: Path, count: int) -> Run:
    """`up` and `down` of so many machines, the network included."""
    folder = ClusterFolder(home / "clusters" / f"of-{count}")
    speed = SPEED_OF_MANY if count > MANY else SPEED
    cloud.settings(
        latency_s=LATENCY_S, launch_s=LAUNCH_S, terminate_s=TERMINATE_S, page_size=PAGE, speed=speed
    )
    clock = FastClock(speed)
    cloud.forget_calls()
    began = clock.now()
    provider = CloudProvider(kind.provider, folder, clock=clock)
    plan = provider.plan(Spec(shape=kind.shape, count=count, ssh_cidr="127.0.0.1/32"), None)
    machines = provider.create(plan, folder.journal)
    up_s = clock.now() - began
    calls = cloud.calls()
    live = {instance["id"] for instance in cloud.live_instances()}
    if len(machines) != count or live != {machine.id for machine in machines}:
        sys.exit(f"{kind.provider}: {len(live)} of {count} machines run")
    check_table(kind, calls, speed)

    clock = FastClock(SPEED)
    cloud.settings(speed=SPEED)
    cloud.forget_calls()
    began = clock.now()
    leftovers = CloudProvider(kind.provider, folder, clock=clock).destroy()
    down_s = clock.now() - began
    if leftovers or cloud.owned():
        sys.exit(f"{kind.provider}: `down` left {cloud.owned()}")
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
    """Which limits are broken."""
    found = [
        f"`up` of {run.count} took {run.ratio:.2f} × its chain, above {RATIO_LIMIT}"
        for run in runs
        if run.ratio > RATIO_LIMIT
    ]
    for less, more in zip(runs, runs[1:], strict=False):
        for name, was, now in (
            ("up", less.up_calls, more.up_calls),
            ("down", less.down_calls, more.down_calls),
        ):
            if now / was > more.count / less.count:
                found.append(f"calls of `{name}` grow from {was} to {now} for {more.count} machines")
    if runs[-1].memory_mb > MEMORY_LIMIT_MB:
        found.append(f"{runs[-1].memory_mb:.0f} MB of memory, above {MEMORY_LIMIT_MB}")
    return [f"{kind.provider}: {problem}" for problem in found]


def bench(kind: Kind, counts: Sequence[int]) -> list[str]:
    """Measure and print one cloud; returns the limits that are broken."""
    runs = []
    with tempfile.TemporaryDirectory() as name, start_fake(kind.fake, Path(name)) as cloud:
        # Nothing of the developer's own account is to be read.
        for variable in [v for v in os.environ if v.startswith(("GPUCTL_", "AWS_", "OCI_"))]:
            del os.environ[variable]
        os.environ.update(cloud.env)
        warm_up(kind, cloud, Path(name))
        print(f"{kind.provider}, {kind.shape}; simulated seconds:")
        print("    N   up wall   chain  ratio  calls  calls/N  down wall  calls  calls/N  peak memory")
        for count in counts:
            run = measure(kind, cloud, Path(name), count)
            runs.append(run)
            print(
                f"{run.count:5d} {run.up_s:7.1f} s {run.chain_s:5.1f} s {run.ratio:6.3f} {run.up_calls:6d} "
                f"{run.up_calls / count:8.1f} {run.down_s:8.1f} s {run.down_calls:6d} "
                f"{run.down_calls / count:8.1f} {run.memory_mb:9.0f} MB",
                flush=True,
            )
    print(
        f"  up / its longest chain of dependent calls: {max(run.ratio for run in runs):.2f} at most (limit "
        f"{RATIO_LIMIT}); {counts[-1] / counts[0]:.0f} × the machines, "
        f"{runs[-1].up_calls / runs[0].up_calls:.1f} × the calls; {runs[-1].memory_mb:.0f} MB "
        f"(limit {MEMORY_LIMIT_MB})"
    )
    return problems(kind, runs)


def warm_up(kind: Kind, cloud: FakeCloud, home: Path) -> None:
    """Import the SDK, which takes a part of a second, and would take several of a fast clock's."""
    cloud.settings(launch_s=0, terminate_s=0)
    folder = ClusterFolder(home / "clusters" / "warm")
    provider = CloudProvider(kind.provider, folder, clock=FastClock(SPEED))
    provider.create(
        provider.plan(Spec(shape=kind.shape, count=1, ssh_cidr="127.0.0.1/32"), None), folder.journal
    )
    provider.destroy()


def main() -> int:
    counts = tuple(int(word) for word in sys.argv[1:]) or COUNTS
    found = [problem for kind in (OCI, AWS) for problem in bench(kind, counts)]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
