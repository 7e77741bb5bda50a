"""Machines behind a bastion: real SSH servers, one of which is the way to the others."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import paramiko
import psutil
import pytest
from support import wait_for

from inventories.address import read_bastion
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from inventories.user_ssh import SshSettings
from provision.local.provider import LocalProvider
from provision.ssh_keys import make_key
from remote.errors import AuthenticationFailed, ConnectionLost, HostKeyRejected, RemoteError, Unreachable
from remote.fanout import fan_out, values
from remote.sessions.connect import connect, reconnect
from remote.transport import host_keys, known_hosts, ssh_config, tunnel

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, ...]]:
    """Three hosts; the first is the bastion of the others, which know it by its address."""
    folder = Store(tmp_path_factory.mktemp("home")).cluster("default")
    provider = LocalProvider(folder)
    made = provider.create(provider.plan(Spec(provider="local", count=3), None), folder.journal)
    bastion = f"{made[0].user}@127.0.0.1:{made[0].port}"
    yield (made[0], *(replace(machine, bastion=bastion) for machine in made[1:]))
    assert provider.destroy() == ()


@pytest.fixture
def home(hosts: Sequence[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who knows the bastion and has a key for it."""
    ssh = tmp_path / "user" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "known_hosts").write_text(known_hosts.render(hosts[:1]))
    (ssh / "config").write_text(f"Host 127.0.0.1\n  IdentityFile {hosts[0].key_file}\n  IdentitiesOnly yes\n")
    monkeypatch.setenv("HOME", str(ssh.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return ssh


@pytest.fixture
def pinned(hosts: Sequence[Machine], tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path / "pinned")
    folder.make()
    folder.known_hosts_path.write_text(known_hosts.render(hosts[1:]))
    return folder


def connections(*machines: Machine) -> int:
    """Connections from this process to the machines' ports."""
    ports = {machine.port for machine in machines}
    result = psutil.Process().net_connections("tcp")
    return sum(
        1 for item in result if item.raddr and item.raddr.port in ports and item.status == "ESTABLISHED"
    )


def closed() -> None:
    """Wait until no connection to a bastion is open; paramiko's own threads may be the last to close it."""
    wait_for(lambda: not tunnel._open, what="the connection to the bastion closing", deadline_s=60)


def failure(machine: Machine, pinned: ClusterFolder, kind: type[RemoteError], timeout_s: float = 10) -> str:
    with pytest.raises(kind) as caught:
        connect(machine, pinned, timeout_s=timeout_s)
    assert type(caught.value) is kind
    closed()
    return str(caught.value)


def test_tunnel_shares_one_connection_to_the_bastion(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    behind = {machine.name: machine for machine in hosts[1:]}
    nodes = values(fan_out(lambda machine: connect(machine, pinned), behind))
    try:
        assert (connections(hosts[0]), connections(*hosts[1:])) == (1, 0)
        for machine in hosts[1:]:
            done = nodes[machine.name].run("echo $SSH_CONNECTION; head -c 3000000 /dev/zero")
            assert done.stdout.split()[3] == str(machine.port).encode()
            assert len(done.stdout) > 3_000_000
        nodes.pop(hosts[1].name).close()
        assert nodes[hosts[2].name].run("echo there").stdout == b"there\n"
    finally:
        for node in nodes.values():
            node.close()
    closed()
    wait_for(lambda: connections(hosts[0]) == 0, what="the connection closing", deadline_s=60)
    again = connect(hosts[1], pinned)
    assert again.run("echo again").stdout == b"again\n"
    again.close()


def test_tunnel_reconnects_after_a_broken_connection(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    node = connect(hosts[1], pinned)
    (shared,) = tunnel._open.values()
    transport = shared.client.result().get_transport()
    transport.close()
    with pytest.raises(ConnectionLost, match=hosts[1].name):
        node.run("true")
    second = reconnect(hosts[1], pinned, deadline_s=10)
    node.close()
    assert second.run("echo back").stdout == b"back\n"
    second.close()
    closed()


def test_tunnel_refuses_an_unknown_or_changed_bastion_key(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    (home / "known_hosts").write_text("")
    output = failure(hosts[1], pinned, HostKeyRejected)
    assert output.startswith(f"{hosts[1].name}: bastion {hosts[1].bastion}: no host key of [127.0.0.1]:")
    assert "Connect once by hand" in output
    assert f"ssh-keyscan -p {hosts[0].port} 127.0.0.1" in output
    assert (home / "known_hosts").read_text() == ""

    other = make_key(home / "other")
    (home / "known_hosts").write_text(known_hosts.render([replace(hosts[0], host_key=other)]))
    output = failure(hosts[1], pinned, HostKeyRejected)
    assert f"bastion {hosts[1].bastion}: its host key has changed" in output
    assert f"ssh-keygen -R '[127.0.0.1]:{hosts[0].port}'" in output


def test_tunnel_checks_the_host_key_of_the_machine(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    pinned.known_hosts_path.write_text(
        known_hosts.render([replace(hosts[1], host_key=make_key(home / "other"))])
    )
    output = failure(replace(hosts[1], shape=None), pinned, HostKeyRejected)
    assert "the host key has changed" in output
    assert output.endswith("pins the new one.")
    shown = host_keys.pin(replace(hosts[1], host_key=None), [pinned.known_hosts_path], accept_new=False)
    assert shown.host_key != hosts[1].host_key
    request = host_keys.pin(replace(hosts[1], host_key=None), [], accept_new=True)
    assert request.host_key == hosts[1].host_key, "asked over the bastion"
    closed()


def test_proxy_command_that_is_hung_up_on_is_tried_again(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder, tmp_path: Path
) -> None:
    mark, script = tmp_path / "mark", tmp_path / "proxy"
    script.write_text(
        f"test -e {mark} || {{ touch {mark}; echo kex_exchange_identification: Connection closed >&2; exit 255; }}\n"
        f"exec 3<>/dev/tcp/127.0.0.1/{hosts[1].port}; cat <&3 & cat >&3\n"
    )
    machine = replace(hosts[1], bastion=None, proxy_command=f"bash {script}")
    assert host_keys.pin(replace(machine, host_key=None), [], accept_new=True).host_key == machine.host_key
    mark.unlink()
    node = connect(machine, pinned)
    assert node.run("echo again").stdout == b"again\n"
    node.close()


def test_tunnel_names_the_keys_a_bastion_refused(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    (home / "config").write_text("")
    output = failure(hosts[1], pinned, AuthenticationFailed)
    assert f"bastion {hosts[1].bastion}: it did not accept the keys of your agent and of ~/.ssh" in output
    make_key(home / "wrong")
    (home / "config").write_text("Host 127.0.0.1\n  IdentityFile ~/.ssh/wrong\n")
    assert f"it did not accept {home}/wrong" in failure(hosts[1], pinned, AuthenticationFailed)


def test_tunnel_reports_a_machine_that_does_not_answer(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    output = failure(replace(hosts[1], port=port), pinned, Unreachable)
    assert f"{hosts[1].name}: bastion {hosts[1].bastion}: it can't connect to 127.0.0.1:{port}" in output
    with socket.create_server(("127.0.0.1", 0)) as silent:
        machine = replace(hosts[1], port=silent.getsockname()[1])
        pinned.known_hosts_path.write_text(known_hosts.render([machine]))
        assert "SSH failed in its banner" in failure(machine, pinned, Unreachable, timeout_s=0.5)


def accepted(listener: socket.socket) -> int:
    """Return the number of pending connections."""
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_tunnel_waits_once_for_a_silent_bastion(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gate = replace(hosts[0], port=silent.getsockname()[1])
        (home / "known_hosts").write_text(known_hosts.render([gate]))
        bastion = f"me@127.0.0.1:{gate.port}"
        behind = {str(n): replace(hosts[1], name=f"n{n}", bastion=bastion) for n in range(8)}
        outcomes = fan_out(lambda machine: connect(machine, pinned, timeout_s=1.0), behind)
        assert accepted(silent) == 1
    for number, outcome in enumerate(outcomes):
        assert str(outcome.error).startswith(
            f"n{number}: bastion {bastion}: the port answers, but SSH failed"
        )
    output = failure(replace(hosts[1], bastion=bastion), pinned, Unreachable)
    assert f"bastion {bastion}: no TCP connection to 127.0.0.1:{gate.port}: Connection refused" in output
    closed()


def test_tunnel_detects_a_machine_that_stops_answering(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "ASK_EVERY_S", 0.3)
    monkeypatch.setattr(tunnel, "DEAD_PEER_S", 1.0)
    node, other = connect(hosts[1], pinned), connect(hosts[2], pinned)
    pid = int(node.run("echo $PPID").stdout)
    assert node.run("sleep 2; echo patient").stdout == b"patient\n", (
        "silence of a command is no silence of its host"
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match=hosts[1].name):
            node.run("true")
        assert time.monotonic() - began < 20
        assert other.run("echo fine").stdout == b"fine\n"
    finally:
        os.kill(pid, signal.SIGCONT)
        node.close()
        other.close()
    closed()


@contextmanager
def openssh_server(home: Path, *settings: str) -> Iterator[str]:
    """sshd as the user who runs the tests, known and open to the user of `home`; yields `user@host:port`."""
    folder = home / "sshd"
    folder.mkdir(mode=0o700, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (home / "known_hosts").write_text(f"[127.0.0.1]:{port} {make_key(folder / 'host_key')}\n")
    (folder / "authorized_keys").write_text(make_key(home / "id_ed25519"))
    (home / "config").write_text("")
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", "PidFile none", "UsePAM no",
        f"AuthorizedKeysFile {folder}/authorized_keys", "StrictModes no", "PermitRootLogin prohibit-password",
        *settings,
    ]  # fmt: skip
    (folder / "config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        output = folder / "log"
        wait_for(lambda: b"Server listening" in output.read_bytes(), what="sshd listening", deadline_s=10)
        yield f"{getpass.getuser()}@127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


needs_sshd = pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's server")


@needs_sshd
def test_tunnel_works_over_an_openssh_server(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    with openssh_server(home, "MaxSessions 1", "MaxStartups 2") as bastion:
        behind = {str(n): replace(hosts[1 + n % 2], name=f"n{n}", bastion=bastion) for n in range(16)}
        nodes = values(fan_out(lambda machine: connect(machine, pinned), behind))
        answers = [node.run("echo it works").stdout for node in nodes.values()]
        for node in nodes.values():
            node.close()
    assert answers == [b"it works\n"] * 16
    closed()


@needs_sshd
def test_tunnel_reports_a_bastion_that_forbids_forwarding(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder
) -> None:
    with openssh_server(home, "AllowTcpForwarding no") as bastion:
        output = failure(replace(hosts[1], bastion=bastion), pinned, Unreachable)
    assert (
        f"bastion {bastion}: it may not forward to 127.0.0.1:{hosts[1].port}. Set AllowTcpForwarding"
        in output
    )


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the system's ssh client")
def test_openssh_connects_with_the_rendered_jump_config(
    hosts: Sequence[Machine], home: Path, pinned: ClusterFolder, tmp_path: Path
) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(ssh_config.render(hosts[1:], pinned.known_hosts_path))
    assert config.read_text().count("Host 127.0.0.1\n") == 1

    def ssh() -> "subprocess.CompletedProcess[str]":
        command = ["ssh", "-F", str(config), "-oBatchMode=yes", "--", hosts[1].name, "echo $SSH_CONNECTION"]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)

    done = ssh()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[3] == str(hosts[1].port)
    (home / "known_hosts").write_text("")
    refused = ssh()
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    assert (home / "known_hosts").read_text() == ""


def test_read_way_resolves_the_users_configuration_as_ssh_does(home: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    (tmp_path / "included").write_text(
        f"Host gate\r\n  HostName 192.0.2.7\r\n  Port 2200\n  IdentityFile {tmp_path}/%r\n  IdentityFile {key}\n"
        f"  IdentitiesOnly yes\n  IdentityAgent {tmp_path}/agent\n  UserKnownHostsFile {tmp_path}/a {tmp_path}/b\n"
    )
    (home / "config").write_text(
        f"IgnoreUnknown UseKeychain\nUseKeychain yes\nInclude {tmp_path}/included\n"
        "Host named\n  HostKeyAlias other\nHost far\n  ProxyJump near,gate\nHost odd\n  ProxyCommand nc %h %p\n"
        "Match final host 192.0.2.*\n  User opc\n"
    )

    def way(text: str) -> SshSettings:
        return tunnel.read_way(read_bastion(text))

    gate = way("gate")
    assert (gate.host, gate.port, gate.user, gate.only_these_keys) == ("192.0.2.7", 2200, "opc", True)
    assert (known_hosts.known_name(gate), gate.key_files) == ("[192.0.2.7]:2200", (key,))
    system = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
    assert gate.known_hosts == (tmp_path / "a", tmp_path / "b", *system)
    assert (gate.agent, gate.names_keys) == (str(tmp_path / "agent"), True)
    typed = way("me@gate:22")
    assert (typed.user, typed.port, known_hosts.known_name(typed)) == ("me", 22, "192.0.2.7")
    assert known_hosts.known_name(way("me@named")) == "other"
    plain = way("me@elsewhere")
    assert (plain.host, plain.port, plain.key_files, plain.known_hosts) == ("elsewhere", 22, (), ())
    assert (plain.only_these_keys, plain.names_keys) == (False, False)
    assert (way("far").jump, way("odd").proxy_command) == ("near,gate", "nc odd 22")
    (home / "config").write_text("UserKnownHostsFile none\nHost alone\n  GlobalKnownHostsFile none\n")
    assert (way("gate").known_hosts, way("alone").known_hosts) == (system, (Path(os.devnull),))
    (home / "config").write_text("Host gate\n  Port many\n")
    with pytest.raises(Unreachable, match=r"ssh answers '.*config line 2: Bad port.*See: ssh .*-G"):
        way("gate")


def test_tunnel_has_the_attributes_paramiko_uses() -> None:
    """paramiko looks for these on a socket that it is given; some of them only when things go wrong."""
    for name in ("settimeout", "recv", "send", "close", "_closed"):
        assert hasattr(tunnel.Tunnel, name)
    assert hasattr(paramiko.Channel, "_closed")
