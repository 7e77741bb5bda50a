"""`down`: this cluster to nothing."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results.clusters import DownResult, LeftOnNode
from gpuctl.errors import Attention, Declined
from gpuctl.text import for_cluster, spent
from gpuctl.workflow.clusters.bill import cost_so_far
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.clusters.cost import record_removal
from gpuctl.workflow.machines.daemons import end_daemons
from gpuctl.workflow.machines.host_firewalls import restore_firewalls
from gpuctl.workflow.runs.queued_runs import clear, take_in_started, waiting_in_queue
from gpuctl.workflow.runs.stop import stop_run
from gpuctl.workflow.runs.unfinished_runs import OpenRun, open_runs, state_sentence
from inventories.clocks import passed_s
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile, NewerFormat
from inventories.machine import Machine
from inventories.text import did_you_mean, plural
from provision.errors import API_UNAVAILABLE, OtherAccount, ProvisionError
from provision.provider import Leftover

RUNS_SHOWN = 3
"""Active runs that the question names."""


def down(app: App, *, forget: bool = False, may_stop: Collection[str] | None = None) -> DownResult:
    """Stop what runs, remove the machines, forget the cluster.

    `may_stop`: the runs that may be stopped for it; `None`: any. Raises Attention where another is active.
    """
    began = passed_s()
    folder = app.store.cluster(app.options.cluster)
    name = provider_name(folder)
    if name is None:
        return _nothing_there(app, folder)
    from provision.registry import load

    with folder.lock("down", on_wait=app.output.say):
        if provider_name(folder) is None:  # another `down` was faster
            return _nothing_there(app, folder)
        provider = load(name, folder)
        unreadable = None
        try:
            machines = provider.find()
        except (CorruptFile, NewerFormat) as error:  # to remove them it is not needed
            app.output.say(f"note: {error}")
            machines, unreadable = (), str(error)
        except (OtherAccount, *API_UNAVAILABLE) as error:
            if name != "kubernetes":
                raise
            if forget:
                return _forget_pods(app, folder, error)
            hint = "note: if its Kubernetes cluster is gone for good, `gpuctl down --forget` forgets it"
            app.output.say(for_cluster(hint, folder.name))
            raise
        if machines and name == "hosts":  # other computers may share them
            take_in_started(app, folder.name, always=True)
        runs = open_runs(app, folder.name)
        if may_stop is not None:
            _refuse_to_stop([run for run in runs if run.id not in may_stop], folder, machines)
        count = "machines that can't be listed" if unreadable else plural(len(machines), "machine")
        _ask(app, folder, runs, machines=count if provider.billed and (machines or unreadable) else "")
        if not unreadable:
            clear(app, folder)
        try:
            problems = _stop_runs(app, runs)
        except KeyboardInterrupt:
            app.output.error(f"The machines of {folder.name} are still there: `gpuctl down` removes them.")
            raise
        cost = cost_so_far(folder, datetime.now(UTC), None if unreadable else machines)
        forgets = name == "hosts"  # machines that a person brought stay as they are
        opened = []
        if forgets:
            opened = [
                *([Leftover(kind="inventory", id=folder.name, reason=unreadable)] if unreadable else []),
                *(
                    Leftover(kind="run", id=run, reason=f"it may be at work: {'; '.join(reasons)}")
                    for run, reasons in problems.items()
                    if reasons
                ),
                *(
                    Leftover(kind=daemon.launcher, id=daemon.node, reason=daemon.problem)
                    for daemon in end_daemons(folder, machines)
                    if daemon.problem is not None
                ),
                *restore_firewalls(app, folder),
            ]
        if opened and forget:
            for part in opened:
                app.output.error(f"{part.id}: forgotten, though {part.reason}")
            opened = []
        left: list[LeftOnNode] = []
        if forgets and not opened:
            # Imported late, as only machines that stay need the modules for connections.
            from gpuctl.workflow.clusters.clean.clean import report_leftovers

            left = report_leftovers(app, folder, machines)
        app.output.say(f"{'forgetting' if forgets else 'removing'} {count} of {folder.name} …")
        try:
            leftovers = (*opened, *(() if opened else provider.destroy(app.output.say)))
        except KeyboardInterrupt:
            if provider.billed:
                app.output.error(
                    f"Not all of {folder.name} is gone, and it may be billed: `gpuctl down` continues."
                )
            raise
        if not leftovers:
            if provider.billed:
                record_removal(app, folder, machines)
            folder.remove()
    seconds = round(passed_s() - began, 3)
    if opened:
        app.output.error(
            "Once they can be reached, `gpuctl down` continues; `gpuctl down --forget` gives them up."
        )
    for leftover in leftovers:
        app.output.error(f"{leftover.kind} {leftover.id} is left: {leftover.reason}")
    if not leftovers:
        news = "is forgotten; the machines stay, and so do results" if forgets else "is gone; results stay"
        if provider.billed and cost is not None:
            news += f"; its machines cost {'about ' if cost >= 0.01 else ''}{spent(cost)}"
        app.output.say(f"the cluster {folder.name} {news} ({seconds:.1f} s)")
    return DownResult(
        cluster=folder.name,
        removed=tuple(machine.name for machine in machines),
        leftovers=tuple(leftovers),
        left_on_nodes=tuple(left),
        cost_usd=cost,
        seconds=seconds,
    )


def _forget_pods(app: App, folder: ClusterFolder, error: ProvisionError) -> DownResult:
    """Remove the files about pods in a Kubernetes cluster that is gone, or that can't be asked."""
    from provision.kubernetes import record

    known = record.load(folder)
    assert known is not None, "where its pods are was looked up"
    question = (
        f"{error} Forget the cluster {folder.name}? If it is there after all, its pods hold their GPUs, and "
        "may be at work."
    )
    if not app.output.confirm(question):
        raise Declined("Cancelled: nothing was forgotten.")
    folder.remove()
    app.output.say(
        f"the cluster {folder.name} is forgotten; results stay. Nothing was removed: {error}\n"
        "If its Kubernetes cluster is there after all, its pods hold their GPUs until "
        f"`kubectl --context {known.context} delete namespace {known.namespace}`."
    )
    return _nothing(folder)


