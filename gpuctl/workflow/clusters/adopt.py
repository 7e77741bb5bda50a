"""`adopt`: take over a cluster of another computer, by its tags and the rights of the account."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results.clusters import ClusterStatus
from gpuctl.errors import Attention, Declined, Usage
from gpuctl.text import clean, for_cluster
from gpuctl.workflow.clusters.accounts import prices_at
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.clusters.status import status_of
from gpuctl.workflow.machines.inventory_files import pin_host_keys, save_inventory
from gpuctl.workflow.machines.log_in import log_in
from gpuctl.workflow.machines.reach import reach
from gpuctl.workflow.machines.setup_state import READY
from gpuctl.workflow.runs.found_runs import find_runs
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile, InventoryError
from inventories.machine import Inventory, Machine
from inventories.text import plural
from provision.kubernetes.record import load as load_pod_record
from provision.owner import owner
from provision.provider import AdoptingProvider, Provider
from provision.records import Target
from provision.registry import load
from provision.rented.scan import Scanned, ScanResult, Scope, scan
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster

SHARED_NAMES = ("root", "ubuntu", "ec2-user", "opc", "admin", "unknown")
"""Logins of images and containers, which say nothing of who uses them."""


def adopt(app: App, scope: Scope, cluster_id: str | None, *, context: str | None = None) -> ClusterStatus:
    """Find the cluster, rebuild its files, get access to its machines. Idempotent. Returns its state.

    `cluster_id`: the id of the cluster; `None`: the only one, or that of the name in the options. `context`: look in
    this context of the kubeconfig, and in no cloud. Raises Usage if no
    cluster, or several, can be meant, and Attention for machines that do not let this computer in.
    """
    target, cluster = _chosen(app, scope, cluster_id, context)
    folder = app.store.cluster(cluster.name)
    if not app.output.confirm(f"Take over the cluster {_described(cluster)}?"):
        raise Declined("Cancelled: nothing was changed.")
    with folder.lock("adopt", on_wait=app.output.say):
        refuse_other(folder, cluster)
        provider = load(cluster.provider, folder)
        if not isinstance(provider, AdoptingProvider):
            raise Usage(f"A cluster of provider {cluster.provider} can't be taken over.")
        app.output.say(
            f"rebuilding the files of {cluster.name} from {cluster.provider} {cluster.region or ''} …"
        )
        provider.adopt(target, cluster.id, app.output.say)
        folder.journal.append("up", provider=cluster.provider, create=[])
        inventory = _inventory(folder, provider, cluster)
        pin_host_keys(folder, inventory.machines)
        outcomes = log_in(folder, provider, inventory.machines)
        texts = {each.node: str(each.error) if each.error else each.value for each in outcomes}
        failed = {name: text for name, text in texts.items() if text}
        machines = [machine for machine in inventory.machines if machine.name not in failed]
        if machines and machines[0].has_ssh:
            reached = {m.name: m for m in reach(app, folder, machines, boot=None).machines}
            inventory = replace(inventory, machines=tuple(reached.get(m.name, m) for m in inventory.machines))
        folder.journal.append(READY, machines=[machine.id for machine in machines])
        ranks = {machine.rank for machine in inventory.machines}
        lost = sorted(set(range(max(ranks, default=-1) + 1)) - ranks)
        if not lost:
            save_inventory(folder, inventory)
        runs = find_runs(app, folder, machines)
    app.options = replace(app.options, cluster=folder.name)
    status = status_of(app, folder)
    if lost:
        failed[""] = for_cluster(
            f"Machines of the ranks {', '.join(map(str, lost))} do not exist any more: `gpuctl up` makes others.",
            folder.name,
        )
    if failed:
        raise Attention("\n".join([*failed.values(), _advice(folder)]), result=status)
    brought = f", {plural(len(runs), 'run')} of another computer" if runs else ""
    app.output.say(
        f"the cluster {folder.name} can be used from here: {plural(len(machines), 'machine')}{brought}"
    )
    return status


def _chosen(
    app: App, scope: Scope, cluster_id: str | None, context: str | None
) -> tuple[Target, FoundCluster]:
    """Return the cluster that is meant, and its place."""
    complete = True
    if context is not None:
        clusters, places = _in_context(context), f"the cluster of context {context}"
    else:
        result = scan(replace(scope, more_regions=app.config.region), prices_at(app))
        for place in result.problems:
            app.output.error(f"not looked at: {place}")
        complete = not result.problems
        clusters = [
            (region.cloud.target, each) for region in result.scanned for each in region.contents.clusters
        ]
        if unused := unused_networks(result):
            app.output.say(
                f"note: the network of gpuctl is left in {', '.join(map(str, unused))}, without a cluster: "
                f"`{removal(unused, scope)}` removes it"
            )
        places = ", ".join(str(region) for region in result.scanned)
    name = app.options.cluster if app.cluster_named else None
    meant = [pair for pair in clusters if cluster_id in (None, pair[1].id) and name in (None, pair[1].name)]
    if not meant:
        subject = f" {cluster_id or name}" if cluster_id or name else ""
        raise Usage(
            f"There is no cluster{subject} of gpuctl in {places}. --region and --profile look elsewhere, and "
            "--all-regions in every region."
        )
    if len(meant) > 1:
        listing = "\n".join(f"  {each.id}: {_described(each)}" for _, each in meant)
        raise Usage(f"{len(meant)} clusters can be meant:\n{listing}\nName one by its id: gpuctl adopt ID")
    if cluster_id is None:
        refuse_doubtful(meant[0][1], only=name is not None or complete)
    return meant[0]


def unused_networks(result: ScanResult) -> list[Scanned]:
    """Return the places with a network of gpuctl's, without a cluster there, in regions that were listed in full."""
    in_use = {_network_place(place.cloud.target) for place in result.scanned if place.contents.clusters}
    doubtful = {failure.target.region for failure in result.problems}
    return [
        place
        for place in result.scanned
        if place.contents.network
        and _network_place(place.cloud.target) not in in_use
        and place.cloud.target.region not in doubtful
    ]


