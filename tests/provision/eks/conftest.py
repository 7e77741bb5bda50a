"""Share one fake AWS within a file of tests, emptied before each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi
from tests.provision.aws.building import SPEED, running_fake
from tests.provision.eks.building import User, api_server


@pytest.fixture(scope="module")
def fake_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with running_fake(tmp_path_factory.mktemp("aws")) as fake:
        yield fake


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    with api_server() as api:
        yield api


@pytest.fixture
def fake(fake_process: FakeCloud, kube: KubeApi) -> FakeCloud:
    fake_process.reset()
    url = f"http://127.0.0.1:{kube.port}"
    fake_process.settings(speed=SPEED, eks_endpoint=url, eks_cluster_s=2.0, eks_gone_s=2.0, eks_drain_s=30.0)
    return fake_process


@pytest.fixture
def user(fake: FakeCloud, tmp_path: Path) -> User:
    assert fake
    return User(tmp_path / "home")
