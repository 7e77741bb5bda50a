"""Decide what `clean` removes, here and on the nodes. Pure.

Items that the next run would use stay: the environment used last, the code sent last, uv. Results without another
copy stay, too: a run that is not all here, the latest checkpoints of each script, files that runs wrote.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from remote.files.leftovers import Item, Leftovers, RunFile
from remote.shared.constants import ASIDE, OF_BENCH

USUAL_AGE_S = 30 * 86_400.0
"""Runs younger than this stay, unless something else is asked for."""

_OF_BENCH = re.compile(rf".*-[0-9a-f]{{8}}{re.escape(ASIDE + OF_BENCH)}\d{{8}}-\d{{6}}")
"""Matches whole names only: a project's name may contain a part of the pattern."""

ALL_HERE = "all of it is here"
"""Why a run goes from a node."""

NAMES = {
    "run": "runs",
    "environment": "environments",
    "wheels": "wheels",
    "uv": "uv",
    "code": "code",
    "written": "files of runs",
    "program": "old versions",
    "removed": "leftovers",
    "downloads": "downloads",
}
"""Kind → its name in a table."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The user's choice of items to remove."""

    older_than_s: float | None = None
    """Runs that began longer ago are old. `None`: USUAL_AGE_S, unless `keep_runs` is given."""
    keep_runs: int | None = None
    """Number of each cluster's latest runs that never count as old. `None`: no such limit."""
    everything: bool = False
    """Remove also items that the next run would use, and results that may have no other copy."""

    def is_old(self, run: "LocalRun | None", later: int, began: datetime | None, now: datetime) -> bool:
        """Return whether a run is old. `later`: number of younger runs of its cluster."""
        age_s = self.older_than_s
        if age_s is None:
            age_s = USUAL_AGE_S if self.keep_runs is None else 0.0
        young = began is None or now - began < timedelta(seconds=age_s)
        recent = self.keep_runs is not None and run is not None and later < self.keep_runs
        return not young and not recent


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A run as the files of this computer have it."""

    id: str
    cluster: str | None
    """`None`: its record can't be read."""
    script: str = ""
    """Key that runs of the same script share."""
    built_in: bool = False
    over: bool = True
    bytes: int = 0
    link: bool = False
    """True: its folder is a link to another folder, which gpuctl must not remove."""
    checkpoints: int | None = None
    """Bytes of its checkpoints here. `None`: no checkpoints here."""
    files: Mapping[str, int] | None = None
    """Path in its folder → size. `None`: not looked at."""
    nodes: tuple[str, ...] = ()
    project: str | None = None
    """The folder on this computer whose files were sent; `None`: the built-in job's."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An item and its fate."""

    where: str | None
    """A node; `None`: this computer, as any word may be the name of a node."""
    cluster: str | None
    kind: str
    name: str
    bytes: int
    whole: bool = True
    shared: int = 0
    only_copy: bool = False
    """True: it may hold results without another copy."""
    removes: bool
    why: str
    """Why it goes, or why it stays, in a clause."""


