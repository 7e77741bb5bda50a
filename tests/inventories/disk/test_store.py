import os
import shutil
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from support import a_machine, a_run, an_inventory

from inventories.disk.store import ClusterFolder, Journal, RunFolder, Store
from inventories.errors import CorruptFile, InvalidInput, Locked, NewerFormat, NotFound
from inventories.machine import Inventory
from inventories.runs.result import Result, Seconds, TrainSummary
from inventories.runs.run import Run, RunNode, RunOptions

NOW = datetime(2026, 11, 21, 5, 46, 25, tzinfo=UTC)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


def inventory(name: str = "demo") -> Inventory:
    machine = a_machine(
        name="demo-0", port=2201, id="1234", key_file=Path("/home/me/.gpuctl/clusters/demo/keys/id_ed25519")
    )
    return an_inventory(cluster=name, provider="local", hourly_usd=0.0, machines=(machine,))


def launch(store: Store, cluster: str = "demo", now: datetime = NOW) -> RunFolder:
    folder = store.new_run(now)
    folder.save_run(run(folder.id, cluster))
    return folder


def run(run_id: str, cluster: str = "demo") -> Run:
    node = RunNode(name="demo-0", rank=0, nproc=2, first_rank=0, run_dir="/tmp/r")
    return a_run(
        run=run_id,
        cluster=cluster,
        script="train.py",
        args=("--lr", "0.1"),
        nodes=(node,),
        started_at="2026-11-21T05:46:25Z",
        seconds={"connect": 0.2},
    )


def result(run_id: str) -> Result:
    return Result(
        run=run_id, cluster="demo", mode="torchrun", script="train.py", status="succeeded", exit_code=0, nnodes=1,
        nproc_per_node=2, world_size=2, started_at="x", ended_at="y", seconds=Seconds(total=1.0),
        train=TrainSummary(loss=(0.5,)), ranks=(), first_error=None, cost_usd=0.0, dir="/r",
    )  # fmt: skip


def modes(top: Path) -> set[tuple[bool, str]]:
    return {(path.is_dir(), oct(stat.S_IMODE(path.stat().st_mode))) for path in (top, *top.rglob("*"))}


def test_store_default_home_follows_gpuctl_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GPUCTL_HOME", raising=False)
    assert Store.default().home == tmp_path / ".gpuctl"
    monkeypatch.setenv("GPUCTL_HOME", "")
    assert Store.default().home == tmp_path / ".gpuctl"
    monkeypatch.setenv("GPUCTL_HOME", "~/elsewhere")
    assert Store.default().home == tmp_path / "elsewhere"
    monkeypatch.setenv("GPUCTL_HOME", "relative")
    assert Store.default().home == Path.cwd() / "relative"


def test_empty_store_lists_nothing_and_creates_nothing(store):
    assert store.clusters() == []
    assert store.runs() == []
    assert not store.cluster("demo").exists()
    assert store.cluster("demo").journal.read() == []
    assert not store.home.exists()


def test_store_files_are_private_for_any_umask(store):
    before = os.umask(0)
    try:
        cluster = store.cluster("demo")
        with cluster.lock("gpuctl up"):
            cluster.save(inventory())
            cluster.journal.append("x")
        folder = launch(store)
        folder.save_result(result(folder.id))
    finally:
        os.umask(before)
    assert modes(store.home) == {(True, "0o700"), (False, "0o600")}


def test_cluster_folder_saves_loads_and_has_fixed_paths(store):
    cluster = store.cluster("demo")
    cluster.save(inventory())
    assert cluster.exists()
    assert cluster.load() == inventory()
    assert store.clusters() == [cluster]
    names = {path.relative_to(store.home) for path in cluster.path.rglob("*")}
    assert names == {Path("clusters/demo/inventory.yaml"), Path("clusters/demo/keys")}
    paths = (cluster.inventory_path, cluster.key_path, cluster.known_hosts_path, cluster.ssh_config_path)
    assert [str(path.relative_to(cluster.path)) for path in paths] == [
        "inventory.yaml", "keys/id_ed25519", "known_hosts", "ssh_config",
    ]  # fmt: skip
    assert isinstance(cluster.journal, Journal)


def test_cluster_folder_refuses_inventory_of_other_cluster(store):
    with pytest.raises(AssertionError):
        store.cluster("demo").save(inventory("other"))


def test_clusters_lists_folders_with_inventory_or_journal(store):
    for name in ("b", "a"):
        store.cluster(name).save(inventory(name))
    store.cluster("begun").journal.append("intent")
    with store.cluster("asked-about").lock("gpuctl status"):
        pass
    (store.home / "clusters" / "stray-file").write_text("")
    assert [cluster.name for cluster in store.clusters()] == ["a", "b", "begun"]


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".", "A", "a_b", "-a", "a-", "a" * 41, "é", "a\n", "a b", "a\0"]
)
def test_store_cluster_refuses_invalid_names(store, name):
    with pytest.raises(InvalidInput, match="a name is 1 to 40 of a-z, 0-9 and '-'"):
        store.cluster(name)


