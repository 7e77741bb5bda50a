"""Connections to a bastion: the user's own, reached as their `ssh` would: their keys, agent, configuration.

Its host key has to be in the user's known_hosts already; no key is ever added.
"""

import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

import paramiko

from inventories.bastion import Bastion
from inventories.errors import InvalidInput
from inventories.user_ssh import CONFIG, SshSettings, read_settings
from remote.errors import AuthenticationFailed, HostKeyRejected, Unreachable
from remote.transport import known_hosts
from remote.transport.keys import KeyLogin, NoKey, SecondFactor, TooManyKeys, offer_of
from remote.transport.paramiko_errors import hung_up
from remote.transport.retry import HungUp, retry_hang_ups
from remote.transport.ssh_agent import complaint
from remote.transport.tcp import open_tcp

KEEPALIVE_S = 10


def connect_bastion(bastion: Bastion, way: SshSettings, timeout_s: float) -> paramiko.SSHClient:
    """Return an open connection. `way`: the user's settings, as `read_way` returns them.

    Raises HostKeyRejected, Unreachable or AuthenticationFailed, which name the host.
    """
    return retry_hang_ups(lambda: _connect(bastion, way, timeout_s), deadline_s=timeout_s)


def read_way(bastion: Bastion) -> SshSettings:
    """Return the user's settings for a bastion; its own user and port win. Raises Unreachable."""
    try:
        return read_settings(bastion.host, user=bastion.user, port=bastion.port)
    except InvalidInput as error:
        raise Unreachable(f"bastion {bastion}: {error}") from error


def _connect(bastion: Bastion, way: SshSettings, timeout_s: float) -> paramiko.SSHClient:
    """Connect once, for `connect_bastion`. Raises HungUp, too."""
    where = f"bastion {bastion}"
    keys = _trusted_keys(way, where)
    try:
        stream = open_tcp(way.host, way.port, timeout_s)
    except OSError as error:
        reason = f"no answer within {timeout_s:.0f} s" if isinstance(error, TimeoutError) else error.strerror
        raise Unreachable(
            f"{where}: no TCP connection to {way.host}:{way.port}: {reason or error}. Check that it runs and "
            "that its firewall lets this computer in."
        ) from error
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    login = KeyLogin(way.user, offer_of(None, lambda: way), timeout_s)
    try:
        for name, key in keys.items():
            client.get_host_keys().add(known_hosts.host_pattern(way.host, way.port), name, key)
        _log_in(client, way, stream, where, timeout_s, login)
    except BaseException:
        client.close()
        stream.close()
        raise
    finally:
        login.close()
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEPALIVE_S)
    return client


def _trusted_keys(way: SshSettings, where: str) -> Mapping[str, paramiko.PKey]:
    """The host's keys in the user's files, the kind first that is to be asked for."""
    files = way.known_hosts or known_hosts.USER_FILES
    name = known_hosts.known_name(way)
    keys = known_hosts.find_keys(known_hosts.read(files), name)
    if keys:
        return dict(sorted(keys.items(), key=lambda item: item[0] != "ssh-ed25519"))
    port = [] if way.port == 22 else ["-p", str(way.port)]
    connect = shlex.join(["ssh", *port, f"{way.user}@{way.host}"])
    scan = shlex.join(["ssh-keyscan", *port, way.host])
    raise HostKeyRejected(
        f"{where}: no host key of {name} is known ({', '.join(map(str, files))}), and gpuctl takes none on trust. "
        f"Nothing was sent. Connect once by hand and compare the fingerprint: {connect} "
        f"(or, on a network that you trust: {scan} >> {_shell_path(files[0])})"
    )


def _shell_path(path: Path) -> str:
    """A path as a shell takes it, which expands a leading ~."""
    text = str(path)
    return "~/" + shlex.quote(text[2:]) if text.startswith("~/") else shlex.quote(text)


def _log_in(
    client: paramiko.SSHClient,
    way: SshSettings,
    stream: socket.socket,
    where: str,
    timeout_s: float,
    login: KeyLogin,
) -> None:
    try:
        client.connect(
            way.host,
            way.port,
            username=way.user,
            sock=stream,
            auth_strategy=login,  # type: ignore[arg-type]
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
        )
    except AuthenticationFailed as error:
        raise AuthenticationFailed(f"{where}: {error}") from error
    except paramiko.BadHostKeyException as error:
        name = known_hosts.known_name(way)
        raise HostKeyRejected(
            f"{where}: its host key has changed: expected {error.expected_key.fingerprint}, got "
            f"{error.key.fingerprint}. Nothing was sent. If it was made new, `ssh-keygen -R {shlex.quote(name)}` "
            "removes the old key from your known_hosts; if not, somebody else may be answering."
        ) from error
    except (paramiko.AuthenticationException, NoKey, TooManyKeys, SecondFactor) as error:
        raise AuthenticationFailed(
            f"{where}: it did not accept {login.offer} for {way.user}: {error}. Load the key into your agent "
            f"(ssh-add), or name it as IdentityFile of this host in {CONFIG}.{complaint(login.offer.agent)}"
        ) from error
    except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
        if hung_up(error):
            raise HungUp(f"{where}: the port answers, but the server hung up before its banner.") from error
        raise Unreachable(f"{where}: the port answers, but SSH failed: {error or 'it hung up'}.") from error
