"""The start of the SSH servers of local hosts, all at once, until they accept connections."""

import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inventories.clocks import awake_s, wait_awake
from inventories.disk import files
from provision.errors import CreateFailed
from provision.local.state import HostFolder, HostRecord

PROGRAM = Path(__file__).with_name("host.py")
LOG_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that accepts connections."""

    pid: int
    port: int


class Launch:
    """A started server."""

    def __init__(self, record: HostRecord, folder: HostFolder, process: "subprocess.Popen[bytes]") -> None:
        self.record = record
        self.folder = folder
        self._process = process

    @property
    def pipe(self) -> int:
        """Return the pipe on which the server reports that it is ready."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self) -> None:
        """Close our end. To be called when the server is ready or has ended."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        # The started process ends as soon as the server is in the background.
        self._process.wait(timeout=10)

    def log_tail(self) -> str:
        """Return the last lines of the server's log, indented."""
        log = (files.read_bytes(self.folder.log_path) or b"").decode(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in log[-LOG_LINES:]) or "    (nothing)"


def launch(
    record: HostRecord, folder: HostFolder, *, authorized_key: str, env: Mapping[str, str], python: str
) -> Launch:
    """Start a host's server, which outlives us, and return at once. Home and host key must exist."""
    config = {
        "user": record.user,
        "authorized_key": authorized_key,
        "host_key": str(folder.host_key_path),
        "home": str(folder.home),
        "gpus": str(folder.gpus_path),
    }
    files.write_atomic(folder.config_path, json.dumps(config, indent=2).encode())
    log = os.open(folder.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [python, "-P", str(PROGRAM), str(folder.config_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder.home,
            env=dict(env),
            start_new_session=True,
        )
    finally:
        os.close(log)
    return Launch(record, folder, process)


def wait_ready(launches: Sequence[Launch], *, timeout_s: float) -> dict[str, Ready]:
    """Wait until all servers accept connections. Returns pid and port by host id.

    Raises CreateFailed for the first server that ended or was not ready in time, with the end of its log.
    """
    deadline = awake_s() + timeout_s
    received = {entry.record.id: b"" for entry in launches}
    ready: dict[str, Ready] = {}
    with selectors.DefaultSelector() as selector:
        for entry in launches:
            selector.register(entry.pipe, selectors.EVENT_READ, entry)
        while len(ready) < len(launches):
            left_s = deadline - awake_s()
            events = wait_awake(lambda left_s: selector.select(max(0.0, left_s)) or None, left_s)
            if not events:
                late = next(entry for entry in launches if entry.record.id not in ready)
                raise _failed(late, f"did not accept connections within {timeout_s:g} s")
            for key, _ in events:
                entry = key.data
                data = os.read(entry.pipe, 4096)
                received[entry.record.id] += data
                if not data:
                    raise _failed(entry, "ended before it accepted connections")
                if received[entry.record.id].endswith(b"\n"):
                    line = received[entry.record.id]
                    try:
                        ready[entry.record.id] = Ready(**json.loads(line))
                    except (ValueError, TypeError) as error:
                        raise _failed(entry, f"printed {line[-200:]!r} instead of its port") from error
                    selector.unregister(entry.pipe)
    return ready


def _failed(entry: Launch, problem: str) -> CreateFailed:
    return CreateFailed(
        f"The SSH server of {entry.record.name} {problem}, so no host was made. "
        f"The end of its log:\n{entry.log_tail()}\nMend what it says and run `gpuctl up` again."
    )
