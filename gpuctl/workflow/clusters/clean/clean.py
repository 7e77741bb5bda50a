"""`clean`: look at the disks, here and on the nodes; show, ask, remove."""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuctl.app import App
from gpuctl.errors import Declined, Usage
from gpuctl.text import for_cluster
from gpuctl.workflow.clusters.clean.this_computer import leftovers_here, remove_here, runs_here, with_files
from gpuctl.workflow.clusters.clean.what_to_clean import (
    ALL_HERE,
    Choice,
    LocalRun,
    Policy,
    choose_here,
    choose_on_node,
    downloads_of,
    known_of,
    latest_checkpoints,
    loss_clause,
    places_of,
)
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.host_firewalls import owner_of
from gpuctl.workflow.runs.unfinished_runs import ASK_TIMEOUT_S, open_runs, state_sentence
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.text import human_bytes, plural
from remote.fanout import fan_out
from remote.files.leftovers import MEASURE_S, Cleaned, Digests, Leftovers, clean, find_leftovers
from remote.files.sync import code_folder
from remote.launchers.rank_command import BUILT_IN_FOLDER
from remote.sessions.connect import connect
from remote.shared.files import digest_of


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine whose disk is looked at."""

    cluster: ClusterFolder
    machine: Machine
    inventory: Inventory
    """The cluster's."""

    @property
    def ours(self) -> bool:
        """Return whether only this gpuctl uses the machine."""
        return self.inventory.provider != "hosts"

    @property
    def key(self) -> tuple[str, str]:
        """Return cluster and node: machines of two clusters may have the same name."""
        return self.cluster.name, self.machine.name


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The leftovers on all nodes."""

    hosts: Mapping[tuple[str, str], Host]
    leftovers: Mapping[tuple[str, str], Leftovers]
    errors: Mapping[tuple[str, str], str]
    torn: Mapping[str, str] = field(default_factory=dict)
    """Clusters whose machines are not known: name → why."""
    left_out: Mapping[tuple[str, str], Host] = field(default_factory=dict)
    """Machines that were not to be asked."""

    def silent(self, runs: Sequence[LocalRun]) -> dict[str, set[str]]:
        """Return, by cluster, the machines without an answer; for an unreadable cluster all machines of its runs."""
        silent: dict[str, set[str]] = {}
        for cluster, node in (*self.errors, *self.left_out):
            silent.setdefault(cluster, set()).add(node)
        for run in runs:
            if run.cluster is not None and run.cluster in self.torn:
                silent.setdefault(run.cluster, set()).update(run.nodes)
        return silent

    def not_asked(self) -> list[dict[str, str | None]]:
        """Return the nodes without an answer, with the reason. `node` is `None` for a whole cluster."""
        torn: list[tuple[str, str | None, str]] = [(name, None, why) for name, why in self.torn.items()]
        nodes = [(cluster, node, why) for (cluster, node), why in self.errors.items()]
        return [{"cluster": name, "node": node, "reason": why} for name, node, why in (*torn, *nodes)]


@dataclass(kw_only=True)
class Outcome:
    """The result of a removal."""

    freed_bytes: int = 0
    removed: int = 0
    failed: list[dict[str, str | None]] = field(default_factory=list)


def clean_all(app: App, policy: Policy, *, dry_run: bool, here_only: bool) -> dict[str, Any]:
    """Survey the disks, show the plan, ask, remove; return the document of `clean --json`.

    A machine that does not answer is reported, and blocks nothing else.
    """
    began, now = time.monotonic(), datetime.now(UTC)
    name = app.options.cluster if app.cluster_named else None
    with ExitStack() as locks:
        folders = _clusters(app, name)
        for folder in () if dry_run or here_only else folders:
            locks.enter_context(folder.lock("clean", on_wait=app.output.say))
        if not here_only:
            refuse_active_runs(app, name)
        runs = runs_here(app)
        hosts, torn = hosts_of(folders)
        result = replace(survey([] if here_only else hosts, runs), torn=torn)
        if here_only:
            result = replace(result, left_out={host.key: host for host in hosts})
        choices = choose(app, policy, result, runs, now)
        _show(app, choices, result)
        outcome = Outcome()
        doomed = [choice for choice in choices if choice.removes]
        if doomed and not dry_run:
            _ask(app, doomed)
            outcome = remove(app, doomed, result)
            report_freed(app, outcome, doomed, result)
    return {
        "items": choices,
        "removable_bytes": sum(choice.bytes for choice in doomed),
        "freed_bytes": outcome.freed_bytes,
        "removed": outcome.removed,
        "failed": outcome.failed,
        "not_asked": [] if here_only else result.not_asked(),
        "dry_run": dry_run,
        "seconds": round(time.monotonic() - began, 3),
    }


def _clusters(app: App, name: str | None) -> list[ClusterFolder]:
    """Return the clusters to clean: the one of this name, or all. Raises NotFound for an unknown name."""
    folders = [folder for folder in app.store.clusters() if name in (None, folder.name)]
    if name is not None and not folders and not app.store.runs(name):
        load_inventory(app.store.cluster(name), empty=True)
    return folders


def refuse_active_runs(app: App, cluster: str | None) -> None:
    """Raise Usage if a run is active."""
    for run in open_runs(app, cluster):
        if run.active:
            busy = run.folder.load_run().cluster
            raise Usage(
                f"{state_sentence(run).removesuffix('.')} on the cluster {busy}, of which nothing is removed: wait "
                f"for its end or end it with `gpuctl stop {run.id}`, or clean another cluster with --cluster NAME, "
                "or this computer alone with --here."
            )


def hosts_of(folders: Sequence[ClusterFolder]) -> tuple[list[Host], dict[str, str]]:
    """Return the machines of these clusters, and the clusters with unreadable files, with the reason."""
    hosts, torn = [], {}
    for folder in folders:
        try:
            inventory = folder.load() if folder.exists() else None
        except InventoryError as error:
            torn[folder.name] = str(error)
            continue
        if inventory is not None:
            hosts += [
                Host(cluster=folder, machine=machine, inventory=inventory) for machine in inventory.machines
            ]
    return hosts, torn


def survey(hosts: Sequence[Host], runs: Sequence[LocalRun], *, measure_s: float = MEASURE_S) -> Survey:
    """Ask all machines at once. The ones without an answer are in `errors`."""
    built_in = [run.id for run in runs if run.built_in]

    def examine(host: Host) -> Leftovers:
        with connect(host.machine, host.cluster, timeout_s=ASK_TIMEOUT_S) as node:
            return find_leftovers(node, built_in=built_in, measure_s=measure_s)

    named = {"/".join(host.key): host for host in hosts}
    outcomes = fan_out(examine, named)
    return Survey(
        hosts={host.key: host for host in hosts},
        leftovers={named[o.node].key: o.value for o in outcomes if o.value is not None},
        errors={named[o.node].key: str(o.error) for o in outcomes if o.error is not None},
    )


def choose(app: App, policy: Policy, survey: Survey, runs: Sequence[LocalRun], now: datetime) -> list[Choice]:
    """Return the fate of each leftover, here and on the nodes."""
    cluster = app.options.cluster if app.cluster_named else None
    on_nodes = [item for node in survey.leftovers.values() for item in node.items if item.kind == "run"]
    runs = with_files(app, runs, {item.name for item in on_nodes})
    latest = latest_checkpoints(runs, {item.name for item in on_nodes if item.checkpoints is not None})
    remote: list[Choice] = []
    caches: set[str | None] = set()
    for (name, node), leftovers, same_home in once_per_home(survey.leftovers):
        host = survey.hosts[name, node]
        known = known_of(name, runs, latest, ours=host.ours, code=code_of(host.inventory, runs))
        busy = frozenset(
            (item.kind, item.name)
            for left in same_home
            for item in left.items
            if item.in_use or not item.over
        )
        remote += choose_on_node(node, leftovers, replace(known, busy=busy), policy)
        if leftovers.uv_cache not in caches:  # local hosts share it
            remote += downloads_of(node, name, leftovers, app.store.home)
        caches.add(leftovers.uv_cache)
    staying = {choice.name: choice.why for choice in remote if choice.kind == "run" and not choice.removes}
    local = choose_here(runs, latest, policy, now, silent=survey.silent(runs), on_nodes=staying)
    mine = [choice for choice in local if cluster in (None, choice.cluster)]
    return [*mine, *(leftovers_here(app, now) if cluster is None else ()), *remote]


def code_of(inventory: Inventory, runs: Sequence[LocalRun]) -> list[str]:
    """Return the names of the code folders that a cluster's runs have on its nodes, in the runs' order."""
    owner = owner_of(inventory)
    mine = [run for run in runs if run.cluster == inventory.cluster]
    places = [code_folder(Path(run.project), owner) if run.project else BUILT_IN_FOLDER for run in mine]
    return [place.rpartition("/")[2] for place in places]


def once_per_home(
    leftovers: Mapping[tuple[str, str], Leftovers],
) -> list[tuple[tuple[str, str], Leftovers, list[Leftovers]]]:
    """Return each home folder once: its first node, and the leftovers as that node and the other nodes list them."""
    homes: dict[object, list[tuple[str, str]]] = {}
    for key, listing in leftovers.items():
        homes.setdefault(listing.home or key, []).append(key)
    return [(first, leftovers[first], [leftovers[key] for key in keys]) for first, *keys in homes.values()]


def remove(app: App, doomed: Sequence[Choice], survey: Survey) -> Outcome:
    """Remove the chosen items on all nodes at once, then here. A run that stays on its node stays here, too."""
    outcome = Outcome()
    items: dict[tuple[str, str], list[tuple[str, str]]] = {}
    digests: dict[tuple[str, str], dict[str, Digests]] = {}
    for choice in doomed:
        if choice.where is not None:
            assert choice.cluster is not None
            key = (choice.cluster, choice.where)
            items.setdefault(key, []).append((choice.kind, choice.name))
            if choice.why == ALL_HERE:
                digests_of_run = digests_here(app.store, choice.name, survey.leftovers[key])
                digests.setdefault(key, {})[choice.name] = digests_of_run

    def clean_node(key: tuple[str, str]) -> Cleaned:
        host = survey.hosts[key]
        with connect(host.machine, host.cluster) as node:
            return clean(node, items[key], digests.get(key, {}))

    stay: set[str] = set()
    keys = {"/".join(key): key for key in items}
    for done in fan_out(clean_node, keys):
        key = keys[done.node]
        if done.value is None:
            stay |= {name for kind, name in items[key] if kind == "run"}
            _failed(app, outcome, key[1], "", "", str(done.error))
            continue
        outcome.freed_bytes += done.value.freed_bytes
        outcome.removed += len(done.value.removed)
        for kind, name, why in done.value.kept:
            stay.add(name)
            _failed(app, outcome, key[1], kind, name, why)
    for choice in doomed:
        if choice.where is None and choice.name not in stay:
            freed, problem = remove_here(app.store, choice)
            outcome.freed_bytes += freed
            outcome.removed += problem is None
            if problem is not None:
                _failed(app, outcome, None, choice.kind, choice.name, problem)
    return outcome


def digests_here(store: Store, run: str, leftovers: Leftovers) -> Digests:
    """Return the digests of the local copies of a run's files: equal size does not prove equal content."""
    files = (item.files or () for item in leftovers.items if (item.kind, item.name) == ("run", run))
    folder = store.home / "runs" / run
    return {
        f"{file.node}/{file.path}": [digest_of(path) for path in local]
        for file in itertools.chain.from_iterable(files)
        if (local := [path for place in places_of(file) if (path := folder / place).is_file()])
    }


