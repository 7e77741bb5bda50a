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


def test_console_returns_output_and_deletes_the_history(
    builder: Builder, fake: FakeCloud, machine: str
) -> None:
    text = builder.cloud.console(machine)
    assert text is not None
    assert "Linux version" in text
    assert text.endswith("demo-0 login: \n")
    assert [name for name in operations(fake) if name != "GetConsoleHistory"] == HISTORY
    assert histories(fake) == []


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "duplicate"])
def test_console_with_lost_replies_leaves_no_history(
    builder: Builder, fake: FakeCloud, machine: str, fault: str
) -> None:
    for operation in ("CaptureConsoleHistory", "GetConsoleHistory*", "DeleteConsoleHistory"):
        fake.fault(operation=operation, kind=fault)
    assert "login:" in (builder.cloud.console(machine) or "")
    assert histories(fake) == []


def test_console_returns_output_though_deletion_fails(
    builder: Builder, fake: FakeCloud, machine: str
) -> None:
    fake.fault(operation="DeleteConsoleHistory", times=0, kind="error", status=409, code="IncorrectState")
    assert "login:" in (builder.cloud.console(machine) or "")


def test_console_deletes_a_history_it_cannot_read(builder: Builder, fake: FakeCloud, machine: str) -> None:
    fake.fault(operation="GetConsoleHistoryContent", times=0, kind="error", status=500)
    with pytest.raises(Unclear):
        builder.cloud.console(machine)
    assert histories(fake) == []


def test_console_denied_names_the_policy(builder: Builder, fake: FakeCloud, machine: str) -> None:
    denied = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "Not found"}
    fake.fault(operation="CaptureConsoleHistory", **denied)
    with pytest.raises((Denied, Gone), match="Allow group <your group> to manage instance-family"):
        builder.cloud.console(machine)


def test_console_times_out_on_a_capture_that_never_ends(
    builder: Builder, fake: FakeCloud, machine: str
) -> None:
    fake.settings(launch_s=60_000)
    with pytest.raises(CloudError, match=r"was still REQUESTED after 60 s\.$"):
        builder.cloud.console(machine)
    assert histories(fake) == []
