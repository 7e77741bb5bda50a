"""A machine as a `fabric.Connection`: Fabric's own methods, and no host key but the pinned one."""

import gc
import io
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Thread, Timer

import paramiko
import pytest
from fabric import GroupResult
from fabric.exceptions import GroupException
from invoke.exceptions import UnexpectedExit

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from remote.errors import HostKeyRejected, Unreachable
from remote.fabfile import failure
from remote.transport import known_hosts
from remote.transport.fabric_connection import PinnedConnection, PinnedGroup
from tests.support import wait_for


def pin(folder: Path, *machines: Machine) -> ClusterFolder:
    cluster = ClusterFolder(folder)
    cluster.make()
    cluster.known_hosts_path.write_text(known_hosts.render(machines))
    return cluster


@pytest.fixture
def pinned(host: Machine, tmp_path: Path) -> ClusterFolder:
    return pin(tmp_path / "pinned", host)


def quiet(connection: PinnedConnection) -> PinnedConnection:
    connection.config.run.hide = True
    connection.config.run.in_stream = False
    return connection


def test_connection_runs_and_copies_with_fabrics_own_methods(
    host: Machine, pinned: ClusterFolder, tmp_path: Path
) -> None:
    with quiet(PinnedConnection(host, pinned)) as box:
        done = box.run("echo out; echo err >&2; exit 3", warn=True)
        assert (done.stdout, done.stderr, done.exited) == ("out\n", "err\n", 3)
        with pytest.raises(UnexpectedExit):
            box.run("exit 4")
        assert box.run("echo $A", env={"A": "b"}).stdout == "b\n"
        with box.cd("/"), box.prefix("A=c"):
            assert box.run("echo $PWD $A").stdout == "/ c\n"
        existing = str(tmp_path / "there")
        box.put(io.BytesIO(b"bytes"), existing)
        box.get(existing, str(tmp_path / "back" / "{basename}"))
        assert (tmp_path / "back" / "there").read_bytes() == b"bytes"
        before = box.client
        box.close()
        assert not box.is_connected
        assert box.run("echo again").stdout == "again\n"
        box.put(io.BytesIO(b"more"), existing)
        assert box.client is not before


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_connection_runs_commands_here_too(host: Machine, pinned: ClusterFolder) -> None:
    box = quiet(PinnedConnection(host, pinned))
    assert box.local("echo here").stdout == "here\n"
    assert not box.is_connected
    gc.collect()  # Invoke leaves the pipes of a local command to be found


