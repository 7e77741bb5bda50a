"""Share one fake OCI within a file of tests, emptied before each test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.client import FakeCloud, start_fake
from tests.fakes.kube.api import KubeApi
from tests.provision.oci.building import SPEED
from tests.provision.oke.building import User, api_server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with start_fake("oci", tmp_path_factory.mktemp("cloud")) as fake:
        yield fake


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    with api_server() as api:
        yield api


@pytest.fixture
def fake(running: FakeCloud, kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    for name in os.environ:
        if name.startswith(("OCI_", "GPUCTL_OCI", "GPUCTL_CONSISTENCY")):
            monkeypatch.delenv(name)
    for name, value in running.env.items():
        monkeypatch.setenv(name, value)
    running.reset()
    running.settings(speed=SPEED, oke_endpoint=f"http://127.0.0.1:{kube.port}")
    return running


@pytest.fixture
def user(fake: FakeCloud, tmp_path: Path) -> User:
    assert fake
    return User(tmp_path / "home")
