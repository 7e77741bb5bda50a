"""Results of commands that check and clear up: `reap`, `clean`, `doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inventories import codec

if TYPE_CHECKING:
    from provision.provider import Leftover


@dataclass(frozen=True, kw_only=True)
class ReapRow:
    """A cluster that `reap` found by its tags."""

    cluster: str
    id: str
    owner: str | None
    provider: str
    region: str | None
    compartment: str | None
    machines: tuple[str, ...]
    parts: tuple[str, ...]
    since: str | None
    age_s: int | None
    expires_at: str | None
    left_s: int | None
    """Until then."""
    expired: bool
    hourly_usd: float | None
    cost_usd: float | None
    chosen: bool
    """Whether it is to be removed."""


@dataclass(frozen=True, kw_only=True)
class ReapFailure:
    """A place that could not be scanned or emptied."""

    provider: str
    region: str | None
    compartment: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class UnknownUse:
    """A cluster with a machine that did not report its use."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReapResult:
    """The document of `reap --json`."""

    clusters: tuple[ReapRow, ...]
    networks: tuple[str, ...] = ()
    removed: tuple[str, ...]
    """Ids of clusters."""
    leftovers: "tuple[Leftover, ...]"
    failed: tuple[ReapFailure, ...] = ()
    not_looked_at: tuple[ReapFailure, ...] = ()
    not_asked: tuple[UnknownUse, ...] = ()
    """Clusters of which `--idle` does not know whether they are in use."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CleanItem:
    """An item on a disk and its fate, an element of `clean --json`."""

    where: str | None
    """A node; `None`: this computer, as any word may be the name of a node."""
    cluster: str | None
    kind: str
    name: str
    bytes: int
    whole: bool = True
    """False: `bytes` is a minimum."""
    shared: int = 0
    """Bytes of files with further names."""
    only_copy: bool = False
    """True: it may hold results without another copy."""
    removes: bool
    why: str
    """Why it is removed, or why it stays, in a clause."""


@dataclass(frozen=True, kw_only=True)
class CleanFailure:
    """An item that `clean` could not remove; without a kind and a name, all items of a node."""

    where: str | None
    kind: str
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NotAsked:
    """A node that did not answer, or with `node` `None` a whole cluster."""

    cluster: str
    node: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class CleanResult:
    """The document of `clean --json`."""

    items: tuple[CleanItem, ...]
    removable_bytes: int
    freed_bytes: int
    removed: int
    """Number of items."""
    failed: tuple[CleanFailure, ...]
    not_asked: tuple[NotAsked, ...]
    dry_run: bool
    seconds: float


@dataclass(frozen=True)
class DoctorFinding:
    """A line of `doctor --json`."""

    subject: str = field(metadata=codec.key("what"))
    ok: bool | None
    """`None`: worth knowing, stops nothing."""
    detail: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """The document of `doctor --json`."""

    ok: bool
    findings: tuple[DoctorFinding, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterDoctorResult:
    """The document of `doctor --cluster --json`."""

    ok: bool
    cluster: str
    findings: tuple[DoctorFinding, ...]
    allreduce: tuple[Mapping[str, Any], ...] | None
    """Lines of the all-reduce. `None`: not measured."""