def test_load_of_missing_cluster_names_up_and_clusters(store):
    with pytest.raises(NotFound) as caught:
        store.cluster("demo").load()
    assert str(caught.value) == (
        "There is no cluster 'demo'. Make one with `gpuctl up --cluster demo`, "
        "or see those that exist with `gpuctl clusters`."
    )


def test_load_refuses_cut_off_inventory_and_advises_rebuild(store):
    cluster = store.cluster("demo")
    cluster.save(inventory())
    whole = cluster.inventory_path.read_bytes()
    same = 0
    for length in range(len(whole)):
        cluster.inventory_path.write_bytes(whole[:length])
        try:
            same += cluster.load() == inventory()
        except CorruptFile as error:
            assert str(error).lstrip("'").startswith(str(cluster.inventory_path))
            assert str(error).endswith(
                "Remove the file and run `gpuctl up --cluster demo` as before to rebuild it, "
                "or end the cluster with `gpuctl down --cluster demo`."
            )
    assert same == 1, "only the last line feed may be missing"


def test_load_refuses_newer_inventory_format(store):
    cluster = store.cluster("demo")
    cluster.save(inventory())
    newer = (
        cluster.inventory_path.read_text().replace("format: 1", "format: 2").replace("rank: 0", "ranks: [0]")
    )
    cluster.inventory_path.write_text(newer)
    with pytest.raises(NewerFormat, match=r"inventory.yaml' was written by a newer gpuctl \(format 2;"):
        cluster.load()


def test_remove_deletes_whole_folder_and_is_repeatable(store):
    cluster, other = store.cluster("demo"), store.cluster("other")
    other.save(inventory("other"))
    with cluster.lock("gpuctl down"):
        cluster.save(inventory())
        cluster.key_path.write_text("secret")
        (cluster.path / "hosts").mkdir()
        (cluster.path / "hosts" / "link").symlink_to(other.path)
        cluster.remove()
        assert not cluster.path.exists()
        cluster.remove()
    cluster.remove()
    assert [path.name for path in (store.home / "clusters").iterdir()] == ["other"]
    assert other.load() == inventory("other")