def _nothing(folder: ClusterFolder) -> DownResult:
    return DownResult(
        cluster=folder.name, removed=(), leftovers=(), left_on_nodes=(), cost_usd=None, seconds=0.0
    )


def _nothing_there(app: App, folder: ClusterFolder) -> DownResult:
    """Say that no cluster of that name is known here."""
    existing = [cluster.name for cluster in app.store.clusters()]
    near = did_you_mean(folder.name, existing)
    app.output.say(
        f"There is no cluster {folder.name} in the files here{near or '.'} Nothing was removed. If you rented "
        "machines, `gpuctl reap --dry-run` looks in your cloud accounts."
    )
    if existing:
        app.output.say(f"note: these clusters exist: {', '.join(existing)}")
    return _nothing(folder)


def _refuse_to_stop(runs: Sequence[OpenRun], folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Raise Attention where one of these runs is active, or may be: nobody was asked whether to stop it."""
    results = {run.id: run.folder.load_result() for run in runs if run.silent and not run.active}
    ended = {run for run, result in results.items() if result is not None and result.status != "running"}
    active = [run for run in runs if run.active or (run.silent and run.id not in ended)]
    if not active:
        return
    names = ", ".join(machine.name for machine in machines) or f"those of {folder.name}"
    raise Attention(
        f"{' '.join(map(state_sentence, active))} It was not started here, so nothing was stopped, and the machines "
        f"stay, and may be billed: {names}. Once nobody needs it, gpuctl.cluster({folder.name!r}).down() stops it "
        "and removes them."
    )


def _ask(app: App, folder: ClusterFolder, runs: Sequence[OpenRun], *, machines: str) -> None:
    """Ask for confirmation if a run may be active, entries of the queue wait, or billed `machines` are removed."""
    waiting = waiting_in_queue(folder)
    if runs:
        it = "it" if len(runs) == 1 else "them"
        states = " ".join(map(state_sentence, runs[-RUNS_SHOWN:]))
        question = f"{states} Stop {it} and remove the cluster {folder.name}?"
    elif machines:
        question = f"Remove {machines} of the cluster {folder.name}?"
    elif waiting:
        question = f"Remove the cluster {folder.name}?"
    else:
        return
    if waiting:
        question = f"{waiting[0].upper()}{waiting[1:]} would never start. {question}"
    if not app.output.confirm(question):
        raise Declined("Cancelled: nothing was removed.")


def _stop_runs(app: App, runs: Sequence[OpenRun]) -> dict[str, list[str]]:
    """End the runs and bring their results back. By id, what went wrong, which keeps no rented machine alive."""
    problems: dict[str, list[str]] = {}
    for run in runs:
        try:
            _, problems[run.id] = stop_run(app, run.folder)
        except Exception as error:  # noqa: BLE001 - told, and the machines are removed all the same
            problems[run.id] = [str(error) or repr(error)]
        for problem in problems[run.id]:
            app.output.say(f"run {run.id}: {problem}")
    return problems
