"""EC2 over HTTP in tests/fakes/aws_proxy, one for each file of tests, emptied before each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.aws.cloud import AwsCloud
from provision.records import Target
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import SPEED, FastClock, User, running_fake


@pytest.fixture(scope="module")
def fake_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with running_fake(tmp_path_factory.mktemp("aws")) as fake:
        yield fake


@pytest.fixture(scope="module")
def account(fake_process: FakeCloud) -> AwsCloud:
    return AwsCloud(Target(provider="aws"), clock=FastClock())


@pytest.fixture
def fake(fake_process: FakeCloud) -> FakeCloud:
    fake_process.reset()
    fake_process.settings(speed=SPEED)
    return fake_process


@pytest.fixture
def user(fake: FakeCloud, account: AwsCloud, tmp_path: Path) -> User:
    return User(tmp_path / "home", account)
