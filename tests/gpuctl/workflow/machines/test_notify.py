"""Test notices of this command: which failures are sent, to which targets, and the secret that signs them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.app import App
from gpuctl.command_line import cli
from gpuctl.errors import Attention, Declined, Failed, GpuctlError
from gpuctl.workflow.machines import notify
from inventories.disk.store import Store
from tests.fakes.webhooks import Receiver, after, receiver


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """gpuctl's folder, in a project of its own."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(notify.SECRET_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def configure(home: Path, server: Receiver, mode: int = 0o600) -> None:
    (home / "config.yaml").write_text(f"notify: ['{server.url}/s3cret']\n")
    (home / "config.yaml").chmod(mode)


def test_up_that_fails_is_sent_to_the_targets_of_the_configuration(home: Path, server: Receiver) -> None:
    configure(home, server)
    assert cli.main(["up", "--provider", "nope"]) == 2
    assert server.requests == []
    (home / "clusters").write_text("in the way")
    assert cli.main(["up", "--provider", "local", "--count", "1"]) == 1
    (request,) = server.requests
    assert request.json["data"]["title"] == "gpuctl up failed"


def test_mistake_in_the_configuration_does_not_hide_the_failure(
    home: Path, server: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(home, server, 0o644)
    with pytest.raises(Failed, match="no power"), notify.failure_sent(App(), (), "up", "default"):
        raise Failed("no power")
    assert "the failure is not sent: " in capsys.readouterr().err
    assert server.requests == []


@pytest.mark.parametrize(
    ("error", "titles"),
    [
        (Failed("x"), ["gpuctl up failed"]),
        (Attention("x"), ["gpuctl up is done in part"]),
        (Declined("x"), []),
    ],
)
def test_no_to_a_question_is_no_failure(
    home: Path, server: Receiver, error: GpuctlError, titles: list[str]
) -> None:
    with pytest.raises(type(error)), notify.failure_sent(App(), (server.url,), "up", "default"):
        raise error
    assert [request.json["data"]["title"] for request in server.requests] == titles


def test_target_that_ctrl_c_cut_off_is_not_known(
    home: Path, server: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Impatient(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(notify, "Thread", Impatient)
    server.answers += [after(1)]
    notify.send_from_here(App(), (server.url,), notify.command_succeeded("up", "default", []))
    expected = f"it is not known whether the notification command.succeeded reached {server.url}/…"
    assert expected in capsys.readouterr().err


def test_commands_at_the_same_time_sign_with_the_same_secret(home: Path) -> None:
    results: list[str] = []
    begin = threading.Barrier(8)

    def make() -> None:
        begin.wait()
        notify._make_secret(home / "notify.secret")
        results.append(notify.settings(Store(home))["secret"])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(results), len(set(results))) == (8, 1)
    assert (home / "notify.secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == ["notify.secret"]
