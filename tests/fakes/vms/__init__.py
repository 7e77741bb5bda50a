"""Hosts like VMs, made of Linux namespaces (as root), each with the real OpenSSH server.

`with vms(tmp_path, count=2, firewall="oci") as net:` gives `net.hosts`, and with `net.inventory()` the files that
`gpuctl up --hosts` takes. Every host is tied to pipes that this process holds, so that all hosts end with this
process. A host shares with this machine the kernel, the processors, the memory and /dev: never run untrusted code in
it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fakes.vms.boot import Place
from tests.fakes.vms.files import ground, write_image
from tests.fakes.vms.host import Host, power_off
from tests.fakes.vms.image import File, Login, image
from tests.fakes.vms.lacking import lacking, lacking_clock
from tests.fakes.vms.network import LAPTOP, Outsider, Switch, bridge, plugged_in
from tests.fakes.vms.options import FIREWALLS, Firewall, Options

__all__ = [
    "FIREWALLS",
    "FIRST",
    "MOST",
    "Firewall",
    "Host",
    "Login",
    "Net",
    "Options",
    "Outsider",
    "lacking",
    "lacking_clock",
    "make_host",
    "new_login",
    "vms",
]

FIRST = 10
MOST = 100


@dataclass(frozen=True, kw_only=True)
class Net:
    """The hosts, and other devices on their subnet."""

    folder: Path
    hosts: tuple[Host, ...]
    outsider: Outsider
    subnet: str
    """As `10.77.0.0/24`."""
    laptop: str
    """The address of this machine on the subnet."""

    def inventory(self, *, python: str | None = None) -> tuple[Path, Path]:
        """Write what `gpuctl up --hosts FILE --known-hosts FILE` takes: a hosts file, and the hosts' keys.

        `python`: the interpreter that the hosts file names for all hosts.
        """
        lines = ["all:", "  hosts:"]
        for host in self.hosts:
            lines += [
                f"    {host.name}:",
                f"      ansible_host: {host.address}",
                f"      ansible_user: {host.user}",
                f"      ansible_ssh_private_key_file: {host.key_file}",
            ]
            lines += [f"      ansible_python_interpreter: {python}"] if python else []
        hosts_file, known_hosts = self.folder / "hosts.yaml", self.folder / "known_hosts"
        hosts_file.write_text("\n".join(lines) + "\n")
        known_hosts.write_text("".join(f"{host.address} {host.host_key}\n" for host in self.hosts))
        return hosts_file, known_hosts


@contextmanager
def vms(
    folder: Path, *, count: int = 2, each: Mapping[int, Mapping[str, Any]] | None = None, **options: Any
) -> Iterator[Net]:
    """Yield `count` running hosts, named gpu-0 and so on, with `options` (see Options) and per-host options in
    `each`.

    Their files are in a new folder in `folder`, which must be on a disk. When the block ends, and also when this
    process is killed, the hosts, their network and that folder are removed. Raises RuntimeError if a host does not
    boot.
    """
    assert 1 <= count <= MOST
    assert not set(",:\\") & set(str(folder)), "mount's options cannot hold this path"
    common = Options(**options)
    scratch = Path(tempfile.mkdtemp(prefix="vms-", dir=folder.resolve()))
    hosts: list[Host] = []
    try:
        with bridge(scratch) as switch, plugged_in(switch) as outsider:
            key_file = scratch / "key"
            public = _make_key(key_file)
            try:
                for index in range(count):
                    local = replace(common, **(each or {}).get(index, {}))
                    name, address = f"gpu-{index}", f"{switch.subnet}.{FIRST + index}"
                    login = new_login(scratch / name, authorized_keys=[public])
                    hosts.append(
                        make_host(scratch / name, name, address, local, switch, login, key_file=key_file)
                    )
                    hosts[-1].power_on()
                for host in hosts:
                    host.wait_for_boot()
                yield Net(
                    folder=scratch,
                    hosts=tuple(hosts),
                    outsider=outsider,
                    subnet=f"{switch.subnet}.0/24",
                    laptop=f"{switch.subnet}.{LAPTOP}",
                )
            finally:
                power_off(hosts)
    finally:
        # The bridge's process has removed it, if that ever started.
        shutil.rmtree(scratch, ignore_errors=True)


def make_host(
    folder: Path,
    name: str,
    address: str,
    options: Options,
    switch: Switch,
    login: Login,
    *,
    key_file: Path | None,
    more: Sequence[File] = (),
) -> Host:
    """Create a host that is off, with its files in `folder`, which may hold its keys already.

    `more`: further files of the host.
    """
    if options.clock_skew_s and (sentence := lacking_clock()):
        raise RuntimeError(sentence)
    for part in ("root", "work"):
        (folder / part).mkdir(parents=True)
    files, links = image(options, name=name, address=address, login=login, ground=ground())
    write_image(folder / "upper", (*files, *more), links)
    index = int(address.rpartition(".")[2]) - FIRST
    return Host(
        name=name,
        address=address,
        port=22,
        user=options.user,
        key_file=key_file,
        host_key=login.host_key_public,
        options=options,
        place=Place(folder=folder, index=index, name=name, address=address, switch_pid=switch.process.pid),
        switch=switch,
        running=[],
    )


def new_login(folder: Path, *, authorized_keys: Sequence[str], host_key: str | None = None) -> Login:
    """Create a host's login: the authorized keys, and the given host key or a new one, saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "host_key"
    if host_key is None:
        _make_key(path)
    else:
        path.touch(mode=0o600)
        path.write_text(host_key.strip() + "\n")
    done = subprocess.run(["ssh-keygen", "-y", "-f", str(path)], capture_output=True, text=True, check=True)
    return Login(
        authorized_key="\n".join(authorized_keys),
        host_key=path.read_text(),
        host_key_public=" ".join(done.stdout.split()[:2]),
    )


def _make_key(path: Path) -> str:
    """Create a key pair; return the public half: type and base64."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])
