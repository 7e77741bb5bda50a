"""Test pods as machines on a real API server: accepted requests, kubectl's view, each step from `up` to `down`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import IMPORTS
from forks import forks_of
from support import Gpuctl, a_machine, clean_env, interrupt, wait_for
from vm_support import ALLREDUCE, ENDLESS, end_of, resumed_by, run_on

from inventories.disk.store import Store
from inventories.machine import Machine
from provision.kubernetes.ray_cluster import RANK
from remote.errors import AuthenticationFailed, ConnectionLost, Unreachable
from remote.transport.pods import pod as pod_transport
from tests.fakes.kube.samples import namespace, ray_cluster, secret
from tests.kube.client import Refused
from tests.kube.cluster import Cluster, kube_cluster, lacking
from tests.kube.kubelet import Node

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

CPU_SHAPE = "m7i.large"
GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
JOB = ("--model", "cnn", "--epochs", "1", "--batch-size", "64")
DRIVER = """
import ray

import beside


@ray.remote(scheduling_strategy="SPREAD")
def where():
    return beside.name()


ray.init(log_to_driver=False)
found = set()
while len(found) < 2:
    found |= set(ray.get([where.remote() for _ in range(8)]))
print(f"{len(found)} pods: {sorted(found)}")
"""
WAITING_DRIVER = """
import time

import ray


def alive():
    return {one["NodeID"] for one in ray.nodes() if one["Alive"]}


ray.init(log_to_driver=False)
before, limit = alive(), time.monotonic() + 120
print("the driver waits", flush=True)
while before <= alive() and time.monotonic() < limit:
    time.sleep(0.2)
