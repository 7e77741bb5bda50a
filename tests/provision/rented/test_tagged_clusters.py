"""Test the clusters that `reap` finds by tags, the places it searches, and its notes on places it cannot read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inventories.errors import InvalidInput
from provision.clouds import KUBERNETES, base_of
from provision.errors import BadCredentials, CloudError, Denied, Unclear
from provision.records import Instance, Resource, Target, Zone
from provision.rented import scan, tags
from provision.rented.scan import ScanResult, Scope
from provision.rented.tagged_clusters import FoundCluster, list_clusters

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OURS = tags.of_cluster("default", "0a1b", "ada@desk")
OTHERS = tags.of_cluster("second", "2c3d", "bob@desk")


def an_instance(of: dict[str, str], number: int = 1, **changes: Any) -> Instance:
    plain = Instance(
        id=f"i-{number}",
        tags=of,
        rank=0,
        state="running",
        shape="big",
        zone=Zone(name="z"),
        launched_at="2026-11-21T11:00:00+00:00",
    )
    return replace(plain, **changes)


def a_part(of: dict[str, str], kind: str = "vpc", number: int = 1) -> Resource:
    return Resource(kind=kind, id=f"{kind}-{number}", name="", tags=of, stage=0)


@dataclass(kw_only=True)
class Region:
    """The read-only half of `Cloud`."""

    target: Target
    machines: tuple[Instance, ...] = ()
    things: tuple[Resource, ...] = ()
    machines_error: CloudError | None = None
    parts_error: CloudError | None = None
    all_regions: tuple[str, ...] = ()
    all_compartments: tuple[str, ...] = ()
    list_error: CloudError | None = None

    @property
    def name(self) -> str:
        return self.target.provider

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        if self.machines_error:
            raise self.machines_error
        return self.machines

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        return self.instances(), self.things

    def resources(self) -> tuple[Resource, ...]:
        if self.parts_error:
            raise self.parts_error
        return self.things

    def regions(self) -> tuple[str, ...]:
        return self._listed(self.all_regions)

    def compartments(self) -> tuple[str, ...]:
        return self._listed(self.all_compartments)

    def _listed(self, found: tuple[str, ...]) -> tuple[str, ...]:
        if self.list_error:
            raise self.list_error
        return found


@dataclass(kw_only=True)
class World:
    """Clouds by provider, region and compartment, the configured regions, and the providers without a setup."""

    zones: dict[tuple[str, str, str | None], Region] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=lambda: {"oci": "fra", "aws": "iad"})
    absent: set[str] = field(default_factory=set)

    def add(self, provider: str, region: str, compartment: str | None = None, **has: Any) -> None:
        target = Target(provider=provider, region=region, compartment=compartment, account="root")
        self.zones[provider, region, compartment] = Region(target=target, **has)

    def connect(self, target: Target) -> Region:
        if target.provider in self.absent:
            raise BadCredentials(f"There is no configuration of {target.provider}.")
        region = target.region or self.homes[target.provider]
        base = base_of(target.provider)
        if not any(zone[:2] == (base, region) for zone in self.zones):
            raise InvalidInput(f"{target.provider} has no region '{region}'.")
        compartment = target.compartment or ("root" if target.provider == "oci" else None)
        if target.provider != base:
            return Region(target=target)
        return self.zones[target.provider, region, compartment]

    @contextmanager
    def used(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "connect", self.connect)
            patch.setattr(scan, "configured", lambda name: name not in self.absent)
            patch.setattr(scan, "installed", lambda _: True)
            yield

    def scan(self, price: Callable[[str], float | None] = lambda _: 2.0, **scope: Any) -> ScanResult:
        with self.used():
            return scan.scan(Scope(**scope), lambda _: price)


def found_in(result: ScanResult) -> dict[str, list[str]]:
    return {
        str(matches): [cluster.name for cluster in matches.contents.clusters]
        for matches in result.scanned
        if matches.cloud.name not in KUBERNETES or matches.contents.clusters
    }


def told(result: ScanResult) -> list[str]:
    return [str(problem) for problem in result.problems]


def clusters_in(**has: Any) -> tuple[FoundCluster, ...]:
    region = Region(target=Target(provider="aws", region="iad"), **has)
    return list_clusters(region, lambda _: 2.0).clusters  # type: ignore[arg-type]


def test_survey_groups_resources_by_cluster_id() -> None:
    first, second = clusters_in(
        machines=(an_instance(OURS, 1), an_instance(OURS, 2), an_instance(OTHERS, 3)),
        things=(a_part(OURS), a_part(tags.of_network("ada@desk"), number=2)),
    )
    assert (first.name, first.machines, first.resources) == ("default", ("i-1", "i-2"), ("vpc vpc-1",))
    assert (second.name, second.owner, second.machines) == ("second", "bob@desk", ("i-3",))


@pytest.mark.parametrize("of", [{"gpuctl": "my-bastion"}, {"gpuctl-cluster-id": "7"}, {"Name": "gpuctl"}])
def test_survey_ignores_resources_without_gpuctl_tags(of: dict[str, str]) -> None:
    assert clusters_in(machines=(an_instance(of),), things=(a_part(of),)) == ()


def test_survey_ignores_ended_machines() -> None:
    assert clusters_in(machines=(an_instance(OURS, state="ended"),)) == ()


def test_survey_cost_counts_from_each_machines_launch() -> None:
    late = an_instance(OURS, 2, launched_at="2026-11-21T11:30:00+00:00")
    (result,) = clusters_in(machines=(an_instance(OURS, 1), late))
    assert result.hourly_usd == 4.0
    assert result.cost_usd(NOW) == pytest.approx(3.0)


def test_survey_cost_is_unknown_with_a_spot_machine() -> None:
    (result,) = clusters_in(machines=(an_instance(OURS, 1, spot=True), an_instance(OURS, 2)))
    assert result.hourly_usd is None
    assert result.cost_usd(NOW) is None


@pytest.mark.parametrize(
    ("ends", "expires_at", "over"),
    [
        (["2026-11-21T11:00:00+00:00"], "2026-11-21T11:00:00+00:00", True),
        (["2026-11-21T13:00:00+00:00"], "2026-11-21T13:00:00+00:00", False),
        (["2026-11-21T11:00:00", "2026-11-21T13:00:00"], "2026-11-21T13:00:00", False),
        (["2026-11-21T11:00:00"], "2026-11-21T11:00:00", True),
        (["never"], None, False),
        (["2026-11-21T11:00:00+00:00", "when I am done"], None, False),
        ([], None, False),
    ],
)
def test_survey_reports_expiry_by_the_latest_valid_tag(
    ends: list[str], expires_at: str | None, over: bool
) -> None:
    machines = tuple(an_instance(OURS | {tags.EXPIRES: end}, n) for n, end in enumerate(ends))
    (result,) = clusters_in(machines=machines, things=(a_part(OURS),))
    assert result.expires_at == expires_at
    assert result.expired(NOW) is over


def test_machines_that_are_off_and_the_time_without_use_are_in_the_survey() -> None:
    of = tags.of_cluster("default", "0a1b", "ada@desk", idle_s=1800.0)
    states = enumerate(("running", "stopped", "stopping", "ending", "ended"))
    (result,) = clusters_in(machines=tuple(an_instance(of, n, state=state) for n, state in states))
    assert (result.off, result.idle) == (("i-1", "i-3"), True)


def test_reap_reports_bad_credentials_and_continues_elsewhere() -> None:
    world = World()
    world.add("aws", "iad", machines=(an_instance(OURS),))
    world.add("oci", "fra", "root", list_error=BadCredentials("OCI refused ListCompartments."))
    result = world.scan()
    assert found_in(result) == {"aws iad": ["default"]}
    assert told(result) == ["oci fra: OCI refused ListCompartments."]


def test_reap_skips_an_unconfigured_cloud_unless_requested() -> None:
    world = World(absent={"oci"})
    world.add("aws", "iad")
    result = world.scan()
    assert told(result) == []
    assert [str(item) for item in result.passed_over] == ["oci: There is no configuration of oci."]
    with pytest.raises(BadCredentials, match="no configuration of oci"):
        world.scan(providers=("oci",))
    assert told(world.scan(providers=("oci", "aws"))) == ["oci: There is no configuration of oci."]


def test_reap_searches_a_region_only_in_the_cloud_that_has_it() -> None:
    world = World()
    world.add("aws", "iad", machines=(an_instance(OURS),))
    world.add("oci", "fra", "root")
    result = world.scan(regions=("iad",))
    assert found_in(result) == {"aws iad": ["default"]}
    assert told(result) == []
    assert told(world.scan(regions=("iad", "idd"))) == [
        "oci idd: oci has no region 'idd'.",
        "aws idd: aws has no region 'idd'.",
    ]
    with pytest.raises(InvalidInput, match="no region 'idd'"):
        world.scan(regions=("idd",))


def test_reap_reports_a_silent_region_and_lists_the_others() -> None:
    world = World()
    world.add("aws", "iad", machines=(an_instance(OURS),), all_regions=("iad", "dub", "hnd"))
    world.add("aws", "dub", machines_error=Unclear("No answer."))
    world.add("aws", "hnd", machines=(an_instance(OTHERS),))
    result = world.scan(providers=("aws",), all_regions=True)
    assert found_in(result) == {"aws iad": ["default"], "aws hnd": ["second"]}
    assert told(result) == ["aws dub: No answer."]


def test_reap_without_region_list_searches_the_default_region() -> None:
    world = World()
    world.add("aws", "iad", machines=(an_instance(OURS),), list_error=Denied("Not allowed."))
    result = world.scan(providers=("aws",), all_regions=True)
    assert found_in(result)["aws iad"] == ["default"]
    assert "aws: Not allowed." in told(result)


def compartments(**inner: Any) -> World:
    world = World()
    denied = Denied("Not allowed.")
    world.add("oci", "fra", "root", machines_error=denied, all_compartments=("root", "mine", "other"))
    world.add("oci", "fra", "mine", **inner)
    world.add("oci", "fra", "other", machines_error=denied)
    return world


def test_reap_skips_denied_compartments_when_one_is_readable() -> None:
    result = compartments(machines=(an_instance(OURS),)).scan(providers=("oci",))
    assert found_in(result) == {"oci fra mine": ["default"]}
    assert told(result) == []
    assert [str(item) for item in result.passed_over] == [
        "oci fra: Not allowed.",
        "oci fra other: Not allowed.",
    ]


def test_reap_fails_when_the_named_compartment_is_denied() -> None:
    with pytest.raises(Denied, match="oci fra other: Not allowed"):
        compartments().scan(providers=("oci",), compartment="other")


def test_reap_fails_when_every_compartment_is_denied() -> None:
    world = compartments(machines_error=Denied("Not allowed."))
    with pytest.raises(Denied, match="oci fra mine: Not allowed"):
        world.scan(providers=("oci",))
    world.add("aws", "iad")
    assert told(world.scan()) == [
        "oci fra: Not allowed.",
        "oci fra mine: Not allowed.",
        "oci fra other: Not allowed.",
    ]


def test_reap_reports_a_compartment_that_does_not_answer() -> None:
    world = compartments(machines_error=Unclear("No answer."))
    world.add("oci", "fra", "other", machines=(an_instance(OTHERS),))
    result = world.scan(providers=("oci",))
    assert found_in(result) == {"oci fra other": ["second"]}
    assert told(result) == ["oci fra mine: No answer."]


def test_reap_lists_machines_when_other_resources_are_denied() -> None:
    result = compartments(machines=(an_instance(OURS),), parts_error=Denied("No VCNs for you.")).scan(
        providers=("oci",)
    )
    assert found_in(result) == {"oci fra mine": ["default"]}
    assert told(result) == ["oci fra mine: No VCNs for you."]


def test_reap_that_fails_everywhere_shortens_the_error() -> None:
    world = World()
    regions = ("iad", "dub", "hnd", "gru", "syd")
    world.add("aws", "iad", machines_error=Unclear("No answer."), all_regions=regions)
    for region in regions[1:]:
        world.add("aws", region, machines_error=Unclear("No answer."))
    with pytest.raises(Unclear) as caught:
        world.scan(providers=("aws",), all_regions=True)
    assert str(caught.value).endswith("aws hnd: No answer. So it is at 2 other places.")
