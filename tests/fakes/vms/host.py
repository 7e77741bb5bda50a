"""A VM-like host: namespaces, a file system of its own over this machine's, and OpenSSH's server in it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.vms import boot
from tests.fakes.vms.boot import Place
from tests.fakes.vms.network import Switch, close, wait
from tests.fakes.vms.options import Options

PROGRAMS = tuple(
    sorted({Path(__file__).resolve().parents[3], Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})
)
"""This checkout and the Python that runs it: hosts have them at the same place, wherever that is."""

INIT = Path(__file__).with_name("init.py")
BOOT_LIMIT_S = 120
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIMED_OUT = (124, 137)
"""Statuses of `timeout`."""


@dataclass(kw_only=True)
class Running:
    """A host's processes: the one that made its namespaces, and the number here of its PID 1."""

    process: "subprocess.Popen[str]"
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host that was made; it runs unless it was powered off."""

    name: str
    address: str
    port: int
    user: str
    key_file: Path | None
    """The private key that logs in. `None`: whoever made the host has it."""
    host_key: str
    """The server's public key: type and base64."""
    options: Options
    place: Place
    switch: Switch
    running: list[Running]
    """The running boot, at most one."""

    @property
    def pid(self) -> int:
        """Return this machine's number of the host's PID 1. Raises RuntimeError if the host is off."""
        if not self.running or self.running[0].pid is None:
            raise RuntimeError(f"{self.name} is off")
        return self.running[0].pid

    @property
    def boot_id(self) -> str:
        return self.place.boot_id.read_text().strip()

    def root(
        self, command: str, *, timeout_s: float = 60, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run a shell command as root in the host, without SSH.

        Raises RuntimeError with the output of a failed command, unless `check` is False, and TimeoutError.
        """
        # Ended from within: what runs in another process namespace does not end with nsenter.
        limit = ("timeout", "--kill-after=1", f"{timeout_s}")
        argv = [*boot.enter_argv(self.pid), *limit, "sh", "-c", command]
        env = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
        )
        if done.returncode in TIMED_OUT:
            raise TimeoutError(f"{self.name}: '{command}' took more than {timeout_s} s")
        if check and done.returncode:
            raise RuntimeError(
                f"{self.name}: '{command}' exited with {done.returncode}: {done.stderr.strip()}"
            )
        return done

    def drop(self, peer: "Host | str") -> None:
        """Drop all TCP packets between this host and another, or an address, without a word, until `undrop`."""
        self.switch.drop(self.address, peer if isinstance(peer, str) else peer.address, dropped=True)

    def undrop(self, peer: "Host | str") -> None:
        """Let the packets through again."""
        self.switch.drop(self.address, peer if isinstance(peer, str) else peer.address, dropped=False)

    def power_on(self) -> None:
        """Begin to boot; `wait_for_boot` waits for the result. Raises RuntimeError if the host is on."""
        if self.running:
            raise RuntimeError(f"{self.name} is on")
        first = not self.place.boot_id.exists()
        self.place.boot_id.write_text(f"{uuid.uuid4()}\n")
        if not first:
            # The kernel takes a namespace's interfaces down some time after its last process.
            self.switch.unplug(self.place.ports)
        uptime_s = int(min(time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()))
        with (self.place.folder / "console.log").open("ab") as console:
            process = subprocess.Popen(
                boot.start_argv(sys.executable, INIT, uptime_s),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                text=True,
                cwd="/",
                env={"PATH": PATH, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self.running.append(Running(process=process))
        config = boot.config(self.options, self.place, first=first, shared=boot.hidden(PROGRAMS))
        process.stdin.write(json.dumps(config) + "\n")
        process.stdin.flush()

    def wait_for_boot(self) -> None:
        """Blocks until sshd accepts connections. Raises RuntimeError with the step that failed."""
        (running,) = self.running
        out = running.process.stdout
        output = out.readline() if select.select([out], [], [], BOOT_LIMIT_S)[0] else ""
        document = json.loads(output or '{"ready": false, "error": "nothing was heard of it"}')
        if not document["ready"]:
            console = (self.place.folder / "console.log").read_text()
            raise RuntimeError(f"{self.name} did not boot: {document['error']}\n{console}".rstrip())
        running.pid = document["pid"]

    def power_off(self) -> None:
        """Kill all processes of the host at once, as a power cut does. Ignored if the host is off."""
        power_off([self])

    def shut_down(self) -> None:
        """Ask all processes of the host to end, then kill the rest. Raises RuntimeError if the host is off."""
        os.kill(self.pid, signal.SIGTERM)
        process = self.running.pop().process
        wait(process)
        close(process)

    def reboot(self) -> None:
        """Shut down and boot anew: the same files, another boot id. Blocks until sshd accepts connections."""
        self.shut_down()
        self.power_on()
        self.wait_for_boot()


def power_off(hosts: Iterable[Host]) -> None:
    """Cut the power of all, then wait until all are gone."""
    ended = [host.running.pop().process for host in hosts if host.running]
    for process in ended:
        close(process)
    for process in ended:
        wait(process)
