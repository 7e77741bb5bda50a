"""SSH: one connection a machine, a pinned host key, a socket that notices a dead peer."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event

from remote.transport import light_invoke  # noqa: F401 - before paramiko

# isort: split
import paramiko

from inventories import clocks
from inventories.clocks import retry_if_away
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.errors import ConnectionLost
from remote.transport import LOOPBACK
from remote.transport.fabric_connection import BROKEN, OPEN_TIMEOUT_S, PinnedConnection


def connect(machine: Machine, cluster: ClusterFiles, timeout_s: float) -> "SshTransport":
    """Log in to a machine whose host key the cluster has pinned, over its bastion if it has one.

    A server that hangs up before its banner is tried again for `timeout_s`. Raises Unreachable with the stage that
    failed, HostKeyRejected before anything was sent, AuthenticationFailed.
    """
    connection = PinnedConnection(machine, cluster, timeout_s=timeout_s)
    connection.open()
    return SshTransport(connection)


class SshTransport:
    """An SSH connection that is logged in.

    Its channels are paramiko's, as Fabric gives channels only through its own runner.
    """

    def __init__(self, connection: PinnedConnection) -> None:
        config = connection.cluster.ssh_config_path
        self.ssh_config = config if config.exists() else None
        self.connection = connection
        self._name = connection.machine.name

    def start(
        self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False
    ) -> "SshProcess":
        """Start a shell command. Raises ConnectionLost."""
        try:
            if awaits_input:
                return SshProcess(retry_if_away(lambda: self._exec(command, window_bytes), BROKEN))
            return SshProcess(self._exec(command, window_bytes))
        except BROKEN as error:
            raise self._lost(error) from error

    def _exec(self, command: str, window_bytes: int | None) -> paramiko.Channel:
        """Have the server run a command. Raises TimeoutError if it does not say that it does: paramiko would wait."""
        channel = self._transport().open_session(window_size=window_bytes, timeout=OPEN_TIMEOUT_S)
        given_up = Event()

        def give_up() -> None:
            given_up.set()
            with suppress(OSError, EOFError):
                channel.close()

        late = clocks.Timer(OPEN_TIMEOUT_S, give_up)
        late.daemon = True
        late.start()
        try:
            channel.exec_command(command.encode())
        except Exception:
            if not given_up.is_set():
                raise
        finally:
            late.cancel()
        if given_up.is_set():  # perhaps only after the server has taken the command
            raise TimeoutError(f"the command was not taken within {OPEN_TIMEOUT_S:.0f} s")
        return channel

    def connect_port(self, port: int, host: str = LOOPBACK) -> "SshStream":
        """Connect to a port on the machine's loopback, or of a host that it reaches. Raises ConnectionLost."""
        ends = ((host, port), (LOOPBACK, 0))
        try:
            return SshStream(self._transport().open_channel("direct-tcpip", *ends, timeout=OPEN_TIMEOUT_S))
        except paramiko.ChannelException as error:
            raise ConnectionLost(
                f"{self._name}: nobody takes connections at its port {port}: {error.text}."
            ) from error
        except BROKEN as error:
            raise self._lost(error) from error

    def is_open(self) -> bool:
        """Return whether paramiko has not seen the connection break."""
        return bool(self.connection.is_connected)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _transport(self) -> paramiko.Transport:
        transport = self.connection.transport
        if transport is None:
            raise ConnectionLost(f"{self._name}: the connection is closed.")
        assert isinstance(transport, paramiko.Transport)
        return transport

    def _lost(self, error: Exception) -> ConnectionLost:
        return ConnectionLost(f"{self._name}: the connection broke: {error or 'closed'}.")


class SshStream:
    """A channel of an SSH connection."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def send(self, data: bytes, /) -> int:
        """Send a part of the data; returns its size."""
        with _as_oserror():
            return self._channel.send(data)

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; empty at the end."""
        with _as_oserror():
            return self._channel.recv(size)

    def end_input(self) -> None:
        """Tell the other side that no more is sent."""
        with _as_oserror():
            self._channel.shutdown_write()

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Set how long to wait for the other side."""
        self._channel.settimeout(timeout_s)

    def close(self) -> None:
        """Close the channel; a link that is broken has closed it."""
        with suppress(OSError, EOFError):
            self._channel.close()


class SshProcess(SshStream):
    """A command in a channel."""

    def recv_stderr(self, size: int, /) -> bytes:
        """Receive at most `size` bytes of the standard error; empty at the end."""
        with _as_oserror():
            return self._channel.recv_stderr(size)

    def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the exit status, which paramiko has as -1 if it is missing."""
        return self._channel.recv_exit_status() if self._channel.status_event.wait(timeout_s) else None


@contextmanager
def _as_oserror() -> Iterator[None]:
    """Translate paramiko's errors of a link that breaks while it sends, also while it confirms received data."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise ConnectionResetError(f"the connection is closed: {error}") from error
