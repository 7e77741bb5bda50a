"""Streams to machines that are reached over a bastion: one connection to it, shared by all of them."""

import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

from inventories.bastion import Bastion, read_bastion
from inventories.machine import Machine
from inventories.user_ssh import SshSettings
from remote.errors import RemoteError, Unreachable
from remote.transport.bastion import connect_bastion, read_way
from remote.transport.paramiko_errors import channel_timed_out
from remote.transport.proxy_command import ProxyStream, WatchedStream, command_over_bastion
from remote.transport.tcp import DEAD_PEER_S

ASK_EVERY_S = 10.0


@dataclass(kw_only=True, eq=False)
class _Shared:
    """A connection to a bastion, open or on its way, and how many need it."""

    bastion: Bastion
    client: Future[paramiko.SSHClient] = field(default_factory=Future)
    users: int = 0

    def usable(self) -> bool:
        """Return whether the tunnel is open, or may be soon."""
        if not self.client.done():
            return True
        transport = None if self.client.exception() else self.client.result().get_transport()
        return transport is not None and transport.is_active()


_lock = Lock()
_open: dict[Bastion, _Shared] = {}


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
            _fulfil(shared, way, timeout_s)
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


def _take(bastion: Bastion) -> tuple[_Shared, bool]:
    """The connection to a bastion, and whether the caller is the one to open it. To be released."""
    with _lock:
        shared = _open.get(bastion)
        first = shared is None or not shared.usable()
        if shared is None or first:
            shared = _open[bastion] = _Shared(bastion=bastion)
        shared.users += 1
        return shared, first


def _fulfil(shared: _Shared, way: SshSettings, timeout_s: float) -> None:
    try:
        shared.client.set_result(connect_bastion(shared.bastion, way, timeout_s))
    except BaseException as error:
        shared.client.set_exception(error)
        raise


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
