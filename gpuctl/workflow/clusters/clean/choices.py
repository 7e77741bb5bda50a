"""Decide what `clean` removes, here and on the nodes. Pure.

Items that the next run would use stay: the environment used last, the code sent last, uv. Results without another
copy stay, too: a run that is not all here, the latest checkpoints of each script, files that runs wrote.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuctl.command_results import same_fields
from gpuctl.command_results.upkeep import CleanItem
from remote.files.leftovers import Item, RunFile
from remote.shared.constants import ASIDE, OF_BENCH

USUAL_AGE_S = 30 * 86_400.0
"""Runs younger than this stay, unless the user asks for something else."""

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
    checkpoints: bool = False
    """True: it has checkpoints here."""
    files: Mapping[str, int]
    """Path in its folder → size."""
    nodes: tuple[str, ...] = ()
    project: str | None = None
    """The folder on this computer whose files were sent; `None`: the built-in job's."""


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """Facts about a node's cluster that the node itself does not have."""

    cluster: str
    runs: Mapping[str, LocalRun]
    """By id: all runs of this computer."""
    latest: Mapping[str, str]
    """The runs of which nothing is removed: id → why."""
    ours: bool
    """True: only this gpuctl uses the machines."""
    code: Sequence[str] = ()
    """Names of the folders of code of the cluster's runs, the latest run's last."""


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
    newest = {(run.cluster, run.script): run for run in runs if run.checkpoints or run.id in on_nodes}
    return {run.id: f"the latest checkpoints of {Path(run.script).name}" for run in newest.values()}


def choose_here(
    runs: Sequence[LocalRun],
    latest: Mapping[str, str],
    policy: Policy,
    now: datetime,
    *,
    silent: Mapping[str, Collection[str]],
    on_nodes: Mapping[str, str],
) -> list[CleanItem]:
    """Return the fate of each run here. `runs`: all of this computer, oldest first.

    A record stays while files of its run are on a node, because only the record has their owner. `silent`: cluster →
    its machines without an answer; `on_nodes`: ids of runs that stay on a node → reason.
    """
    age_s = policy.older_than_s
    if age_s is None:
        age_s = USUAL_AGE_S if policy.keep_runs is None else 0.0
    later: Counter[str | None] = Counter()
    choices = []
    for run in reversed(runs):
        began, recent = began_at(run.id), later[run.cluster] < (policy.keep_runs or 0)
        later[run.cluster] += 1
        if run.link:
            keep = "it is a link"
        elif run.cluster is None:
            keep = "its record can't be read"
        elif not run.over:
            keep = "not known to be over"
        elif run.id in latest:
            keep = latest[run.id]
        elif recent or began is None or now - began < timedelta(seconds=age_s):
            keep = "not old"
        elif unasked := sorted(set(run.nodes) & set(silent.get(run.cluster, ()))):
            keep = f"{unasked[0]}, which may have more of it, was not looked at"
        else:
            keep = on_nodes.get(run.id, "")
        choices.append(
            CleanItem(
                where=None,
                cluster=run.cluster,
                kind="run",
                name=run.id,
                bytes=run.bytes,
                removes=not keep,
                why=keep or "old",
            )
        )
    return choices[::-1]


def choose_on_node(node: str, items: Sequence[Item], facts: ClusterFacts, policy: Policy) -> list[CleanItem]:
    """Return the fate of each leftover of a node."""
    last = {item.kind: item.name for item in sorted(items, key=lambda item: item.used) if item.used > 0}
    if facts.code and any((item.kind, item.name) == ("code", facts.code[-1]) for item in items):
        last["code"] = facts.code[-1]
    choices = []
    for item in items:
        if item.keep:
            removes, why = False, item.keep
        elif item.kind == "run":
            removes, why = _fate_of_run(item, facts, policy)
        else:
            removes, why = _fate(item, facts, policy, last.get(item.kind) == item.name)
        unique = not _is_of_bench(item) if item.kind == "written" else not is_all_here(item, facts.runs)
        choices.append(
            CleanItem(
                **same_fields(CleanItem, item),
                where=node,
                cluster=facts.cluster,
                only_copy=item.kind in ("run", "written") and unique,
                removes=removes,
                why=why,
            )
        )
    return choices


def _is_of_bench(item: Item) -> bool:
    """Return whether the item was moved aside as output of a benchmark's runs, which no run needs again."""
    return _OF_BENCH.fullmatch(item.name) is not None


def _fate(item: Item, facts: ClusterFacts, policy: Policy, used_last: bool) -> tuple[bool, str]:
    """Return whether an item other than a run is removed, and why, or why not."""
    of_code = item.kind in ("code", "written")
    if of_code and not facts.ours and item.name.split(ASIDE)[0] not in facts.code:
        return False, "not of this cluster"
    if item.kind == "written" and _is_of_bench(item):
        return True, "a benchmark's runs wrote it"
    if item.kind == "written":
        return policy.everything, "written by a run" + "; removed with --all" * (not policy.everything)
    if item.kind == "removed":
        return True, "cut off"
    if item.kind == "environment" and not item.used:
        return True, "never finished"
    if policy.everything:
        return True, "made or sent again when needed"
    if used_last and item.kind in ("environment", "code", "uv"):
        return False, "used last"
    return True, "not used last"


def _fate_of_run(item: Item, facts: ClusterFacts, policy: Policy) -> tuple[bool, str]:
    run = facts.runs.get(item.name)
    if run is not None and not run.over:
        return False, "not known to be over"
    if item.name in facts.latest:
        return False, facts.latest[item.name]
    if run is None and not facts.ours:
        return False, "not of this computer"
    if run is not None and run.cluster not in (None, facts.cluster):
        return False, f"of the cluster {run.cluster}"
    if policy.everything:
        return True, "over"
    if is_all_here(item, facts.runs):
        return True, ALL_HERE
    # Even an old result without another copy goes only on request.
    return False, "not all here; removed with --all"


def loss_clause(doomed: Sequence[CleanItem]) -> str:
    """Return the clause of a question about results that would be lost for good. Empty: no results would be lost."""
    return ", with results of runs that are nowhere else" if any(item.only_copy for item in doomed) else ""


def is_all_here(item: Item, runs: Mapping[str, LocalRun]) -> bool:
    """Return whether all of a node's files of a run are on this computer, too."""
    if item.files is None or item.name not in runs:
        return False
    local = runs[item.name].files
    return all(any(local.get(place) == file.bytes for place in places_of(file)) for file in item.files)


def places_of(file: RunFile) -> list[str]:
    """Return the places of a node's file in a run's local folder: a name's second file is in its node's folder."""
    folder, _, inner = file.path.partition("/")
    return [file.path, f"artifacts/{file.node}/{inner}"] if folder == "artifacts" else [file.path]
