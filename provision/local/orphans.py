"""Local hosts whose cluster has no folder any more, as a user removed gpuctl's files while they ran."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from provision.local import processes, state
from provision.local.processes import Mark
from provision.provider import Leftover


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """The hosts of one cluster."""

    cluster: str
    """The cluster's former folder."""
    hosts: tuple[str, ...]
    """Ids of the hosts."""
    since: float
    """Start of the oldest process, Unix time."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return Path(self.cluster).name


def find() -> tuple[Orphan, ...]:
    """Return the clusters of this user's local hosts whose folder is missing, by folder."""
    by_cluster: dict[str, dict[psutil.Process, Mark]] = {}
    for process, mark in processes.marked().items():
        if mark.cluster and not Path(mark.cluster).exists():
            by_cluster.setdefault(mark.cluster, {})[process] = mark
    return tuple(
        Orphan(
            cluster=cluster,
            hosts=tuple(sorted({mark.host for mark in marks.values()})),
            since=min(map(_since, marks)),
        )
        for cluster, marks in sorted(by_cluster.items())
    )


def end(orphan: Orphan) -> tuple[Leftover, ...]:
    """End all processes of the hosts, and remove their temporary files. Returns the leftovers."""

    def select() -> Mapping[psutil.Process, Mark]:
        return {
            process: mark for process, mark in processes.marked().items() if mark.cluster == orphan.cluster
        }

    return processes.end(select) or tuple(
        left for host in orphan.hosts for left in state.remove_temp_dir(state.temp_dir_of(host))
    )


def _since(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return float("inf")
