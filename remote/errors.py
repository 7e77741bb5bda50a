"""The errors of this package, all a RemoteError. Some modules define an error of their own next to its cause."""

from collections.abc import Collection

from inventories.errors import GpuctlError


class RemoteError(GpuctlError):
    """Base of the family."""


class Unreachable(RemoteError):
    """No connection could be made."""


class MachineGone(Unreachable):
    """The machine does not exist any more, or it is being terminated."""


class HostKeyRejected(RemoteError):
    """The host's key is not the pinned key, or no key is pinned."""


class AuthenticationFailed(RemoteError):
    """The host did not take our key."""


class ConnectionLost(RemoteError):
    """The connection broke in the middle of something."""


class NodeFailed(RemoteError):
    """A command on a node failed."""


class DiskFull(NodeFailed):
    """No space is left on a node."""


class HomeNotWritable(NodeFailed):
    """The login user's home folder on a node can't be written to."""


class ShellFailed(NodeFailed):
    """The login shell did not run a command."""


class NoPython(NodeFailed):
    """No Python is at the expected path."""


class SomeNodesFailed(RemoteError):
    """At least one node failed."""

    def __init__(self, message: str, *, exit_status: int = 1) -> None:
        """`exit_status`: the nodes', where it is one."""
        super().__init__(message)
        self.exit_status = exit_status


class NotReady(RemoteError):
    """A machine's set-up failed, or did not end in time."""


class UnknownTransport(RemoteError):
    """An inventory names a transport that this release lacks."""


class UnknownLauncher(RemoteError):
    """A run's record names a launcher that this release lacks."""


class RayNotReady(RemoteError):
    """Ray does not count in all nodes."""


class PreflightFailed(RemoteError):
    """A run would fail or hang later."""

    def __init__(self, message: str, nodes: Collection[str] = ()) -> None:
        """`nodes`: the nodes that stand in its way, as far as they are known."""
        super().__init__(message)
        self.nodes = frozenset(nodes)


class SyncRefused(RemoteError):
    """The folder is too large, is a home folder, or git can't list it."""

    exit_status = 2


class ScriptNotFound(RemoteError):
    """The script does not exist."""

    exit_status = 2


class ScriptNotSynced(RemoteError):
    """The program to run is not among the files sent to the nodes, or can't be run."""

    exit_status = 2


class BadFabfile(RemoteError):
    """The fabfile does not exist, can't be loaded, or has no such task or argument."""

    exit_status = 2


class PortTaken(RemoteError):
    """A port of this computer is in use."""


class BadAnswer(RemoteError):
    """The answer of a node is not valid."""
