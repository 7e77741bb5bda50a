"""Streams to machines that are reached over a bastion: one connection to it, shared by all of them.

The bastion is the user's own, reached as their `ssh` would: their keys, agent, configuration. Its host key has to be
in the user's known_hosts already; no key is ever added.
"""

import shlex
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

from inventories.address import Address, read_bastion
from inventories.errors import InvalidInput
from inventories.machine import Machine
from inventories.user_ssh import CONFIG, SshSettings, read_settings
from remote.errors import AuthenticationFailed, HostKeyRejected, RemoteError, Unreachable
from remote.transport import known_hosts
from remote.transport.keys import REFUSALS, KeyLogin, offer_of, open_client
from remote.transport.paramiko_errors import channel_timed_out, retry_hang_ups
from remote.transport.proxy_command import ProxyStream, WatchedStream, command_over_bastion
from remote.transport.ssh_agent import complaint
from remote.transport.tcp import DEAD_PEER_S, open_tcp

ASK_EVERY_S = 10.0
KEEPALIVE_S = 10


@dataclass(kw_only=True, eq=False)
class _Shared:
    """A connection to a bastion, open or on its way, and how many need it."""

    bastion: Address
    client: Future[paramiko.SSHClient] = field(default_factory=Future)
    users: int = 0

    def usable(self) -> bool:
        """Return whether the tunnel is open, or may be soon."""
        if not self.client.done():
            return True
        transport = None if self.client.exception() else self.client.result().get_transport()
        return transport is not None and transport.is_active()


_lock = Lock()
_open: dict[Address, _Shared] = {}


def open_tunnel(machine: Machine, timeout_s: float) -> "Tunnel | ProxyStream":
    """Return a stream to the machine's SSH port by its proxy command, or over its bastion.

    Connects to the bastion if needed. Raises the errors of `connect_bastion`, and Unreachable if the bastion
    can't reach the machine, each with the machine's name and the bastion's.
    """
    if machine.proxy_command is not None:
        return ProxyStream(machine.name, machine.proxy_command)
    bastion = read_bastion(machine.bastion)
    try:
        way = read_way(bastion)
    except RemoteError as error:
        raise type(error)(f"{machine.name}: {error}") from error
    if way.jump is not None or way.proxy_command is not None:
        return ProxyStream(machine.name, command_over_bastion(bastion, machine))
    shared, first = _take(bastion)
    try:
        if first:
            try:
                shared.client.set_result(connect_bastion(bastion, way, timeout_s))
            except BaseException as error:
                shared.client.set_exception(error)
                raise
        # Others wait for the first one's attempt, which has its own deadlines, and share its outcome.
        return Tunnel(_channel(shared.client.result(), machine, timeout_s), shared)
    except RemoteError as error:
        _release(shared)
        raise type(error)(f"{machine.name}: {error}") from error
    except BaseException:
        _release(shared)
        raise


class Tunnel(WatchedStream):
    """A tunnel that paramiko takes for a connected socket."""

    def __init__(self, channel: paramiko.Channel, shared: _Shared) -> None:
        super().__init__()
        self._channel = channel
        self._shared: _Shared | None = shared

    @property
    def _closed(self) -> bool:
        """Return whether the tunnel is closed: paramiko reads this attribute of sockets."""
        return self._channel.closed

    def settimeout(self, timeout_s: float | None) -> None:
        """Set the time to wait for data."""
        self._channel.settimeout(timeout_s)

    def recv(self, size: int) -> bytes:
        """Receive at most `size` bytes; empty at the end."""
        return self.note(self._channel.recv(size))

    def send(self, data: bytes) -> int:
        """Send a part of the data; returns its size."""
        return self._channel.send(data)

    def close(self) -> None:
        """Close it, and the connection to the bastion with the last one. Again: nothing."""
        with _lock:
            shared, self._shared = self._shared, None
        if shared is None:
            return
        try:
            self._channel.close()
        except (paramiko.SSHException, OSError, EOFError):
            self._channel.closed = True  # no reader is left
        finally:
            _release(shared)


class TunnelTransport(paramiko.Transport):
    """SSH through a tunnel, where the kernel's timer watches over the way to the bastion only."""

    def watch(self) -> None:
        """Ask for a sign of life now and then; the connection breaks without one."""
        proxy = weakref.proxy(self)
        self.packetizer.set_keepalive(ASK_EVERY_S, lambda: proxy.ask_for_life())

    def ask_for_life(self) -> None:
        """Send a request that every server answers, if only with a refusal; close a tunnel that fell silent."""
        tunnel = self.sock
        if isinstance(tunnel, WatchedStream) and tunnel.silent_s() > DEAD_PEER_S + ASK_EVERY_S / 2:
            tunnel.close()
            return
        message = paramiko.Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_user_message(message)  # type: ignore[attr-defined]


