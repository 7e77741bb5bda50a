"""Results of commands on nodes: `exec`, `fab`, `ray`, `push`, `pull`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inventories import codec

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The result of a command on one node, an element of `exec --json`."""

    node: str
    rank: int
    exit_code: int | None
    """Negative: ended by that signal. `None`: not known, see `error`."""
    stdout: str
    stderr: str
    error: str | None = field(default=None, metadata=codec.OMITTED)
    """Why the node could not be asked. `None`: it could."""


@dataclass(frozen=True, kw_only=True)
class TaskOnNode:
    """The result of a task of the user's fabfile on a node, or on this computer, an element of `fab --json`."""

    node: str | None
    """`None`: this computer."""
    rank: int | None
    status: Literal["done", "failed", "unknown"]
    """`unknown`: the connection was lost, and the task may have ended well."""
    error: str | None
    value: object
    """The value that the task returned; `None` if JSON can't hold it."""
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """A task of a line of `fab`."""

    task: str
    nodes: tuple[TaskOnNode, ...] = ()
    not_run: str | None = None
    """Why it was not run. `None`: it was."""


@dataclass(frozen=True, kw_only=True)
class RayState:
    """The state of Ray on a node, an element of `ray status --json`."""

    node: str
    running: bool | None
    """`None`: the node did not answer."""
    ports: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class RayEnd:
    """The end of Ray on a node, an element of `ray stop --json`."""

    node: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The files copied to one node, an element of `push --json`."""

    node: str
    files: int
    """Number of changed files."""
    bytes: int
    path: str
    """The folder on the node."""


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """The files copied from one node, an element of `pull --json`."""

    node: str
    files: int
    bytes: int
    path: str
    """The folder on this computer."""
    replaced: int
    """Files on this computer that had other content."""
    skipped: tuple[str, ...]
    """Paths that are not plain files, with the reason."""
