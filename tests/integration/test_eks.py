"""EKS by the installed command: up, status, down, reap on a fake AWS and a fake API server; killed at each call."""

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clouds import COUNT, CloudGpuctl, Clouds, Kind
from killing import Point, calls_of, kill, points_of
from lanes import commits_so_far

from tests.fakes.kube.api import KubeApi
from tests.provision.eks.building import api_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EKS = Kind(
    provider="eks",
    fake="aws_proxy",
    shape="g5.12xlarge",
    other_shape="g5.xlarge",
    region="us-east-1",
    zones=("us-east-1a", "us-east-1b", "us-east-1c"),
    client="aws",
    up_options=("--provider", "eks"),
)
APART = 9
"""One point of so many is killed at; whatever the day, another one each time."""


@contextmanager
def eks(clouds: Clouds, folder: Path) -> Iterator[tuple[CloudGpuctl, KubeApi]]:
    """gpuctl with nothing in its account, and the API server that a control plane of it will have."""
    gpuctl = clouds.as_new(EKS, folder)
    with api_server() as kube:
        kube.world.install_kuberay()
        gpuctl.cloud.settings(
            eks_endpoint=f"http://127.0.0.1:{kube.port}", launch_s=0.05, terminate_s=0.1, eks_cluster_s=0.1
        )
        yield gpuctl, kube


def counted(gpuctl: CloudGpuctl) -> Counter[str]:
    return Counter(part.get("kind", "instance") for part in gpuctl.cloud.owned())


def converge(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    kinds = counted(gpuctl)
    assert (kinds["kubernetes-cluster"], kinds["node-group"], kinds["instance"]) == (1, 2, COUNT + 1), kinds
    assert len(gpuctl.ok("status", "--json").json["machines"]) == COUNT
    vanish(gpuctl)


def vanish(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("down", "--yes")
    assert left(gpuctl) == []


def reap_with_files_lost(gpuctl: CloudGpuctl) -> None:
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--yes")
    assert left(gpuctl) == []


def left(gpuctl: CloudGpuctl) -> list[object]:
    """What is there of ours, or of EKS's for us."""
    named = [part for part in gpuctl.cloud.state()["resources"] if "eks" in str(part.get("name"))]
    return [*gpuctl.cloud.owned(), *named]


AFTERWARDS: dict[str, Callable[[CloudGpuctl], None]] = {
    "up": converge,
    "down": vanish,
    "reap": reap_with_files_lost,
}


def test_cluster_comes_and_goes_by_the_usual_commands(clouds: Clouds, tmp_path: Path) -> None:
    with eks(clouds, tmp_path) as (gpuctl, _):
        made = gpuctl.ok(*gpuctl.up_words).json
        assert [one["rank"] for one in made["machines"]] == [0, 1]
        assert [one["host"] for one in made["machines"]] == [None, None]
        shown = gpuctl.ok("reap", "--dry-run", "--json").json
        assert [one["provider"] for one in shown["clusters"]] == ["eks"]
        converge(gpuctl)


@pytest.mark.parametrize("afterwards", AFTERWARDS)
@pytest.mark.parametrize("killed", ["up", "down"])
def test_command_killed_at_each_call_can_be_rerun_or_removed(
    killed: str, afterwards: str, clouds: Clouds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes = itertools.count()

    def at(point: Point | None) -> int:
        with eks(clouds, tmp_path / f"home-{next(homes)}") as (gpuctl, _):
            words = gpuctl.up_words if killed == "up" else ("down", "--yes")
            if killed == "down":
                gpuctl.ok(*gpuctl.up_words)
            if point is None:
                return calls_of(gpuctl, words)
            kill(gpuctl, words, point)
            AFTERWARDS[afterwards](gpuctl)
            return 0

    points = points_of(at(None))
    if os.environ.get("GPUCTL_TEST_SWEEPS") != "all":
        points = points[commits_so_far() % APART :: APART]
    failures = []
    for point in points:
        try:
            at(point)
        except AssertionError as error:
            failures.append(f"{point}: {error}")
    with capsys.disabled():
        print(f"\neks: {killed}, then {afterwards}: killed at {len(points)} points", flush=True)
    assert not failures, "\n\n".join(failures)
