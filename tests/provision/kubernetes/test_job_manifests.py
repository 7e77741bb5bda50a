"""A job as Kubernetes' own objects."""

import yaml

from provision.kubernetes import kuberay
from provision.kubernetes.job_manifests import JobManifest, document, text
from tests.fakes.kube.schemas import problems

RAY = JobManifest(
    name="mine",
    mode="ray",
    command=("train.py", "--lr", "0.1", "a word"),
    nodes=2,
    gpus=4,
    shape="g5.12xlarge",
    queue="research",
    pip=("torch",),
    working_dir="s3://bucket/project.zip",
)
RANKS = JobManifest(
    name="mine", mode="torchrun", command=("-m", "job"), nodes=2, gpus=8, image="mine:1", namespace="ml"
)


def test_ray_job_is_as_its_definition_has_it_and_waits_in_the_queue() -> None:
    made = document(RAY)
    definition = next(each for each in kuberay.manifests() if each["metadata"]["name"] == "rayjobs.ray.io")
    assert problems(made, definition) == []
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    spec = made["spec"]
    assert spec["entrypoint"] == "python train.py --lr 0.1 'a word'"
    assert (spec["submissionMode"], spec["shutdownAfterJobFinishes"]) == ("HTTPMode", True)
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {
        "pip": ["torch"],
        "working_dir": "s3://bucket/project.zip",
    }
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": "g5.12xlarge"}
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert group["rayStartParams"] == {"num-cpus": "16"}, (
        "more than the pod asks for: a worker takes one beside its GPU"
    )


def test_job_set_starts_torchrun_with_a_rendezvous_on_its_first_pod() -> None:
    made = document(RANKS)
    (job,) = made["spec"]["replicatedJobs"]
    indexed = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mine"},
        "spec": job["template"]["spec"],
    }
    assert problems(indexed, None) == []
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == [
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=8",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--master-addr=mine-ranks-0-0.mine",
        "--master-port=29400",
        "--rdzv-conf=timeout=1800",
        "-m",
        "job",
    ]
    assert (made["metadata"], pod["restartPolicy"]) == ({"name": "mine", "namespace": "ml"}, "Never")


def test_text_is_what_kubectl_reads() -> None:
    assert list(yaml.safe_load_all(text([document(RAY), document(RANKS)]))) == [
        document(RAY),
        document(RANKS),
    ]
