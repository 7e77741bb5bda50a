"""A machine as a `fabric.Connection` that trusts its pinned host key and nothing else, and machines as a group.

`run`, `sudo`, `put`, `get`, `local` and `forward_local` are Fabric's own. Our part is the way it is opened: by
`log_in`, over our sockets and tunnels. Files of settings for Fabric, Invoke or OpenSSH are not read for it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

import fabric
import paramiko
from cryptography.exceptions import InvalidTag
from fabric.exceptions import GroupException
from paramiko.config import SSHConfig

from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from inventories.threads import MAX_AT_ONCE
from remote.errors import Unreachable
from remote.fanout import fan_out
from remote.transport.login import log_in, offer_for
from remote.transport.paramiko_errors import retry_hang_ups
from remote.transport.tcp import open_tcp

if TYPE_CHECKING:
    import socket

    from remote.transport.proxy_command import ProxyStream
    from remote.transport.tunnel import Tunnel

OPEN_TIMEOUT_S = 15.0
BROKEN = (paramiko.SSHException, InvalidTag, OSError, EOFError)
"""What paramiko raises where a connection breaks."""


class Config(fabric.Config):  # type: ignore[misc] # Fabric has no types
    """Fabric's settings, without what Fabric reads from files of the system and the user."""

    def load_base_conf_files(self) -> None:
        """Load no configuration.

        It could name another user, key or gateway, and a file that ends in .py would be run.
        """


# Made while this module is imported, so by one thread, and only copied from then on.
_CONFIG = Config(lazy=True, ssh_config=SSHConfig())


def fresh_config() -> Config:
    """Fabric's settings for one connection, which nothing else shares."""
    config = _CONFIG.clone()
    assert isinstance(config, Config)
    return config


class PinnedConnection(fabric.Connection):  # type: ignore[misc] # Fabric has no types
    """A connection to a machine of a cluster; opened when it is first used, or by `open`.

    Raises Unreachable with the stage that failed, HostKeyRejected before anything was sent, AuthenticationFailed.
    """

    # As class attributes they are no settings: Fabric takes every other attribute for one.
    machine: Machine = None  # type: ignore[assignment]
    cluster: ClusterFiles = None  # type: ignore[assignment]
    open_timeout_s = OPEN_TIMEOUT_S
    _opening: Any = None
    _offer: Any = None

    def __init__(
        self,
        machine: Machine,
        cluster: ClusterFiles,
        *,
        timeout_s: float = OPEN_TIMEOUT_S,
        config: Config | None = None,
    ) -> None:
        """`cluster`: where the pinned host keys are. `config`: `None`: settings of its own."""
        super().__init__(
            machine.host,
            user=machine.user,
            port=machine.port,
            config=fresh_config() if config is None else config,
            gateway=False,
            forward_agent=False,
        )
        self.machine = machine
        self.cluster = cluster
        self.open_timeout_s = timeout_s
        self._opening = RLock()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the class's as one. Fabric would list them all, each time."""
        if hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def derive_shorthand(self, host_string: str) -> dict[str, Any]:
        """Take a host literally: `user@host:port` is for people."""
        return {"user": None, "host": host_string, "port": None}

    def open(self) -> None:
        """Log in, where it is not open; over the machine's bastion, if it has one.

        A server that hangs up before its banner is tried again until the time to open it is over.
        """
        with self._opening:
            if self.is_connected:
                return
            self.close()  # of one that broke
            self._offer = offer_for(self.machine)
            self.client = retry_hang_ups(self._log_in, deadline_s=self.open_timeout_s)
            self.transport = self.client.get_transport()

    def close(self) -> None:
        """Close the connection; detached processes on the machine continue. Idempotent."""
        with self._opening:
            with suppress(*BROKEN):
                super().close()
            self._sftp = None
            self.client.close()  # Fabric leaves a client alone whose connection broke
            self.transport = None

    def _log_in(self) -> paramiko.SSHClient:
        """A client that is logged in. Raises HungUp, too."""
        timeout_s = self.open_timeout_s
        if self.machine.is_direct:
            stream: socket.socket | Tunnel | ProxyStream = _tcp(self.machine, timeout_s)
        else:
            from remote.transport.tunnel import open_tunnel

            stream = open_tunnel(self.machine, timeout_s)
        try:
            return log_in(self.machine, stream, self.cluster.known_hosts_path, timeout_s, self._offer)
        except Unreachable as error:
            from remote.transport.proxy_command import failure_of

            failure = failure_of(stream, error)
            stream.close()
            raise failure from None
        except BaseException:
            stream.close()
            raise

    def _identity(self) -> tuple[str, str]:
        """Return the identity of the connection: behind two bastions machines may have the same address."""
        return (str(self.cluster.path), self.machine.name)

    def __repr__(self) -> str:
        return f"<PinnedConnection {self.machine.name}>"


