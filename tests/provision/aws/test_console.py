"""The serial console of a machine on AWS."""

import pytest

from provision.errors import CloudError, Denied
from tests.fakes.aws_proxy.images import SSM_UBUNTU
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import User, a_cluster, running


def asked(fake: FakeCloud) -> list[int]:
    return [call["status"] for call in fake.calls("GetConsoleOutput")]


def test_console_returns_each_machines_output(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster())
    first, second = running(user, 2)
    fake.forget_calls()
    assert user.cloud.console(first.id) == f"cloud-init: {first.id} is up\n"
    assert user.cloud.console(second.id) == f"cloud-init: {second.id} is up\n"
    assert asked(fake) == [200, 200]


def test_console_is_none_before_any_output(user: User, fake: FakeCloud) -> None:
    fake.settings(launch_s=60)
    (machine,) = user.launch(a_cluster(), 1)
    assert user.cloud.console(machine) is None


def test_console_falls_back_where_latest_output_is_unsupported(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster(shape="p3.2xlarge", image=SSM_UBUNTU), 1)
    (machine,) = running(user, 1)
    fake.forget_calls()
    assert user.cloud.console(machine.id) == f"cloud-init: {machine.id} is up\n"
    assert asked(fake) == [400, 200]


def test_console_fails_at_once_when_denied(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster(), 1)
    (machine,) = running(user, 1)
    fake.forget_calls()
    fake.settings(denied=["GetConsoleOutput"])
    with pytest.raises(Denied, match="allow ec2:GetConsoleOutput"):
        user.cloud.console(machine.id)
    assert asked(fake) == [403]


def test_console_gives_up_on_throttling_within_a_minute(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster(), 1)
    (machine,) = running(user, 1)
    fake.fault(operation="GetConsoleOutput", times=0, kind="error", status=503, code="RequestLimitExceeded")
    began = user.clock.now()
    with pytest.raises(CloudError):
        user.cloud.console(machine.id)
    assert user.clock.now() - began < 60