def test_remove_renames_folder_before_deleting(store, monkeypatch):
    cluster = store.cluster("demo")
    cluster.save(inventory())
    deleted = []

    def delete(folder, **options):
        assert not cluster.path.exists(), "another command may make the folder anew and lose files"
        deleted.append(folder)
        rmtree(folder, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", delete)
    cluster.remove()
    assert len(deleted) == 1
    assert list((store.home / "clusters").iterdir()) == []


def test_remove_finishes_what_a_crash_left(store):
    cluster = store.cluster("demo")
    cluster.save(inventory())
    left = cluster.path.parent / ".removed-demo-0123"
    cluster.path.rename(left)
    assert store.clusters() == []
    cluster.remove()
    assert not left.exists()


def test_run_folder_saves_and_loads_run_and_result(store):
    folder = store.new_run(NOW)
    assert folder.path == store.home / "runs" / folder.id
    assert folder.load_result() is None
    folder.save_run(run(folder.id))
    assert folder.load_run() == run(folder.id)
    folder.save_result(result(folder.id))
    assert folder.load_result() == result(folder.id)
    for part in (folder.logs_path, folder.metrics_path, folder.ranks_path, folder.artifacts_path):
        assert part.parent == folder.path
        assert part.is_dir()


def test_run_ids_contain_utc_time_and_sort_by_it(store):
    early = store.new_run(NOW)
    assert early.id[:16] == "20261121-054625-"
    later = store.new_run((NOW + timedelta(minutes=1)).astimezone(timezone(timedelta(hours=-7))))
    assert later.id[:16] == "20261121-054725-"
    same_second = [store.new_run(NOW) for _ in range(20)]
    ids = [folder.id for folder in (early, *same_second)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 21


def test_runs_are_listed_oldest_first_and_by_cluster(store):
    b = launch(store, "b", NOW + timedelta(seconds=50))
    a = launch(store, "a", NOW)
    other = launch(store, "b", NOW + timedelta(seconds=90))
    never_launched = store.new_run(NOW + timedelta(seconds=70))
    assert store.runs() == [a, b, other]
    assert store.runs("b") == [b, other]
    assert store.runs("c") == []
    assert never_launched not in store.runs()
    b.run_path.write_text("{")
    assert store.runs("a") == [a, b], "a torn record must not hide a run"


def test_store_run_finds_run_by_unique_beginning_or_end(store):
    first = launch(store, now=NOW)
    second = launch(store, now=NOW + timedelta(days=1))
    assert store.run(first.id) == first
    assert store.run("20261122") == second
    assert store.run(first.id[-5:]) == first
    same_end = store.home / "runs" / f"20270101-000000-{first.id[-4:]}"
    same_end.mkdir()
    with pytest.raises(
        NotFound, match=rf"'{first.id[-4:]}' could be any of '{first.id}', '{same_end.name}'\."
    ):
        store.run(first.id[-4:])
    (store.home / "runs" / "20270202-000000-abxy").mkdir()
    with pytest.raises(NotFound, match="There is no run"):
        store.run("xy")
    with pytest.raises(NotFound) as caught:
        store.run("202611")
    assert str(caught.value) == (
        f"Run '202611' could be any of '{first.id}', '{second.id}'. Write more of its id."
    )


def test_store_run_finds_the_newest_run_of_a_name_first_in_the_cluster(store):
    folders = [
        launch(store, cluster, NOW + timedelta(days=day)) for day, cluster in enumerate(("a", "b", "b", "a"))
    ]
    for folder, name in zip(folders, ("base", "base", "base", "other"), strict=True):
        folder.save_run(replace(folder.load_run(), options=RunOptions(name=name)))
    assert store.run("base") == store.run("base", "c") == folders[2]
    assert store.run("base", "a") == folders[0]
    (store.home / "runs" / "20270101-000000-0000").mkdir()
    assert store.run("other") == folders[3]
    with pytest.raises(NotFound, match=r"There is no run 'bsae'; did you mean 'base'\? "):
        store.run("bsae")


@pytest.mark.parametrize("run_id", ["", "..", ".", "nothing-like-it", "../runs", "/"])
def test_store_run_names_the_newest_runs_for_unknown_id(store, run_id):
    with pytest.raises(NotFound, match=r"nor any other\. Start one with `gpuctl train`"):
        store.run(run_id)
    folder = launch(store)
    with pytest.raises(NotFound) as caught:
        store.run(run_id)
    assert str(caught.value) == (
        f"There is no run '{run_id}'. The newest are '{folder.id}'; `gpuctl runs --all` lists all."
    )


def test_store_run_suggests_most_similar_id_first(store):
    folders = [launch(store, now=NOW + timedelta(days=day)) for day in range(8)]
    wrong = folders[2].id[:-4] + "zzzz"
    with pytest.raises(NotFound, match=rf"'; did you mean '{folders[2].id}' or "):
        store.run(wrong)


@pytest.mark.parametrize("word", ["{end}x", "x{end}", "{end[0]}x{end[1]}{end[2]}{end[3]}", "{time}1"])
def test_store_run_suggests_the_run_of_a_mistyped_end_or_time(store, word):
    folder = launch(store)
    day, time, end = folder.id.split("-")
    with pytest.raises(NotFound, match=rf"; did you mean '{folder.id}'\? "):
        store.run(word.format(day=day, time=time, end=end))


def test_store_run_names_the_option_for_the_name_of_a_cluster(store):
    launch(store)
    folder = store.cluster("demo")
    folder.make()
    folder.inventory_path.write_text("all:\n")
    with pytest.raises(
        NotFound, match=r"There is no run 'demo', but a cluster of that name: --cluster demo$"
    ):
        store.run("demo")


def test_load_result_of_cut_off_file_advises_to_collect_again(store):
    folder = launch(store)
    folder.save_result(result(folder.id))
    folder.result_path.write_bytes(folder.result_path.read_bytes()[:100])
    with pytest.raises(CorruptFile) as caught:
        folder.load_result()
    assert str(caught.value).startswith(f"'{folder.result_path}' can't be used: it is cut off or no JSON (")
    assert str(caught.value).endswith(
        f"). Remove the file and run `gpuctl results {folder.id}`, which collects the run again."
    )


def test_run_folder_refuses_missing_newer_and_empty_records(store):
    folder = store.new_run(NOW)
    with pytest.raises(NotFound, match=f"Run '{folder.id}' was never launched"):
        folder.load_run()
    folder.run_path.write_text('{"format": 2}')
    folder.result_path.write_text('{"format": 2}')
    for load in (folder.load_run, folder.load_result):
        with pytest.raises(NewerFormat, match="Upgrade gpuctl"):
            load()
    folder.run_path.write_text("")
    with pytest.raises(CorruptFile, match=r"it is empty\. The run can't be followed; remove the folder"):
        folder.load_run()


def test_folders_compare_equal_by_path(tmp_path):
    assert ClusterFolder(tmp_path / "demo") == ClusterFolder(tmp_path / "demo")
    assert RunFolder(tmp_path / "r").id == "r"


def test_claim_of_machines_leaves_the_lock_free_and_refuses_another_at_once(store: Store) -> None:
    folder = store.cluster("demo")
    with (
        folder.claim_machines("train"),
        folder.lock("up"),
        pytest.raises(Locked, match=r"`train`"),
        folder.claim_machines("stop"),
    ):
        pass
    with folder.claim_machines("stop"):
        pass
