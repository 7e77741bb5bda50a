"""Machines that runs start and end, in a cluster with `--min` and `--max`: between runs only the least stay.

Both ways are an `up`: what was cut off is found and brought to its end by the next one.
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
from gpuctl.workflow.clusters.up import HostKeys, up
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.setup_state import SETTLED
from gpuctl.workflow.runs.outputs.checkpoints import survey_checkpoints
from gpuctl.workflow.runs.unfinished_runs import OpenRun, open_runs, state_sentence
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError, Locked
from inventories.machine import Inventory
from inventories.runs.run import Result, Run
from inventories.specs.spec import Spec
from inventories.text import plural
from provision.errors import NoCapacity, ProvisionError
from provision.registry import load
from remote.shared.constants import BESIDE_PROJECT, NODE_FOLDER, RUNS

NO_KEYS = HostKeys(files=(), accept_new=False)
"""Of machines that are pods."""


@contextmanager
def run_machines(
    app: App,
    command: str,
    *,
    nnodes: int | None,
    min_nodes: int | None = None,
    check: Callable[[Inventory], object] = lambda _: None,
) -> Iterator[Callable[[object], None]]:
    """Have the machines of a run, beside busy ones, while the body runs; the cluster's least stay after it.

    `command`: whose body it is; no other one starts or ends machines for runs meanwhile. `nnodes`: how many; `None`:
    the cluster's most. `min_nodes`: as many will do where the cloud has no more. `check` raises what would stand in
    the body's way, before a machine is started. Where the body launches no run, as many stay as there were. In a
    cluster whose machines all stay it does nothing. Raises NoCapacity, Locked where another command has the machines,
    and Attention where some could not be ended, with the result that the body has handed to what this yields.
    """
    results: list[object] = []
    folder = app.store.cluster(app.options.cluster)
    limits = limits_of(folder, load_inventory(folder, empty=True))
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
        busy = {
            part.name
            for run in open_runs(app, folder.name)
            if run.active
            for part in run.folder.load_run().nodes
        }
        count = min(count + sum(machine.name in busy for machine in inventory.machines), limits.max)
        if had < count:
            check(inventory)
        runs = len(app.store.runs(folder.name))
        try:
            if had < count:
                _start(app, folder, count, min_nodes)
            yield results.append
        except BaseException as error:
            launched = len(app.store.runs(folder.name)) > runs
            # What happened comes first; what can't be ended is told beside it.
            with suppress(KeyboardInterrupt), _told_if_interrupted(app, folder):
                try:
                    if launched:
                        _end_idle(app, folder)
                    elif had < count:
                        _end(app, folder, max(had, limits.min))
                except (GpuctlError, OSError) as second:
                    app.output.error(str(second))
            raise error
        with _told_if_interrupted(app, folder):
            try:
                _end_idle(app, folder)
            except Attention as error:
                error.result = results[-1] if results else None
                raise


def end_idle_machines(app: App, command: str, folder: ClusterFolder) -> None:
    """End the machines that no run needs, where the cluster has limits.

    They stay while a run is active, and where they alone have what runs on them left: that is told, with the price.
    Nothing where the cluster is gone, or another command has its machines. Raises Attention where they could not be
    ended.
    """
    if not folder.exists() or limits_of(folder, load_inventory(folder, empty=True)) is None:
        return
    with ExitStack() as claim:
        try:
            claim.enter_context(folder.claim_machines(command))
        except Locked:
            app.output.say(f"the machines of {folder.name} are left to the command that started them")
            return
        with _told_if_interrupted(app, folder):
            _end_idle(app, folder)


@contextmanager
def _told_if_interrupted(app: App, folder: ClusterFolder) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        app.output.error(note_on_machines(folder))
        raise


def _end_idle(app: App, folder: ClusterFolder) -> None:
    if not folder.exists():
        return  # it was removed meanwhile
    inventory = load_inventory(folder, empty=True)
    limits = limits_of(folder, inventory)
    if limits is None:
        return
    if len(inventory.machines) <= limits.min:
        if has_cut_off_start(folder):
            _end(app, folder, limits.min)
        return
    if why := _why_they_stay(app, folder):
        price = (
            "" if inventory.hourly_usd is None else f", for {dollars(inventory.hourly_usd)} an hour in all"
        )
        count = len(inventory.machines)
        app.output.say(f"{plural(count, 'machine')} stay{'s' * (count == 1)}{price}: {why} {HOW_TO_END}.")
        return
    _end(app, folder, limits.min)


def _start(app: App, folder: ClusterFolder, count: int, least: int | None) -> None:
    """Have so many machines; where the cloud has not as many, and `least` will do, those."""
    folder.journal.append(STARTED, count=count)
    try:
        up(app, Spec(cluster=folder.name, count=count), NO_KEYS, for_run=True)
    except NoCapacity as error:
        if least is None or least >= count:
            raise
        app.output.say(f"{error} So the run begins with {least}.")
        up(app, Spec(cluster=folder.name, count=least), NO_KEYS, for_run=True)


def _end(app: App, folder: ClusterFolder, count: int) -> None:
    """Have so many stay, or none."""
    try:
        up(app, Spec(cluster=folder.name, count=count or None), NO_KEYS, for_run=True)
    except (GpuctlError, OSError) as error:
        raise Attention(f"{error} {note_on_machines(folder)}") from error


def _why_they_stay(app: App, folder: ClusterFolder) -> str:
    """Sentences; empty where nothing speaks against their end."""
    for one in open_runs(app, folder.name):
        if _may_be_at_work(app, folder, one):
            return f"{state_sentence(one)} Once it is over, `gpuctl logs -f {one.id}` or"
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


def _may_be_at_work(app: App, folder: ClusterFolder, run: OpenRun) -> bool:
    """Whether a run that is not over needs its machines.

    One that lost nodes does not where these are gone, or a later run was on them.
    """
    if run.active or not run.silent:
        return True
    later = [other.load_run().nodes for other in app.store.runs(folder.name) if other.id > run.id]
    free = {part.name for nodes in later for part in nodes}
    return any(name not in free and not _is_gone(folder, name) for name in run.silent)


def _is_gone(folder: ClusterFolder, name: str) -> bool:
    """Whether the provider knows that there is no machine of that name any more."""
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
    total = next(one for one in result.output_totals if one.node == away[0].node)
    first, slash, inner = away[0].path.partition("/")
    outside = first in BESIDE_PROJECT and slash
    path = f"{first}/{inner.partition('/')[0]}" if outside else ""
    folder = path_on_node(run.run, total, path) if outside else total.folder
    return (
        f"{plural(len(away), 'file')} that run {run.run} wrote {'is' if len(away) == 1 else 'are'} only there. "
        f"`{pull_outputs_command(result, total.node, folder, path)}` copies that folder; then"
    )


def _checkpoints_only_there(app: App, folder: ClusterFolder, runs: Sequence[Run]) -> str:
    """Of which run the machines alone have checkpoints, with how to bring them here."""
    survey = survey_checkpoints(app.store, folder, runs)
    for at, run in enumerate(runs):
        nodes, here = {part.name for part in run.nodes}, survey.local[at]
        for key, error in survey.errors.items():
            node = survey.locations[key].machine.name
            if node in nodes and not _is_gone(folder, node):
                whether = f"whether {node} alone has checkpoints of run {run.run} is not known"
                return f"{whether} ({error}). Once that is sure,"
        for key, said in survey.by_machine.items():
            found = said[at]
            if found is not None and (here is None or here.lacks or here.newest != found.newest):
                node = survey.locations[key].machine.name
                path = f"{NODE_FOLDER}/{RUNS}/{run.run}/{node}/checkpoints"
                target = pulled_folder(app.store.home, run.run, node, "checkpoints")
                copy = pull_command(run.cluster, node, path, target)
                return (
                    f"the checkpoints of run {run.run} are only there, {found.newest} the newest. `gpuctl train "
                    f"--resume` continues with them, `{copy}` copies them; then"
                )
    return ""
