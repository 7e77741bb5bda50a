"""Logging in to a machine over an open stream: a pinned host key, and one key of ours or the user's own."""

import logging
import socket
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import paramiko
from cryptography.exceptions import InvalidTag
from paramiko.pkey import UnknownKeyType

from inventories.deadline import READ_S, within
from inventories.machine import Machine
from remote.errors import AuthenticationFailed, HostKeyRejected, Unreachable
from remote.transport.host_keys import find_keys, host_pattern
from remote.transport.paramiko_errors import hung_up, no_key_to_offer, no_pinned_key
from remote.transport.retry import HungUp
from remote.transport.ssh_agent import Client, complaint

if TYPE_CHECKING:
    from remote.transport.tunnel import Tunnel

KEEPALIVE_S = 10

_reading_key = Lock()

# paramiko's threads print tracebacks of their own; what matters reaches us as an exception.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def log_in(
    machine: Machine, stream: "socket.socket | Tunnel", known_hosts: Path, timeout_s: float
) -> paramiko.SSHClient:
    """A client that is logged in, and whose connection breaks when the machine is gone. `stream` is then its own.

    Raises HostKeyRejected before anything was sent, AuthenticationFailed, Unreachable, HungUp.
    """
    private_key = _private_key(machine.key_file) if machine.key_file else None
    client = Client()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        _connect(client, machine, stream, private_key, known_hosts, timeout_s)
    except BaseException:
        client.close()
        raise
    _notice_its_end(client, in_tunnel=machine.bastion is not None)
    return client


def _connect(
    client: Client,
    machine: Machine,
    stream: "socket.socket | Tunnel",
    private_key: paramiko.PKey | None,
    known_hosts: Path,
    timeout_s: float,
) -> None:
    """As `log_in`, with a client; what goes wrong becomes one of our errors."""
    where = f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"
    pattern = host_pattern(machine.host, machine.port)
    try:
        for name, key in find_keys(known_hosts.read_text(errors="replace"), pattern).items():
            client.get_host_keys().add(pattern, name, key)
        client.connect(
            machine.host,
            machine.port,
            username=machine.user,
            sock=stream,  # type: ignore[arg-type]
            # A machine without a key of its own is one that the user reaches with theirs.
            pkey=private_key,
            allow_agent=machine.key_file is None and client.use_agent(login_s=timeout_s),
            look_for_keys=machine.key_file is None,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            transport_factory=_transport,  # type: ignore[arg-type]
        )
    except paramiko.BadHostKeyException as error:
        raise HostKeyRejected(
            f"{where}: the host key has changed: expected {error.expected_key.fingerprint}, got "
            f"{error.key.fingerprint}. Nothing was sent. If you did not make the machine anew, somebody "
            "else may be answering. If you did: `gpuctl down` forgets the pinned key, "
            f"`ssh-keygen -R '{pattern}'` the one in your own known_hosts, and `gpuctl up` then pins the new one. "
            "Local machines that are gone are replaced by `gpuctl up` alone."
        ) from error
    except paramiko.AuthenticationException as error:
        offered = machine.key_file or "the keys of your agent and of ~/.ssh"
        raise AuthenticationFailed(
            f"{where}: the host did not accept {offered}: {error}.{complaint()}"
        ) from error
    except (paramiko.SSHException, InvalidTag, OSError, EOFError) as error:
        if no_pinned_key(error):
            raise HostKeyRejected(
                f"{where}: no host key is pinned for {pattern} in {known_hosts}. "
                "Run `gpuctl up` again to pin it."
            ) from error
        if no_key_to_offer(error):
            raise AuthenticationFailed(
                f"{where}: there is no key to offer: your agent has none, and ~/.ssh neither. "
                f"Name one in the inventory with ansible_ssh_private_key_file.{complaint()}"
            ) from error
        if hung_up(error):
            raise HungUp(f"{where}: the port answers, but the server hung up before its banner.") from error
        # Both stages are given up after the same time, and paramiko's words tell which only by chance.
        transport = client.get_transport()
        stage = "key exchange" if transport is not None and transport.remote_version else "banner"
        raise Unreachable(f"{where}: the port answers, but SSH failed in its {stage}: {error}.") from error


def _notice_its_end(client: paramiko.SSHClient, *, in_tunnel: bool) -> None:
    """Have the connection break when the machine is gone."""
    transport = client.get_transport()
    assert transport is not None
    if in_tunnel:
        from remote.transport.tunnel import TunnelTransport

        assert isinstance(transport, TunnelTransport)
        transport.watch()
    else:
        # Something to be acknowledged every few seconds, so that TCP_USER_TIMEOUT notices a peer that is gone.
        transport.set_keepalive(KEEPALIVE_S)


def _transport(stream: "socket.socket | Tunnel", **options: Any) -> paramiko.Transport:  # noqa: ANN401 - paramiko's
    """SSH over a socket or a tunnel, with AES-GCM preferred.

    It checks a packet as it decrypts it; the MACs of the other ciphers are compared byte by byte, in Python.
    """
    kind = paramiko.Transport
    if not isinstance(stream, socket.socket):
        from remote.transport.tunnel import TunnelTransport

        kind = TunnelTransport
    transport = kind(stream, **options)  # type: ignore[arg-type]
    security = transport.get_security_options()
    security.ciphers = sorted(security.ciphers, key=lambda name: "gcm" not in name)
    return transport


def _private_key(path: Path) -> paramiko.PKey:
    """A private key, read once for all machines. Raises AuthenticationFailed where it can't be used."""
    with _reading_key:
        return _read_key(path)


@cache
def _read_key(path: Path) -> paramiko.PKey:
    try:
        return within(READ_S, lambda: paramiko.PKey.from_path(path), what="it could not be read")
    except paramiko.PasswordRequiredException as error:
        raise AuthenticationFailed(
            f"The key {path} has a passphrase. Load it into your agent (ssh-add {path}) and take "
            "ansible_ssh_private_key_file out of the inventory."
        ) from error
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise AuthenticationFailed(f"The key {path} can't be used: {error}.") from error
