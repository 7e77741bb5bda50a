"""Connecting to a bastion: the user's own, reached as their `ssh` would: their keys, agent, configuration.

Its host key has to be in the user's known_hosts already; none is ever added. `Include` in the configuration
is not followed.
"""

import getpass
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko

from inventories.bastion import Bastion
from inventories.deadline import read
from remote.errors import AuthenticationFailed, HostKeyRejected, Unreachable
from remote.transport import host_keys
from remote.transport.host_keys import USER_CONFIG
from remote.transport.paramiko_errors import hung_up, no_key_to_offer
from remote.transport.retry import HungUp, retry_hang_ups
from remote.transport.ssh_agent import Client, complaint
from remote.transport.tcp import open_tcp

KEEPALIVE_S = 10


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to get to a bastion, with what the user's configuration says."""

    host: str
    port: int
    user: str
    key_name: str
    """Under which known_hosts files have it."""
    known_hosts: tuple[Path, ...]
    key_files: tuple[Path, ...]
    """Those that are there. None: the usual ones."""
    agent: bool


def connect_bastion(bastion: Bastion, timeout_s: float) -> paramiko.SSHClient:
    """An open connection. Raises HostKeyRejected, Unreachable or AuthenticationFailed, which name the host."""
    return retry_hang_ups(lambda: _connect(bastion, timeout_s), deadline_s=timeout_s)


def _connect(bastion: Bastion, timeout_s: float) -> paramiko.SSHClient:
    """As `connect_bastion`, once. Raises HungUp, too."""
    way = find_way(bastion)
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
    client = Client()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        for name, key in keys.items():
            client.get_host_keys().add(host_keys.host_pattern(way.host, way.port), name, key)
        _log_in(client, way, stream, where, timeout_s)
    except BaseException:
        client.close()
        stream.close()
        raise
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEPALIVE_S)
    return client


def find_way(bastion: Bastion, config: Path = USER_CONFIG) -> Way:
    """What is written wins over the user's configuration, and that over the defaults."""
    found = _lookup(bastion.host, config.expanduser())
    for key in ("proxyjump", "proxycommand"):
        if found.get(key, "none") != "none":
            raise Unreachable(
                f"bastion {bastion}: {config} reaches it over another host ({key}), which gpuctl does not "
                "follow. Name a bastion that this computer reaches directly."
            )
    host = found.get("hostname", bastion.host)
    port = bastion.port or _port(found.get("port", "22"), f"bastion {bastion}: {config}")
    files = [Path(path).expanduser() for path in shlex.split(found.get("userknownhostsfile", ""))]
    return Way(
        host=host,
        port=port,
        user=bastion.user or found.get("user") or getpass.getuser(),
        key_name=found.get("hostkeyalias") or host_keys.host_pattern(host, port),
        known_hosts=tuple(files) or host_keys.USER_FILES,
        key_files=tuple(
            path for path in map(Path, found.get("identityfile", "").split("\0")) if path.is_file()
        ),
        agent=found.get("identitiesonly", "no") != "yes",
    )


def _port(text: str, where: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise Unreachable(f"{where} can't be used: its port {text!r} is no number.")


def _lookup(host: str, config: Path) -> Mapping[str, str]:
    """The user's settings for a host, by lower-case name; several `identityfile` are joined by NUL."""
    try:
        text = read(config).decode(errors="replace")
        found = paramiko.SSHConfig.from_text(text).lookup(host)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise Unreachable(f"bastion {host}: {config} can't be read: {error}.") from error
    return {key: "\0".join(value) if isinstance(value, list) else str(value) for key, value in found.items()}


def _trusted_keys(way: Way, where: str) -> dict[str, paramiko.PKey]:
    """The host's keys in the user's files, the kind first that is to be asked for."""
    found = host_keys.find_keys(host_keys.read(way.known_hosts), way.key_name)
    if found:
        return dict(sorted(found.items(), key=lambda item: item[0] != "ssh-ed25519"))
    files = ", ".join(map(str, way.known_hosts))
    port = "" if way.port == 22 else f"-p {way.port} "
    raise HostKeyRejected(
        f"{where}: no host key of {way.key_name} is known ({files}), and gpuctl takes none on trust. Nothing was "
        f"sent. Connect once by hand and compare the fingerprint: ssh {port}{way.user}@{way.host} "
        f"(or, on a network that you trust: ssh-keyscan {port}{way.host} >> {way.known_hosts[0]})"
    )


def _log_in(client: Client, way: Way, stream: socket.socket, where: str, timeout_s: float) -> None:
    try:
        client.connect(
            way.host,
            way.port,
            username=way.user,
            sock=stream,
            key_filename=[str(path) for path in way.key_files],  # type: ignore[arg-type]
            look_for_keys=not way.key_files,
            allow_agent=way.agent and client.use_agent(login_s=timeout_s),
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
        )
    except paramiko.BadHostKeyException as error:
        raise HostKeyRejected(
            f"{where}: its host key has changed: expected {error.expected_key.fingerprint}, got "
            f"{error.key.fingerprint}. Nothing was sent. If it was made new, `ssh-keygen -R '{way.key_name}'` "
            "removes the old key from your known_hosts; if not, somebody else may be answering."
        ) from error
    except (paramiko.AuthenticationException, paramiko.SSHException, OSError, EOFError, ValueError) as error:
        refused = isinstance(error, paramiko.AuthenticationException)
        if refused or no_key_to_offer(error):
            offered = ", ".join(map(str, way.key_files)) or "the keys of your agent and of ~/.ssh"
            raise AuthenticationFailed(
                f"{where}: it did not accept {offered} for {way.user}: {error}. Load the key into your agent "
                f"(ssh-add), or name it as IdentityFile of this host in {USER_CONFIG}.{complaint()}"
            ) from error
        if hung_up(error):
            raise HungUp(f"{where}: the port answers, but the server hung up before its banner.") from error
        raise Unreachable(f"{where}: the port answers, but SSH failed: {error or 'it hung up'}.") from error
