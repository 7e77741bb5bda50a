"""Machines that runs start and end, in a cluster with `--min` and `--max`: between runs only the minimum stays.

Start and end are each an `up`: the next one completes an interrupted one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from gpuctl.app import App
from gpuctl.errors import Attention, Usage
from gpuctl.run_results.outputs import path_on_node, pull_command, pull_outputs_command, pulled_folder
from gpuctl.text import dollars
from gpuctl.workflow.clusters.limits import (
    HOW_TO_END,
    STARTED,
    has_cut_off_start,
    limits_of,
    note_on_machines,
)
from gpuctl.workflow.clusters.up import up
from gpuctl.workflow.machines.connect import load_inventory, unknown_cluster
from gpuctl.workflow.machines.inventory_files import HostKeys
from gpuctl.workflow.machines.setup_state import SETTLED
from gpuctl.workflow.runs.outputs.checkpoints import survey_checkpoints
from gpuctl.workflow.runs.unfinished_runs import ClusterRuns, OpenRun, runs_of_cluster, state_sentence
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError, Locked
from inventories.runs.result import Result
from inventories.runs.run import Run
from inventories.specs.spec import Spec
from inventories.text import plural
from provision.errors import NoCapacity, ProvisionError
from provision.registry import load
from remote.shared.constants import BESIDE_PROJECT, NODE_FOLDER, RUNS

NO_KEYS = HostKeys(files=(), accept_new=False)
"""Pods need no host keys."""


@contextmanager
def run_machines(
    app: App,
    command: str,
    *,
    nnodes: int | None,
    min_nodes: int | None = None,
) -> Iterator[Callable[[object], None]]:
    """Start the machines that a run needs besides busy ones, yield, then scale down to the cluster's minimum.

    `command`: the command of the body; no other one starts or ends machines for runs during it. `nnodes`: number of
    machines; `None`: the cluster's maximum. `min_nodes`: enough machines if the cloud has no more. If the body
    launches no run, the number of machines stays as before. Does nothing in a cluster without limits. Yields a
    function that takes the body's result. Raises NoCapacity, Locked while another command holds the machines, and
    Attention, with that result, if machines could not be ended.
    """
    results: list[object] = []
    folder = app.store.cluster(app.options.cluster)
    if not folder.exists():
        raise unknown_cluster(folder)
    limits = limits_of(folder)
    if limits is None:
        yield results.append
        return
    count = nnodes or limits.max
    if (min_nodes or count) > limits.max:
        raise Usage(
            f"--nnodes {min_nodes or count} is not possible: the cluster {folder.name} has {limits.max} at "
            f"most. For more: gpuctl up --min {limits.min} --max {min_nodes or count}"
        )
    count = min(count, limits.max)
    with folder.claim_machines(command):
        inventory = load_inventory(folder, empty=True)
        had = len(inventory.machines)
        before = runs_of_cluster(app, folder.name)
        busy = {part.name for run in before.unfinished if run.active for part in run.folder.load_run().nodes}
        count = min(count + sum(machine.name in busy for machine in inventory.machines), limits.max)
        runs = len(app.store.runs(folder.name))
        try:
            if had < count:
                _start(app, folder, before, count, min_nodes)
            yield results.append
        except BaseException as error:
            launched = len(app.store.runs(folder.name)) > runs
            # The body's error comes first; machines that can't be ended are reported after it.
            with suppress(KeyboardInterrupt), _note_if_interrupted(app, folder):
                try:
                    if launched:
                        _end_idle(app, folder)
                    elif had < count:
                        _end(app, folder, before, max(had, limits.min))
                except (GpuctlError, OSError) as second:
                    app.output.error(str(second))
            raise error
        with _note_if_interrupted(app, folder):
            try:
                _end_idle(app, folder)
            except Attention as error:
                error.result = results[-1] if results else None
                raise


def end_idle_machines(app: App, command: str, folder: ClusterFolder) -> None:
    """End the machines that no run needs, if the cluster has limits.

    Machines stay while a run is active, and while only they have results: this is reported, with the price. Does
    nothing if the cluster is deleted, or another command holds its machines. Raises Attention if they could not be
    ended.
    """
    if not folder.exists() or limits_of(folder) is None:
        return
    with ExitStack() as claim:
        try:
            claim.enter_context(folder.claim_machines(command))
        except Locked:
            app.output.say(f"the machines of {folder.name} are left to the command that started them")
            return
        with _note_if_interrupted(app, folder):
            _end_idle(app, folder)


@contextmanager
def _note_if_interrupted(app: App, folder: ClusterFolder) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        app.output.error(note_on_machines(folder))
        raise


def _end_idle(app: App, folder: ClusterFolder) -> None:
    if not folder.exists():
        return  # another command removed it
    inventory = load_inventory(folder, empty=True)
    limits = limits_of(folder)
    if limits is None:
        return
    if len(inventory.machines) <= limits.min and not has_cut_off_start(folder):
        return
    runs = runs_of_cluster(app, folder.name)
    if len(inventory.machines) > limits.min and (why := _reason_to_keep(app, folder, runs.unfinished)):
        price = (
            "" if inventory.hourly_usd is None else f", for {dollars(inventory.hourly_usd)} an hour in all"
        )
        count = len(inventory.machines)
        app.output.say(f"{plural(count, 'machine')} stay{'s' * (count == 1)}{price}: {why} {HOW_TO_END}.")
        return
    _end(app, folder, runs, limits.min)


def _start(app: App, folder: ClusterFolder, runs: ClusterRuns, count: int, min_count: int | None) -> None:
    """Start `count` machines, or `min_count` if the cloud has no more."""
    folder.journal.append(STARTED, count=count)
    try:
        up(app, Spec(cluster=folder.name, count=count), NO_KEYS, runs=runs, for_run=True)
    except NoCapacity as error:
        if min_count is None or min_count >= count:
            raise
        app.output.say(f"{error} So the run begins with {min_count}.")
        up(app, Spec(cluster=folder.name, count=min_count), NO_KEYS, runs=runs, for_run=True)


def _end(app: App, folder: ClusterFolder, runs: ClusterRuns, count: int) -> None:
    """Scale down to `count` machines."""
    try:
        up(app, Spec(cluster=folder.name, count=count or None), NO_KEYS, runs=runs, for_run=True)
    except (GpuctlError, OSError) as error:
        raise Attention(f"{error} {note_on_machines(folder)}") from error


def _reason_to_keep(app: App, folder: ClusterFolder, unfinished: Sequence[OpenRun]) -> str:
    """Return the sentences on why the machines must stay. Empty: they need not."""
    for open_run in unfinished:
        if _may_be_active(app, folder, open_run):
            return f"{state_sentence(open_run)} Once it is over, `gpuctl logs -f {open_run.id}` or"
    entries = folder.journal.read()
    ended = max(
        (entry["at"] for entry in entries if entry["event"] == SETTLED and entry["ended"]), default=""
    )
    results = [result for run in app.store.runs(folder.name) if (result := run.load_result()) is not None]
    runs = [(app.store.run(result.run).load_run(), result) for result in results]
    left = [(run, result) for run, result in runs if run.started_at > ended]
    for run, result in left:
        if why := outputs_only_there(run, result):
            return why
    return _checkpoints_only_there(app, folder, [run for run, _ in left]) if left else ""


def _may_be_active(app: App, folder: ClusterFolder, run: OpenRun) -> bool:
    """Return whether an unfinished run needs its machines.

    A run that lost nodes does not if these are deleted, or a later run was on them.
    """
    if run.active or not run.silent:
        return True
    later = [other.load_run().nodes for other in app.store.runs(folder.name) if other.id > run.id]
    free = {part.name for nodes in later for part in nodes}
    return any(name not in free and not _is_deleted(folder, name) for name in run.silent)


def _is_deleted(folder: ClusterFolder, name: str) -> bool:
    """Return whether the provider knows that the machine of this name is deleted."""
    inventory = folder.load()
    machine = next((machine for machine in inventory.machines if machine.name == name), None)
    try:
        return machine is None or load(inventory.provider, folder).refresh(machine).state == "gone"
    except ProvisionError:
        return False  # not known


def outputs_only_there(run: Run, result: Result) -> str:
    """Return the sentence on outputs of a run that only its machines have, with the command that copies them."""
    away = [file for file in result.outputs if not file.brought]
    if not away or (run.options is not None and run.options.bring == ("none",)):
        return ""
    total = next(totals for totals in result.output_totals if totals.node == away[0].node)
    first, slash, inner = away[0].path.partition("/")
    outside = first in BESIDE_PROJECT and slash
    path = f"{first}/{inner.partition('/')[0]}" if outside else ""
    folder = path_on_node(run.run, total, path) if outside else total.folder
    return (
        f"{plural(len(away), 'file')} that run {run.run} wrote {'is' if len(away) == 1 else 'are'} only there. "
        f"`{pull_outputs_command(result, total.node, folder, path)}` copies that folder; then"
    )


def _checkpoints_only_there(app: App, folder: ClusterFolder, runs: Sequence[Run]) -> str:
    """Return the sentence on checkpoints that only the machines have, with the command that downloads them."""
    survey = survey_checkpoints(app.store, folder, runs)
    for at, run in enumerate(runs):
        nodes, local = {part.name for part in run.nodes}, survey.local[at]
        for key, error in survey.errors.items():
            node = survey.locations[key].machine.name
            if node in nodes and not _is_deleted(folder, node):
                whether = f"whether {node} alone has checkpoints of run {run.run} is not known"
                return f"{whether} ({error}). Once that is sure,"
        for key, held in survey.by_machine.items():
            newest = held[at]
            if newest is not None and (local is None or local.lacks or local.newest != newest.newest):
                node = survey.locations[key].machine.name
                path = f"{NODE_FOLDER}/{RUNS}/{run.run}/{node}/checkpoints"
                target = pulled_folder(app.store.home, run.run, node, "checkpoints")
                copy = pull_command(run.cluster, node, path, target)
                return (
                    f"the checkpoints of run {run.run} are only there, {newest.newest} the newest. "
                    f"`gpuctl train --resume` continues with them, `{copy}` copies them; then"
                )
    return ""
