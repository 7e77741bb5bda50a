"""OpenSSH's own server and agent, for tests."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import wait_for

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from remote.transport import known_hosts

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None, reason="needs OpenSSH's server (Debian: apt-get install openssh-server)"
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running sshd on loopback, as the user who runs the tests."""

    folder: Path
    port: int
    host_key: str

    def authorize(self, *keys: Path) -> None:
        """Let these keys in, by their public files, and no others."""
        text = "".join(Path(f"{key}.pub").read_text() for key in keys)
        (self.folder / "authorized_keys").write_text(text)

    def machine(self, **values: Any) -> Machine:
        """Return the server as a machine without a key of its own."""
        values = {"host": "127.0.0.1", "port": self.port, "user": getpass.getuser(), **values}
        return Machine(
            name="box", rank=0, state="running", private_ip="127.0.0.1", gpus=None, id="box", **values
        )

    def cluster(self, machine: Machine) -> ClusterFolder:
        """Return a folder in which the server's host key is pinned for the machine."""
        folder = ClusterFolder(self.folder / "cluster")
        folder.make()
        pattern = known_hosts.host_pattern(machine.host, machine.port)
        folder.known_hosts_path.write_text(f"{pattern} {self.host_key}\n")
        return folder


def new_key(path: Path, kind: str = "ed25519", passphrase: str = "", form: str = "RFC4716") -> Path:
    """Make a key with OpenSSH's own program, in one of its formats."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-m", form, "-f", str(path)], check=True
    )
    return path


@contextmanager
def sshd(folder: Path, *settings: str) -> Iterator[Server]:
    """Run a server until the block ends; of two lines for one keyword it takes the first."""
    folder.mkdir(mode=0o700)
    key = new_key(folder / "host_key")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    lines = [
        *settings, f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {key}", "PidFile none", "UsePAM no",
        f"AuthorizedKeysFile {folder}/authorized_keys", "StrictModes no", "PasswordAuthentication no",
        "KbdInteractiveAuthentication no", "PermitRootLogin yes",
    ]  # fmt: skip
    (folder / "config").write_text("\n".join(lines) + "\n")
    (folder / "authorized_keys").write_text("")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "config")], stderr=stderr)
    try:
        wait_for(lambda: b"Server listening" in log.read_bytes(), what="sshd listening", deadline_s=10)
        host_key = " ".join(Path(f"{key}.pub").read_text().split()[:2])
        yield Server(folder=folder, port=port, host_key=host_key)
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextmanager
def ssh_agent(path: Path, *keys: Path) -> Iterator[Path]:
    """Run an agent at a socket until the block ends, with keys that have no passphrase, or `secret`."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        wait_for(path.exists, what="the agent", deadline_s=10)
        ask = path.with_name("askpass")
        ask.write_text("#!/bin/sh\necho secret\n")
        ask.chmod(0o700)
        env = {
            **os.environ,
            "SSH_AUTH_SOCK": str(path),
            "SSH_ASKPASS": str(ask),
            "SSH_ASKPASS_REQUIRE": "force",
        }
        for key in keys:
            subprocess.run(["ssh-add", "-q", str(key)], check=True, env=env, stdin=subprocess.DEVNULL)
        yield path
    finally:
        process.terminate()
        process.wait(timeout=10)
