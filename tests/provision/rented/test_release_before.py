"""Clusters that the release before made: rented machines outlive an upgrade, and so do the files about them."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from stub_cloud import StubClouds, World

from inventories.disk.store import ClusterFolder, Store
from inventories.specs.spec import Spec
from provision.local.state import HostFolder
from provision.records import Zone
from provision.rented import tags
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import list_clusters

FILES = Path(__file__).with_name("release_before")
SPEC = Spec(provider="oci", shape="VM.GPU.A10.1", ssh_cidr="203.0.113.7/32")
OF_NETWORK = {"gpuctl": "@network", "gpuctl-owner": "ada@desk"}
RUNNING, INTERRUPTED = "f89712423bc1f198", "efad2127d8fe84f0"
LAUNCH = {RUNNING: "8573de4c6b7022127a025893ac3b81ff", INTERRUPTED: "6496f7dbeac9f69fd852c9e65f930fcf"}


def of_cluster(cluster_id: str) -> dict[str, str]:
    return {"gpuctl": "default", "gpuctl-cluster-id": cluster_id, "gpuctl-owner": "ada@desk"}


@pytest.fixture
def left_by(tmp_path: Path) -> Callable[[str], ClusterFolder]:
    """The files of a cluster as they were left, in a home of their own."""

    def copied(which: str) -> ClusterFolder:
        shutil.copytree(FILES / which, tmp_path / which)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for path in (tmp_path / which).rglob("*"):
            if path.is_file():
                path.write_text(path.read_text().replace("HOME", str(tmp_path / which)).replace("NOW", now))
        return Store(tmp_path / which).cluster("default")

    return copied


def world_of(clouds: StubClouds, cluster_id: str, *, machines: int) -> World:
    """What the cluster had in its account."""
    world = clouds.world()
    world.add_resource("vcn", OF_NETWORK)
    world.add_resource("gateway", OF_NETWORK)
    world.add_resource("nsg", of_cluster(cluster_id), name="default")
    world.add_resource("subnet", OF_NETWORK, name="a-1")
    for rank in range(machines):
        launched = {"gpuctl-launch": LAUNCH[cluster_id], "gpuctl-ranks": str(rank)}
        world.add_machine(
            {**of_cluster(cluster_id), "gpuctl-expires": "9999-01-01T00:00:00+00:00", **launched},
            rank=rank,
            age_s=3600.0,
        )
    return world


def test_a_cluster_of_the_release_before_is_shown_kept_and_removed(
    left_by: Callable[[str], ClusterFolder],
) -> None:
    folder, clouds = left_by("running"), StubClouds()
    world = world_of(clouds, RUNNING, machines=2)
    provider = CloudProvider("oci", folder, clock=clouds.clock, connect=clouds.connect)
    inventory = folder.load()
    assert [provider.refresh(machine).state for machine in inventory.machines] == ["running", "running"]
    plan = provider.plan(SPEC, inventory)
    assert (plan.create, plan.end, len(plan.keep)) == ((), (), 2)
    kept = provider.create(plan, folder.journal)
    assert [machine.host_key for machine in kept] == [machine.host_key for machine in inventory.machines]
    (found,) = list_clusters(clouds.connect(CloudState(folder).load().target), lambda _: 2.0).clusters  # type: ignore[union-attr]
    assert (found.name, found.id, len(found.machines)) == ("default", RUNNING, 2)
    assert provider.destroy() == ()
    assert (world.living(), world.there()) == ([], [])


def test_an_interrupted_launch_of_the_release_before_is_sent_again_as_it_was(
    left_by: Callable[[str], ClusterFolder],
) -> None:
    folder, clouds = left_by("interrupted"), StubClouds()
    world = world_of(clouds, INTERRUPTED, machines=0)
    (launch,) = CloudState(folder).open_launches()
    assert (launch.zone, launch.ranks) == (Zone(name="a-1"), (0, 1))
    provider = CloudProvider("oci", folder, clock=clouds.clock, connect=clouds.connect)
    machines = provider.create(provider.plan(SPEC, None), folder.journal)
    assert [request["token"] for request in world.sent] == [f"{launch.id}-0", f"{launch.id}-1"]
    assert [machine.host_key for machine in machines] == list(launch.host_keys)
    assert {machine.tags[tags.CLUSTER_ID] for machine in world.living()} == {INTERRUPTED}
    assert provider.destroy() == ()


def test_files_are_written_with_the_keys_of_the_release_before(
    left_by: Callable[[str], ClusterFolder],
) -> None:
    folder = left_by("running")
    files = CloudState(folder)
    paths = [folder.path / "cloud.json", *(folder.path / "launches").glob("*.json")]
    before = [path.read_text() for path in paths]
    record = files.load()
    assert record is not None
    files.save(record)
    for launch in files.launches():
        files.save_launch(launch)
    assert [path.read_text() for path in paths] == before


def test_a_local_host_of_the_release_before_is_known(left_by: Callable[[str], ClusterFolder]) -> None:
    record = HostFolder(left_by("local").path / "local/default-0").load()
    assert record is not None
    assert (record.id, record.rank, record.port) == ("local-ac1bd0962e4fe778", 0, 44047)
