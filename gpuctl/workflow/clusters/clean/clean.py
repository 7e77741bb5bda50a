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
from gpuctl.text import for_cluster, plural
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
    places_of,
    what_is_lost,
)
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.host_firewalls import owner_of
from gpuctl.workflow.runs.unfinished_runs import ASK_TIMEOUT_S, how_it_stands, open_runs
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from remote.fanout import fan_out
from remote.files.leftovers import MEASURE_S, Cleaned, Digests, Leftovers, clean, look
from remote.files.sync import code_folder
from remote.files.tree import human_bytes
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
        """Whether nobody else's gpuctl works there."""
        return self.inventory.provider != "hosts"

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and node: clusters may name machines alike."""
        return self.cluster.name, self.machine.name


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was found on the nodes."""

    hosts: Mapping[tuple[str, str], Host]
    found: Mapping[tuple[str, str], Leftovers]
    errors: Mapping[tuple[str, str], str]
    torn: Mapping[str, str] = field(default_factory=dict)
    """Clusters whose machines are not known: name → why."""
    left_out: Mapping[tuple[str, str], Host] = field(default_factory=dict)
    """Machines that were not to be asked."""

    def silent(self, runs: Sequence[LocalRun]) -> dict[str, set[str]]:
        """Cluster → its machines that were not looked at; of one that can't be read all that runs had."""
        silent: dict[str, set[str]] = {}
        for cluster, node in (*self.errors, *self.left_out):
            silent.setdefault(cluster, set()).add(node)
        for run in runs:
            if run.cluster is not None and run.cluster in self.torn:
                silent.setdefault(run.cluster, set()).update(run.nodes)
        return silent

    def not_asked(self) -> list[dict[str, str | None]]:
        """What should have been looked at and was not; without a node it is all of a cluster."""
        torn: list[tuple[str, str | None, str]] = [(name, None, why) for name, why in self.torn.items()]
        nodes = [(cluster, node, why) for (cluster, node), why in self.errors.items()]
        return [{"cluster": name, "node": node, "reason": why} for name, node, why in (*torn, *nodes)]


@dataclass(kw_only=True)
class Outcome:
    """What came of a removal."""

    freed_bytes: int = 0
    removed: int = 0
    failed: list[dict[str, str | None]] = field(default_factory=list)


def clean_all(app: App, policy: Policy, *, dry_run: bool, here_only: bool) -> dict[str, Any]:
    """Look, show, ask, remove; returns the document of `clean --json`.

    A machine that does not answer keeps nothing else: it is told, and is in the document.
    """
    began, now = time.monotonic(), datetime.now(UTC)
    name = app.options.cluster if app.cluster_named else None
    with ExitStack() as locks:
        folders = _clusters(app, name)
        for folder in () if dry_run or here_only else folders:
            locks.enter_context(folder.lock("clean", on_wait=app.output.say))
        if not here_only:
            refuse_at_work(app, name)
        runs = runs_here(app)
        hosts, torn = hosts_of(folders)
        seen = replace(survey([] if here_only else hosts, runs), torn=torn)
        if here_only:
            seen = replace(seen, left_out={host.key: host for host in hosts})
        choices = choose(app, policy, seen, runs, now)
        _show(app, choices, seen)
        outcome = Outcome()
        doomed = [choice for choice in choices if choice.removes]
        if doomed and not dry_run:
            _ask(app, doomed)
            outcome = remove(app, doomed, seen)
            tell_what_was_freed(app, outcome, doomed, seen)
    return {
        "items": choices,
        "removable_bytes": sum(choice.bytes for choice in doomed),
        "freed_bytes": outcome.freed_bytes,
        "removed": outcome.removed,
        "failed": outcome.failed,
        "not_asked": [] if here_only else seen.not_asked(),
        "dry_run": dry_run,
        "seconds": round(time.monotonic() - began, 3),
    }


def _clusters(app: App, name: str | None) -> list[ClusterFolder]:
    """The clusters to look at: the one that was named, or all. Raises NotFound where there is none of that name."""
    folders = [folder for folder in app.store.clusters() if name in (None, folder.name)]
    if name is not None and not folders and not app.store.runs(name):
        load_inventory(app.store.cluster(name), empty=True)
    return folders


def refuse_at_work(app: App, cluster: str | None) -> None:
    """Raise Usage where a run is going on."""
    for run in open_runs(app, cluster):
        if run.going_on:
            busy = run.folder.load_run().cluster
            raise Usage(
                f"{how_it_stands(run).removesuffix('.')} on the cluster {busy}, of which nothing is removed: wait "
                f"for its end or end it with `gpuctl stop {run.id}`, or clean another cluster with --cluster NAME, "
                "or this computer alone with --here."
            )


def hosts_of(folders: Sequence[ClusterFolder]) -> tuple[list[Host], dict[str, str]]:
    """The machines of these clusters, and the clusters whose files can't be read, with the reason."""
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


def survey(hosts: Sequence[Host], runs: Sequence[LocalRun], *, measure_s: float = MEASURE_S) -> Seen:
    """Ask all of them at once. What can't be asked is in `errors`."""
    built_in = [run.id for run in runs if run.built_in]

    def one(host: Host) -> Leftovers:
        node = connect(host.machine, host.cluster, timeout_s=ASK_TIMEOUT_S)
        try:
            return look(node, built_in=built_in, measure_s=measure_s)
        finally:
            node.close()

    named = {"/".join(host.key): host for host in hosts}
    outcomes = fan_out(one, named)
    return Seen(
        hosts={host.key: host for host in hosts},
        found={named[one.node].key: one.value for one in outcomes if one.value is not None},
        errors={named[one.node].key: str(one.error) for one in outcomes if one.error is not None},
    )


