"""Machines that exist already, behind OpenSSH's own server: the `hosts` provider, host keys, a run."""

import getpass
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import psutil
import pytest
from support import Gpuctl, a_machine, wait_for

from inventories.disk.store import ClusterFolder
from remote.errors import AuthenticationFailed, HostKeyRejected
from remote.sessions.connect import connect
from remote.transport.fabric_connection import PinnedConnection, PinnedGroup
from remote.transport.host_keys import pin
from remote.transport.known_hosts import render

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None, reason="needs OpenSSH's server (Debian: apt-get install openssh-server)"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running sshd on loopback."""

    port: int
    host_key: str
    key: Path
    process: "subprocess.Popen[bytes]"

    def change_host_key(self) -> None:
        """Give the server another host key, as if the machine was created again."""
        path = self.key.with_name("host_key")
        path.unlink()
        make_key(path)
        # sshd restarts itself with the same pid, and listens again.
        self.process.send_signal(signal.SIGHUP)
        output = self.key.with_name("log")
        wait_for(lambda: output.read_text().count("Server listening") == 2, what="sshd again", deadline_s=10)

    def inventory(self, folder: Path, *, python: bool = True) -> Path:
        """A hand-written inventory with this server as its one host."""
        lines = [
            "all:", "  hosts:", "    box:", "      ansible_host: 127.0.0.1", f"      ansible_port: {self.port}",
            f"      ansible_user: {getpass.getuser()}", f"      ansible_ssh_private_key_file: {self.key}",
        ]  # fmt: skip
        lines += [f"      ansible_python_interpreter: {sys.executable}"] if python else []
        path = folder / "hosts.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """sshd as the user who runs the tests, in the foreground, with the settings of a cloud image."""
    folder = tmp_path / "sshd"
    folder.mkdir(mode=0o700)
    host_key = make_key(folder / "host_key")
    (folder / "authorized_keys").write_text(make_key(folder / "id"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host_key'}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nStrictModes no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nMaxStartups 10:30:100\nMaxSessions 10\nPermitRootLogin prohibit-password\n"
        "Subsystem sftp internal-sftp\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(config)], stderr=stderr, stdin=subprocess.DEVNULL
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(answers, what="sshd listening", deadline_s=10)
    yield Server(port=port, host_key=host_key, key=folder / "id", process=process)
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
def node_home(gpuctl: Gpuctl) -> Iterator[dict[str, str]]:
    """Remove a run's files from the home of the user who runs the tests."""
    folder = Path.home() / ".gpuctl-node"
    before = folder.exists()
    yield {}
    if not before:
        shutil.rmtree(folder, ignore_errors=True)


def test_up_refuses_unknown_host_key_unless_allowed(
    gpuctl: Gpuctl, server: Server, node_home: object
) -> None:
    hosts = str(server.inventory(gpuctl.cwd))
    empty = gpuctl.script("empty_known_hosts", "")
    refused = gpuctl("up", "--hosts", hosts, "--known-hosts", str(empty))
    assert refused.status == 1
    assert "--accept-new-host-keys" in refused.err
    known = gpuctl.script("known_hosts", f"[127.0.0.1]:{server.port} {server.host_key}\n")
    machines = gpuctl.ok("up", "--hosts", hosts, "--known-hosts", str(known), "--json").json["machines"]
    assert [machine["name"] for machine in machines] == ["box"]
    assert gpuctl.ok("down", "--json").json["leftovers"] == []
    gpuctl.ok("up", "--hosts", hosts, "--known-hosts", str(empty), "--accept-new-host-keys")
    assert server.host_key in (gpuctl.home / "clusters" / "default" / "known_hosts").read_text()
    other = make_key(gpuctl.cwd / "other")
    wrong = gpuctl.script("wrong_known_hosts", f"[127.0.0.1]:{server.port} {other}\n")
    gpuctl.ok("down")
    changed = gpuctl("up", "--hosts", hosts, "--known-hosts", str(wrong), "--accept-new-host-keys")
    assert changed.status == 1
    assert "host key has changed" in changed.err