"""
ROOT = Path(__file__).parents[2]
IDLE = (
    "import socket; s = socket.create_server(('', 7777)); [s.accept()[0].sendall(b'hello') for _ in range(9)]"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    small = {"node.kubernetes.io/instance-type": CPU_SHAPE}
    nodes = [Node(name=f"cpu-{number}", labels=small) for number in range(2)]
    nodes.append(Node(name="gpu-0", gpus=1, taints=[GPU_TAINT]))
    with kube_cluster(tmp_path_factory.mktemp("kube"), nodes) as cluster:
        yield cluster
        assert not cluster.kubelet.errors
        assert not cluster.operator.errors


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The variable KUBECONFIG names it."""
    path = cluster.server.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def place(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace; it is on its way out afterwards."""
    name = request.node.name.replace("_", "-")[:50].rstrip("-")
    cluster.client.apply(namespace(name))
    yield name
    cluster.client.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def gpuctl(kubeconfig: Path, tmp_path: Path) -> Iterator[Gpuctl]:
    project = tmp_path / "project"
    project.mkdir()
    with forks_of(*IMPORTS, env=clean_env()) as forks:
        yield Gpuctl(home=tmp_path / "home", cwd=project, forks=forks)


def namespaces(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in cluster.client.items("/api/v1/namespaces")}


def kubectl(kubeconfig: Path, *words: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
    argv = ["kubectl", "--kubeconfig", str(kubeconfig), *words]
    return subprocess.run(argv, input=given, capture_output=True, text=True, timeout=60, check=False)


def idle_pod(cluster: Cluster, place: str, name: str = "idle", **spec: Any) -> Machine:
    """A pod that listens on a port and does nothing, as a machine; it runs."""
    container = {"name": "main", "image": "an-image", "command": ["python3", "-c", IDLE]}
    metadata = {"name": name, "namespace": place}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    cluster.client.create(document | {"spec": {"containers": [container], **spec}})
    return a_machine(
        name="default-0",
        host="",
        user="ray",
        transport="pod",
        context="test",
        gpus=None,
        id=f"{place}/{name}",
    )


def pod_of(cluster: Cluster, place: str, name: str = "idle") -> dict[str, Any]:
    return cluster.client.call("GET", f"/api/v1/namespaces/{place}/pods/{name}")


def wait_until_it_runs(cluster: Cluster, place: str) -> None:
    wait_for(lambda: pod_of(cluster, place)["status"]["phase"] == "Running", what="the pod")


def read(stream: Any) -> bytes:
    parts = []
    while part := stream(65536):
        parts.append(part)
    return b"".join(parts)


def test_ray_cluster_is_taken_and_kubectl_sees_it(cluster: Cluster, kubeconfig: Path, place: str) -> None:
    for document in (secret(place), ray_cluster(place, count=1, gpus=1)):
        cluster.client.apply(document)

    def ready() -> bool:
        path = f"/apis/ray.io/v1/namespaces/{place}/rayclusters/machines"
        status = cluster.client.call("GET", path).get("status", {})
        return status.get("state") == "ready" and status["readyWorkerReplicas"] == 1

    wait_for(ready, what="the RayCluster", deadline_s=120)
    listed = kubectl(kubeconfig, "get", "pods", "-n", place, "-l", "ray.io/node-type=worker", "-o", "json")
    (worker,) = json.loads(listed.stdout)["items"]
    assert worker["spec"]["nodeName"] == "gpu-0"
    done = kubectl(
        kubeconfig, "exec", "-n", place, worker["metadata"]["name"], "-c", "ray-worker", "--",
        "python3", "-c", "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))",
    )  # fmt: skip
    assert done.stdout == "2\n", done.stderr


def test_bad_objects_are_refused_as_by_the_fast_fake(cluster: Cluster, place: str) -> None:
    document = ray_cluster(place)
    document["spec"]["rayVersion"] = 2
    with pytest.raises(Refused, match=r"spec\.rayVersion"):
        cluster.client.apply(document)
    document = ray_cluster(place)
    document["spec"]["rayVersion"] = "2.40.0"
    cluster.client.apply(document)
    events = f"/api/v1/namespaces/{place}/events"
    (event,) = wait_for(lambda: cluster.client.items(events), what="the operator's event")
    assert "2.52.0" in event["message"]


def test_transport_works_through_the_server(
    cluster: Cluster, kubeconfig: Path, place: str, tmp_path: Path
) -> None:
    machine = idle_pod(cluster, place)
    folder = Store(tmp_path / "home").cluster("default")
    wait_until_it_runs(cluster, place)
    transport = pod_transport.connect(machine, folder, 20)

    process = transport.start("cat; echo to-stderr >&2; hostname; exit 7")
    data = os.urandom(300_000)
    sent = 0
    while sent < len(data):
        sent += process.send(data[sent:])
    process.end_input()
    assert read(process.recv) == data + b"idle\n"
    assert read(process.recv_stderr) == b"to-stderr\n"
    assert process.exit_status(20) == 7
    process.close()

    port = transport.connect_port(7777)
    assert read(port.recv) == b"hello"
    port.close()
    with pytest.raises(ConnectionLost, match="port 7778"):
        transport.connect_port(7778)
    calls = kubectl(kubeconfig, "exec", "-n", place, "idle", "--", "hostname")
    assert calls.stdout == "idle\n", calls.stderr
    assert transport.is_open()
    transport.close()


def test_pod_that_is_deleted_breaks_the_connection(
    cluster: Cluster, kubeconfig: Path, place: str, tmp_path: Path
) -> None:
    machine = idle_pod(cluster, place)
    folder = Store(tmp_path / "home").cluster("default")
    wait_until_it_runs(cluster, place)
    transport = pod_transport.connect(machine, folder, 20)
    process = transport.start("echo begun; sleep 600")
    assert process.recv(100) == b"begun\n"
    cluster.client.call("DELETE", f"/api/v1/namespaces/{place}/pods/idle")
    process.settimeout(30)
    with pytest.raises((ConnectionResetError, AssertionError)):
        assert read(process.recv) == b"more"
    process.close()
    transport.close()
    wait_for(lambda: not cluster.pods(place), what="the pod's end")
    with pytest.raises(Unreachable, match="there is no pod"):
        pod_transport.connect(machine, folder, 20)


def test_user_without_roles_is_refused(
    cluster: Cluster, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = idle_pod(cluster, place)
    monkeypatch.setenv("KUBECONFIG", str(cluster.server.kubeconfig(tmp_path / "nobodys", user="nobody")))
    with pytest.raises(AuthenticationFailed, match="nobody"):
        pod_transport.connect(machine, Store(tmp_path / "home").cluster("default"), 20)


def test_pod_that_cannot_run_says_why(cluster: Cluster, place: str) -> None:
    cluster.kubelet.images["no/*"] = "missing"
    container = {"name": "main", "image": "no/such:1"}
    for name, resources in (("image", {}), ("room", {"limits": {"nvidia.com/gpu": "2"}})):
        metadata = {"name": name, "namespace": place}
        spec = {"containers": [container | {"resources": resources}]}
        cluster.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def waiting() -> bool:
        states = pod_of(cluster, place, "image")["status"].get("containerStatuses") or [{}]
        return states[0].get("state", {}).get("waiting", {}).get("reason") == "ImagePullBackOff"

    wait_for(waiting, what="the image")

    def unschedulable() -> Any:
        return pod_of(cluster, place, "room")["status"].get("conditions")

    (condition,) = wait_for(unschedulable, what="the scheduler")
    assert "Insufficient nvidia.com/gpu" in condition["message"]


def test_job_of_manifests_runs_without_gpuctl(
    cluster: Cluster, gpuctl: Gpuctl, kubeconfig: Path, place: str
) -> None:
    words = ("--mode", "ray", "--name", "alone", "--namespace", place, "--shape", CPU_SHAPE, "--gpus", "0")
    text = gpuctl.ok("manifests", *words, str(ROOT / "tests/kube/ray_script.py")).out
    wait_for(
        lambda: kubectl(kubeconfig, "apply", "-f", "-", given=text).returncode == 0,
        what="the server's own list",
    )

    def over() -> Any:
        path = f"/apis/ray.io/v1/namespaces/{place}/rayjobs/alone"
        status = cluster.client.call("GET", path).get("status", {})
        return status if status.get("jobDeploymentStatus") in ("Complete", "Failed") else None

    status = wait_for(over, what="the RayJob", deadline_s=120)
    assert (status["jobDeploymentStatus"], status["jobStatus"]) == ("Complete", "SUCCEEDED"), status


@pytest.mark.timeout(1200)
def test_way_from_nothing_to_nothing(cluster: Cluster, gpuctl: Gpuctl) -> None:
    before = namespaces(cluster)
    where = ("--provider", "kubernetes", "--context", "test", "--shape", CPU_SHAPE)
    made = gpuctl.ok("up", *where, "--count", "2", "--json", "--yes", timeout_s=300).json
    pods = {machine["id"] for machine in made["machines"]}
    (ours,) = namespaces(cluster) - before
    assert {f"{ours}/{item['metadata']['name']}" for item in cluster.pods(ours)} >= pods
    output = gpuctl.ok("exec", "--json", "--", "hostname").json
    assert {f"{ours}/{node['stdout'].strip()}" for node in output["nodes"]} == pods

    gpuctl.script("allreduce.py", ALLREDUCE)
    done = gpuctl.ok("train", "--json", "allreduce.py", timeout_s=300).json
    assert (done["status"], done["world_size"]) == ("succeeded", 2)
    losses = {}
    for mode in ("torchrun", "ray"):
        words = ("--mode", mode, "--python", sys.executable, "--json", "--", *JOB)
        job = gpuctl.ok("train", *words, timeout_s=300).json
        assert (job["status"], job["world_size"]) == ("succeeded", 2)
        losses[mode] = job["train"]["loss"]
    assert losses["ray"] == pytest.approx(losses["torchrun"], rel=1e-6)
    (first, *_) = gpuctl.ok("results", "--json", job["run"]).json["runs"]
    assert first["train"]["loss"] == losses["ray"]

    assert [node["running"] for node in gpuctl.ok("ray", "status", "--json").json["nodes"]] == [True, True]
    gpuctl.script("beside.py", "import socket\n\n\ndef name():\n    return socket.gethostname()\n")
    gpuctl.script("drive.py", DRIVER)
    driven = gpuctl.ok("train", "--mode", "ray", "--python", sys.executable, "drive.py", timeout_s=300)
    assert "KubeRay keeps Ray" in gpuctl("ray", "stop").err
    assert f"2 pods: {sorted(pod.partition('/')[2] for pod in pods)}" in driven.err
    gpuctl.script("waits.py", WAITING_DRIVER)
    process = gpuctl.start("train", "--mode", "ray", "--python", sys.executable, "waits.py")
    lost = next(item for item in cluster.pods(ours) if item["metadata"]["labels"].get(RANK) == "1")
    wait_for(lambda: "the driver waits" in gpuctl("logs").out, what="the driver")
    cluster.client.call("DELETE", f"/api/v1/namespaces/{ours}/pods/{lost['metadata']['name']}")
    report = f"default-1 was lost: the pod {ours}/{lost['metadata']['name']} is gone"
    done = end_of(process, timeout_s=200)
    assert (done.status, report in done.err) == (0, True), done.err
    gpuctl.ok("down", "--json", "--yes", timeout_s=120)
    assert ours not in namespaces(cluster)


@pytest.mark.timeout(1200)
def test_run_whose_head_is_lost_is_told_and_restarts_on_all_pods(cluster: Cluster, gpuctl: Gpuctl) -> None:
    before = namespaces(cluster)
    where = ("--provider", "kubernetes", "--context", "test", "--shape", CPU_SHAPE)
    gpuctl.ok("up", *where, "--count", "2", "--yes", "--python", sys.executable, timeout_s=300)
    (ours,) = namespaces(cluster) - before
    process = gpuctl.start("train", "--max-restarts", "1", "--json", "--", *ENDLESS)
    first = wait_for(run_on(gpuctl, 2, "", process), what="a run", deadline_s=300)
    (head,) = [pod for pod in cluster.pods(ours) if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
    cluster.client.call("DELETE", f"/api/v1/namespaces/{ours}/pods/{head['metadata']['name']}")
    second = wait_for(run_on(gpuctl, 2, first, process), what="a run on both pods again", deadline_s=300)
    interrupt(process)
    done = end_of(process, timeout_s=100)
    assert (done.status, done.json["run"], done.json["resumed_from"]) == (130, second, first)
    failed = json.loads((gpuctl.run_folder(first) / "result.json").read_text())
    assert (failed["status"], failed["first_error"]["reason"]) == ("failed", "container_restarted")
    assert "the pod's container was started again during the run" in done.err
    gpuctl.script("allreduce.py", ALLREDUCE)
    assert gpuctl.ok("train", "--json", "allreduce.py", timeout_s=300).json["world_size"] == 2
    gpuctl.ok("down", "--yes", timeout_s=120)


@pytest.mark.timeout(1200)
def test_elastic_job_on_ray_goes_on_without_a_lost_pod_and_takes_in_the_next(
    cluster: Cluster, gpuctl: Gpuctl
) -> None:
    before = namespaces(cluster)
    where = ("--provider", "kubernetes", "--context", "test", "--shape", CPU_SHAPE)
    gpuctl.ok("up", *where, "--count", "2", "--yes", "--python", sys.executable, timeout_s=300)
    (ours,) = namespaces(cluster) - before
    process = gpuctl.start("train", "--mode", "ray", "--nnodes", "1:2", "--json", "--", *ENDLESS)
    first = wait_for(run_on(gpuctl, 2, "", process), what="a run on 2 pods", deadline_s=300)
    lost = next(pod for pod in cluster.pods(ours) if pod["metadata"]["labels"].get(RANK) == "1")
    cluster.client.call("DELETE", f"/api/v1/namespaces/{ours}/pods/{lost['metadata']['name']}")
    second = wait_for(run_on(gpuctl, 2, first, process), what="a run on 2 pods again", deadline_s=300)
    interrupt(process)
    done = end_of(process, timeout_s=100)
    assert (done.status, done.json["run"]) == (130, second)
    assert f"default-1 is now the pod {ours}/" in done.err
    # The new pod may be ready at once: then no run is on the other one alone.
    assert first in resumed_by(gpuctl, second)
    failed = json.loads((gpuctl.run_folder(first) / "result.json").read_text())
    assert (failed["status"], failed["first_error"]["node"]) == ("failed", "default-1")
    gpuctl.ok("down", "--yes", timeout_s=120)
