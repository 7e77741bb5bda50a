"""Settings of a fake cloud: its behaviour and its faults."""

from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal

Kind = Literal["error", "drop_before", "drop_after", "hold_before", "hold_after", "duplicate"]
KINDS = ("error", "drop_before", "drop_after", "hold_before", "hold_after", "duplicate")

_ATTACH_REFUSED = {
    "preemptible": "preemptible instances are not supported in instance pools.",
    "compute-cluster": "members of compute clusters are not supported in instance pools.",
}
"""Whether OCI attaches such machines is not known; tests assume the worse."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The behaviour of the cloud, changed by PATCH /_fake/settings."""

    latency_s: float = 0.0
    """Of every call."""
    launch_s: float = 0.2
    """From the launch until the instance runs."""
    terminate_s: float = 0.2
    """From the request until the instance is gone."""
    list_lag_s: float = 0.0
    """How long something new does not show in lists."""
    speed: float = 1.0
    page_size: int = 3
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)
    """Instances at once, by shape and place; `*` stands for any; absent: unlimited."""
    quota: dict[str, int] = field(default_factory=dict)
    """Instances at once, by shape; `*` stands for any; absent: unlimited."""
    place_quota: dict[str, dict[str, int]] = field(default_factory=dict)
    """Instances at once, by shape and place, where an account's quota counts by place; `*` and absent as above."""
    late_failure: dict[str, str] = field(default_factory=dict)
    """By place: a launch there is accepted and fails later, with this message."""
    refused_by_policy: list[str] = field(default_factory=list)
    """Globs of operations that the caller has no permission for."""
    absent_images: list[str] = field(default_factory=list)
    """Globs of the names of images that the region does not have."""
    scaling_s: float = 0.1
    """OCI: from a change of an instance pool until it takes the next change."""
    attach_refused: dict[str, str] = field(default_factory=lambda: dict(_ATTACH_REFUSED))
    """OCI: why an instance pool takes no such machine: by `preemptible`, `compute-cluster` or a shape."""
    runs_commands: bool = True
    """OCI: whether the agents of machines ask for commands of Run Command, as their policies allow."""
    ssh_port: int = 2222
    oke_endpoint: str = ""
    """OKE: where the API server of every cluster is; empty: nowhere."""
    oke_cluster_s: float = 0.2
    """OKE: until a control plane works."""
    oke_gone_s: float = 0.2
    """OKE: until a control plane or a node pool is gone."""
    oke_tells_capacity: bool = True
    """OKE: report a machine that can't be launched as a node with an error; else only by a work request."""
    oke_end_failure: str = ""
    """OKE: the end of a node is accepted and fails later, with this message; empty: it does not."""

    def __post_init__(self) -> None:
        if self.speed <= 0:
            raise ValueError("speed must be above 0")
        if self.page_size < 1:
            raise ValueError("page_size must be at least 1")

    def refuses(self, operation: str) -> bool:
        """Return whether the caller has no permission for an operation."""
        return any(fnmatchcase(operation, glob) for glob in self.refused_by_policy)

    def lacks_image(self, name: str) -> bool:
        """Return whether the region lacks an image of that name."""
        return any(fnmatchcase(name, glob) for glob in self.absent_images)

    def capacity_at(self, shape: str, place: str) -> int | None:
        """Instances of a shape that may exist at a place at once; the most exact entry holds."""
        return _at(self.capacity, shape, place)

    def quota_of(self, shape: str) -> int | None:
        """Instances of a shape that may exist at once."""
        return self.quota.get(shape, self.quota.get("*"))

    def place_quota_at(self, shape: str, place: str) -> int | None:
        """Instances of a shape that the account may have at a place at once; the most exact entry holds."""
        return _at(self.place_quota, shape, place)

    def attach_refusal(self, *traits: str) -> str | None:
        """Return why a machine with these traits can't be attached to an instance pool, or `None`."""
        return next((self.attach_refused[trait] for trait in traits if trait in self.attach_refused), None)

    def late_failure_at(self, place: str) -> str | None:
        """Why launches at a place fail after they were accepted."""
        return self.late_failure.get(place, self.late_failure.get("*"))


def _at(tables: dict[str, dict[str, int]], shape: str, place: str) -> int | None:
    places = tables.get(shape, {}), tables.get("*", {})
    return next((table[key] for table in places for key in (place, "*") if key in table), None)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of the `nth` matching call, and of the `times` - 1 calls after it (0: all)."""

    operation: str = "*"
    """A glob."""
    mutating: bool | None = None
    nth: int = 1
    times: int = 1
    kind: Kind = "error"
    status: int = 500
    code: str = "InternalError"
    message: str = "An injected fault."

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind '{self.kind}' is none of {', '.join(KINDS)}")
        if self.nth < 1 or self.times < 0:
            raise ValueError("nth begins at 1, times at 0")

    def matches(self, operation: str, *, mutating: bool) -> bool:
        """Return whether a call counts."""
        return self.mutating in (None, mutating) and fnmatchcase(operation, self.operation)

    def fires(self, seen: int) -> bool:
        """Return whether the matching call of this number fails."""
        return seen >= self.nth and (self.times == 0 or seen < self.nth + self.times)


def known_fields(kind: type, given: Any) -> dict[str, Any]:
    """Return the fields given for a dataclass. Raises ValueError for unknown fields, so that typing errors are
    noticed.
    """
    if not isinstance(given, dict):
        raise ValueError(f"an object with fields of {kind.__name__} was expected, not {given!r}")
    names = {entry.name for entry in fields(kind)}
    if unknown := set(given) - names:
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return given
