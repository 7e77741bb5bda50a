"""A job as Kubernetes' own objects, to be applied by other means: a RayJob, or a JobSet for torchrun. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from provision.kubernetes.images import full_name
from provision.kubernetes.ray_cluster import (
    GPU,
    cluster_spec,
    default_image,
    whole_node_pod,
)

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label with which Kueue puts a job into a queue; it starts the job by the field `suspend`."""
PORT = 29400
JOB = "ranks"
"""Name of the JobSet's one job: its first pod is `NAME-ranks-0-0.NAME`."""
MEET_S = 1800
"""Longest wait of the pods for each other: nodes join and images arrive at different times."""
CPUS_A_GPU = 4
"""CPUs for Ray with each GPU: KubeRay would take the pod's request, 1, for the whole node."""
RAY_KEPT_S = 300
"""The job's log is on Ray's head, and the RayCluster holds its GPUs as long."""
KEPT_S = 3600
"""Time that the pods of a finished job stay, for their logs."""


@dataclass(frozen=True, kw_only=True)
class JobManifest:
    """A job to write as a manifest."""

    name: str
    mode: Literal["ray", "torchrun"]
    command: Sequence[str]
    """Arguments of Python: a script and its arguments, or `-m` and a module, in the image or in `working_dir`."""
    nodes: int
    gpus: int
    """GPUs of each node. 0: the job trains on CPUs."""
    image: str | None = None
    """`None`: Ray's public image."""
    namespace: str | None = None
    shape: str | None = None
    """Instance type of the nodes. `None`: any."""
    queue: str | None = None
    """Queue of Kueue."""
    pip: Sequence[str] = ()
    """Ray: packages to install before the job starts."""
    working_dir: str | None = None
    """Ray: URL of a zip with the project, as a runtime environment takes it."""


def document(job: JobManifest) -> dict[str, Any]:
    """Return the RayJob, or the JobSet."""
    return _ray_job(job) if job.mode == "ray" else _job_set(job)


def text(documents: Sequence[dict[str, Any]]) -> str:
    """Return the documents as YAML for `kubectl apply -f -`."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=110)


def _metadata(job: JobManifest) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": job.name}
    if job.namespace:
        metadata["namespace"] = job.namespace
    if job.queue:
        metadata["labels"] = {QUEUE: job.queue}
    return metadata


def _image(job: JobManifest) -> str:
    """Return the image's whole name: nodes with CRI-O take no other."""
    return full_name(job.image or default_image(job.gpus))


def _ray_job(job: JobManifest) -> dict[str, Any]:
    """Return the RayJob. The operator itself submits it (HTTPMode), so a lost connection ends nothing."""
    image = _image(job)
    environment: dict[str, Any] = {}
    if job.pip:
        environment["pip"] = list(job.pip)
    if job.working_dir:
        environment["working_dir"] = job.working_dir
    head = {"name": "ray-head", "image": image, "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}
    worker = {
        "metadata": {"labels": {"gpuctl/job": job.name}},
        "spec": _pod(job, {"name": "ray-worker", "image": image}),
    }
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(["python", *job.command]),
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": RAY_KEPT_S,
        "rayClusterSpec": cluster_spec(
            {"spec": {"containers": [head]}}, worker, job.nodes, CPUS_A_GPU * job.gpus
        ),
    }
    if environment:
        spec["runtimeEnvYAML"] = yaml.safe_dump(environment, sort_keys=False)
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": _metadata(job), "spec": spec}


def _job_set(job: JobManifest) -> dict[str, Any]:
    """Return the JobSet with an indexed job: the pod with index 0 has the rendezvous, and its name is known."""
    ranks = [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.gpus or 1}",
        # Of the pod: Kubernetes puts it in.
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        f"--master-addr={job.name}-{JOB}-0-0.{job.name}",
        f"--master-port={PORT}",
        f"--rdzv-conf=timeout={MEET_S}",
        *job.command,
    ]
    pod = _pod(job, {"name": "torchrun", "image": _image(job), "command": ranks})
    indexed = {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": {"gpuctl/job": job.name}},
            "spec": {"restartPolicy": "Never", **pod},
        },
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "ttlSecondsAfterFinished": KEPT_S,
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": indexed}}],
        },
    }


def _pod(job: JobManifest, container: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's spec: alone on its node, with the node's GPUs."""
    gpus = {GPU: str(job.gpus)} if job.gpus else {}
    spec = whole_node_pod(container, gpus, {"gpuctl/job": job.name}, job.shape)
    if job.gpus:
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return spec
