"""Test `train --nnodes MIN:MAX`: a job takes new machines and continues without lost ones."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import Gpuctl, interrupt, kill_all, wait_for
from vm_support import ENDLESS, lines, run_on

from inventories.disk.store import ClusterFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

DRIVER = """
import json, os, sys, tempfile, time
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def work(config):
    step, context = 1, train.get_context()
    if before := train.get_checkpoint():
        with before.as_directory() as folder, open(os.path.join(folder, "step.json")) as file:
            step = json.load(file) + 1
    while not broadcast_from_rank_zero(os.path.exists(config["over"])):  # all ranks end after the same step
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "step.json"), "w") as file:
            json.dump(step, file)
            file.flush()
            first = context.get_world_rank() == 0
            if first:
                with open(config["metrics"], "a") as metrics:
                    metrics.write(json.dumps({"step": step, "loss": 1.0, "ranks": context.get_world_size()}) + "\\n")
            train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder) if first else None)
        step += 1
        time.sleep(0.2)

scaling = ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 1}, elastic_resize_monitor_interval_s=1)
run = RunConfig(name="elastic", storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=10))
config = {"over": os.path.join(sys.argv[1], "over"), "metrics": os.environ["GPUCTL_METRICS"]}
DataParallelTrainer(work, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
"""


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("mode", ["torchrun", "ray"])
def test_elastic_built_in_job_grows_and_shrinks(two_hosts: Gpuctl, mode: str) -> None:
    strategy = {"torchrun": "ddp", "ray": "fsdp"}[mode]
    words = [*ENDLESS, "--strategy", strategy]
    process = two_hosts.start("train", "--mode", mode, "--nnodes", "1:3", "--json", "--", *words)
    first = wait_for(run_on(two_hosts, 2, "", process), what="a run on 2 nodes", deadline_s=300)
    two_hosts.ok("up", "--provider", "local", "--count", "3")
    second = wait_for(run_on(two_hosts, 3, first, process), what="a run on 3 nodes", deadline_s=300)
    if mode == "ray":  # a machine that a run on Ray loses is another test's
        interrupt(process)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert json.loads(out)["resumed_from"] == first
        assert json.loads(out)["mode"] == "ray"
        return
    two_hosts.kill_host("default-2")
    with ClusterFolder(two_hosts.home / "clusters" / "default").lock("up"):
        # Longer than a first run would wait for an `up` that replaces the machine.
        lost = two_hosts.run_folder(second) / "result.json"
        wait_for(lost.exists, what="the end of the run on 3 nodes", deadline_s=300)
        released_at = time.monotonic() + 12
        wait_for(lambda: time.monotonic() > released_at, what="12 s")
    third = wait_for(run_on(two_hosts, 2, second, process), what="a run on 2 nodes again", deadline_s=300)
    interrupt(process)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    results = [json.loads((two_hosts.run_folder(run) / "result.json").read_text()) for run in (first, second)]
    results.append(json.loads(out))
    assert [result["status"] for result in results] == ["stopped", "failed", "stopped"]
    assert (results[0]["reason"], results[2]["reason"]) == ("resized", "stopped")
    assert [result["resumed_from"] for result in results] == [None, first, second]
    assert [result["mode"] for result in results] == [mode] * 3
    assert results[1]["first_error"]["node"] == "default-2"
    assert f"default-2 can take part: run {first} ends at its next checkpoint" in err
    assert f"default-2 can take part, too: run {second}" in err
    for before, after in ((first, second), (second, third)):
        [begun_at, *_] = [line["step"] for line in lines(metrics(two_hosts, after)) if "step" in line]
        last = [line["step"] for line in lines(metrics(two_hosts, before)) if "step" in line][-1]
        assert 1 < begun_at <= last + 20, "it goes on from where the one before was"


@pytest.mark.timeout(900)
def test_elastic_job_uses_as_many_machines_as_its_strategy_can_divide(two_hosts: Gpuctl) -> None:
    """A pipeline of two stages on 2, 3, 4, and again 3 machines; one alone is no pipeline."""
    words = [*ENDLESS, "--strategy", "fsdp", "--pp", "2", "--batch-size", "64"]
    process = two_hosts.start("train", "--nnodes", "1:4", "--json", "--", *words)
    first = wait_for(run_on(two_hosts, 2, "", process), what="a run on 2 nodes", deadline_s=200)
    two_hosts.ok("up", "--provider", "local", "--count", "3")
    two_hosts.ok("up", "--provider", "local", "--count", "4")
    second = wait_for(run_on(two_hosts, 4, first, process), what="a run on 4 nodes", deadline_s=300)
    two_hosts.kill_host("default-3")
    third = wait_for(run_on(two_hosts, 2, second, process), what="a run on 2 nodes again", deadline_s=300)
    two_hosts.kill_host("default-2")
    two_hosts.kill_host("default-1")
    out, err = process.communicate(timeout=200)

    assert process.returncode == 1, err
    assert json.loads(out)["run"] == third
    assert json.loads(out)["train"]["strategy"] == "fsdp 1 x pp 2"
    odd = "3 ranks can't be divided by pp 2: start a multiple of 2, or change --pp and --tp."
    assert f"default-2 can't be used now, and the job runs on 2 machines: {odd}" in err
    alone = "1 rank can't be divided by pp 2: start a multiple of 2, or change --pp and --tp."
    assert f"No other run follows {third}, as too few machines can take part. {alone} Once there" in err


def metrics(gpuctl: Gpuctl, run: str) -> Path:
    return gpuctl.run_folder(run) / "metrics" / "rank-0.jsonl"


@pytest.mark.timeout(1500)
def test_elastic_ray_driver_uses_machines_added_later(two_hosts: Gpuctl, tmp_path: Path) -> None:
    """Uses Ray's elastic training, ScalingConfig(num_workers=(1, 3)), on gpuctl's nodes."""
    two_hosts.script("drive.py", DRIVER)
    storage = tmp_path / "storage"
    storage.mkdir()
    # Ray waits that long for a machine that it does not know to be lost yet.
    patience = ["--env", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=15"]
    process = two_hosts.start(
        "train", "--mode", "ray", "--nnodes", "1:3", "--json", *patience, "drive.py", str(storage)
    )

    def ranks(wanted: int, since: int) -> Callable[[], int | None]:
        """Return a poll for a step after line `since` taken by `wanted` ranks; it returns that line's number."""

        def look() -> int | None:
            assert process.poll() is None, process.communicate()
            report = [
                line
                for path in (two_hosts.home / "runs").glob("*/metrics/rank-0.jsonl")
                for line in lines(path)
            ]
            result = (at for at, line in enumerate(report, 1) if at > since and line["ranks"] == wanted)
            return next(result, None)

        return look

    at = wait_for(ranks(2, 0), what="2 ranks at work", deadline_s=300)
    two_hosts.ok("up", "--provider", "local", "--count", "3")
    at = wait_for(ranks(3, at), what="3 ranks at work", deadline_s=300)
    # Its daemons are gone and it answers at the same address, as after a boot. No machine is added before
    # Ray has continued without it, or it could come back too early.
    folder = ClusterFolder(two_hosts.home / "clusters" / "default")
    node = folder.path / "local/default-2/home/.gpuctl-node/ray/default-2/node.json"
    with folder.lock("train"):
        kill_all(json.loads(node.read_text())["run_dir"])
        at = wait_for(ranks(2, at), what="2 ranks at work again", deadline_s=300)
    wait_for(ranks(3, at), what="3 ranks at work again", deadline_s=600)
    (storage / "over").touch()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert err.count("default-2 can be used from here on") == 2, err
    assert json.loads(out)["status"] == "succeeded"
    assert len(two_hosts.ok("runs", "--json").json["runs"]) == 1


def test_elastic_run_starts_on_reachable_nodes_and_skips_others(two_hosts: Gpuctl) -> None:
    folder = ClusterFolder(two_hosts.home / "clusters" / "default")
    two_hosts.kill_host("default-1")
    two_hosts.script("slow.py", "import time; time.sleep(12)\n")
    fixed = two_hosts("train", "--json", "slow.py")
    assert fixed.status == 1
    too_few = two_hosts("train", "--nnodes", "2:4", "--json", "slow.py")
    assert too_few.status == 1
    assert "default-1" in too_few.err

    process = two_hosts.start("train", "--nnodes", "1:4", "--json", "slow.py")
    wait_for(lambda: list((two_hosts.home / "runs").glob("*/run.json")), what="the run")
    inventory = folder.load()
    first = inventory.machines[0]
    # The first host under another name, with an interpreter that it does not have.
    other = replace(
        first, name="default-2", rank=2, id="default-2", host="localhost", python="/nowhere/python3"
    )
    known = folder.known_hosts_path.read_text()
    folder.known_hosts_path.write_text(known + known.replace("127.0.0.1", "localhost"))
    folder.save(replace(inventory, machines=(*inventory.machines, other)))
    out, err = process.communicate(timeout=60)
    folder.save(inventory)
    assert process.returncode == 0, err
    assert "left out: default-1" in err
    assert err.count("default-2 can't take part yet: default-2") == 1, err
    assert json.loads(out)["nnodes"] == 1


@pytest.mark.parametrize("nnodes", ["0", "0:2", "3:2", "a", "1:", ":2", "-1", "1:2:3"])
def test_train_refuses_malformed_nnodes(cluster: Gpuctl, nnodes: str) -> None:
    refused = cluster("train", "--nnodes", nnodes, "my.py")
    assert refused.status == 2
    assert f"--nnodes {nnodes} is not possible" in refused.err


def test_train_refuses_nnodes_range_beyond_cluster_or_detached(cluster: Gpuctl) -> None:
    more = cluster("train", "--nnodes", "3:4")
    assert more.status == 2
    assert "--nnodes 3:4 is not possible: the cluster default has 2 nodes" in more.err
    alone = cluster("train", "--nnodes", "1:2", "--detach")
    assert alone.status == 2
    assert "--nnodes 1:2 needs gpuctl to stay" in alone.err


def test_a_stop_between_two_runs_ends_the_job(two_hosts: Gpuctl) -> None:
    two_hosts.script("fails.py", "raise SystemExit(3)\n")
    folder = ClusterFolder(two_hosts.home / "clusters" / "default")
    process = two_hosts.start("train", "--json", "--max-restarts", "3", "fails.py")
    [run] = wait_for(lambda: list((two_hosts.home / "runs").glob("*/run.json")), what="the run")
    with folder.lock("up"):  # the next run waits for it
        wait_for((run.parent / "result.json").exists, what="the end of the run")
        two_hosts.ok("stop")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert json.loads(out)["run"] == run.parent.name
    assert f"The job was stopped: no other run follows {run.parent.name}." in err
    assert len(list((two_hosts.home / "runs").iterdir())) == 1
