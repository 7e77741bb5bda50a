"""Instances of a fake cloud as VM-like hosts: each a machine of its own, with PCI bus, packages and reboots.

What images bring is a file of JSON, a list of `Profile`s; the first that fits an instance's image and name is taken.
"""

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tests.fakes.apt_mirror import serve
from tests.fakes.cloud_init import IMAGE_USER, read_user_data
from tests.fakes.vms import FIRST, MOST, Host, Options, make_host, new_login
from tests.fakes.vms.image import File
from tests.fakes.vms.network import LAPTOP, bridge

POLL_S = 0.2
POWER_OFF_ASKED = "/var/power-off-asked"
"""A file that a host makes in place of a power-off, by a `systemctl` of its profile."""
REBOOT_ASKED = "/var/reboot-asked"
REBOOT = f"#!/bin/sh\\ntouch {REBOOT_ASKED}\\n"
"""In place of the host's own program, which its kernel refuses it: this machine's would be meant."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Properties of an image's instances. In `first_boot` `{mirror}` is the mirror's URL, `{subnet}` as `10.77.0`."""

    image: str = "*"
    name: str = "*"
    """Globs of the image's name and of the instance's."""
    pci: Sequence[str] = ()
    kernel: str | None = None
    first_boot: str = ""
    """Shell commands that root runs before sshd, at the first boot alone."""


@dataclass(kw_only=True)
class _Instance:
    """An instance's host. `lock` is held while it boots, reboots and ends."""

    host: Host
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


class VmHosts:
    """The hosts of one fake cloud, in folders under `home`. Thread-safe; `close` ends all."""

    ssh_port = 22

    def __init__(self, home: Path, profiles: Path, mirror: Path | None) -> None:
        self._home = home / "vms"
        self._home.mkdir(parents=True)
        self._profiles = [Profile(**entry) for entry in json.loads(profiles.read_text())]
        self._lock = threading.Lock()
        self._instances: dict[str, _Instance] = {}
        self._consoles: dict[str, Path] = {}
        self._ending: list[threading.Thread] = []
        self._next = FIRST
        self.on_power_off: Callable[[str], None] = self.stop
        """Called with an instance's id when its own system powers it off."""
        self._running = ExitStack()
        self._switch = self._running.enter_context(bridge(self._home))
        self._mirror = (
            self._running.enter_context(serve(mirror, f"{self._switch.subnet}.{LAPTOP}")) if mirror else ""
        )

    def address(self) -> str:
        """Return the next address that no host has had."""
        with self._lock:
            if self._next >= FIRST + MOST:
                raise RuntimeError(f"no more than {MOST} hosts")
            self._next += 1
            return f"{self._switch.subnet}.{self._next - 1}"

    def start(
        self,
        instance_id: str,
        address: str,
        user_data: bytes,
        *,
        name: str,
        image: str,
        authorized_keys: Sequence[str] = (),
        image_user: str = IMAGE_USER,
    ) -> Host:
        """Boot a host. Returns at once: it boots in the background."""
        boot = read_user_data(user_data, authorized_keys=authorized_keys, image_user=image_user)
        assert boot.problem is None, boot.problem
        profile = next(
            (
                item
                for item in self._profiles
                if fnmatchcase(image, item.image) and fnmatchcase(name, item.name)
            ),
            Profile(),
        )
        first_boot = profile.first_boot.replace("{mirror}", self._mirror)
        options = Options(
            user=boot.user,
            pci=tuple(profile.pci),
            kernel=profile.kernel,
            first_boot=(
                f"printf '{REBOOT}' > /usr/local/bin/reboot; chmod 755 /usr/local/bin/reboot\n"
                f"{first_boot.replace('{subnet}', self._switch.subnet)}"
            ),
        )
        folder = self._home / instance_id
        login = new_login(folder, authorized_keys=boot.authorized_keys, host_key=boot.host_key)
        host = make_host(
            folder,
            name,
            address,
            options,
            self._switch,
            login,
            key_file=None,
            more=tuple(File(path=path, text=text) for path, text in boot.files),
        )
        instance = _Instance(host=host)
        with self._lock:
            assert instance_id not in self._instances, f"instance {instance_id} has a host"
            self._instances[instance_id] = instance
            self._consoles[instance_id] = folder / "console.log"
        _in_background(lambda: self._run(instance_id, instance))
        return host

    def push_key(self, instance_id: str, user: str, public_key: str) -> None:
        """Change nothing: the images of these hosts lack EC2 Instance Connect."""

    def run_as_agent(self, instance_id: str, script: str) -> tuple[int, str]:
        """Refuse: these hosts have no agent."""
        return 1, "no agent"

    def said(self, instance_id: str) -> str:
        """Return the text of an instance's serial console; also of a stopped one."""
        with self._lock:
            console = self._consoles.get(instance_id)
        return console.read_text(errors="replace") if console and console.exists() else ""

    def stop(self, instance_id: str, *, wait: bool = False) -> None:
        """Cut the power of one host. An unknown host is ignored."""
        with self._lock:
            instance = self._instances.pop(instance_id, None)
        if instance is None:
            return
        instance.over.set()
        ending = _in_background(lambda: _end(instance))
        with self._lock:
            self._ending.append(ending)
        if wait:
            ending.join()

    def stop_all(self) -> None:
        """Cut the power of all hosts, and wait until they are gone."""
        with self._lock:
            instances = list(self._instances)
        for instance_id in instances:
            self.stop(instance_id)
        with self._lock:
            ending, self._ending = self._ending, []
        for thread in ending:
            thread.join()

    def close(self) -> None:
        """End all hosts, and their network."""
        self.stop_all()
        self._running.close()

    def _run(self, instance_id: str, instance: _Instance) -> None:
        with instance.lock:
            if instance.over.is_set():
                return
            instance.host.power_on()
            instance.host.wait_for_boot()
        request = Path(f"{instance.host.place.upper}{REBOOT_ASKED}")
        off = Path(f"{instance.host.place.upper}{POWER_OFF_ASKED}")
        while not instance.over.wait(POLL_S):
            if off.exists():
                self.on_power_off(instance_id)
                return
            if request.exists():
                with instance.lock:
                    if instance.over.is_set():
                        return
                    instance.host.root(f"rm {REBOOT_ASKED}")
                    instance.host.reboot()


def _end(instance: _Instance) -> None:
    with instance.lock:
        instance.host.power_off()


def _in_background(work: Callable[[], None]) -> threading.Thread:
    def complain() -> None:
        try:
            work()
        except (RuntimeError, OSError, subprocess.SubprocessError):
            traceback.print_exc(file=sys.stderr)

    thread = threading.Thread(target=complain, daemon=True)
    thread.start()
    return thread
