"""Instances of a fake cloud as real SSH servers.

Each host is a process of the provider `local`, on a loopback address of its own and at the same port as all
others. Its processes are known by marks in their environment, so they can be ended whoever their parent is.
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from provision.local import processes, state
from provision.local.processes import CLUSTER_MARK, HOST_MARK, Mark
from provision.local.start import PROGRAM
from provision.local.state import HostFolder
from provision.ssh_keys import make_key
from tests.fakes.cloud_init import IMAGE_USER, FirstBoot, read_user_data

RESERVATION_PORT = 47477
"""UDP port. A process that binds it on an address reserves that address among all processes."""

ADDRESS_TRIES = 4096
STARTED_AT_ONCE = 4
PUSHED_KEY_S = 60.0
READY_TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class Host:
    """An instance's host. It accepts connections some time after it was started, or never."""

    instance_id: str
    address: str
    port: int
    user: str
    folder: HostFolder
    pid: int | None = None
    """Of its SSH server, once that accepts connections."""
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


class HostsLike(Protocol):
    """Real SSH servers behind the instances of a fake cloud; only methods that say so block."""

    ssh_port: int
    """Of hosts that are started from now on."""

    def address(self) -> str:
        """Return the next free address."""

    def start(
        self,
        instance_id: str,
        address: str,
        user_data: bytes,
        *,
        name: str,
        image: str,
        authorized_keys: Sequence[str],
        image_user: str,
    ) -> object:
        """Start one; it accepts connections a little later. `image`: its name."""

    def said(self, instance_id: str) -> str:
        """Return the host's log."""

    def push_key(self, instance_id: str, user: str, public_key: str) -> None:
        """Have the host accept a key for PUSHED_KEY_S, if its image can do that."""

    def run_as_agent(self, instance_id: str, script: str) -> tuple[int, str]:
        """Run a script as OCI's Run Command does. Returns its exit status and its output."""

    def stop(self, instance_id: str, *, wait: bool = False) -> None:
        """End one host; with `wait`, return when it has ended."""

    def stop_all(self) -> None:
        """End all, and wait for it."""

    def close(self) -> None:
        """End all hosts and release their resources."""


