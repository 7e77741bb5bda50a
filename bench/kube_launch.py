"""Compare `gpuctl train --mode ray` in ready pods with a hand-written RayJob.

The same script, which trains on two pods by Ray Train, on the same RayCluster: `gpuctl train --mode ray` and `kubectl
apply` of a RayJob, in pairs, from the command to the first step. The API server, the scheduler and Ray are real; the
kubelet and KubeRay's operator are the fakes of `tests/kube`, which lose no time where real ones wait for seconds.
Prints the median ratio; exits 1 above 1.1. Needs root, kubectl, and the server that `tests/kube/build.sh` builds.

    python bench/kube_launch.py [PAIRS]
"""

import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import GPUCTL, run, spread, turned
from tests.kube import ray_jobs
from tests.kube.cluster import Cluster, kube_cluster, lacking
from tests.kube.kubelet import Node

LIMIT = 1.1
DEADLINE_S = 180.0
POLL_S = 0.1
SHAPE = "m7i.large"
SCRIPT = """
import time

import torch
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def work():
    model = prepare_model(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    if train.get_context().get_world_rank() == 0:
        print("first step at", time.time())


TorchTrainer(work, scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD")).fit()
"""
FIRST_STEP = re.compile(r"first step at ([0-9.]+)")


def by_gpuctl(folder: Path) -> float:
    """Seconds from the command to the first step."""
    began = time.time()
    words = ["train", "--mode", "ray", "--python", sys.executable, "script.py"]
    return first_step(run([*GPUCTL, *words], cwd=folder).stderr) - began


def by_hand(cluster: Cluster, folder: Path, namespace: str, number: int) -> float:
    """Seconds from the command to the first step."""
    job: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": f"by-hand-{number}", "namespace": namespace},
        "spec": {
            "entrypoint": f"python -c {shlex.quote(SCRIPT)}",
            "submissionMode": "HTTPMode",
            "clusterSelector": {"ray.io/cluster": "machines"},
        },
    }
    manifest = folder / "job.json"
    manifest.write_text(json.dumps(job))
    began = time.time()
    run(["kubectl", "apply", "-f", str(manifest)])
    path = f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs/by-hand-{number}"
    while (status := cluster.client.call("GET", path).get("status", {})).get("jobDeploymentStatus") not in (
        "Complete",
        "Failed",
    ):
        if time.time() - began > DEADLINE_S:
            sys.exit(f"the RayJob is not over after {DEADLINE_S:.0f} s: {status} {cluster.operator.errors}")
        time.sleep(POLL_S)
    logs = ray_jobs.ask_head(cluster.client, namespace, "machines", f"/api/jobs/{status['jobId']}/logs")
    if status["jobDeploymentStatus"] == "Failed":
        sys.exit(f"the RayJob failed: {status['message']}\n{logs['logs']}")
    return first_step(logs["logs"]) - began


def first_step(output: str) -> float:
    """Return the time of the first step from the script's output."""
    if (match := FIRST_STEP.search(output)) is None:
        sys.exit(f"the script printed no first step:\n{output}")
    return float(match[1])


def main() -> int:
    """Print each pair, and the median of the ratios; or why nothing is measured."""
    if (why := lacking()) is not None:
        print(f"not measured: {why}")
        return 0
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    nodes = [Node(name=f"cpu-{at}", labels={"node.kubernetes.io/instance-type": SHAPE}) for at in range(2)]
    with tempfile.TemporaryDirectory() as name, kube_cluster(Path(name), nodes) as cluster:
        folder = Path(name, "project")
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT)
        kubeconfig = cluster.server.kubeconfig(Path(name, "kubeconfig"))
        os.environ.update(KUBECONFIG=str(kubeconfig), GPUCTL_HOME=str(Path(name, "home")))
        where = ("--provider", "kubernetes", "--shape", SHAPE, "--count", "2")
        made = json.loads(run([*GPUCTL, "up", *where, "--json", "--yes"], cwd=folder).stdout)
        namespace = made["machines"][0]["id"].partition("/")[0]
        try:
            by_gpuctl(folder)  # a warm-up of each: code sent, files in the page cache
            by_hand(cluster, folder, namespace, 0)
            ratios = []
            for pair in range(1, pairs + 1):
                took = {
                    way: by_gpuctl(folder) if way == "ours" else by_hand(cluster, folder, namespace, pair)
                    for way in turned(("hand", "ours"), pair)
                }
                ratios.append(took["ours"] / took["hand"])
                print(f"pair {pair}: gpuctl {took['ours']:.2f} s, RayJob {took['hand']:.2f} s", flush=True)
        finally:
            run([*GPUCTL, "down", "--yes"], cwd=folder)
    shown = spread(ratios, 3, f"{pairs} pairs, limit {LIMIT}")
    print(f"gpuctl train / kubectl apply of a RayJob, to the first step: median ratio {shown}")
    return 0 if statistics.median(ratios) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