def choose(app: App, policy: Policy, seen: Seen, runs: Sequence[LocalRun], now: datetime) -> list[Choice]:
    """What becomes of each thing that was found, here and on the nodes."""
    cluster = app.options.cluster if app.cluster_named else None
    on_nodes = [item for found in seen.found.values() for item in found.items if item.kind == "run"]
    runs = with_files(app, runs, {item.name for item in on_nodes})
    latest = latest_checkpoints(runs, {item.name for item in on_nodes if item.checkpoints is not None})
    there: list[Choice] = []
    caches: set[str | None] = set()
    for (name, node), found, others in once_a_home(seen.found):
        host = seen.hosts[name, node]
        known = known_of(name, runs, latest, ours=host.ours, code=code_of(host.inventory, runs))
        busy = frozenset(
            (item.kind, item.name) for other in others for item in other.items if item.in_use or not item.over
        )
        there += choose_on_node(node, found, replace(known, busy=busy), policy)
        if found.uv_cache not in caches:  # local hosts share it
            there += downloads_of(node, name, found, app.store.home)
        caches.add(found.uv_cache)
    kept = {choice.name: choice.why for choice in there if choice.kind == "run" and not choice.removes}
    here = choose_here(runs, latest, policy, now, silent=seen.silent(runs), kept=kept)
    mine = [choice for choice in here if cluster in (None, choice.cluster)]
    return [*mine, *(leftovers_here(app, now) if cluster is None else ()), *there]


def code_of(inventory: Inventory, runs: Sequence[LocalRun]) -> list[str]:
    """Names of the folders of code that a cluster's runs have on its nodes, in the runs' order."""
    owner = owner_of(inventory)
    mine = [run for run in runs if run.cluster == inventory.cluster]
    places = [code_folder(Path(run.project), owner) if run.project else BUILT_IN_FOLDER for run in mine]
    return [place.rpartition("/")[2] for place in places]


def once_a_home(
    found: Mapping[tuple[str, str], Leftovers],
) -> list[tuple[tuple[str, str], Leftovers, list[Leftovers]]]:
    """Each home once, by the first node that has it, with what the others with the same home said."""
    homes: dict[object, list[tuple[str, str]]] = {}
    for key, one in found.items():
        homes.setdefault(one.home or key, []).append(key)
    return [(first, found[first], [found[key] for key in others]) for first, *others in homes.values()]


def remove(app: App, doomed: Sequence[Choice], seen: Seen) -> Outcome:
    """Remove what was chosen, on all nodes at once, then here. A run whose node kept it stays here, too."""
    outcome = Outcome()
    wanted: dict[tuple[str, str], list[tuple[str, str]]] = {}
    digests: dict[tuple[str, str], dict[str, Digests]] = {}
    for choice in doomed:
        if choice.where is not None:
            assert choice.cluster is not None
            key = (choice.cluster, choice.where)
            wanted.setdefault(key, []).append((choice.kind, choice.name))
            if choice.why == ALL_HERE:
                here = digests_here(app.store, choice.name, seen.found[key])
                digests.setdefault(key, {})[choice.name] = here

    def one(key: tuple[str, str]) -> Cleaned:
        host = seen.hosts[key]
        node = connect(host.machine, host.cluster)
        try:
            return clean(node, wanted[key], digests.get(key, {}))
        finally:
            node.close()

    stay: set[str] = set()
    keys = {"/".join(key): key for key in wanted}
    for done in fan_out(one, keys):
        key = keys[done.node]
        if done.value is None:
            stay |= {name for kind, name in wanted[key] if kind == "run"}
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


def digests_here(store: Store, run: str, found: Leftovers) -> Digests:
    """What a node's files of a run have to be, if all of it is here: of equal size is not yet the same."""
    files = (item.files or () for item in found.items if (item.kind, item.name) == ("run", run))
    folder = store.home / "runs" / run
    return {
        f"{file.node}/{file.path}": [digest_of(path) for path in there]
        for file in itertools.chain.from_iterable(files)
        if (there := [path for place in places_of(file) if (path := folder / place).is_file()])
    }


def _failed(app: App, outcome: Outcome, where: str | None, kind: str, name: str, reason: str) -> None:
    outcome.failed.append({"where": where, "kind": kind, "name": name, "reason": reason})
    app.output.error(f"{where or 'here'}: {kind} {name} stays: {reason}" if kind else reason)


def _show(app: App, choices: Sequence[Choice], seen: Seen) -> None:
    for name, why in seen.torn.items():
        app.output.say(f"note: the machines of {name} are not looked at: {why}")
    for error in seen.errors.values():
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
    if not app.output.confirm(f"Remove {size} {' and '.join(places)}{what_is_lost(doomed)}?"):
        raise Declined("Cancelled: nothing was removed.")


def tell_what_was_freed(app: App, outcome: Outcome, doomed: Sequence[Choice], seen: Seen) -> None:
    """What was freed, and why it may be less than was removed."""
    app.output.say(f"{plural(outcome.removed, 'item')} removed, {human_bytes(outcome.freed_bytes)} freed")
    shared = sum(choice.shared for choice in doomed)
    caches = {found.uv_cache for found in seen.found.values() if found.uv_cache}
    if shared and caches and not outcome.failed:
        app.output.say(
            f"note: {human_bytes(shared)} of it may still be in uv's own cache there ({', '.join(sorted(caches))}), "
            + for_cluster(
                "which is not gpuctl's: `gpuctl exec -- uv cache clean` empties it", app.options.cluster
            )
        )