class Hosts:
    """The hosts of one fake cloud, in folders under `home`. Thread-safe."""

    def __init__(self, home: Path, ssh_port: int) -> None:
        # The mark must be the same whoever looks for it, by whatever path.
        self.home = Path(os.path.realpath(home))
        self.home.mkdir(parents=True, exist_ok=True)
        self.ssh_port = ssh_port
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._addresses = _addresses(os.getpid())
        self._reserved: dict[str, socket.socket] = {}
        # Many Pythons that start at once on few cores would all be late.
        self._starters = ThreadPoolExecutor(STARTED_AT_ONCE, thread_name_prefix="host-start")
        self._enders = ThreadPoolExecutor(1, thread_name_prefix="host-end")

    def address(self) -> str:
        """Reserve the next free loopback address, unused by this process or any other."""
        with self._lock:
            for address in itertools.islice(self._addresses, ADDRESS_TRIES):
                if reservation := _reserve(address, self.ssh_port):
                    self._reserved[address] = reservation
                    return address
        raise RuntimeError(f"no free loopback address among {ADDRESS_TRIES}")

    def start(
        self,
        instance_id: str,
        address: str,
        user_data: bytes,
        *,
        name: str = "",
        image: str = "",
        authorized_keys: Sequence[str] = (),
        image_user: str = IMAGE_USER,
    ) -> Host:
        """Boot a host. Returns at once: its server starts in the background. All are alike, whatever their image."""
        boot = read_user_data(user_data, authorized_keys=authorized_keys, image_user=image_user)
        folder = HostFolder(self.home / instance_id)
        host = Host(
            instance_id=instance_id, address=address, port=self.ssh_port, user=boot.user, folder=folder
        )
        with self._lock:
            if instance_id in self._hosts:
                raise ValueError(f"instance {instance_id} has a host")
            self._hosts[instance_id] = host
        self._starters.submit(self._boot, host, boot).add_done_callback(_complain)
        return host

    def host(self, instance_id: str) -> Host | None:
        """Return an instance's host, unless it was stopped."""
        with self._lock:
            return self._hosts.get(instance_id)

    def said(self, instance_id: str) -> str:
        """Return the log of an instance's host, also of a stopped one; it stands for a serial console."""
        log = HostFolder(self.home / instance_id).log_path
        return log.read_text(errors="replace") if log.exists() else ""

    def push_key(self, instance_id: str, user: str, public_key: str) -> None:
        """Have the host accept a key for PUSHED_KEY_S. A stopped host, or another user, takes none."""
        host = self.host(instance_id)
        if host is None or host.user != user:
            return
        path = _pushed_key_path(host.folder)
        path.write_text(f"{public_key}\n")
        end = threading.Timer(PUSHED_KEY_S, path.unlink, kwargs={"missing_ok": True})
        end.daemon = True
        end.start()

    def run_as_agent(self, instance_id: str, script: str) -> tuple[int, str]:
        """Run a script as OCI's Run Command does: in bash, with a `sudo` that knows the host's login and its home."""
        host = self.host(instance_id)
        if host is None:
            return 1, "the host is stopped"
        programs, keys = host.folder.path / "agent", host.folder.home / ".ssh"
        for folder in (programs, keys):
            folder.mkdir(exist_ok=True)
        sudo = programs / "sudo"
        sudo.write_text(
            f"""#!/bin/sh
[ "$1 $2 $3" = "-n -u {host.user}" ] || {{ echo "sudo: a password is required" >&2; exit 1; }}
[ "$4 $5 $6" = "/usr/bin/tee -a /home/{host.user}/.ssh/authorized_keys" ] || exit 1
exec /usr/bin/tee -a "{keys / "authorized_keys"}"
"""
        )
        sudo.chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": f"{programs}{os.pathsep}{os.defpath}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def stop(self, instance_id: str, *, wait: bool = False) -> None:
        """End one host and all its processes, and remove its home; its log stays.

        Without `wait` this happens in the background. An unknown host is ignored.
        """
        with self._lock:
            stopped = [self._hosts.pop(instance_id)] if instance_id in self._hosts else []
        self._end(stopped, wait=wait)

    def stop_all(self) -> None:
        """End all hosts, and wait until all are gone, including hosts that end in the background.

        Their addresses are free again.
        """
        with self._lock:
            stopped = list(self._hosts.values())
            self._hosts.clear()
        self._end(stopped, wait=True)
        with self._lock:
            reserved, self._reserved = list(self._reserved.values()), {}
        for reservation in reserved:
            reservation.close()

    def close(self) -> None:
        """End all hosts; nothing else is held."""
        self.stop_all()

    def _end(self, hosts: Sequence[Host], *, wait: bool) -> None:
        for host in hosts:
            with host.lock:
                host.ended = True
        # One at a time: each looks at all processes of the machine.
        ending = self._enders.submit(self._end_now, hosts)
        ending.add_done_callback(_complain)
        if wait:
            ending.result()

    def _end_now(self, hosts: Sequence[Host]) -> None:
        instances = {host.instance_id for host in hosts}
        if instances:
            home = str(self.home)
            _end_marked(self.home, lambda mark: mark.cluster == home and mark.host in instances)
        for host in hosts:
            state.remove_tree(host.folder.home)
            with self._lock:
                reservation = self._reserved.pop(host.address, None)
            if reservation:
                reservation.close()

    def _boot(self, host: Host, boot: FirstBoot) -> None:
        with host.lock:
            if host.ended:
                return
            host.folder.home.mkdir(parents=True)
            with host.folder.log_path.open("ab") as log:
                if boot.problem:
                    log.write(f"cloud-init: {boot.problem}\n".encode())
                    log.flush()
                process = self._start_server(host, boot, log.fileno())
        try:
            # Its stdout ends when it accepts connections, and when it has failed.
            output, _ = process.communicate(timeout=READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop(host.instance_id)
            process.communicate()
            return
        host.pid = json.loads(output)["pid"] if output else None

    def _start_server(self, host: Host, boot: FirstBoot, log: int) -> "subprocess.Popen[bytes]":
        folder = host.folder
        if boot.host_key is None:
            make_key(folder.host_key_path)
        else:
            folder.host_key_path.touch(mode=0o600)
            folder.host_key_path.write_text(boot.host_key.strip() + "\n")
        config = {
            "user": boot.user,
            "authorized_key": "\n".join(boot.authorized_keys),
            "host_key": str(folder.host_key_path),
            "home": str(folder.home),
            "gpus": str(folder.gpus_path),
            "address": host.address,
            "port": host.port,
            "authorized_keys_files": [
                str(folder.home / ".ssh" / "authorized_keys"),
                str(_pushed_key_path(folder)),
            ],
        }
        folder.config_path.write_text(json.dumps(config, indent=2))
        temp_dir = folder.path / "tmp"
        temp_dir.mkdir(exist_ok=True)
        marks = {HOST_MARK: host.instance_id, CLUSTER_MARK: str(self.home)}
        return subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), str(folder.config_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder.home,
            env=state.host_env(os.environ, home=folder.home, temp_dir=temp_dir, marks=marks),
            start_new_session=True,
        )


def _pushed_key_path(folder: HostFolder) -> Path:
    return folder.path / "pushed_key"


def end_hosts(home: Path) -> None:
    """End all hosts in or below a folder, even if the fake that started them has crashed."""
    top = Path(os.path.realpath(home))
    _end_marked(top, lambda mark: Path(mark.cluster).is_relative_to(top))


def _end_marked(home: Path, chosen: Callable[[Mark], bool]) -> None:
    def select() -> list[psutil.Process]:
        return [process for process, mark in processes.marked().items() if chosen(mark)]

    # A machine that is terminated is not asked.
    if left := processes.end(select, grace_s=0.0):
        raise RuntimeError(f"processes of hosts under {home} did not end: {left}")


def _addresses(pid: int) -> Iterator[str]:
    for index in itertools.count():
        yield f"127.77.{(pid + index // 254) % 256}.{1 + index % 254}"


def _reserve(address: str, ssh_port: int) -> socket.socket | None:
    reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        reservation.bind((address, RESERVATION_PORT))
        # A host may be left of a fake that was killed.
        with socket.create_server((address, ssh_port)):
            return reservation
    except OSError:
        reservation.close()
        return None


def _complain(future: "Future[None]") -> None:
    if error := future.exception():
        traceback.print_exception(error)
