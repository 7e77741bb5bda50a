"""Idle nodes for a run that takes a part of the cluster, while other runs are active on the others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.errors import Usage
from gpuctl.workflow.machines.connect import connected
from gpuctl.workflow.runs.queued_runs import entries_on, queue_of
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.text import listed, plural

if TYPE_CHECKING:
    from gpuctl.workflow.runs.unfinished_runs import OpenRun
    from remote.errors import PreflightFailed
    from remote.runs.node_state import Occupancy
    from remote.sessions.session import Node


@contextmanager
def connected_idle(
    store: Store,
    folder: ClusterFolder,
    candidates: Sequence[Machine],
    request: TrainRequest,
    count: int,
    *,
    fewer: bool = False,
    say: Callable[[str], None],
) -> Iterator[Mapping[str, "Node"]]:
    """Connect to the machines of a run, by name and in their order: the first `count` candidates that are idle.

    Nodes report their runs only if the run leaves a choice of nodes. `fewer`: use all idle nodes if they are fewer,
    but not fewer than an elastic job needs. Raises PreflightFailed for too few idle nodes.
    """
    from remote.findings import named

    min_count = (request.min_nodes or 1) if fewer else count
    with ExitStack() as connections:
        first = connections.enter_context(
            connected(folder, candidates[:count], at_least=request.min_nodes, say=say)
        )
        choice = min_count < len(candidates)
        nodes, states = first, _occupancies(first, request.gpus) if choice else {}
        if any(state.runs or state.depends_on_others for state in states.values()):
            reserve = connections.enter_context(connected(folder, candidates[count:], at_least=0, say=say))
            nodes = {**first, **reserve}
            busy = _busy(store, {**states, **_occupancies(reserve, request.gpus)})
            idle = [
                machine.name for machine in candidates if machine.name in nodes and machine.name not in busy
            ]
            if len(idle) < min_count:
                raise refusal(busy, idle, min_count, request.gpus)
            chosen = {name: nodes[name] for name in idle[:count]}
            if busy.keys() & first.keys():
                active = [
                    f"the run {run} is active on {named(names)}" for run, names in _nodes_of(busy).items()
                ]
                say(f"{'; '.join(active)}. This run takes {named(list(chosen))}")
            for name in nodes.keys() - chosen.keys():
                nodes[name].close()
            nodes = chosen
        yield dict(sorted(nodes.items(), key=lambda item: item[1].machine.rank))


def refuse_busy(store: Store, nodes: "Mapping[str, Node]", gpus: int | None) -> None:
    """Raise PreflightFailed where a run is active on a node, and leaves fewer than `gpus` of its GPUs free."""
    if busy := _busy(store, _occupancies(nodes, gpus)):
        raise refusal(busy, [name for name in nodes if name not in busy], len(nodes), gpus)


def refuse_to_end_busy(
    store: Store,
    folder: ClusterFolder,
    machines: Sequence[Machine],
    ending: Sequence[Machine],
    unfinished: "Sequence[OpenRun]",
    say: Callable[[str], None],
) -> None:
    """Raise Usage unless the machines that are about to end are idle, and known to be.

    `machines`: those of the inventory. `ending`: as the provider lists them. `unfinished`: runs that may be active.
    """
    _refuse_to_end_unknown(machines, ending)
    names = {machine.name for machine in ending}
    unknown = "note: whether a run is active is not known of a machine that is"
    with connected(folder, machines, at_least=0, say=lambda text: say(f"{unknown} {text}")) as nodes:
        silent = [m.name for m in ending if m.name not in nodes and m.state not in ("gone", "stopped")]
        _refuse_to_end_silent(folder, silent, unfinished)
        # A shared home folder outlives the machine.
        states = {name: replace(state, begun=()) for name, state in _occupancies(nodes, None).items()}
        first_name = min(machines, key=lambda machine: machine.rank).name
        first = nodes.get(first_name)
        if first is None:
            raise Usage(
                f"{first_name} does not answer, and it has the queue: entries may need {listed(sorted(names))}. No "
                "machine was ended. Run `gpuctl up` without --count first, which replaces it if it has ended."
            )
        waiting = entries_on(folder, queue_of(folder, first), names)
    if busy := {name: run for name, run in _busy(store, states).items() if name in names}:
        runs = ", ".join(f"{name} has the active run {run}" for name, run in busy.items())
        stop = "; ".join(f"gpuctl stop {run}" for run in dict.fromkeys(busy.values()))
        raise Usage(
            f"{runs}. No machine was ended. Run `gpuctl up` again when it is over, or after `{stop}`."
        )
    if waiting:
        entries = " ".join(waiting)
        raise Usage(
            f"Entries of the queue may need {listed(sorted(names))}: {entries}. No machine was ended. Run `gpuctl "
            f"up` again when they have ended, or after `gpuctl queue rm {entries}`."
        )


def _refuse_to_end_unknown(machines: Sequence[Machine], ending: Sequence[Machine]) -> None:
    """Raise Usage for a machine that the inventory lacks: another computer's run may be active there."""
    ranks = {machine.rank for machine in machines}
    if unknown := [machine.name for machine in ending if machine.rank not in ranks]:
        are = "is" if len(unknown) == 1 else "are"
        count = max(machine.rank for machine in ending) + 1
        raise Usage(
            f"{listed(unknown)} {are} not in the files here: another computer made it, or an interrupted `gpuctl "
            f"up`. No machine was ended. `gpuctl adopt` takes it in, or `gpuctl up --count {count}`; then try again."
        )


