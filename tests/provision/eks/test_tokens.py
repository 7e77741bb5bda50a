"""Tokens and the kubeconfig that asks for them, as the official client uses it."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from provision.eks import tokens
from provision.rented.managed_kubernetes.api_server import ApiServer, kubeconfig
from tests.fakes.kube.api import KubeApi
from tests.provision.aws.building import a_cluster
from tests.provision.eks.building import signed_for


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKEGPUCTL000001")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret-of-anybody")


def test_token_is_an_address_that_is_signed_for_one_cluster() -> None:
    token, ends_at = tokens.make("gpuctl-demo", "eu-west-1", None)
    signed = signed_for(token)
    assert "=" not in token.removeprefix(tokens.PREFIX)
    assert (signed["Action"], signed["X-Amz-Expires"]) == ("GetCallerIdentity", "60")
    assert signed["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id"
    assert "/eu-west-1/sts/" in signed["X-Amz-Credential"]
    assert timedelta(minutes=13) < ends_at - datetime.now(UTC) < timedelta(minutes=15)


def test_command_prints_a_credential_and_nothing_else() -> None:
    words = [sys.executable, "-P", "-m", "gpuctl", "eks-token", "--name", "x", "--region", "us-east-1"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    result = json.loads(done.stdout)
    assert result["kind"] == "ExecCredential"
    assert result["status"]["token"].startswith(tokens.PREFIX)
    assert done.stderr == ""


def test_official_client_gets_in_by_the_kubeconfig(kube: KubeApi, tmp_path: Path) -> None:
    cluster = a_cluster()
    path = tmp_path / "kubeconfig"
    server = ApiServer(url=f"http://127.0.0.1:{kube.port}", authority="")
    name = cluster.kubernetes_name
    command = ["eks-token", "--name", name, "--region", "us-east-1"]
    path.write_bytes(kubeconfig(name, server, command))
    assert "token" not in yaml.safe_load(path.read_text())["users"][0]["user"]
    api = config.new_client_from_config(str(path))
    nodes = client.CoreV1Api(api).list_node().items
    assert {node.metadata.name for node in nodes} == {"cpu-0", "gpu-0", "gpu-1", "gpu-2"}
