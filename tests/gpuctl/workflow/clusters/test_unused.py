"""Clusters that `reap --idle` cannot ask: without files here, with machines that are off."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import an_inventory

from gpuctl.workflow.clusters.unused import Unused, find_unused
from inventories.disk.store import ClusterFolder
from provision.records import CloudCluster, Target
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster

FOUND = FoundCluster(
    name="default",
    id="0a1b",
    owner="ada@desk",
    provider="oci",
    region="eu-frankfurt-1",
    machines=("i-1", "i-2"),
    resources=(),
    since=None,
    expires_at=None,
    hourly_usd=None,
    idle=True,
)


def test_cluster_without_files_here_is_listed_if_its_tags_have_idle() -> None:
    reason = "this computer has no files of it; `gpuctl adopt 0a1b` gets them"
    assert find_unused([FOUND], {}) == Unused(ids=frozenset(), problems={"0a1b": reason})
    assert find_unused([replace(FOUND, idle=False)], {}) == Unused(ids=frozenset(), problems={})


@pytest.mark.parametrize(
    ("off", "reason"),
    [
        (("i-1",), "i-2: no `gpuctl up` has reached it"),
        (("i-1", "i-2"), "its machines are stopped; `gpuctl down --cluster default` removes them"),
    ],
)
def test_machines_that_are_off_are_not_asked(tmp_path: Path, off: tuple[str, ...], reason: str) -> None:
    folder = ClusterFolder(tmp_path / "default")
    folder.make()
    target = Target(provider="oci", region="eu-frankfurt-1")
    record = CloudCluster(
        name="default",
        id="0a1b",
        owner="",
        created_at="",
        target=target,
        shape="VM.GPU.A10.1",
        idle_s=1800.0,
    )
    CloudState(folder).save(record)
    folder.save(an_inventory())
    assert find_unused([replace(FOUND, off=off)], {"0a1b": folder}).problems == {"0a1b": reason}
