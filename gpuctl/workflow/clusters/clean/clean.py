"""`clean`: look at the disks, here and on the nodes; show, ask, remove."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gpuctl.app import App
from gpuctl.command_results.clusters import LeftOnNode
from gpuctl.command_results.upkeep import CleanFailure, CleanItem, CleanResult, NotAsked
from gpuctl.errors import Declined, Usage
from gpuctl.text import for_cluster
from gpuctl.workflow.clusters.clean.choices import (
    ALL_HERE,
    NAMES,
    ClusterFacts,
    LocalRun,
    Policy,
    choose_here,
    choose_on_node,
    latest_checkpoints,
    loss_clause,
)
from gpuctl.workflow.clusters.clean.this_computer import digests_here, leftovers_here, remove_here, runs_here
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.host_firewalls import owner_of
from gpuctl.workflow.runs.unfinished_runs import ASK_TIMEOUT_S, open_runs, state_sentence
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.text import human_bytes, plural
from inventories.threads import Calls
from remote.errors import RemoteError
from remote.fanout import fan_out
from remote.files.leftovers import MEASURE_S, Cleaned, Item, Leftovers, clean, find_leftovers
from remote.files.sync import code_folder
from remote.launchers.rank_command import BUILT_IN_FOLDER
from remote.sessions.connect import connect
from remote.shared.constants import NODE_FOLDER

DOWN_ANSWER_S = 6.0
"""For all machines together: no machine holds up `down`, and no error stops it."""
DOWN_CONNECT_S = 3.0
DOWN_MEASURE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of a cluster."""

    cluster: ClusterFolder
    machine: Machine
    inventory: Inventory

    def leftovers(self, runs: Sequence[LocalRun], *, connect_s: float, measure_s: float) -> Leftovers:
        """Ask the machine for its leftovers. Raises RemoteError."""
        with connect(self.machine, self.cluster, timeout_s=connect_s) as node:
            return find_leftovers(
                node, built_in=[run.id for run in runs if run.built_in], measure_s=measure_s
            )


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The leftovers on all nodes, by cluster and name: machines of two clusters may have the same name."""

    hosts: Mapping[str, Host]
    leftovers: Mapping[str, Leftovers]
    """Of the machines that answered."""
    not_asked: Sequence[NotAsked] = ()
    """The others, unless only this computer is cleaned, and clusters whose machines are not known."""


def clean_all(app: App, policy: Policy, *, dry_run: bool, here_only: bool) -> CleanResult:
    """Survey the disks, show the plan, ask, remove; return the document of `clean --json`.

    A machine that does not answer is reported, and blocks nothing else.
    """
    began, now = time.monotonic(), datetime.now(UTC)
    name = app.options.cluster if app.cluster_named else None
    with ExitStack() as locks:
        folders = [folder for folder in app.store.clusters() if name in (None, folder.name)]
        if name is not None and not folders and not app.store.runs(name):
            load_inventory(app.store.cluster(name), empty=True)  # raises NotFound
        if not here_only:
            for folder in () if dry_run else folders:
                locks.enter_context(folder.lock("clean", on_wait=app.output.say))
            _refuse_active_runs(app, name)
        runs = runs_here(app)
        result = _survey(folders, runs, here_only=here_only)
        choices = choose(app, policy, result, runs, now)
        doomed = [item for item in choices if item.removes]
        for place in result.not_asked:
            subject = f"the machines of {place.cluster} are " if place.node is None else ""
            app.output.say(f"note: {subject}not looked at: {place.reason}")
        if choices and not app.options.json:
            from gpuctl.workflow.clusters.clean.table import clean_table

            app.output.table(clean_table(choices))
        if not any(item.removes for item in choices):
            app.output.say("Nothing has to be removed." if choices else "There is nothing to remove.")
        outcome = Outcome()
        if doomed and not dry_run:
            _ask(app, doomed)
            outcome = remove(app, doomed, result)
            report_freed(app, outcome, doomed, result)
    return CleanResult(
        items=tuple(choices),
        removable_bytes=sum(item.bytes for item in doomed),
        freed_bytes=outcome.freed,
        removed=outcome.removed,
        failed=tuple(outcome.failed),
        not_asked=() if here_only else tuple(result.not_asked),
        dry_run=dry_run,
        seconds=round(time.monotonic() - began, 3),
    )


def _refuse_active_runs(app: App, cluster: str | None) -> None:
    """Raise Usage if a run is active."""
    for run in open_runs(app, cluster):
        if run.active:
            busy = run.folder.load_run().cluster
            raise Usage(
                f"{state_sentence(run).removesuffix('.')} on the cluster {busy}, of which nothing is removed: wait "
                f"for its end or end it with `gpuctl stop {run.id}`, or clean another cluster with --cluster NAME, "
                "or this computer alone with --here."
            )


def _survey(folders: Sequence[ClusterFolder], runs: Sequence[LocalRun], *, here_only: bool) -> Survey:
    """Ask all machines of these clusters at once, unless only this computer is cleaned."""
    hosts: dict[str, Host] = {}
    not_asked = []
    for folder in folders:
        try:
            inventory = folder.load() if folder.exists() else None
        except InventoryError as error:
            not_asked.append(NotAsked(cluster=folder.name, node=None, reason=str(error)))
            continue
        if inventory is not None:
            for machine in inventory.machines:
                host = Host(cluster=folder, machine=machine, inventory=inventory)
                hosts[f"{folder.name}/{machine.name}"] = host
    answers = fan_out(
        lambda host: host.leftovers(runs, connect_s=ASK_TIMEOUT_S, measure_s=MEASURE_S),
        {} if here_only else hosts,
    )
    for answer in answers:
        if answer.error is not None:
            host = hosts[answer.node]
            lost = NotAsked(cluster=host.cluster.name, node=host.machine.name, reason=str(answer.error))
            not_asked.append(lost)
    leftovers = {answer.node: answer.value for answer in answers if answer.value is not None}
    return Survey(hosts=hosts, leftovers=leftovers, not_asked=not_asked)


def choose(
    app: App, policy: Policy, survey: Survey, runs: Sequence[LocalRun], now: datetime
) -> list[CleanItem]:
    """Return the fate of each leftover, here and on the nodes."""
    cluster = app.options.cluster if app.cluster_named else None
    listings = survey.leftovers.values()
    latest = latest_checkpoints(
        runs, {item.name for left in listings for item in left.items if item.checkpoints}
    )
    by_id = {run.id: run for run in runs}
    on_nodes: list[CleanItem] = []
    for key, items in once_per_home(survey.leftovers, app.store.home).items():
        host = survey.hosts[key]
        owner = owner_of(host.inventory)
        mine = [run for run in runs if run.cluster == host.inventory.cluster]
        places = [code_folder(Path(run.project), owner) if run.project else BUILT_IN_FOLDER for run in mine]
        facts = ClusterFacts(
            cluster=host.cluster.name,
            runs=by_id,
            latest=latest,
            ours=host.inventory.provider != "hosts",
            code=[place.rpartition("/")[2] for place in places],
        )
        on_nodes += choose_on_node(host.machine.name, items, facts, policy)
    local = choose_here(
        runs,
        latest,
        policy,
        now,
        silent=silent_nodes(survey, runs),
        on_nodes={item.name: item.why for item in on_nodes if item.kind == "run" and not item.removes},
    )
    return [
        *(item for item in local if cluster in (None, item.cluster)),
        *(leftovers_here(app, now) if cluster is None else ()),
        *on_nodes,
    ]


def once_per_home(leftovers: Mapping[str, Leftovers], local: Path) -> dict[str, list[Item]]:
    """Return the items of each home folder once, by its first node. What one of its nodes keeps is kept.

    `local`: the folder with the homes of local hosts. Their downloads by uv are an item, too, which stays.
    """
    homes: dict[str, list[str]] = {}
    caches: set[str | None] = set()
    result: dict[str, list[Item]] = {}
    for key, listing in leftovers.items():
        homes.setdefault(listing.home or key, []).append(key)
    for keys in homes.values():
        first, listing = keys[0], leftovers[keys[0]]
        keep = {
            (item.kind, item.name): item.keep for key in keys for item in leftovers[key].items if item.keep
        }
        result[first] = [replace(item, keep=keep.get((item.kind, item.name), "")) for item in listing.items]
        cache = listing.uv_cache
        if cache and cache not in caches and Path(cache).is_relative_to(local):
            why = "for environments to come; gpuctl down removes it with the hosts"
            size = listing.uv_cache_bytes
            result[first].append(Item(kind="downloads", name="uv", bytes=size, keep=why))
        caches.add(cache)
    return result


def silent_nodes(survey: Survey, runs: Sequence[LocalRun]) -> dict[str, set[str]]:
    """Return, by cluster, the machines without an answer; for an unreadable cluster all machines of its runs."""
    unreadable = {place.cluster for place in survey.not_asked if place.node is None}
    silent = {
        name: {node for run in runs if run.cluster == name for node in run.nodes} for name in unreadable
    }
    for key, host in survey.hosts.items():
        if key not in survey.leftovers:
            silent.setdefault(host.cluster.name, set()).add(host.machine.name)
    return silent


@dataclass(kw_only=True)
class Outcome:
    """The result of a removal."""

    freed: int = 0
    """Bytes."""
    removed: int = 0
    failed: list[CleanFailure] = field(default_factory=list)


def remove(app: App, doomed: Sequence[CleanItem], survey: Survey) -> Outcome:
    """Remove the chosen items on all nodes at once, then here. A run that stays on its node stays here, too."""
    outcome = Outcome()
    stay: set[str] = set()
    by_node: dict[str, list[CleanItem]] = {}
    for item in doomed:
        if item.where is not None:
            by_node.setdefault(f"{item.cluster}/{item.where}", []).append(item)

    def fail(where: str | None, kind: str, name: str, reason: str) -> None:
        stay.add(name)
        outcome.failed.append(CleanFailure(where=where, kind=kind, name=name, reason=reason))
        app.output.error(f"{where or 'here'}: {kind} {name} stays: {reason}" if kind else reason)

    def clean_node(items: Sequence[CleanItem]) -> Cleaned:
        key = f"{items[0].cluster}/{items[0].where}"
        listing, host = survey.leftovers[key], survey.hosts[key]
        digests = {
            item.name: digests_here(app.store, item.name, listing.items)
            for item in items
            if item.why == ALL_HERE
        }
        with connect(host.machine, host.cluster) as node:
            return clean(node, [(item.kind, item.name) for item in items], digests)

    for done in fan_out(clean_node, by_node):
        where = by_node[done.node][0].where
        if done.value is None:
            stay |= {item.name for item in by_node[done.node] if item.kind == "run"}
            fail(where, "", "", str(done.error))
            continue
        outcome.freed += done.value.freed
        outcome.removed += done.value.removed
        for refused in done.value.retained:
            fail(where, refused.kind, refused.name, refused.why)
    for item in doomed:
        if item.where is None and item.name not in stay:
            freed, problem = remove_here(app.store, item)
            outcome.freed += freed
            outcome.removed += problem is None
            if problem is not None:
                fail(None, item.kind, item.name, problem)
    return outcome


def _ask(app: App, doomed: Sequence[CleanItem]) -> None:
    where = {(item.cluster, item.where) for item in doomed if item.where is not None}
    places = ["here"] if any(item.where is None for item in doomed) else []
    places += [f"on {plural(len(where), 'node')}"] if where else []
    size = human_bytes(sum(item.bytes for item in doomed))
    if not app.output.confirm(f"Remove {size} {' and '.join(places)}{loss_clause(doomed)}?"):
        raise Declined("Cancelled: nothing was removed.")


def report_freed(app: App, outcome: Outcome, doomed: Sequence[CleanItem], survey: Survey) -> None:
    """Report the bytes freed, and why they may be fewer than the bytes removed."""
    app.output.say(f"{plural(outcome.removed, 'item')} removed, {human_bytes(outcome.freed)} freed")
    shared = sum(item.shared for item in doomed)
    caches = {left.uv_cache for left in survey.leftovers.values() if left.uv_cache}
    if shared and caches and not outcome.failed:
        app.output.say(
            f"note: {human_bytes(shared)} of it may still be in uv's own cache there ({', '.join(sorted(caches))}), "
            + for_cluster(
                "which is not gpuctl's: `gpuctl exec -- uv cache clean` empties it", app.options.cluster
            )
        )


def report_leftovers(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> list[LeftOnNode]:
    """Report the files that `down` leaves on machines that stay, and remove them after a yes at a terminal.

    Returns an element a machine.
    """
    try:
        runs, inventory = runs_here(app), folder.load()
        hosts = {
            machine.name: Host(cluster=folder, machine=machine, inventory=inventory) for machine in machines
        }
        ask = partial(Host.leftovers, runs=runs, connect_s=DOWN_CONNECT_S, measure_s=DOWN_MEASURE_S)
        outcomes = Calls(ask, list(hosts.values()), deadline_s=DOWN_ANSWER_S).begin().outcomes()
        answers = zip(hosts, outcomes, strict=True)
        leftovers = {name: answer for name, answer in answers if isinstance(answer, Leftovers)}
        if silent := [name for name in hosts if name not in leftovers]:
            app.output.say(
                f"note: {', '.join(silent)}: what gpuctl leaves there is not known, as it did not answer"
            )
        survey = Survey(
            hosts={f"{folder.name}/{name}": host for name, host in hosts.items()},
            leftovers={f"{folder.name}/{name}": answer for name, answer in leftovers.items()},
        )
        items = choose(app, Policy(everything=True), survey, runs, datetime.now(UTC))
        on_nodes = [item for item in items if item.where is not None]
        doomed = [item for item in on_nodes if item.removes]
        if doomed:
            app.output.say(sentence(on_nodes))
            offer(app, doomed, survey)
    except (InventoryError, RemoteError, OSError) as error:
        app.output.say(f"note: what gpuctl leaves on the machines is not known: {error}")
        return [LeftOnNode(node=machine.name, bytes=None) for machine in machines]
    return [
        LeftOnNode(node=name, bytes=by_kind(on_nodes, name) if name in leftovers else None) for name in hosts
    ]


def sentence(items: Sequence[CleanItem]) -> str:
    """Return `gpuctl leaves 3.2 GB on gpu-0, gpu-1: environments 2.9 GB, runs 300 MB`."""
    nodes = list(dict.fromkeys(item.where for item in items if item.where is not None))
    kinds = ", ".join(f"{NAMES[kind]} {human_bytes(size)}" for kind, size in by_kind(items).items())
    return f"gpuctl leaves {human_bytes(sum(item.bytes for item in items))} on {', '.join(nodes)}: {kinds}"


def by_kind(items: Sequence[CleanItem], node: str | None = None) -> Mapping[str, int]:
    """Return kind → bytes, of a node or of all, the largest first."""
    sizes: dict[str, int] = {}
    for item in items:
        if node in (None, item.where):
            sizes[item.kind] = sizes.get(item.kind, 0) + item.bytes
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def offer(app: App, doomed: Sequence[CleanItem], survey: Survey) -> None:
    """Ask if a user is at a terminal. --yes is no answer: it was given to `down`, which removes no files."""
    size = human_bytes(sum(item.bytes for item in doomed))
    if not app.output.offers:
        app.output.say(
            f"note: `gpuctl clean --all --cluster {doomed[0].cluster}` before `gpuctl down` would have removed "
            f"{size} of it; all of it is in ~/{NODE_FOLDER} there"
        )
    elif app.output.confirm(f"Remove {size} of it{loss_clause(doomed)}?"):
        report_freed(app, remove(app, doomed, survey), doomed, survey)