def _take(bastion: Address) -> tuple[_Shared, bool]:
    """The connection to a bastion, and whether the caller is the one to open it. To be released."""
    with _lock:
        shared = _open.get(bastion)
        first = shared is None or not shared.usable()
        if shared is None or first:
            shared = _open[bastion] = _Shared(bastion=bastion)
        shared.users += 1
        return shared, first


def _release(shared: _Shared) -> None:
    with _lock:
        shared.users -= 1
        last = shared.users == 0
        if last and _open.get(shared.bastion) is shared:
            del _open[shared.bastion]
    if last and shared.client.done() and shared.client.exception() is None:
        shared.client.result().close()


def _channel(client: paramiko.SSHClient, machine: Machine, timeout_s: float) -> paramiko.Channel:
    """A channel of the bastion's to the machine's SSH port."""
    prefix = f"bastion {machine.bastion}: "
    target = f"{machine.host}:{machine.port}"
    transport = client.get_transport()
    try:
        if transport is None:
            raise EOFError
        return transport.open_channel(
            "direct-tcpip", (machine.host, machine.port), ("127.0.0.1", 0), timeout=timeout_s
        )
    except paramiko.ChannelException as error:
        if error.code == 1:
            raise Unreachable(
                f"{prefix}it may not forward to {target}. Set AllowTcpForwarding in its sshd_config, or take "
                "another bastion."
            ) from error
        raise Unreachable(
            f"{prefix}it can't connect to {target} ({error.text}). The machine is off or not up yet, or its "
            "firewall does not let the bastion in: see `gpuctl status`."
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        late = channel_timed_out(error)
        reason = (
            f"no answer of {target} within {timeout_s:.0f} s" if late else f"its connection broke: {error}"
        )
        raise Unreachable(
            f"{prefix}{reason}. A firewall drops the packets, or the machine is off: see `gpuctl status`."
        ) from error


def connect_bastion(bastion: Address, way: SshSettings, timeout_s: float) -> paramiko.SSHClient:
    """Return an open connection. `way`: the user's settings, as `read_way` returns them.

    Raises HostKeyRejected, Unreachable or AuthenticationFailed, which name the host.
    """
    return retry_hang_ups(lambda: _connect(bastion, way, timeout_s), deadline_s=timeout_s)


def read_way(bastion: Address) -> SshSettings:
    """Return the user's settings for a bastion; its own user and port win. Raises Unreachable."""
    try:
        return read_settings(bastion.host, user=bastion.user, port=bastion.port)
    except InvalidInput as error:
        raise Unreachable(f"bastion {bastion}: {error}") from error


def _connect(bastion: Address, way: SshSettings, timeout_s: float) -> paramiko.SSHClient:
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
    login = KeyLogin(way.user, offer_of(None, lambda: way), timeout_s)

    def explain(error: Exception) -> RemoteError | None:
        if isinstance(error, paramiko.BadHostKeyException):
            name = shlex.quote(known_hosts.known_name(way))
            return HostKeyRejected(
                f"{where}: its host key has changed: expected {error.expected_key.fingerprint}, got "
                f"{error.key.fingerprint}. Nothing was sent. If it was made new, `ssh-keygen -R {name}` removes the "
                "old key from your known_hosts; if not, somebody else may be answering."
            )
        if isinstance(error, REFUSALS):
            return AuthenticationFailed(
                f"{where}: it did not accept {login.offer} for {way.user}: {error}. Load the key into your agent "
                f"(ssh-add), or name it as IdentityFile of this host in {CONFIG}.{complaint(login.offer.agent)}"
            )
        return None

    try:
        client = open_client(
            (way.host, way.port), stream, login, timeout_s, where=where, host_keys=keys, explain=explain
        )
    except BaseException:
        stream.close()
        raise
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
    # A shell expands a leading ~, unless it is quoted.
    file = str(files[0])
    quoted = "~/" + shlex.quote(file[2:]) if file.startswith("~/") else shlex.quote(file)
    raise HostKeyRejected(
        f"{where}: no host key of {name} is known ({', '.join(map(str, files))}), and gpuctl takes none on trust. "
        f"Nothing was sent. Connect once by hand and compare the fingerprint: {connect} "
        f"(or, on a network that you trust: {scan} >> {quoted})"
    )
