"""The way from `up` to `down` in a cluster of Kubernetes, whose pods run in hosts of network namespaces."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from clouds import IMPORTS
from forks import forks_of
from support import Gpuctl, clean_env, interrupt, wait_for
from vm_support import ENDLESS, STEPS, end_of, run_on

from provision.kubernetes.ray_cluster import RANK
from tests.fakes.kube.api import KubeApi, Pod, kube_api
from tests.fakes.kube.store import Document
from tests.fakes.namespace_transport import enter_argv
from tests.fakes.vms import Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with vms(tmp_path, count=2, firewall="none") as net:
        yield net


@pytest.fixture
def api(net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    """A cluster with two nodes for workers, whose pods are the hosts, and one for all else."""
    hosts = {host.name: host for host in net.hosts}

    def runtime(pod: Document) -> Pod:
        host = hosts[pod["spec"]["nodeName"]]
        return Pod(argv=tuple(enter_argv(host.pid, host.user)), env=os.environ)

    with kube_api() as api:
        api.runtime = runtime
        api.world.add_node("cpu-0", labels={"node.kubernetes.io/instance-type": "m5.large"})
        for host in net.hosts:
            api.world.add_node(host.name, labels={"node.kubernetes.io/instance-type": "c5.large"})
            api.world.addresses[host.name] = host.address
        api.world.install_kuberay()
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield api


@pytest.fixture
def gpuctl(api: KubeApi, tmp_path: Path) -> Iterator[Gpuctl]:
    project = tmp_path / "project"
    project.mkdir()
    with forks_of(*IMPORTS, env=clean_env()) as forks:
        yield Gpuctl(home=tmp_path / "home", cwd=project, forks=forks)


UP = ("up", "--provider", "kubernetes", "--shape", "c5.large", "--count", "2", "--python", sys.executable)
JOB = ("--model", "cnn", "--epochs", "1", "--batch-size", "64")


def begin_and_lose_pod(
    gpuctl: Gpuctl, api: KubeApi, net: Net, *options: str
) -> "tuple[subprocess.Popen[str], str, str]":
    """Start a job, and lose its second pod without a replacement. Return the command, run and machine."""
    gpuctl.ok(*UP)
    process = gpuctl.start("train", *options, "--json", "--", *ENDLESS)
    run = wait_for(run_on(gpuctl, 2, "", process), what="a run on 2 pods", deadline_s=120)
    api.world.images["*"] = "slow"
    return process, run, lose_pod(api, net)


def wait_for_its_end(gpuctl: Gpuctl, run: str) -> None:
    wait_for(lambda: (gpuctl.run_folder(run) / "result.json").exists(), what="its end", deadline_s=120)


def lose_pod(api: KubeApi, net: Net) -> str:
    """Remove the pod on the second node with all its processes; return the machine's name."""
    (namespace,) = {
        pod["metadata"]["namespace"] for pod in api.objects("pods") if "gpuctl-" in str(pod["metadata"])
    }
    (lost,) = [pod for pod in api.objects("pods", namespace) if pod["spec"].get("nodeName") == "gpu-1"]
    net.hosts[1].root("kill -9 -1", check=False)
    api.world.store.delete("pods", namespace, lost["metadata"]["name"])
    return f"default-{lost['metadata']['labels'][RANK]}"


def test_whole_way_in_pods(gpuctl: Gpuctl, api: KubeApi) -> None:
    shown = gpuctl.ok(*UP, "--dry-run").out
    assert "raycluster" in shown
    up = gpuctl.ok(*UP, "--json")
    assert [(item["name"], item["host"], item["port"], item["state"]) for item in up.json["machines"]] == [
        ("default-0", None, None, "running"),
        ("default-1", None, None, "running"),
    ]
    assert "nothing changed" in gpuctl.ok(*UP).err
    assert [item["state"] for item in gpuctl.ok("status", "--json").json["machines"]] == ["running"] * 2
    assert {gpuctl.ok("ssh", rank, "hostname").out for rank in "01"} == {"gpu-0\n", "gpu-1\n"}
    done = gpuctl.ok("train", "--mode", "torchrun", "--json", "--", *JOB, timeout_s=400).json
    assert (done["status"], done["world_size"]) == ("succeeded", 2)
    assert len(gpuctl.ok("results", "--json").json["runs"]) == 1
    result = {row["what"]: row for row in gpuctl.ok("doctor", "--cluster", "--json").json["findings"]}
    assert result["pod"]["detail"].startswith("2 of 2 nodes answered")
    assert result["all-reduce"]["ok"] is True
    gpuctl.ok("down")
    assert not [item for item in api.objects("namespaces") if item["metadata"]["name"].startswith("gpuctl-")]
    assert gpuctl.ok("clusters", "--json").json["clusters"] == []