def _failed(app: App, outcome: Outcome, where: str | None, kind: str, name: str, reason: str) -> None:
    outcome.failed.append({"where": where, "kind": kind, "name": name, "reason": reason})
    app.output.error(f"{where or 'here'}: {kind} {name} stays: {reason}" if kind else reason)


def _show(app: App, choices: Sequence[Choice], survey: Survey) -> None:
    for name, why in survey.torn.items():
        app.output.say(f"note: the machines of {name} are not looked at: {why}")
    for error in survey.errors.values():
        app.output.say(f"note: not looked at: {error}")
    if choices and not app.options.json:
        from gpuctl.workflow.clusters.clean.table import clean_table

        app.output.table(clean_table(choices))
    if not any(choice.removes for choice in choices):
        app.output.say("Nothing has to be removed." if choices else "There is nothing to remove.")


def _ask(app: App, doomed: Sequence[Choice]) -> None:
    where = {(choice.cluster, choice.where) for choice in doomed if choice.where is not None}
    places = ["here"] if any(choice.where is None for choice in doomed) else []
    places += [f"on {plural(len(where), 'node')}"] if where else []
    size = human_bytes(sum(choice.bytes for choice in doomed))
    if not app.output.confirm(f"Remove {size} {' and '.join(places)}{loss_clause(doomed)}?"):
        raise Declined("Cancelled: nothing was removed.")


def report_freed(app: App, outcome: Outcome, doomed: Sequence[Choice], survey: Survey) -> None:
    """Report the bytes freed, and why they may be fewer than the bytes removed."""
    app.output.say(f"{plural(outcome.removed, 'item')} removed, {human_bytes(outcome.freed_bytes)} freed")
    shared = sum(choice.shared for choice in doomed)
    caches = {leftovers.uv_cache for leftovers in survey.leftovers.values() if leftovers.uv_cache}
    if shared and caches and not outcome.failed:
        app.output.say(
            f"note: {human_bytes(shared)} of it may still be in uv's own cache there ({', '.join(sorted(caches))}), "
            + for_cluster(
                "which is not gpuctl's: `gpuctl exec -- uv cache clean` empties it", app.options.cluster
            )
        )
