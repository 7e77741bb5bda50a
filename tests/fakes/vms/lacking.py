"""Check whether this machine can run VM-like hosts."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {
    "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2",
    "nft": "nftables", "iptables-nft": "iptables", "iptables-legacy": "iptables", "ufw": "ufw", "sudo": "sudo",
    "sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "sysctl": "procps",
}  # fmt: skip
"""Commands, and the Debian packages that have them."""


@functools.cache
def lacking() -> str | None:
    """Return a sentence that names a missing requirement, or `None`."""
    if sys.platform != "linux":
        return "VM-like hosts need Linux"
    if os.geteuid() != 0:
        return "VM-like hosts need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)}
    )
    if missing:
        return f"VM-like hosts need more programs (Debian: apt-get install {' '.join(missing)})"
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time", "--fork")
    if subprocess.run(["unshare", *spaces, "true"], capture_output=True, check=False).returncode:
        return "VM-like hosts need the right to make namespaces, which an unprivileged container lacks"
    return None


def faketime() -> str | None:
    """Return the library that shifts the clock of the programs that load it, or `None`."""
    result = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(result[0]) if result else None


def lacking_clock() -> str | None:
    """Return the missing requirement of hosts whose clock is off, or `None`."""
    if faketime() is None:
        return "a host's clock is shifted by libfaketime (Debian: apt-get install libfaketime)"
    return lacking()
