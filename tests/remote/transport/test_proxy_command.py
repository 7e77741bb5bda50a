"""Proxy commands: real programs that end, hang up, or cannot be started."""

import os
import resource
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import a_machine, wait_for

from inventories.user_programs import without_secrets
from remote.errors import Unreachable
from remote.sessions.login_shell import typed_ssh
from remote.transport import proxy_command
from remote.transport.paramiko_errors import HungUp
from remote.transport.proxy_command import ProxyStream, failure_of

IGNORES = "trap '' TERM; sleep 300"


@pytest.mark.parametrize("script", [f"({IGNORES}) & wait", f"trap '' TERM; ({IGNORES}) & wait"])
def test_closed_proxy_command_ends_with_its_children(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_command, "END_S", 0.5)
    program = tmp_path / "proxy"
    program.write_text(script)
    stream = ProxyStream("box", f"sh {program}")
    shell = psutil.Process(stream._process.pid)

    def sleeps() -> list[psutil.Process]:
        return [process for process in shell.children(recursive=True) if process.name() == "sleep"]

    wait_for(sleeps, what="the program running", deadline_s=10)
    family = [shell, *shell.children(recursive=True)]
    stream.close()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


def test_proxy_command_that_can_not_be_started_leaves_no_file_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = os.open(os.devnull, os.O_RDONLY)
    before = psutil.Process().num_fds()
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 5, limits[1]))
    try:
        with pytest.raises(
            Unreachable, match=r"^box: ProxyCommand `true` can't be started: Too many open files"
        ):
            ProxyStream("box", "true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(opened)
    assert psutil.Process().num_fds() == before - 1


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo kex_exchange_identification: Connection closed by remote host >&2; exit 255", HungUp),
        ("exit 0", HungUp),
        (
            "echo 'me@gate: Permission denied (publickey).' >&2; echo Connection closed >&2; exit 255",
            Unreachable,
        ),
        ("no-such-program", Unreachable),
    ],
)
def test_proxy_command_that_ends_before_the_banner_counts_as_hung_up(
    script: str, kind: type[Unreachable]
) -> None:
    stream = ProxyStream("box", f"sh -c {proxy_command.shlex.quote(script)}")
    assert stream.recv(1) == b""
    error = failure_of(stream, HungUp("it hung up"))
    assert type(error) is kind
    assert "ended before SSH answered" in str(error)
    assert type(failure_of(stream, Unreachable("Negotiation failed."))) is kind


def test_proxy_command_that_ends_after_the_banner_is_not_tried_again() -> None:
    stream = ProxyStream("box", "echo SSH-2.0-server")
    while stream.recv(100):
        pass
    assert type(failure_of(stream, Unreachable("SSH failed in its key exchange"))) is Unreachable


def test_reason_of_a_proxy_command_steers_no_terminal() -> None:
    stream = ProxyStream("box", r"printf '\033[2Jno way\n' >&2")
    stream.recv(1)
    assert "It printed '[2Jno way'." in str(failure_of(stream, HungUp("it hung up")))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sshpass -p hidden ssh -W h:22 gate", "sshpass …"),
        ("cloudflared access ssh --hostname h --service-token-secret hidden", "cloudflared …"),
        ("SSHPASS=hidden sshpass -e ssh gate", "sshpass …"),
        ("curl -x http://me:hidden@proxy h", "curl …"),
        (
            "ssh -o StrictHostKeyChecking=yes -W h:22 -- gate",
            "ssh -o StrictHostKeyChecking=yes -W h:22 -- gate",
        ),
    ],
)
def test_command_is_shown_without_its_secrets(command: str, text: str) -> None:
    assert without_secrets(command) == text


def test_typed_ssh_has_no_secret_of_a_proxy_command() -> None:
    machine = a_machine(
        name="box",
        state="unknown",
        host="192.0.2.1",
        private_ip="",
        gpus=None,
        proxy_command="sshpass -p hidden ssh -W 192.0.2.1:22 gate",
    )
    assert "hidden" not in typed_ssh(machine, "true")
    assert typed_ssh(replace(machine, ssh_alias="gpu"), "true") == "ssh gpu true"
