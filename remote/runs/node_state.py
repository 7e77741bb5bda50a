"""A run on one of its nodes: whether it is active there, the node's report of its end, and how to end it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inventories.codec import from_json
from inventories.disk.cluster_files import ClusterFiles
from inventories.errors import CorruptFile
from inventories.machine import Machine
from inventories.runs.end_reasons import STOPS, Ended, Reason
from inventories.runs.records import NodeRecord
from inventories.runs.run import Run, RunNode
from remote.errors import BadAnswer, NodeFailed, RemoteError
from remote.fanout import fan_out
from remote.sessions.answers import reading
from remote.sessions.connect import connect
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames

TOLD_S = 15.0
"""A working node confirms the order within this time."""
STOP_DEADLINE_S = 20.0
"""Beyond the ranks' grace, for killed processes to be gone and files of the run to be listed."""
LONGEST_GRACE_S = 7 * 24 * 3600.0
LATEST_CLOCK_S = 2.0**33
"""No node's clock is later, unix time: in the year 2242."""
NODE_REASONS: Mapping[Reason, tuple[str, ...]] = {
    Reason.NOT_STARTED: ("program",),
    Reason.RAY_ENDED: (),
    Reason.RAY_LATE: ("rank", "seconds"),
    Reason.DISK_FULL: ("free_bytes",),
    Reason.SHUT_DOWN: (),
    Reason.REBOOTED: (),
    Reason.CONTAINER_RESTARTED: (),
    Reason.RUNNER_KILLED: (),
    Reason.NO_RECORD: ("detail",),
    **dict.fromkeys(STOPS, ()),
}
"""Reasons that a node may give for the end of its part in a run, each with the facts that it needs."""
RANK_REASONS: Mapping[Reason, tuple[str, ...]] = {Reason.NOT_STARTED: ("program",)}
"""Reasons that a node may give for the end of a rank, in addition to its exit status."""