KNOWN = {
    "nothing": "",
    "another machine": "other.invalid {other}",
    "another port": "127.0.0.1 {other}",
    "its key": "{host} {shown}",
    "another key": "{host} {other}",
    "its key for many": "[127.0.0.*]:{port} {shown}",
    "another key for many": "[127.0.0.*]:{port} {other}",
    "another key for some": "[127.0.0.?]:{port} {other}",
    "another key for all": "* {other}",
    "another key for all, and its own": "* {other}\n{host} {shown}",
    "its own, and another key for all": "{host} {shown}\n* {other}",
    "another key for all but it": "*,!{host} {other}",
    "another key for all but it, said first": "!{host},* {other}",
    "another key for all but its like": "*,![127.*]:* {other}",
    "its key, revoked": "{host} {shown}\n@revoked {host} {shown}",
    "revoked first": "@revoked {host} {shown}\n{host} {shown}",
    "only revoked": "@revoked {host} {shown}",
    "revoked for all": "@revoked * {shown}",
    "revoked for all but it": "@revoked *,!{host} {shown}",
    "revoked by its hash": "@revoked {hash} {shown}",
    "another, revoked": "@revoked {host} {other}",
    "another is its only one, and revoked": "{host} {other}\n@revoked * {other}",
    "its earlier one was revoked": "{host} {other}\n{host} {shown}\n@revoked * {other}",
    "its hash": "{hash} {shown}",
    "another key by its hash": "{hash} {other}",
    "an authority": "@cert-authority * {other}",
    "a mark that nobody knows": "@unheard-of {host} {other}",
    "two marks": "@revoked @revoked {host} {shown}",
}


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client")
def test_pin_accepts_and_refuses_host_keys_like_openssh(server: Server, tmp_path: Path) -> None:
    """Compare gpuctl's pinning with `ssh -o StrictHostKeyChecking=accept-new`."""
    host = f"[127.0.0.1]:{server.port}"
    words = {
        "host": host,
        "port": server.port,
        "shown": server.host_key,
        "other": make_key(tmp_path / "other"),
        "hash": paramiko.HostKeys.hash_host(host),
    }
    output = {name: text.format(**words) + "\n" for name, text in KNOWN.items()}
    ours = {name: _we_log_in(server, tmp_path, text) for name, text in output.items()}
    assert ours == {name: _ssh_logs_in(server, tmp_path, text) for name, text in output.items()}


def _we_log_in(server: Server, folder: Path, known: str) -> bool:
    (folder / "known").write_text(known)
    machine = a_machine(name="box", port=server.port, user=getpass.getuser(), gpus=None, key_file=server.key)
    try:
        pinned = ClusterFolder(folder / "pinned")
        pinned.make()
        pinned.known_hosts_path.write_text(render([pin(machine, [folder / "known"], accept_new=True)]))
        connect(machine, pinned).close()
    except HostKeyRejected:
        return False
    return True


