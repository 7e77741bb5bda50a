"""A fake cloud as tests see it: started as a process of its own, steered over HTTP, ended with its hosts."""

import http.client
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

from tests.fakes.hosts import end_hosts

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 30.0

GONE = frozenset({"terminated", "deleted"})
GOING = frozenset({"terminating", "shutting-down"})


@dataclass(frozen=True, kw_only=True)
class FakeCloud:
    """A fake cloud that runs."""

    url: str
    pid: int
    env: dict[str, str]
    """Environment variables for a client of this cloud."""
    log: Path

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Change settings; returns all."""
        return self._ask("PATCH", "settings", changes)

    def fault(self, **fields: Any) -> None:
        """Let something go wrong: the fields of `control.Fault`."""
        self._ask("POST", "faults", [fields])

    def clear_faults(self) -> None:
        """Let everything go well again."""
        self._ask("DELETE", "faults")

    def held(self, wait_s: float = 10) -> dict[str, Any] | None:
        """Return the held call; wait for a call if necessary. `None`: no call came."""
        return self._ask("GET", f"held?wait_s={wait_s}", timeout_s=wait_s)["held"]

    def release(self) -> int:
        """Drop all held calls, and return their number."""
        return int(self._ask("POST", "release")["released"])

    def calls(self, operation: str | None = None, *, mutating: bool | None = None) -> list[dict[str, Any]]:
        """Return the log; optionally only some operation's calls, or only calls that change something."""
        return [
            call
            for call in self._ask("GET", "calls")["calls"]
            if operation in (None, call["operation"]) and mutating in (None, call["mutating"])
        ]

    def forget_calls(self) -> None:
        """Empty the log and begin to number at 1."""
        self._ask("DELETE", "calls")

    def state(self) -> dict[str, Any]:
        """Return the fake's state, with the maximum number of instances at any time."""
        return self._ask("GET", "state")

    def live_instances(self) -> list[dict[str, Any]]:
        """Instances that are neither gone nor going."""
        return [entry for entry in self.state()["instances"] if _state(entry) not in GONE | GOING]

    def owned(self) -> list[dict[str, Any]]:
        """Return existing resources with our tag, and all existing instances."""
        state = self.state()
        instances = [entry for entry in state["instances"] if _state(entry) not in GONE]
        tagged = [entry for entry in state["resources"] if "gpuctl" in (entry.get("tags") or {})]
        return instances + [entry for entry in tagged if _state(entry) not in GONE]

    def advance(self, seconds: float) -> None:
        """Move the calendar of schedules forward; delays of the cloud stay as they are."""
        self._ask("POST", "advance", {"seconds": seconds})

    def reset(self) -> None:
        """Restore the initial state."""
        self._ask("POST", "reset")

    def _ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = 0.0) -> Any:
        address = urlsplit(self.url)
        assert address.hostname
        connection = http.client.HTTPConnection(
            address.hostname, address.port, timeout=timeout_s + REQUEST_TIMEOUT_S
        )
        with closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/_fake/{path}", data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        if response.status != 200:
            raise AssertionError(f"{method} /_fake/{path}: {response.status} {answer}")
        return answer


def start_fake(
    kind: Literal["oci", "aws_proxy"], home: Path, *, hosts: bool = False, options: Sequence[str] = ()
) -> AbstractContextManager[FakeCloud]:
    """Run a fake cloud, with its files in a folder of its own below `home`; end it and its hosts.

    `options`: further ones of its command line.
    """
    folder = home / f"fake-{kind}"
    words = [sys.executable, "-m", f"tests.fakes.{kind}", "--port", "0", "--home", str(folder)]
    return run_fake([*words, "--die-with-stdin", *(["--hosts"] if hosts else []), *options], folder)


@contextmanager
def run_fake(command: Sequence[str], folder: Path) -> Iterator[FakeCloud]:
    """Run the command of a fake cloud with its files in `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_clean_env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the tests, which then end the fake in order
        )
    try:
        ready = _ready(process.stdout, log)
        yield FakeCloud(url=ready["url"], pid=ready["pid"], env=ready["env"], log=log)
        status = process.poll()
        assert status is None, f"the fake ended by itself, status {status}:\n{_tail(log)}"
    finally:
        process.stdin.close()
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        # A fake that was killed could not end them.
        end_hosts(folder)


def _clean_env() -> dict[str, str]:
    """Return the environment without the developer's own accounts."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUCTL_", "AWS_", "OCI_"))
    }


def _ready(stdout: IO[bytes], log: Path) -> dict[str, Any]:
    """Wait for the line that the fake prints once it serves, and return it."""
    received = b""
    deadline = time.monotonic() + START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            events = selector.select(max(0.0, deadline - time.monotonic()))
            data = os.read(stdout.fileno(), 4096) if events else b""
            assert data, f"the fake did not start:\n{_tail(log)}"
            received += data
    return json.loads(received)


def _state(entry: dict[str, Any]) -> str:
    return str(entry.get("state") or "").lower()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
