"""Logging in to a machine over an open stream: a pinned host key, and one key of ours or the user's own."""

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from inventories.errors import InvalidInput
from inventories.machine import Machine
from inventories.user_ssh import SshSettings, read_settings
from remote.errors import AuthenticationFailed, HostKeyRejected, RemoteError
from remote.transport.keys import (
    REFUSALS,
    KeyLogin,
    NoKey,
    Offer,
    SecondFactor,
    TooManyKeys,
    offer_of,
    open_client,
    unlock,
)
from remote.transport.known_hosts import find_keys, host_pattern, read
from remote.transport.paramiko_errors import no_pinned_key
from remote.transport.ssh_agent import complaint

if TYPE_CHECKING:
    from remote.transport.proxy_command import WatchedStream

KEEPALIVE_S = 10


def offer_for(machine: Machine) -> Offer:
    """Return the keys for a machine, after the passphrase of a given one was asked for where it is needed.

    Raises AuthenticationFailed.
    """

    def settings() -> SshSettings:
        return read_settings(machine.ssh_alias or machine.host, user=machine.user, port=machine.port)

    try:
        offer = offer_of(machine.key_file, settings)
        unlock(offer)
    except (InvalidInput, AuthenticationFailed) as error:
        raise AuthenticationFailed(f"{machine.name}: {error}") from error
    return offer


def log_in(
    machine: Machine,
    stream: "socket.socket | WatchedStream",
    known_hosts: Path,
    timeout_s: float,
    offer: Offer,
) -> paramiko.SSHClient:
    """A client that is logged in, and whose connection breaks when the machine is gone. `stream` is then its own.

    Raises HostKeyRejected before anything was sent, AuthenticationFailed, Unreachable, HungUp.
    """
    where = f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"
    pattern = host_pattern(machine.host, machine.port)

    def explain(error: Exception) -> RemoteError | None:
        if isinstance(error, paramiko.BadHostKeyException):
            return HostKeyRejected(
                f"{where}: the host key has changed: expected {error.expected_key.fingerprint}, got "
                f"{error.key.fingerprint}. Nothing was sent. If you did not make the machine anew, somebody "
                "else may be answering. If you did: `gpuctl down` forgets the pinned key, "
                f"`ssh-keygen -R '{pattern}'` the one in your own known_hosts, and `gpuctl up` then pins the new one."
                + " `gpuctl up` alone replaces local hosts that are gone."
                * (machine.shape == "local")
            )
        if isinstance(error, REFUSALS):
            return AuthenticationFailed(f"{where}: {refusal(error, offer, machine)}{complaint(offer.agent)}")
        if no_pinned_key(error):
            return HostKeyRejected(
                f"{where}: no host key is pinned for {pattern} in {known_hosts}. Run `gpuctl up` again to pin it."
            )
        return None

    client = open_client(
        (machine.host, machine.port),
        stream,
        KeyLogin(machine.user, offer, timeout_s),
        timeout_s,
        where=where,
        host_keys=find_keys(read([known_hosts]), pattern),
        explain=explain,
        transport_factory=_transport,
    )
    transport = client.get_transport()
    assert transport is not None
    if isinstance(stream, socket.socket):
        # Something to be acknowledged every few seconds, so that TCP_USER_TIMEOUT notices a peer that is gone.
        transport.set_keepalive(KEEPALIVE_S)
    else:
        from remote.transport.tunnel import TunnelTransport

        assert isinstance(transport, TunnelTransport)
        transport.watch()
    return client


def refusal(error: Exception, offer: Offer, machine: Machine) -> str:
    """Return the sentence on a login that the server refused, or for which no key exists."""
    name_it = "with ansible_ssh_private_key_file in the inventory"
    if isinstance(error, NoKey) and offer.missing:
        names = ", ".join(map(str, offer.missing))
        return (
            f"no key can be offered: your SSH configuration names {names} as IdentityFile, and no such file exists. "
            f"Correct that, or name the key {name_it}."
        )
    if isinstance(error, NoKey):
        return f"there is no key to offer: your agent has none, and ~/.ssh neither. Name one {name_it}."
    if isinstance(error, TooManyKeys):
        return (
            f"{error}, before the right one (MaxAuthTries in its sshd_config). Name the right one {name_it}, or as "
            "IdentityFile with `IdentitiesOnly yes` in ~/.ssh/config."
        )
    if isinstance(error, SecondFactor):
        return f"the host took the key and demands more ({error}), and gpuctl logs in with keys alone."
    if isinstance(error, paramiko.BadAuthenticationType):
        kinds = ", ".join(error.allowed_types) or "none"
        copy = shlex.join(["ssh-copy-id", *(["-p", str(machine.port)] if machine.port != 22 else [])])
        user = shlex.quote(f"{machine.user}@{machine.host}")
        return (
            f"the host takes no keys for {machine.user} (only: {kinds}), and gpuctl logs in with keys alone. Allow "
            f"them (PubkeyAuthentication yes in its sshd_config), and put yours there: {copy} {user}"
        )
    return (
        f"the host did not accept {offer}: {str(error).rstrip('.')}. Its log says why: a wrong user, a key that is "
        "not in ~/.ssh/authorized_keys there, an account without a shell."
    )


def _transport(stream: "socket.socket | WatchedStream", **options: Any) -> paramiko.Transport:  # noqa: ANN401 - paramiko's
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
