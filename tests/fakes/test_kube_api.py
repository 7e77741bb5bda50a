"""The fast fake of Kubernetes, by the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from kubernetes import client, config

from provision.kubernetes import kuberay
from tests.fakes.kube.api import TOKEN, KubeApi, kube_api
from tests.fakes.kube.samples import namespace, ray_cluster, secret


class Failed(Exception):
    """An answer that is no success: its status and its document."""


PLACES = {
    "Namespace": "/api/v1/namespaces",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "RayCluster": "/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
}


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with kube_api() as api:
        api.world.add_node("cpu-0")
        api.world.add_node("gpu-0", gpus=1, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
        api.world.add_node("gpu-1", gpus=1, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
        api.world.install_kuberay()
        yield api


@pytest.fixture
def user(api: KubeApi, tmp_path: Path) -> client.ApiClient:
    settings = client.Configuration()
    settings.retries = False
    return config.new_client_from_config(
        str(api.kubeconfig(tmp_path / "kubeconfig")), client_configuration=settings
    )


def call(user: client.ApiClient, method: str, path: str, body: Any = None, **query: str) -> Any:
    """Send a request as a client without models does."""
    headers = {"Content-Type": "application/apply-patch+yaml" if method == "PATCH" else "application/json"}
    response = urllib3.request(
        method,
        f"{user.configuration.host}{path}?{urlencode(query)}",
        headers=headers | {"Authorization": f"Bearer {TOKEN}"},
        body=json.dumps(body) if body is not None else None,
        retries=False,
    )
    if response.status >= 400:
        raise Failed(response.status, response.data.decode())
    return response.json()


def apply(user: client.ApiClient, document: dict[str, Any], **query: str) -> Any:
    metadata = document["metadata"]
    place = PLACES[document["kind"]].format(namespace=metadata.get("namespace"))
    return call(
        user, "PATCH", f"{place}/{metadata['name']}", document, **({"fieldManager": "gpuctl"} | query)
    )


def make_cluster(user: client.ApiClient, **options: Any) -> None:
    apply(user, namespace("ours"))
    apply(user, secret("ours"))
    apply(user, ray_cluster("ours", **options))


def test_what_cannot_run_says_why(api: KubeApi, user: client.ApiClient) -> None:
    make_cluster(user, count=3)
    core = client.CoreV1Api(user)
    waiting = [item for item in core.list_namespaced_pod("ours").items if item.status.phase == "Pending"]
    (condition,) = waiting[0].status.conditions
    assert condition.reason == "Unschedulable"
    assert condition.message == ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    events = core.list_namespaced_event(
        "ours", field_selector=f"involvedObject.name={waiting[0].metadata.name}"
    )
    assert [item.reason for item in events.items] == ["FailedScheduling"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "workers"), [], "workers"),
        (("spec", "rayVersion"), 2, "rayVersion"),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "imagePull"), "Always", "imagePull"),
        (("metadata", "label"), {}, "metadata.label: field not declared"),
    ],
)
def test_bad_objects_are_refused(
    user: client.ApiClient, path: tuple[Any, ...], value: Any, message: str
) -> None:
    apply(user, namespace("ours"))
    document = ray_cluster("ours")
    where: Any = document
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    with pytest.raises(Failed) as refused:
        apply(user, document)
    status, text = refused.value.args
    assert status == 422
    assert message in text


def test_spec_that_the_operator_refuses_makes_nothing(api: KubeApi, user: client.ApiClient) -> None:
    apply(user, namespace("ours"))
    document = ray_cluster("ours")
    document["spec"]["rayVersion"] = "2.40.0"
    apply(user, document)
    assert not api.objects("pods", "ours")
    (event,) = api.objects("events", "ours")
    assert "2.52.0" in event["message"]


def test_secret_that_lacks_is_named(api: KubeApi, user: client.ApiClient) -> None:
    apply(user, namespace("ours"))
    apply(user, ray_cluster("ours"))
    (reason,) = {
        item["status"][
            "initContainerStatuses" if "worker" in item["metadata"]["name"] else "containerStatuses"
        ][0]["state"]["waiting"]["reason"]
        for item in api.objects("pods", "ours")
    }
    assert reason == "CreateContainerConfigError"


def test_other_managers_fields_are_not_taken(user: client.ApiClient) -> None:
    make_cluster(user)
    with pytest.raises(Failed, match="conflict with"):
        apply(user, ray_cluster("ours", count=1), fieldManager="another")
    assert apply(user, ray_cluster("ours", count=1), fieldManager="another", force="true")


def test_connection_breaks_where_asked(api: KubeApi, user: client.ApiClient) -> None:
    api.faults = {0: "before", 1: "after"}
    for existing in (False, True):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            apply(user, namespace("ours"))
        names = [item["metadata"]["name"] for item in api.objects("namespaces")]
        assert ("ours" in names) is existing


def test_without_kuberay_its_kinds_are_not_served(tmp_path: Path) -> None:
    with kube_api() as api:
        user = config.new_client_from_config(str(api.kubeconfig(tmp_path / "kubeconfig")))
        apply(user, namespace("ours"))
        with pytest.raises(Failed, match="404"):
            apply(user, ray_cluster("ours"))
        api.world.add_node("cpu-0")
        api.world.install_kuberay()
        (operator,) = api.objects("pods", kuberay.NAMESPACE)
        assert operator["status"]["phase"] == "Running"