class PinnedGroup(fabric.Group):  # type: ignore[misc] # Fabric has no types
    """A connection to each machine, with the concurrency of every other fan-out.

    A method raises GroupException where it failed on one, with every outcome.
    """

    def __init__(
        self,
        machines: Sequence[Machine] = (),
        cluster: ClusterFiles | None = None,
        *,
        at_once: int = MAX_AT_ONCE,
    ) -> None:
        super().__init__()
        self.at_once = at_once
        if cluster is not None:
            self.extend(PinnedConnection(machine, cluster) for machine in machines)

    def get(self, *args: Any, **kwargs: Any) -> fabric.GroupResult:  # noqa: ANN401 - Fabric's own
        """Get a file of each machine, into a folder of the machine's name unless another place is given."""
        if len(args) < 2 and "local" not in kwargs:
            return self.map(lambda box: box.get(*args, local=f"{box.machine.name}/", **kwargs))
        return self.map(lambda box: box.get(*args, **kwargs))

    def close(self) -> None:
        """Close all connections."""
        self.map(lambda box: box.close())

    def _do(self, method: str, *args: Any, **kwargs: Any) -> fabric.GroupResult:  # noqa: ANN401 - Fabric's own
        return self.map(lambda box: getattr(box, method)(*args, **kwargs))

    def map(self, work: Callable[[PinnedConnection], Any]) -> fabric.GroupResult:
        """Call `work` with each connection, in threads. Raises GroupException with every outcome where one failed."""

        def call(box: PinnedConnection) -> Any:  # noqa: ANN401 - what the method returns
            try:
                return work(box)
            except Exception as error:  # noqa: BLE001 - a group's result holds the errors
                return error

        boxes = {str(number): box for number, box in enumerate(self)}
        outcomes = fan_out(call, boxes, at_once=self.at_once)
        results = fabric.GroupResult(
            (box, outcome.value) for box, outcome in zip(boxes.values(), outcomes, strict=True)
        )
        if results.failed:
            raise GroupException(results)
        return results


def _tcp(machine: Machine, timeout_s: float) -> "socket.socket":
    """A socket that is connected to the machine; what goes wrong becomes one of our errors."""
    where = f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"
    try:
        return open_tcp(machine.host, machine.port, timeout_s)
    except TimeoutError as error:
        raise Unreachable(f"{where}: no answer within {timeout_s:.0f} s. {_silent(machine)}") from error
    except OSError as error:
        raise Unreachable(
            f"{where}: no TCP connection: {error.strerror or error}. {_closed(machine)}"
        ) from error


def _silent(machine: Machine) -> str:
    """Return why no packet may come back, and what to do about it."""
    if machine.is_made_by_gpuctl:
        return (
            "If the address of this computer has changed, `gpuctl up` lets the new address in. The machine may also "
            "be off: `gpuctl status` asks the provider."
        )
    return (
        "A firewall drops the packets, or the machine is off. See that it is on, that its address in the inventory "
        f"is right, and that its firewall lets this computer in at port {machine.port}."
    )


def _closed(machine: Machine) -> str:
    """Return what to do about a machine that takes no connection."""
    if machine.is_made_by_gpuctl:
        return "`gpuctl status` shows its state; `gpuctl up` replaces a machine that is gone."
    return f"See that it is on, and that its SSH server listens at port {machine.port}."