def test_pod_that_is_lost_ends_the_run_by_name_and_is_replaced(
    gpuctl: Gpuctl, api: KubeApi, net: Net
) -> None:
    gpuctl.ok(*UP)
    gpuctl.script("steps.py", STEPS)
    process = gpuctl.start("train", "--json", "steps.py", "200")
    logs = [f"/home/{host.user}/.gpuctl-node/runs/*/*/logs/rank-*.log" for host in net.hosts]
    begun = [f"cat {path} | grep -q begins" for path in logs]
    wait_for(
        lambda: all(
            host.root(item, check=False).returncode == 0 for host, item in zip(net.hosts, begun, strict=True)
        ),
        what="both ranks",
    )
    name = lose_pod(api, net)
    done = end_of(process, timeout_s=200)
    assert (done.status, done.json["status"]) == (1, "failed")
    assert name in done.err
    assert "1 replaced" in gpuctl.ok(*UP).err
    assert "may be at work" not in gpuctl.ok("status").err, "the pod that was is gone"


@pytest.mark.parametrize("way", ["another server", "no server", "no context"])
def test_cluster_whose_kubernetes_is_gone_is_forgotten_where_asked(
    gpuctl: Gpuctl, api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    gpuctl.ok(*UP)
    kubeconfig = tmp_path / "other"
    with kube_api() as other:
        other.kubeconfig(kubeconfig)
        if way == "no server":
            text = Path(os.environ["KUBECONFIG"]).read_text()
            kubeconfig.write_text(text.replace(f":{api.port}", ":9"))
        if way == "no context":
            kubeconfig.write_text(kubeconfig.read_text().replace("test", "somebody-elses"))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        refused = gpuctl("down", "--yes")
        assert refused.status != 0
        assert "gpuctl down --forget" in refused.err
        forgotten = gpuctl.ok("down", "--forget", "--yes").err
    assert "is forgotten" in forgotten
    assert "delete namespace gpuctl-default-" in forgotten
    assert "There is no cluster default" in gpuctl("status").err


def test_elastic_job_goes_on_without_a_lost_pod_and_takes_in_the_one_in_its_place(
    gpuctl: Gpuctl, api: KubeApi, net: Net
) -> None:
    process, first, name = begin_and_lose_pod(gpuctl, api, net, "--nnodes", "1:2")
    second = wait_for(run_on(gpuctl, 1, first, process), what="a run on the other pod", deadline_s=200)
    del api.world.images["*"]
    third = wait_for(run_on(gpuctl, 2, second, process), what="a run on 2 pods again", deadline_s=200)
    interrupt(process)
    done = end_of(process, timeout_s=100)
    assert (done.status, done.json["run"], done.json["resumed_from"]) == (130, third, second)
    assert f"{name} is now the pod" in done.err
    assert f"{name} can take part" in done.err


def test_job_with_restarts_waits_for_the_pod_in_the_place_of_a_lost_one(
    gpuctl: Gpuctl, api: KubeApi, net: Net
) -> None:
    process, first, name = begin_and_lose_pod(gpuctl, api, net, "--max-restarts", "1")
    wait_for_its_end(gpuctl, first)
    del api.world.images["*"]
    second = wait_for(run_on(gpuctl, 2, first, process), what="a run on both pods again", deadline_s=200)
    interrupt(process)
    done = end_of(process, timeout_s=100)
    assert (done.status, done.json["run"], done.json["resumed_from"]) == (130, second, first)
    assert f"{name} is now the pod" in done.err


def test_stop_ends_the_wait_for_a_pod_that_does_not_come(gpuctl: Gpuctl, api: KubeApi, net: Net) -> None:
    process, run, _ = begin_and_lose_pod(gpuctl, api, net, "--max-restarts", "1")
    wait_for_its_end(gpuctl, run)
    assert "could not be asked" in gpuctl("stop").err, "the pod is gone"
    done = end_of(process, timeout_s=60)
    assert f"The job was stopped: no other run follows {run}." in done.err


def test_pods_are_used_from_second_computer_with_runs_of_first(
    gpuctl: Gpuctl, api: KubeApi, tmp_path: Path
) -> None:
    up = gpuctl.ok(*UP, "--json").json
    script = gpuctl.script("hello.py", "print('hello')\n")
    ran = gpuctl.ok("train", "--json", str(script), timeout_s=200).json
    context = "test"
    second = replace(gpuctl, home=tmp_path / "second")

    unknown = second("adopt", "--context", context, "--cluster", "other", "--yes")
    assert (unknown.status, "no cluster other" in unknown.err) == (2, True)
    adopted = second.ok("adopt", "--context", context, "--yes", "--json").json
    assert adopted["machines"] == up["machines"]
    assert second.ok("results", "--json").json["runs"][0]["run"] == ran["run"]
    assert "nothing changed" in second.ok(*UP).err
    assert second.ok("down", "--yes", "--json").json["leftovers"] == []
    assert "gpuctl-default" not in str(api.objects("pods"))