def _ssh_logs_in(server: Server, folder: Path, known: str) -> bool:
    (folder / "known").write_text(known)
    options = (
        "StrictHostKeyChecking=accept-new", "GlobalKnownHostsFile=/dev/null", "BatchMode=yes", "IdentityAgent=none",
        f"UserKnownHostsFile={folder / 'known'}", "IdentitiesOnly=yes",
    )  # fmt: skip
    argv = [
        "ssh",
        "-F",
        "none",
        "-i",
        str(server.key),
        "-p",
        str(server.port),
        f"{getpass.getuser()}@127.0.0.1",
    ]
    done = subprocess.run(
        [*argv, *(word for option in options for word in ("-o", option)), "true"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or "Host key" in done.stderr or "host key" in done.stderr, done.stderr
    return done.returncode == 0


def test_up_keeps_pinned_host_key_and_refuses_another(
    gpuctl: Gpuctl, server: Server, node_home: object
) -> None:
    hosts = str(server.inventory(gpuctl.cwd))
    trusting = ("--known-hosts", "/dev/null", "--accept-new-host-keys")
    first = gpuctl.ok("up", "--hosts", hosts, *trusting).err
    assert "the cluster default is up: 1 machine" in first
    assert "nothing changed" in gpuctl.ok("up", "--hosts", hosts, "--known-hosts", "/dev/null").err
    pinned = gpuctl.home / "clusters" / "default" / "known_hosts"
    before = pinned.read_text()

    other = make_key(gpuctl.cwd / "other")
    stated = gpuctl.script("stated", f"[127.0.0.1]:{server.port} {other}\n")
    refused = gpuctl("up", "--hosts", hosts, "--known-hosts", str(stated), "--accept-new-host-keys")
    assert refused.status == 1
    assert "another host key" in refused.err
    assert "gpuctl down" in refused.err

    server.change_host_key()
    changed = gpuctl("up", "--hosts", hosts, *trusting)
    assert changed.status == 1
    assert "host key has changed" in changed.err
    assert f"ssh-keygen -R '[127.0.0.1]:{server.port}'" in changed.err
    assert pinned.read_text() == before
    gpuctl.ok("down")
    assert "is up: 1 machine" in gpuctl.ok("up", "--hosts", hosts, *trusting).err


def test_up_adds_hosts_and_refuses_to_drop_any(gpuctl: Gpuctl, server: Server, node_home: object) -> None:
    path = server.inventory(gpuctl.cwd)
    trusting = ("--known-hosts", "/dev/null", "--accept-new-host-keys")
    gpuctl.ok("up", "--hosts", str(path), *trusting)
    # The same server by another address of loopback is a second machine.
    block = path.read_text().split("  hosts:\n")[1].replace("box:", "box2:").replace("127.0.0.1", "localhost")
    path.write_text(path.read_text() + block)
    more = gpuctl.ok("up", "--hosts", str(path), *trusting).err
    assert "is up: 2 machines, 1 added" in more
    fewer = gpuctl("up", "--count", "1")
    assert fewer.status == 2
    assert "gpuctl down" in fewer.err
    assert len(gpuctl.ok("status", "--json").json["machines"]) == 2


def test_failed_connection_leaves_no_socket(server: Server, tmp_path: Path) -> None:
    def connect_with(key: Path, host_key: str) -> None:
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{server.port} {host_key}\n")
        machine = a_machine(name="box", port=server.port, user=getpass.getuser(), gpus=None, key_file=key)
        connect(machine, ClusterFolder(tmp_path))

    other = make_key(tmp_path / "other")
    with pytest.raises(HostKeyRejected):
        connect_with(server.key, other)
    with pytest.raises(AuthenticationFailed):
        connect_with(tmp_path / "other", server.host_key)

    def ours() -> list[object]:
        return [c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == server.port]

    wait_for(lambda: not ours(), what="the sockets closing", deadline_s=60)


def test_fabric_connections_trust_the_pinned_key_alone(server: Server, tmp_path: Path) -> None:
    machine = a_machine(
        name="box",
        port=server.port,
        user=getpass.getuser(),
        gpus=None,
        key_file=server.key,
        host_key=server.host_key,
    )
    cluster = ClusterFolder(tmp_path / "pinned")
    cluster.make()
    cluster.known_hosts_path.write_text(render([machine]))
    many = [replace(machine, name=f"box-{number}", rank=number) for number in range(16)]
    with PinnedGroup(many, cluster, at_once=8) as group:
        done = group.run("echo $SSH_CONNECTION", hide=True, in_stream=False)
        assert len({result.stdout for result in done.values()}) == 16
    box = PinnedConnection(machine, cluster)
    box.put(io.BytesIO(b"bytes"), str(tmp_path / "there"))
    box.get(str(tmp_path / "there"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"bytes"
    box.close()
    server.change_host_key()
    with pytest.raises(HostKeyRejected, match=r"has changed.*Nothing was sent"):
        box.run("touch " + str(tmp_path / "was run"))
    assert not (tmp_path / "was run").exists()


@pytest.mark.whole
def test_train_logs_and_copies_work_over_openssh(gpuctl: Gpuctl, server: Server, node_home: object) -> None:
    hosts = str(server.inventory(gpuctl.cwd))
    gpuctl.ok("up", "--hosts", hosts, "--accept-new-host-keys", "--known-hosts", "/dev/null")
    gpuctl.script("my.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    result = gpuctl.ok("train", "--json", "--nproc-per-node", "2", "my.py").json
    assert result["status"] == "succeeded"
    assert gpuctl.ok("logs", "--rank", "1").out == "rank 1 of 2\n"
    assert gpuctl.ok("exec", "--", "echo", "a  b").out == "a  b\n"
    assert gpuctl.ok("ssh", "0", "--", "printf", "%s", "a  b").out == "a  b"
    gpuctl.ok("push", "my.py", "~/.gpuctl-node/pushed")
    gpuctl.ok("pull", "--rank", "0", "~/.gpuctl-node/pushed/my.py", "back")
    assert (gpuctl.cwd / "back" / "my.py").read_text() == (gpuctl.cwd / "my.py").read_text()
    assert gpuctl.ok("status", "--json").json["machines"][0]["state"] == "running"


def test_up_with_host_and_user_only_uses_own_ssh_keys(
    gpuctl: Gpuctl, server: Server, node_home: object
) -> None:
    """Without a key in the inventory the user's own keys are offered; here the user has no key, and gpuctl reports
    that.
    """
    text = (
        "all:\n  hosts:\n    box:\n      ansible_host: 127.0.0.1\n"
        f"      ansible_port: {server.port}\n      ansible_user: {getpass.getuser()}\n"
    )
    hosts = gpuctl.script("hosts.yaml", text)
    agentless = {"HOME": str(gpuctl.cwd), "SSH_AUTH_SOCK": ""}
    words = ("up", "--hosts", str(hosts), "--known-hosts", "/dev/null", "--accept-new-host-keys")
    done = gpuctl(*words, env=agentless)
    assert done.status == 1
    assert "there is no key to offer" in done.err
    assert "Traceback" not in done.err
    (gpuctl.cwd / ".ssh").mkdir(mode=0o700)
    shutil.copy(server.key, gpuctl.cwd / ".ssh" / "id_ed25519")
    gpuctl.ok(*words, env=agentless)


def test_train_works_on_nodes_that_share_a_home(gpuctl: Gpuctl, server: Server, node_home: object) -> None:
    """Same as on clusters with NFS homes: the runs' folders are separate, the code is shared."""
    item = server.inventory(gpuctl.cwd).read_text()
    block = item[item.index("    box:") :]
    hosts = gpuctl.script("two.yaml", item + block.replace("box:", "box2:").replace("127.0.0.1", "localhost"))
    gpuctl.ok("up", "--hosts", str(hosts), "--accept-new-host-keys", "--known-hosts", "/dev/null")
    gpuctl.script("my.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    done = gpuctl("train", "--json", "my.py")
    assert done.status == 0, done.err
    assert [rank["exit_code"] for rank in done.json["ranks"]] == [0, 0]
