"""Connecting to a machine: one SSH connection, a pinned host key, a socket that notices a dead peer."""

import logging
import socket
import time
from functools import cache
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from inventories.machine import Machine
from remote.errors import AuthenticationFailed, HostKeyRejected, Unreachable
from remote.known_hosts import host_pattern
from remote.patience import HungUp, hung_up, patiently
from remote.session import Node
from remote.tcp import open_tcp
from remote.tunnel import Tunnel, TunnelTransport, open_tunnel

CONNECT_TIMEOUT_S = 15.0
KEEPALIVE_S = 10

# paramiko's threads print tracebacks of their own; what matters reaches us as an exception.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def connect(machine: Machine, known_hosts: Path, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Node:
    """Open the connection to a machine whose host key is pinned in `known_hosts`, over its jump host if it has one.

    A server that hangs up before its banner is tried again for `timeout_s`. Raises Unreachable with the stage that
    failed, HostKeyRejected before anything was sent, AuthenticationFailed.
    """
    return patiently(lambda: _connect(machine, known_hosts, timeout_s), deadline_s=timeout_s)


def _connect(machine: Machine, known_hosts: Path, timeout_s: float) -> Node:
    """As `connect`, once. Raises HungUp, too."""
    private_key = _private_key(machine.key_file) if machine.key_file else None
    stream = open_tunnel(machine, timeout_s) if machine.jump else _tcp(machine, timeout_s)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        transport = _log_in(client, machine, stream, private_key, known_hosts, timeout_s)
    except BaseException:
        client.close()
        stream.close()
        raise
    if isinstance(transport, TunnelTransport):
        transport.watch()
    else:
        # Something to be acknowledged every few seconds, so that TCP_USER_TIMEOUT notices a peer that is gone.
        transport.set_keepalive(KEEPALIVE_S)
    return Node(machine, client)


def _log_in(
    client: paramiko.SSHClient,
    machine: Machine,
    stream: socket.socket | Tunnel,
    private_key: paramiko.PKey | None,
    known_hosts: Path,
    timeout_s: float,
) -> paramiko.Transport:
    """Connect over `stream` to a host with a pinned key, and log in; what goes wrong becomes one of our errors."""
    where = _where(machine)
    pattern = host_pattern(machine.host, machine.port)
    try:
        for name, key in (_pinned_keys(known_hosts).lookup(pattern) or {}).items():
            client.get_host_keys().add(pattern, name, key)
        client.connect(
            machine.host,
            machine.port,
            username=machine.user,
            sock=stream,  # type: ignore[arg-type]
            # A machine without a key of its own is one that the user reaches with theirs.
            pkey=private_key,
            allow_agent=machine.key_file is None,
            look_for_keys=machine.key_file is None,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            transport_factory=TunnelTransport if machine.jump else paramiko.Transport,  # type: ignore[arg-type]
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
        raise AuthenticationFailed(f"{where}: the host did not accept {offered}: {error}.") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        if "not found in known_hosts" in str(error):
            raise HostKeyRejected(
                f"{where}: no host key is pinned for {pattern} in {known_hosts}. "
                "Run `gpuctl up` again to pin it."
            ) from error
        if "No authentication methods available" in str(error):
            raise AuthenticationFailed(
                f"{where}: there is no key to offer: your agent has none, and ~/.ssh neither. "
                "Name one in the inventory with ansible_ssh_private_key_file."
            ) from error
        if hung_up(error):
            raise HungUp(f"{where}: the port answers, but the server hung up before its banner.") from error
        # Both stages are given up after the same time, and paramiko's words tell which only by chance.
        transport = client.get_transport()
        stage = "key exchange" if transport is not None and transport.remote_version else "banner"
        raise Unreachable(f"{where}: the port answers, but SSH failed in its {stage}: {error}.") from error
    opened = client.get_transport()
    assert opened is not None
    return opened


def _where(machine: Machine) -> str:
    return f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"


@cache
def _private_key(path: Path) -> paramiko.PKey:
    """A private key, read once for all machines. Raises AuthenticationFailed where it can't be used."""
    try:
        return paramiko.PKey.from_path(path)
    except paramiko.PasswordRequiredException as error:
        raise AuthenticationFailed(
            f"The key {path} has a passphrase. Load it into your agent (ssh-add {path}) and take "
            "ansible_ssh_private_key_file out of the inventory."
        ) from error
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise AuthenticationFailed(f"The key {path} can't be used: {error}.") from error


def _pinned_keys(known_hosts: Path) -> paramiko.HostKeys:
    """The pinned keys, read again only when the file has changed."""
    return _read_keys(known_hosts, known_hosts.stat().st_mtime_ns)


@cache
def _read_keys(known_hosts: Path, _mtime_ns: int) -> paramiko.HostKeys:
    return paramiko.HostKeys(str(known_hosts))


def _tcp(machine: Machine, timeout_s: float) -> socket.socket:
    """A socket that is connected to the machine; what goes wrong becomes one of our errors."""
    where = _where(machine)
    try:
        return open_tcp(machine.host, machine.port, timeout_s)
    except TimeoutError as error:
        raise Unreachable(
            f"{where}: no answer within {timeout_s:.0f} s. A firewall drops the packets, or the machine is off: "
            "see `gpuctl status`."
        ) from error
    except OSError as error:
        raise Unreachable(
            f"{where}: no TCP connection: {error.strerror or error}. See `gpuctl status`; `gpuctl up` replaces "
            "a machine that is gone."
        ) from error


def reconnect(machine: Machine, known_hosts: Path, *, deadline_s: float) -> Node:
    """Connect again to a machine that was reachable a moment ago, with a growing pause between attempts.

    A wrong host key or a refused login ends it at once. Raises the last Unreachable after the deadline.
    """
    limit, pause_s = time.monotonic() + deadline_s, 0.5
    while True:
        try:
            return connect(machine, known_hosts, timeout_s=min(10.0, max(1.0, limit - time.monotonic())))
        except Unreachable:
            if time.monotonic() + pause_s > limit:
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)
