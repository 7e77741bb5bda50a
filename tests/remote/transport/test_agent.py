"""An SSH agent that takes connections and says nothing holds up nobody."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from inventories.disk.store import ClusterFolder, Store
from inventories.specs.spec import Spec
from provision.local.provider import LocalProvider
from remote.errors import AuthenticationFailed
from remote.sessions.connect import connect
from remote.transport import known_hosts, ssh_agent


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket where the agent's would be: it takes connections, and nothing more happens."""
    path = tmp_path / "agent"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield made
    ssh_agent._silent.discard(str(path))


def test_silent_ssh_agent_is_skipped_and_reported(listener: socket.socket) -> None:
    path = os.environ["SSH_AUTH_SOCK"]
    assert not ssh_agent.complaint(path)
    assert ssh_agent.open_agent(path, login_s=15, answer_s=0.2) is None
    assert path in ssh_agent.complaint(path)
    assert "unset the variable" in ssh_agent.complaint(path)
    began = time.monotonic()
    assert ssh_agent.open_agent(path, login_s=15, answer_s=60) is None, "it is asked once"
    assert time.monotonic() - began < 30


def test_answering_ssh_agent_is_used(listener: socket.socket) -> None:
    key = paramiko.RSAKey.generate(1024)
    keys = struct.pack(">BI", 12, 1) + b"".join(
        struct.pack(">I", len(part)) + part for part in (key.asbytes(), b"mine")
    )

    def answer() -> None:
        existing, _ = listener.accept()
        with existing:
            assert existing.recv(100) == struct.pack(">IB", 1, 11)
            existing.sendall(struct.pack(">I", len(keys)) + keys)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    path = os.environ["SSH_AUTH_SOCK"]
    agent = ssh_agent.open_agent(path, login_s=7, answer_s=30)
    thread.join(30)
    assert [get_key.asbytes() for get_key in agent.get_keys()] == [key.asbytes()]
    assert agent._conn.gettimeout() == 7, "a signature has as long as the login"
    assert not ssh_agent.complaint(path)
    agent.close()


@pytest.mark.parametrize("path", ["", "/nowhere/agent"])
def test_missing_ssh_agent_is_no_error(path: str) -> None:
    assert ssh_agent.open_agent(path, login_s=15) is None
    assert not ssh_agent.complaint(path)


@pytest.mark.slow
def test_connect_with_silent_ssh_agent_uses_keys_of_the_home(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a `key_file` is reached with the user's keys."""
    monkeypatch.setattr(ssh_agent, "ANSWER_S", 0.5)
    folder = Store(tmp_path / "gpuctl").cluster("default")
    provider = LocalProvider(folder)
    (made,) = provider.create(provider.plan(Spec(provider="local", count=1), None), folder.journal)
    try:
        key = made.key_file.read_text()
        pinned = ClusterFolder(tmp_path / "pinned")
        pinned.make()
        pinned.known_hosts_path.write_text(known_hosts.render([made]))
        monkeypatch.setenv("HOME", str(tmp_path))
        theirs = replace(made, key_file=None)
        with pytest.raises(AuthenticationFailed, match=r"no key to offer.*Your SSH agent .* did not answer"):
            connect(theirs, pinned)
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "id_ed25519").write_text(key)
        node = connect(theirs, pinned)
        assert node.run("echo there").stdout == b"there\n"
        node.close()
    finally:
        assert provider.destroy() == ()