def _refuse_to_end_silent(folder: ClusterFolder, silent: list[str], unfinished: "Sequence[OpenRun]") -> None:
    """Raise Usage for machines that do not answer: a run may be active there."""
    if not silent:
        return
    runs = [run.id for run in unfinished if {part.name for part in run.folder.load_run().nodes} & {*silent}]
    active = f"the run {listed(runs)} may be active there" if runs else "a run may be active there"
    stop = f" and `gpuctl stop {runs[0]}`" if runs else ""
    raise Usage(
        f"{listed(silent)} does not answer, and {active}. No machine was ended. Run `gpuctl up` again once it "
        f"answers{stop}; `gpuctl down --cluster {folder.name}` removes the whole cluster."
    )


def _occupancies(nodes: Mapping[str, "Node"], gpus: int | None) -> "Mapping[str, Occupancy]":
    """Ask each node which runs it is busy with."""
    from remote.fanout import fan_out, values
    from remote.runs.node_state import occupancy

    return values(fan_out(lambda node: occupancy(node, gpus), nodes))


def _busy(store: Store, states: "Mapping[str, Occupancy]") -> Mapping[str, str]:
    """Return each busy node with its run."""
    from remote.launchers import launcher_of
    from remote.runs.node_state import busy_nodes

    def spreads(run_id: str) -> bool:
        try:
            run = store.run(run_id).load_run()
        except InventoryError:
            return True  # started from another computer
        return len(run.nodes) == 1 and launcher_of(run.mode).drives(built_in=run.built_in, search=True)

    return busy_nodes(states, spreads)


def refusal(
    busy: Mapping[str, str], idle: Sequence[str], min_count: int, gpus: int | None
) -> "PreflightFailed":
    """Return the error for too few idle nodes. `gpus`: free GPUs that the run needs on each; `None`: all."""
    from remote.checks.preflight import still_active
    from remote.findings import cannot_start, named, sentence

    lines = [f"{sentence(still_active(named(nodes), run))}" for run, nodes in _nodes_of(busy).items()]
    if idle:
        are = "is" if len(idle) == 1 else "are"
        lines.append(f"{named(idle)} {are} idle: --nnodes {len(idle)} starts a run there.")
    with_gpus = f" with {plural(gpus, 'free GPU')}" if gpus else ""
    state = "has them" if gpus else "is idle"
    needs = f"it needs {plural(min_count, 'node')}{with_gpus}, and {len(idle) or 'none'} {state}"
    if len(idle) > 1:
        needs = needs.replace(" has them", " have them").replace(" is idle", " are idle")
    return cannot_start(lines, busy, reason=f"{needs}.")


def _nodes_of(busy: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the nodes of each run."""
    nodes: dict[str, list[str]] = {}
    for name, run in busy.items():
        nodes.setdefault(run, []).append(name)
    return nodes
