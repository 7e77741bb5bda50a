"""Fixtures for tests of the fake EC2 itself: one fake for all of them, as new for each."""

from collections.abc import Iterator

import pytest

from tests.fakes.aws_proxy.user import Aws, Net, fake_aws


@pytest.fixture(scope="session")
def shared_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """Yield a user of a fake without hosts."""
    with fake_aws(tmp_path_factory.mktemp("aws")) as aws:
        yield aws


@pytest.fixture
def aws(shared_aws: Aws) -> Aws:
    """Yield a user of the fake in its initial state, except for its delays."""
    shared_aws.cloud.reset()
    shared_aws.cloud.settings(launch_s=0.05, terminate_s=0.1)
    return shared_aws


@pytest.fixture
def net(aws: Aws) -> Net:
    """Create a network with one subnet and one security group."""
    return aws.net()
