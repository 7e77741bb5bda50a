"""KubeRay's manifests as they lie in the package."""

import hashlib

from provision.kubernetes.kuberay import DEPLOYMENT, NAMESPACE, manifests, release, text


def test_manifests_are_those_of_the_release() -> None:
    assert hashlib.sha256(text()).hexdigest() == release().sha256


def test_operator_is_of_that_release_and_nothing_more_is_installed() -> None:
    objects = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests()}
    assert sorted(kind for kind, _ in objects) == sorted(
        [
            "Namespace",
            *["CustomResourceDefinition"] * 4,
            "ServiceAccount",
            "Role",
            "ClusterRole",
            "RoleBinding",
            "ClusterRoleBinding",
            "Service",
            "Deployment",
        ]
    )
    operator = objects["Deployment", DEPLOYMENT]
    assert operator["metadata"]["namespace"] == NAMESPACE
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"quay.io/kuberay/operator:v{release().version}"


def test_what_others_need_comes_first() -> None:
    kinds = [manifest["kind"] for manifest in manifests()]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "Deployment"


def test_definitions_store_version_1() -> None:
    definitions = [each for each in manifests() if each["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == 4
    for definition in definitions:
        assert [item["name"] for item in definition["spec"]["versions"] if item["storage"]] == ["v1"]