def is_running(node: Node, part: RunNode) -> bool | None:
    """Return whether the run is active on the node; `None` if the node does not know it. One round trip."""
    running = node.call("run_state", {"run_dir": part.run_dir}).get("running")
    if running is not None and not isinstance(running, bool):
        raise BadAnswer(f"{node.name}: was asked whether a run goes on, and said {running!r}.")
    return running


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Runs that a node is busy with."""

    runs: tuple[str, ...]
    """Ids of the active ones."""
    begun: tuple[str, ...]
    """Ids of runs without a recorded end in its home folder, also runs of other nodes with the same home."""
    begun_elsewhere: tuple[str, ...]
    """Ids of the `begun` runs of other nodes."""
    ray: str | None
    """Address of the Ray cluster that it is part of."""

    @property
    def depends_on_others(self) -> bool:
        """Return whether runs of other nodes may make the node busy."""
        return bool(self.begun_elsewhere) or self.ray is not None


def occupancy(node: Node, gpus: int | None) -> Occupancy:
    """Ask a node which runs it is busy with, in one round trip. Raises BadAnswer.

    `gpus`: runs that leave this number of GPUs free do not count. `None`: all runs count.
    """
    answer = node.call("occupancy", {"node": node.name, "gpus": gpus})
    ray = "KubeRay" if node.machine.transport == "pod" else answer.get("ray")
    runs = {key: answer.get(key) for key in ("runs", "begun", "begun_elsewhere")}
    with reading(node.name, "the runs that it lists"):
        return from_json(Occupancy, {**runs, "ray": ray}, "the runs of a node")


def busy_nodes(nodes: Mapping[str, Occupancy], spreads: Callable[[str], bool]) -> dict[str, str]:
    """Return each busy node with the run.

    Busy is also a node in the Ray cluster of a driver, which is a process on one node alone, and a node that shares
    its home folder, with code and environments, with a busy one. `spreads`: whether a run may be such a driver.
    """
    busy = {name: node.runs[0] for name, node in nodes.items() if node.runs}
    drivers = {nodes[name].ray: run for name, run in busy.items() if nodes[name].ray and spreads(run)}
    runs = {
        name: busy.get(name)
        or next((run for run in busy.values() if run in node.begun), drivers.get(node.ray))
        for name, node in nodes.items()
    }
    return {name: run for name, run in runs.items() if run is not None}


def record_of_end(name: str, mode: str, state: Mapping[str, Any]) -> NodeRecord:
    """Read the node's answer on the run's end, for the record. Raises BadAnswer."""
    keys = ("exit_code", "ended_at", "stopped", "stopped_at", "ended", "ending")
    document = {key: state[key] for key in keys if key in state}
    with reading(name, "what it says of the run's end"):
        record = from_json(NodeRecord, {"node": name, "launcher": mode, **document}, "the end of the run")
        for when in (record.ended_at, record.stopped_at):
            if when is not None and not 0 <= when <= LATEST_CLOCK_S:
                raise CorruptFile(f"{when} is no time.")
        if wrong := problem_of(record.ended, NODE_REASONS):
            raise CorruptFile(f"{wrong}.")
    return record


def problem_of(ended: Ended | None, known: Mapping[Reason, tuple[str, ...]]) -> str | None:
    """Check a reason that a node sent. Returns why it is refused, or `None`."""
    if ended is None:
        return None
    if ended.reason not in known:
        return f"'{ended.reason}' is nothing that a node says"
    missing = [fact for fact in known[ended.reason] if getattr(ended, fact) in (None, "")]
    return f"'{ended.reason}' without {' and '.join(missing)} says nothing" if missing else None


def stop_on_node(
    node: Node,
    part: RunNode,
    *,
    reason: Reason = Reason.STOPPED,
    interrupted: bool = False,
    grace_s: float | None = None,
    on_told: Callable[[], None] = lambda: None,
    on_running: Callable[[], None] = lambda: None,
) -> None:
    """End a run on one node and wait for it; idempotent. `on_told` is called when the node knows.

    `on_running`: called then, too, unless the run had ended there before. `interrupted`: ranks get SIGINT, as from
    Ctrl-C in a terminal, else SIGTERM. `grace_s`: seconds from the signal to SIGKILL; `None`: the seconds that its
    launch set. Of several calls the first one's `reason` and signal are kept, and the last one's grace. Raises
    NodeFailed if the run is still active.
    """
    request: dict[str, Any] = {
        "run_dir": part.run_dir,
        "deadline_s": STOP_DEADLINE_S,
        "reason": reason.value,
        "signal": "SIGINT" if interrupted else "SIGTERM",
        "grace_s": grace_s,
    }
    over, waits_s = False, STOP_DEADLINE_S
    with node.stream("stop", request, timeout_s=TOLD_S, bounds=Bounds(total_s=TOLD_S)) as talk:
        for header, _ in talk.frames():
            if header.get("t") == frames.ORDERED:
                on_told()
                if header.get("running") is not False:
                    on_running()
                waits_s = STOP_DEADLINE_S + _grace(node, header)
                talk.bound(Bounds(total_s=waits_s + TOLD_S))
                talk.wait_up_to(waits_s + TOLD_S)
            elif header.get("t") == frames.STOPPED:
                over = header["state"]["running"] is False
    if not over:
        raise NodeFailed(
            f"{node.name}: the run was told to stop and goes on, {waits_s:.0f} s later. Its processes may "
            "hang in the driver or on a disk; where they can't be killed, the machine has to be booted again."
        )


def _grace(node: Node, header: Mapping[str, Any]) -> float:
    """Return the grace that a node says its ranks have. Raises BadAnswer."""
    grace_s: Any = header.get("grace_s")
    number = isinstance(grace_s, int | float) and not isinstance(grace_s, bool)
    if not number or not 0 <= grace_s <= LONGEST_GRACE_S:
        raise BadAnswer(f"{node.name}: was told to stop a run, and said that its ranks have {grace_s!r} s.")
    return float(grace_s)


def stop_everywhere(
    run: Run,
    machines: Mapping[str, Machine],
    cluster: ClusterFiles,
    grace_s: float | None = None,
    *,
    interrupted: bool = False,
    on_running: Callable[[], None] = lambda: None,
) -> dict[str, RemoteError | None]:
    """End a run on all its nodes at once; every node's error, or `None`. The rest is as in `stop_on_node`."""

    def stop_part(part: RunNode) -> bool:
        with connect(machines[part.name], cluster) as node:
            stop_on_node(node, part, interrupted=interrupted, grace_s=grace_s, on_running=on_running)
        return True

    outcomes = fan_out(stop_part, {part.name: part for part in run.nodes if part.name in machines})
    return {outcome.node: outcome.error for outcome in outcomes}
