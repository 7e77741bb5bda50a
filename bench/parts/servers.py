"""OpenSSH servers on loopback, for a benchmark. Standard library only."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
START_S = 10.0
"""Timeout for a server to listen."""


@contextmanager
def openssh_servers(folder: Path, homes: Sequence[Path]) -> Iterator[list[int]]:
    """Start a server for each home folder, and yield their ports.

    `folder` gets the key of the client, `id`, and `known_hosts` with the servers' keys.
    """
    _make_key(folder / "id")
    (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    known, ports = "", []
    with ExitStack() as running:
        for number, home in enumerate(homes):
            public = _make_key(folder / f"host_key_{number}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            config = folder / f"sshd_config_{number}"
            config.write_text(
                f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / f'host_key_{number}'}\nPidFile none\n"
                f"UsePAM no\nAuthorizedKeysFile {folder / 'authorized_keys'}\nStrictModes no\n"
                f"PasswordAuthentication no\nSetEnv HOME={home}\n"
            )
            server = subprocess.Popen([str(SSHD), "-D", "-f", str(config)], stderr=subprocess.DEVNULL)
            running.callback(server.wait, START_S)
            running.callback(server.terminate)
            _wait_for_port(port)
            known += f"[127.0.0.1]:{port} {public}\n"
            ports.append(port)
        (folder / "known_hosts").write_text(known)
        yield ports


def _make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def _wait_for_port(port: int) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"sshd did not listen within {START_S:.0f} s")
