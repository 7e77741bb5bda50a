"""KubeRay's controller of RayJobs, played: a RayCluster for each, and the job submitted to its head by HTTP.

Written after the operator's sources (controllers/ray/rayjob_controller.go, utils/validation.go).
"""

import base64
import json
import secrets
from contextlib import suppress
from typing import Any

import urllib3
import urllib3.exceptions
import yaml

from tests.fakes.kube.kuberay import secret_name
from tests.kube.client import Client, Refused

Document = dict[str, Any]

PLAYED = {
    "backoffLimit",
    "clusterSelector",
    "entrypoint",
    "rayClusterSpec",
    "runtimeEnvYAML",
    "shutdownAfterJobFinishes",
    "submissionMode",
    "suspend",
    "ttlSecondsAfterFinished",
}
OVER = {"SUCCEEDED": "Complete", "FAILED": "Failed", "STOPPED": "Failed"}
DASHBOARD_PORT = 8265


def turn(client: Client, job: Document) -> None:
    """Advance a job by one step. Raises AssertionError for a feature that is not implemented here."""
    spec, status = job["spec"], job.get("status") or {}
    if "deletionTimestamp" in job["metadata"] or spec.get("suspend"):
        return
    assert spec.keys() <= PLAYED, f"not played here: {spec.keys() - PLAYED}"
    assert spec.get("submissionMode") == "HTTPMode", "another submissionMode is not played"
    assert not spec.get("backoffLimit"), "not played: tries"
    match status.get("jobDeploymentStatus", ""):
        case "":
            client.set_status(job, _begun(job))
        case "Initializing":
            _submit_when_ready(client, job)
        case "Running":
            _follow(client, job)


def _begun(job: Document) -> Document:
    name, selected = job["metadata"]["name"], job["spec"].get("clusterSelector") or {}
    return {
        "jobDeploymentStatus": "Initializing",
        "jobId": f"{name}-{secrets.token_hex(3)}",
        "rayClusterName": selected.get("ray.io/cluster") or f"{name}-{secrets.token_hex(3)}",
    }


def _submit_when_ready(client: Client, job: Document) -> None:
    cluster = _cluster(client, job)
    if cluster is None:
        assert "rayClusterSpec" in job["spec"], "the selected RayCluster is not there"
        client.create(_own_cluster(job))
    elif (cluster.get("status") or {}).get("state") == "ready":
        request = {"entrypoint": job["spec"]["entrypoint"], "submission_id": job["status"]["jobId"]}
        environment = yaml.safe_load(job["spec"].get("runtimeEnvYAML") or "{}")
        # A head that is not up yet is asked again in the next turn.
        with suppress(urllib3.exceptions.HTTPError):
            _ask(client, cluster, "POST", "/api/jobs/", request | {"runtime_env": environment})
            client.set_status(job, {"jobDeploymentStatus": "Running", "jobStatus": "PENDING"})


def _follow(client: Client, job: Document) -> None:
    cluster = _cluster(client, job)
    assert cluster is not None, "the RayCluster of a running job has gone"
    report = _ask(client, cluster, "GET", f"/api/jobs/{job['status']['jobId']}")
    known = {"jobStatus": report["status"], "message": report.get("message") or ""}
    if report["status"] in OVER:
        known["jobDeploymentStatus"] = OVER[report["status"]]
    client.set_status(job, known)


def _own_cluster(job: Document) -> Document:
    metadata = job["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": "RayJob",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": job["status"]["rayClusterName"],
            "namespace": metadata["namespace"],
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        },
        "spec": job["spec"]["rayClusterSpec"],
    }


def _cluster(client: Client, job: Document) -> Document | None:
    namespace, name = job["metadata"]["namespace"], job["status"]["rayClusterName"]
    try:
        return client.call("GET", f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{name}")
    except Refused as error:
        if error.status != 404:
            raise
        return None


def _ask(client: Client, cluster: Document, method: str, path: str, body: Any = None) -> Document:
    """Send a request to the head's dashboard. Raises AssertionError with the text of a refusal."""
    namespace = cluster["metadata"]["namespace"]
    secret = client.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{secret_name(cluster)}")
    token = base64.b64decode(secret["data"]["auth_token"]).decode()
    answer = urllib3.request(
        method,
        f"http://{cluster['status']['head']['podIP']}:{DASHBOARD_PORT}{path}",
        body=None if body is None else json.dumps(body).encode(),
        headers={"x-ray-authorization": f"Bearer {token}", "Content-Type": "application/json"},
        timeout=30,
        retries=False,
    )
    assert answer.status == 200, f"{method} {path}: {answer.status} {answer.data.decode(errors='replace')}"
    return json.loads(answer.data)
