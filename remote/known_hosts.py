"""Pinned host keys: where they come from, and the known_hosts file that holds a cluster's."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inventories.machine import Machine
from remote.errors import HostKeyRejected, Unreachable

if TYPE_CHECKING:
    import paramiko

USER_CONFIG = Path("~/.ssh/config")
USER_FILES = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
ASK_S = 10.0


def host_pattern(host: str, port: int) -> str:
    """A host as known_hosts files write it: `[host]:port` where the port is not 22."""
    return host if port == 22 else f"[{host}]:{port}"


def render(machines: Sequence[Machine]) -> str:
    """The text of a known_hosts file with the machines' pinned keys."""
    pinned = [(host_pattern(machine.host, machine.port), machine.host_key) for machine in machines]
    return "".join(f"{pattern} {key}\n" for pattern, key in pinned if key)


def pin(machine: Machine, files: Sequence[Path], *, accept_new: bool) -> Machine:
    """The machine with its host key: as it stands, from the first file that has one, or asked of the host.

    A host is asked only with `accept_new`, and only where no file knows it (OpenSSH's `accept-new`).
    Raises HostKeyRejected where no key is known, Unreachable where the host does not answer.
    """
    if machine.host_key:
        return machine
    for path in files:
        file = path.expanduser()
        if not file.exists():
            continue
        keys = find(file.read_text(errors="replace"), host_pattern(machine.host, machine.port))
        if keys:
            # ed25519 first: the others may be offered by older clients only.
            name = "ssh-ed25519" if "ssh-ed25519" in keys else next(iter(keys))
            return replace(machine, host_key=f"{name} {keys[name]}")
    if not accept_new:
        where = ", ".join(str(path) for path in files)
        raise HostKeyRejected(
            f"{machine.name}: no host key of {host_pattern(machine.host, machine.port)} is known ({where}). "
            "Give a file that has it with --known-hosts FILE, or trust the key that the host shows now "
            "with --accept-new-host-keys."
        )
    return replace(machine, host_key=_ask(machine))


def find(text: str, pattern: str) -> dict[str, str]:
    """The keys that a known_hosts file's text has for a host, hashed names included: type → Base64.

    As in OpenSSH, a line that can't be read is passed over. So are `@revoked` and `@cert-authority` lines:
    they name no host's own key.
    """
    return {name: key.get_base64() for name, key in find_keys(text, pattern).items()}


def find_keys(text: str, pattern: str) -> "dict[str, paramiko.PKey]":
    """What `find` finds, as keys."""
    keys: dict[str, paramiko.PKey] = {}
    for line in text.splitlines():
        key = _key_for(line.strip(), pattern)
        if key is not None:
            keys.setdefault(key.get_name(), key)
    return keys


def _key_for(line: str, pattern: str) -> "paramiko.PKey | None":
    """The key of one line, if it is a host's; None for any other line."""
    if not line or line.startswith(("#", "@")):
        return None
    words = line.split()
    if not any(_is_name_of(name, pattern) for name in words[0].split(",")):
        return None
    import paramiko
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    try:
        entry = HostKeyEntry.from_line(" ".join(words))
    except (InvalidHostKey, paramiko.SSHException, ValueError, IndexError, struct.error):
        return None
    return None if entry is None else entry.key


def _is_name_of(name: str, pattern: str) -> bool:
    if not name.startswith("|1|"):
        return name == pattern
    import paramiko

    try:
        return bool(paramiko.HostKeys.hash_host(pattern, name) == name)
    except (ValueError, AssertionError):
        return False  # a damaged hash


def _ask(machine: Machine) -> str:
    """The key that the host shows now."""
    import paramiko

    from remote.tcp import open_tcp
    from remote.tunnel import open_tunnel

    try:
        stream = open_tunnel(machine, ASK_S) if machine.jump else open_tcp(machine.host, machine.port, ASK_S)
        try:
            transport = paramiko.Transport(stream)  # type: ignore[arg-type]
            try:
                transport.start_client(timeout=ASK_S)
                key = transport.get_remote_server_key()
            finally:
                transport.close()
        finally:
            stream.close()
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise Unreachable(
            f"{machine.name}: {machine.host}:{machine.port} showed no host key: {error}. "
            "Check that the machine is up and that its SSH port is open to this computer."
        ) from error
    return f"{key.get_name()} {key.get_base64()}"