def test_connection_forwards_a_port(host: Machine, pinned: ClusterFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    answers = f"{sys.executable} -c '{SAYS_HELLO}'"
    with quiet(PinnedConnection(host, pinned)) as box:
        box.open()
        _, out, _ = box.client.exec_command(answers, timeout=20)
        existing = int(out.readline())
        with (
            box.forward_local(local, remote_port=existing, remote_host="127.0.0.1"),
            connect_once_it_listens(local) as peer,
        ):
            assert peer.recv(100) == b"hello"


def connect_once_it_listens(port: int) -> socket.socket:
    """Return a socket connected to the port, with retries: Fabric continues before its thread listens."""

    def connected() -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        return None

    return wait_for(connected, what="listening at the forwarded port")


SAYS_HELLO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.sendall(b"hello")
peer.close()
"""


class Curious(paramiko.ServerInterface):
    """A server that records the logins."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def get_allowed_auths(self, username: str) -> str:
        self.told.append(username)
        return "none,password,publickey"

    def check_auth_none(self, username: str) -> int:
        self.told.append(username)
        return paramiko.common.AUTH_SUCCESSFUL

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.told.append(username)
        return paramiko.common.AUTH_SUCCESSFUL


def test_connection_refuses_a_changed_host_key_before_it_sends_anything(
    host: Machine, tmp_path: Path
) -> None:
    """Another server at the machine's address learns neither the user's name nor a key of theirs, nor gets a file."""
    curious, shown = Curious(), paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as servers:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                server = paramiko.Transport(peer)
                servers.callback(server.close)
                server.add_server_key(shown)
                server.start_server(event=Event(), server=curious)

        Thread(target=serve, daemon=True).start()
        elsewhere = replace(host, port=listener.getsockname()[1])
        other = paramiko.ECDSAKey.generate()
        box = PinnedConnection(elsewhere, pin(tmp_path / "pinned", replace(elsewhere, host_key=line(other))))
        for use in (box.open, lambda: box.run("true"), lambda: box.put(io.BytesIO(b"x"), "x"), box.sftp):
            with pytest.raises(HostKeyRejected, match=r"has changed.*Nothing was sent"):
                use()
            assert not box.is_connected
        none = PinnedConnection(elsewhere, pin(tmp_path / "none"))
        with pytest.raises(HostKeyRejected, match="no host key is pinned"):
            none.run("true")
        assert curious.told == []
        right = pin(tmp_path / "right", replace(elsewhere, host_key=line(shown)))
        with PinnedConnection(elsewhere, right) as trusted:
            trusted.open()
        assert host.user in curious.told
        listener.shutdown(socket.SHUT_RDWR)


def line(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def test_connection_takes_nothing_from_the_users_files(
    host: Machine, pinned: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other user, host, key or gateway is used, and no Python file that Fabric would run as settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FABRIC_PORT", "1")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "Host *\n  HostName elsewhere.invalid\n  User nobody\n  ProxyJump gate.invalid\n  ForwardAgent yes\n"
    )
    (tmp_path / ".fabric.py").write_text("raise SystemExit('it was run')")
    (tmp_path / ".fabric.yaml").write_text("user: nobody\ngateway: gate.invalid\nforward_agent: true\n")
    with quiet(PinnedConnection(host, pinned)) as box:
        assert (box.host, box.port, box.user) == (host.host, host.port, host.user)
        assert (box.gateway, box.forward_agent) == (False, False)
        box.gateway = "nc gate.invalid 22"  # a route that must not be used
        assert box.run("echo there").stdout == "there\n"


@pytest.mark.parametrize(
    ("shape", "refused", "silent"),
    [
        (None, "that its SSH server listens at port", "its firewall lets this computer in at port"),
        (
            "VM.GPU.A10.2",
            "`gpuctl up` replaces a machine that is gone",
            "`gpuctl up` lets the new address in",
        ),
    ],
)
def test_connection_names_the_stage_that_failed(
    host: Machine, pinned: ClusterFolder, shape: str | None, refused: str, silent: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    machine = replace(host, port=port, shape=shape)
    with pytest.raises(Unreachable, match=f"no TCP connection: .*{refused}"):
        PinnedConnection(machine, pinned).run("true")
    with ExitStack() as full:
        server = full.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # the queue of connections is then full, and the kernel answers no other one
            waiting = full.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        machine = replace(machine, port=server.getsockname()[1])
        with pytest.raises(Unreachable, match=f"no answer within 1 s.*{silent}"):
            PinnedConnection(machine, pinned, timeout_s=1).run("true")


def test_a_broken_connection_is_no_success_and_told_apart_from_a_signal(
    host: Machine, pinned: ClusterFolder, tmp_path: Path
) -> None:
    with quiet(PinnedConnection(host, pinned)) as box:
        with pytest.raises(UnexpectedExit) as ended:
            box.run("kill -9 $$")
        assert failure(ended.value, tmp_path, box) == "a signal ended `kill -9 $$`."
        cut = Timer(0.2, box.transport.close)
        cut.start()
        with pytest.raises(UnexpectedExit) as broken:
            box.run("sleep 60")
        assert failure(broken.value, tmp_path, box) == "the connection broke during `sleep 60`."
        cut.join()
        assert box.run("echo again").stdout == "again\n"


def test_many_connections_are_made_at_once_from_threads(host: Machine, pinned: ClusterFolder) -> None:
    """Settings that threads fill together would lack a key now and then."""
    for _ in range(5):
        start = Barrier(64)

        def make(_number: int, start: Barrier = start) -> tuple[object, ...]:
            start.wait(20)
            box = PinnedConnection(host, pinned)
            config = box.config
            return (box.gateway, config.gateway, config.run.hide, config.sudo.prompt, config.timeouts.connect)

        with ThreadPoolExecutor(64) as threads:
            made = list(threads.map(make, range(64)))
        assert set(made) == {(False, None, None, "[sudo] password: ", None)}


def test_one_connection_is_opened_once_by_many_threads(host: Machine, pinned: ClusterFolder) -> None:
    with PinnedConnection(host, pinned) as box:
        clients: list[object] = []
        threads = [Thread(target=lambda: (box.open(), clients.append(box.client))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert clients == [box.client] * 8


def test_group_runs_on_all_and_keeps_every_outcome(
    host: Machine, pinned: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines with the same address are distinguished by their names, and so are the files downloaded from them."""
    machines = [replace(host, name=f"box-{number}", rank=number) for number in range(3)]
    with PinnedGroup(machines, pinned) as group:
        done = group.run("echo $SSH_CONNECTION", hide=True, in_stream=False)
        assert isinstance(done, GroupResult)
        assert [box.machine.name for box in done] == ["box-0", "box-1", "box-2"]
        assert len({result.stdout for result in done.values()}) == 3
        missing = PinnedConnection(replace(host, name="gone", port=1), pinned)
        group.append(missing)
        with pytest.raises(GroupException) as failed:
            group.run("true", hide=True, in_stream=False)
        assert list(failed.value.result.failed) == [missing]
        assert isinstance(failed.value.result[missing], Unreachable)
        group.remove(missing)
        (tmp_path / "file").write_text("text")
        monkeypatch.chdir(tmp_path)
        group.get(str(tmp_path / "file"))
        assert [(tmp_path / box.machine.name / "file").read_text() for box in group] == ["text"] * 3
    assert not any(box.is_connected for box in group)
