"""The state of the watch that ends unused machines, as a machine answers it."""

import socket
from pathlib import Path
from typing import Any

import openssh
import pytest

from remote.checks.idle import SIGNALS, IdleState, parse
from remote.errors import BadAnswer
from remote.node.checks import idle

WATCH = {
    "at_s": 1000.0,
    "round_s": 30,
    "over": False,
    "ends_at_s": 2500.0,
    "keep_until_s": None,
    "signals": {"run": True, "queue": False, "gpu": None, "login": False, "cpu": False, "transfer": False},
}


def test_state_of_a_watch_is_read() -> None:
    state = parse("gpu-0", {"now_s": 1020.0, "watch": WATCH | {"keep_until_s": 1120.0}})
    assert state == IdleState(running=True, ends_in_s=1480.0, keep_s=100.0, signals=WATCH["signals"])  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [{"now_s": 1.0, "watch": {}}, {"now_s": 1300.0, "watch": WATCH}])
def test_watch_without_a_recent_state_does_not_run(answer: dict[str, Any]) -> None:
    assert parse("gpu-0", answer) == IdleState(running=False, signals=dict.fromkeys(SIGNALS))


@pytest.mark.parametrize(
    "answer",
    [{}, {"now_s": "x", "watch": WATCH}, {"now_s": 1.0, "watch": {"at_s": 1.0}}, {"now_s": 1, "watch": 3}],
)
def test_unreadable_state_is_a_bad_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer, match="gpu-0: no state of its idle watch"):
        parse("gpu-0", answer)


@pytest.mark.parametrize(
    ("script", "others"),
    [
        ("echo '0 0 10.0.0.1:22 192.0.2.7:5000'", False),
        ("echo '0 0 10.0.0.1:22 192.0.2.7:5000'; echo '0 0 10.0.0.1:22 192.0.2.8:6000'", True),
        ("exit 1", True),
        ("exec sleep 60", True),
        (None, True),
    ],
)
def test_other_logins_count_also_where_they_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, others: bool
) -> None:
    if script is not None:
        (tmp_path / "ss").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ss").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 5000 10.0.0.1 22")
    monkeypatch.setattr(idle, "SS_S", 0.5)
    assert idle.has_other_logins() is others


@openssh.needs_sshd
def test_client_that_did_not_log_in_is_no_other_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with openssh.sshd(tmp_path / "sshd") as server:
        monkeypatch.setenv("SSH_CONNECTION", f"127.0.0.1 1 127.0.0.1 {server.port}")
        with socket.create_connection(("127.0.0.1", server.port)) as scanner:
            assert scanner.recv(4) == b"SSH-"
            assert not idle.has_other_logins()