def _network_place(target: Target) -> tuple[str | None, ...]:
    """Return the place of a network, which the clusters of a cloud's own machines and of its Kubernetes share."""
    return target.region, target.account, target.compartment


def removal(places: Sequence[Scanned], scope: Scope) -> str:
    """Return the command that removes the networks of these places, found in this scope.

    Without --provider, so that it keeps the network of a Kubernetes cluster, which is of another provider.
    """
    regions = dict.fromkeys(place.cloud.target.region for place in places)
    options = [*(("--region", name) for name in regions), ("--profile", scope.profile)]
    options.append(("--compartment", scope.compartment))
    words = [word for option, value in options if value for word in (option, value)]
    return shlex.join(["gpuctl", "reap", "--expired", *words])


def _in_context(context: str) -> list[tuple[Target, FoundCluster]]:
    """Return the clusters of pods in a Kubernetes cluster, which gpuctl did not make."""
    from provision.kubernetes.adoption import clusters_in
    from provision.kubernetes.api import connect

    target = Target(provider="kubernetes", profile=context)
    return [
        (
            target,
            FoundCluster(
                name=cluster.name,
                id=cluster.id,
                owner=cluster.owner,
                provider="kubernetes",
                region=f"context {context}",
                machines=tuple(f"{cluster.namespace}/{rank}" for rank in range(cluster.count)),
                resources=(),
                since=cluster.created_at,
                expires_at=None,
                hourly_usd=None,
            ),
        )
        for cluster in clusters_in(connect(context))
        if cluster.request is None
    ]


def refuse_doubtful(cluster: FoundCluster, *, only: bool) -> None:
    """Raise Usage for a cluster that nobody named by its id, and that may not be the user's.

    `only`: whether no other cluster can be meant, as far as all places answered.
    """
    user, mine = cluster.owner.partition("@")[0], owner()
    if not only:
        doubt = "is the only one that was found, and not every place could be looked at"
    elif user != mine.partition("@")[0]:
        doubt = "is another user's"
    elif cluster.owner != mine and user in SHARED_NAMES:
        doubt = f"may be anybody's, as many are called {user}"
    else:
        return
    raise Usage(
        f"The cluster {_described(cluster)}, {doubt}. If it is yours, name it by its id: gpuctl adopt {cluster.id}"
    )


def refuse_other(folder: ClusterFolder, cluster: FoundCluster) -> None:
    """Raise Usage if the files here are of another cluster, and NewerFormat if a newer gpuctl wrote them."""
    had = provider_name(folder)
    other = had not in (None, cluster.provider)
    for record in (CloudState(folder).load, lambda: load_pod_record(folder)):
        with suppress(CorruptFile):  # it is rebuilt
            known = record()
            # The pods' id is the begin of the cluster's.
            other |= known is not None and not cluster.id.startswith(known.id)
    if other:
        raise Usage(
            f"Another cluster is called {folder.name} here{f', of provider {had}' if had else ''}. Nothing was "
            "changed. For the takeover, use another folder in GPUCTL_HOME."
        )


def _described(cluster: FoundCluster) -> str:
    machines = plural(len(cluster.machines), "machine")
    by = clean(cluster.owner) or "somebody"
    return f"{clean(cluster.name)}, {cluster.provider} {cluster.region}, {machines}, made by {by}"


def _inventory(folder: ClusterFolder, provider: Provider, cluster: FoundCluster) -> Inventory:
    """Return the inventory of the machines that the cloud lists; known values of an existing one stay."""
    try:
        before = folder.load() if folder.exists() else None
    except InventoryError:
        before = None
    return inventory_of(folder.name, provider.find(), cluster, before)


def inventory_of(
    name: str, machines: Sequence[Machine], cluster: FoundCluster, before: Inventory | None
) -> Inventory:
    """Return the inventory of these machines: with known values of `before`, and its price if they are the same."""
    known = {machine.id: machine for machine in before.machines} if before else {}
    same = before is not None and known.keys() == {machine.id for machine in machines}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Inventory(
        cluster=name,
        provider=cluster.provider,
        region=None if cluster.provider == "kubernetes" else cluster.region,
        shape=machines[0].shape if machines else None,
        hourly_usd=before.hourly_usd if before and same else cluster.most_hourly_usd,
        created_at=before.created_at if before else cluster.since or now,
        machines=tuple(
            replace(machine, gpus=known[machine.id].gpus, python=known[machine.id].python)
            if machine.id in known
            else machine
            for machine in machines
        ),
    )


def _advice(folder: ClusterFolder) -> str:
    return (
        f"So the cluster {folder.name} is not complete here. Once that is mended, `gpuctl adopt` continues; `gpuctl "
        "key export`, on the computer that made the cluster, gives access as well; `gpuctl down` removes the cluster "
        "from here."
    )
