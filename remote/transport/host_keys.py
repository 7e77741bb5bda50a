"""Pinned host keys: where they come from, and the known_hosts file that holds a cluster's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inventories.machine import Machine
from inventories.user_ssh import read_settings
from remote.errors import HostKeyRejected, Unreachable
from remote.transport.known_hosts import (
    USER_FILES,
    host_pattern,
    key_to_pin,
    read,
    revoked_keys,
)
from remote.transport.paramiko_errors import HungUp, hung_up, incompatible, retry_hang_ups

ASK_S = 10.0


def user_knowledge(machine: Machine, files: Sequence[Path]) -> tuple[str, str, Sequence[Path]]:
    """Return the text of the user's known_hosts files, the machine's name in them, and the files.

    The user's SSH configuration may name other files than the usual ones, and another name (HostKeyAlias).
    """
    settings = read_settings(machine.ssh_alias or machine.host, user=machine.user, port=machine.port)
    if tuple(files) == USER_FILES and settings.known_hosts:
        files = settings.known_hosts
    return read(files), settings.host_key_alias or host_pattern(machine.host, machine.port), files


def pin(machine: Machine, files: Sequence[Path], *, accept_new: bool) -> Machine:
    """The machine with its host key: as it stands, from the existing files, or asked of the host.

    A host is asked only with `accept_new`, and only where no file knows it (OpenSSH's `accept-new`);
    again for a while if its server hangs up.
    A machine without SSH has no key. Raises HostKeyRejected where no key is known or the key is revoked,
    Unreachable where the host does not answer.
    """
    if not machine.has_ssh:
        return machine
    host = host_pattern(machine.host, machine.port)
    if machine.host_key is None:
        text, host, files = user_knowledge(machine, files)
    else:
        text = read(files)
    key = machine.host_key or key_to_pin(text, host)
    if not key and accept_new:
        key = retry_hang_ups(lambda: _ask(machine), deadline_s=ASK_S)
    where = ", ".join(str(path) for path in files)
    if key is None:
        raise HostKeyRejected(
            f"{machine.name}: no host key of {host} is known ({where}). "
            "Give a file that has it with --known-hosts FILE, or trust the key that the host shows now "
            "with --accept-new-host-keys."
        )
    if key in revoked_keys(text, host):
        raise HostKeyRejected(
            f"{machine.name}: the host key of {host} is marked @revoked ({where}): somebody else may have it, "
            "and answer in the machine's place. Nothing was sent. Give the machine a new host key, and put that into "
            "the file."
        )
    return replace(machine, host_key=key)


def _ask(machine: Machine) -> str:
    """Return the key that the host shows now. Raises HungUp where the server hangs up before its banner."""
    import paramiko

    from remote.transport.proxy_command import failure_of
    from remote.transport.tcp import open_tcp
    from remote.transport.tunnel import open_tunnel

    stream = None
    try:
        stream = (
            open_tcp(machine.host, machine.port, ASK_S) if machine.is_direct else open_tunnel(machine, ASK_S)
        )
        transport = paramiko.Transport(stream)  # type: ignore[arg-type]
        try:
            transport.start_client(timeout=ASK_S)
            key = transport.get_remote_server_key()
        finally:
            transport.close()
    except (OSError, EOFError, paramiko.SSHException) as error:
        reason = incompatible(error) or (
            f"{machine.host}:{machine.port} showed no host key: {error}. "
            "Check that the machine is up and that its SSH port is open to this computer."
        )
        kind = HungUp if hung_up(error) else Unreachable
        raise failure_of(stream, kind(f"{machine.name}: {reason}")) from error
    finally:
        if stream is not None:
            stream.close()
    return f"{key.get_name()} {key.get_base64()}"
