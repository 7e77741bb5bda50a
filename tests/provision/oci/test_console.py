"""The serial console of a machine on OCI: captured, read and removed again."""

import pytest

from provision.errors import CloudError, Denied, Gone, Unclear
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, operations

HISTORY = ["CaptureConsoleHistory", "GetConsoleHistoryContent", "DeleteConsoleHistory"]


@pytest.fixture
def machine(builder: Builder, fake: FakeCloud) -> str:
    (made,) = builder.machines()
    fake.forget_calls()
    return made.id


def histories(fake: FakeCloud) -> list[str]:
    return [part["id"] for part in fake.state()["resources"] if part["kind"] == "consolehistory"]


def test_the_end_of_the_console(builder: Builder, fake: FakeCloud, machine: str) -> None:
    text = builder.cloud.console(machine)
    assert text is not None
    assert "Linux version" in text
    assert text.endswith("demo-0 login: \n")
    assert [name for name in operations(fake) if name != "GetConsoleHistory"] == HISTORY
    assert histories(fake) == []


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "duplicate"])
def test_replies_that_are_lost_leave_nothing(
    builder: Builder, fake: FakeCloud, machine: str, fault: str
) -> None:
    for operation in ("CaptureConsoleHistory", "GetConsoleHistory*", "DeleteConsoleHistory"):
        fake.fault(operation=operation, kind=fault)
    assert "login:" in (builder.cloud.console(machine) or "")
    assert histories(fake) == []


def test_a_history_that_can_not_be_removed_hides_nothing(
    builder: Builder, fake: FakeCloud, machine: str
) -> None:
    fake.fault(operation="DeleteConsoleHistory", times=0, kind="error", status=409, code="IncorrectState")
    assert "login:" in (builder.cloud.console(machine) or "")


def test_one_that_can_not_be_read_is_removed(builder: Builder, fake: FakeCloud, machine: str) -> None:
    fake.fault(operation="GetConsoleHistoryContent", times=0, kind="error", status=500)
    with pytest.raises(Unclear):
        builder.cloud.console(machine)
    assert histories(fake) == []


def test_a_refusal_names_the_policy(builder: Builder, fake: FakeCloud, machine: str) -> None:
    denied = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "Not found"}
    fake.fault(operation="CaptureConsoleHistory", **denied)
    with pytest.raises((Denied, Gone), match="Allow group <your group> to manage instance-family"):
        builder.cloud.console(machine)


def test_one_that_is_never_captured(builder: Builder, fake: FakeCloud, machine: str) -> None:
    fake.settings(launch_s=60_000)
    with pytest.raises(CloudError, match=r"was still REQUESTED after 60 s\.$"):
        builder.cloud.console(machine)
    assert histories(fake) == []