def began_at(run_id: str) -> datetime | None:
    """Return the start of a run, from its id. `None`: not a run's id."""
    try:
        return datetime.strptime(run_id[: len("20261121-054625")], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def latest_checkpoints(runs: Sequence[LocalRun], on_nodes: Collection[str]) -> dict[str, str]:
    """Return the runs whose checkpoints `train --resume` would take, id → reason.

    The latest of each script of a cluster. `runs`: oldest first. `on_nodes`: ids of runs with checkpoints on a node.
    """
    newest: dict[tuple[str | None, str], str] = {}
    for run in runs:
        if run.checkpoints is not None or run.id in on_nodes:
            newest[run.cluster, run.script] = run.id
    return {run: f"the latest checkpoints of {Path(script).name}" for (_, script), run in newest.items()}


def choose_here(
    runs: Sequence[LocalRun],
    latest: Mapping[str, str],
    policy: Policy,
    now: datetime,
    *,
    silent: Mapping[str, Collection[str]],
    on_nodes: Mapping[str, str],
) -> list[Choice]:
    """Return the fate of each run here. `runs`: all of this computer, oldest first.

    A record stays while files of its run are on a node, because only the record has their owner. `silent`: cluster →
    its machines without an answer; `on_nodes`: ids of runs that stay on a node → reason.
    """
    later = _later(runs)

    def why_it_stays(run: LocalRun) -> str:
        if run.link:
            return "it is a link"
        if run.cluster is None:
            return "its record can't be read"
        if not run.over:
            return "not known to be over"
        if run.id in latest:
            return latest[run.id]
        if not policy.is_old(run, later[run.id], began_at(run.id), now):
            return "not old"
        unasked = sorted(set(run.nodes) & set(silent.get(run.cluster, ())))
        if unasked:
            return f"{unasked[0]}, which may have more of it, was not looked at"
        return on_nodes.get(run.id, "")

    choices = []
    for run in runs:
        reason = why_it_stays(run)
        choices.append(
            Choice(
                where=None,
                cluster=run.cluster,
                kind="run",
                name=run.id,
                bytes=run.bytes,
                removes=not reason,
                why=reason or "old",
            )
        )
    return choices


def _later(runs: Sequence[LocalRun]) -> dict[str, int]:
    """Return, by id of a run, the number of later runs of its cluster."""
    counts: dict[str | None, int] = {}
    later = {}
    for run in reversed(runs):
        later[run.id] = counts.get(run.cluster, 0)
        counts[run.cluster] = later[run.id] + 1
    return later


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about a node's cluster that the node itself does not have."""

    cluster: str
    """The node's."""
    runs: Mapping[str, LocalRun]
    """By id: all runs of this computer."""
    latest: Mapping[str, str]
    """The runs of which nothing is removed: id → why."""
    ours: bool
    """True: only this gpuctl uses the machines."""
    code: frozenset[str] = frozenset()
    """Names of the cluster's folders of code."""
    last_code: str | None = None
    """Of them that of the cluster's latest run. `None`: not known; then it is the one that was changed last."""
    busy: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of items that are in use, or not over, on another node with the same home."""


def known_of(
    cluster: str,
    runs: Sequence[LocalRun],
    latest: Mapping[str, str],
    *,
    ours: bool,
    code: Sequence[str] = (),
) -> Known:
    """Return the facts for the nodes of a cluster; `runs`: all of this computer, oldest first.

    `code`: names of the folders of the cluster's runs, in their order.
    """
    by_id = {run.id: run for run in runs}
    return Known(
        cluster=cluster,
        runs=by_id,
        latest=latest,
        ours=ours,
        code=frozenset(code),
        last_code=code[-1] if code else None,
    )


def choose_on_node(node: str, leftovers: Leftovers, known: Known, policy: Policy) -> list[Choice]:
    """Return the fate of each leftover of a node."""
    last = {kind: _used_last(leftovers, kind) for kind in ("environment", "code", "uv")}
    if any(item.name == known.last_code for item in leftovers.items if item.kind == "code"):
        last["code"] = known.last_code
    choices = []
    for item in leftovers.items:
        why_stays, why_goes = _fate(item, known, policy, last.get(item.kind) == item.name)
        choices.append(
            Choice(
                where=node,
                cluster=known.cluster,
                kind=item.kind,
                name=item.name,
                bytes=item.bytes,
                whole=item.whole,
                shared=item.shared,
                only_copy=(item.kind == "written" and not _is_of_bench(item))
                or (item.kind == "run" and not _is_here_too(item, known)),
                removes=not why_stays,
                why=why_stays or why_goes,
            )
        )
    return choices


def downloads_of(node: str, cluster: str, leftovers: Leftovers, home: Path) -> list[Choice]:
    """Return the row of uv's cache on a local host, whose home is in gpuctl's `home`. Empty: another machine."""
    if not leftovers.uv_cache or not Path(leftovers.uv_cache).is_relative_to(home):
        return []
    return [
        Choice(
            where=node,
            cluster=cluster,
            kind="downloads",
            name="uv",
            bytes=leftovers.uv_cache_bytes,
            removes=False,
            why="for environments to come; gpuctl down removes it with the hosts",
        )
    ]


def _used_last(leftovers: Leftovers, kind: str) -> str | None:
    """Return the name of the item of a kind that was used last. `None`: no item was used."""
    used = [item for item in leftovers.items if item.kind == kind and item.used > 0]
    return max(used, key=lambda item: item.used).name if used else None


def _family(kind: str) -> str:
    """Return the kind that decides on use: files that runs wrote into a folder of code are in use if it is."""
    return "code" if kind == "written" else kind


def _is_of_bench(item: Item) -> bool:
    """Return whether the item was moved aside as output of a benchmark's runs, which no run needs again."""
    return item.kind == "written" and _OF_BENCH.fullmatch(item.name) is not None


def _fate(item: Item, known: Known, policy: Policy, used_last: bool) -> tuple[str, str]:
    """Return why an item stays (empty: it does not), and why it goes."""
    if item.in_use or (_family(item.kind), item.name) in known.busy:
        return "in use", ""
    if item.kind == "run":
        return _fate_of_run(item, known, policy)
    if _family(item.kind) == "code" and not known.ours and item.name.split(ASIDE)[0] not in known.code:
        return "not of this cluster", ""
    if _is_of_bench(item):
        return "", "a benchmark's runs wrote it"
    if item.kind == "written":
        return ("", "written by a run") if policy.everything else ("written by a run; removed with --all", "")
    if used_last and not policy.everything:
        return "used last", ""
    if item.kind == "environment" and not item.used:
        return "", "never finished"
    if item.kind == "removed":
        return "", "cut off"
    return "", "made or sent again when needed" if policy.everything else "not used last"


def _fate_of_run(item: Item, known: Known, policy: Policy) -> tuple[str, str]:
    run = known.runs.get(item.name)
    if not item.over or (run is not None and not run.over):
        return "not known to be over", ""
    if item.name in known.latest:
        return known.latest[item.name], ""
    if run is None and not known.ours:
        return "not of this computer", ""
    if run is not None and run.cluster not in (None, known.cluster):
        return f"of the cluster {run.cluster}", ""
    if policy.everything:
        return "", "over"
    if _is_here_too(item, known):
        return "", ALL_HERE
    # Even an old result without another copy goes only on request.
    return "not all here; removed with --all", ""


def _is_here_too(item: Item, known: Known) -> bool:
    run = known.runs.get(item.name)
    return run is not None and is_all_here(item, run)


def loss_clause(doomed: Sequence[Choice]) -> str:
    """Return the clause of a question about results that would be lost for good. Empty: no results would be lost."""
    return ", with results of runs that are nowhere else" if any(item.only_copy for item in doomed) else ""


def is_all_here(item: Item, run: LocalRun) -> bool:
    """Return whether all of a node's files of a run are on this computer, too."""
    if item.files is None or run.files is None:
        return False
    return all(any(run.files.get(place) == file.bytes for place in places_of(file)) for file in item.files)


def places_of(file: RunFile) -> list[str]:
    """Return the places of a node's file in a run's local folder: a name's second file is in its node's folder."""
    folder, _, inner = file.path.partition("/")
    return [file.path, f"artifacts/{file.node}/{inner}"] if folder == "artifacts" else [file.path]
