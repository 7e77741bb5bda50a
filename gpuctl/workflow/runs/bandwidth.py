"""The bandwidth between a cluster's nodes: a short all-reduce, started and watched like any run, and not kept."""

import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuctl.command_results.upkeep import DoctorFinding
from gpuctl.interrupts import on_interrupt
from gpuctl.run_results.failures.failures import what_failed
from gpuctl.tables.view import View
from gpuctl.workflow.runs.collect import conclude
from gpuctl.workflow.runs.launch import plan_run
from gpuctl.workflow.runs.prepare import send_code
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.clocks import Timer, passed_s
from inventories.disk.store import ClusterFolder, RunFolder, Store
from inventories.machine import Inventory
from inventories.runs.result import Result
from inventories.runs.run import Run
from inventories.text import plural
from remote.launchers import launcher_of
from remote.shared.constants import VISIBLE

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.sessions.session import Node

Line = Mapping[str, Any]

SHOWN = ("scope", "rank", "world_size", "backend", "device", "bytes", "seconds", "bus_gb_s")
"""Keys that a line needs. A line without them was cut short by its node."""
LIMIT_S = 90.0
"""The job ends itself 30 s after torch was loaded, which alone can take that long on a fresh disk."""

FLOORS_GB_S = {"A100-SXM": 185.0, "H100 80GB HBM3": 440.0, "H200": 440.0, "B200": 440.0}
"""Part of a GPU's name → bus bandwidth of an all-reduce over the eight of a healthy node."""
FLOOR_RANKS = 8
FLOOR_BYTES = 10**9
NO_NVLINK_SWITCH = ("PCIe", "NVL")


def measure(
    view: View,
    cluster: ClusterFolder,
    inventory: Inventory,
    nodes: "Mapping[str, Node]",
    facts: "Mapping[str, Facts]",
) -> tuple[list[Line] | None, list[DoctorFinding]]:
    """Measure on the nodes, by rank, that passed the preflight; return the job's lines and rows about them.

    The lines are `None` if the job failed. Raises KeyboardInterrupt if the user ended it.
    """
    from remote.errors import RemoteError
    from remote.fanout import fan_out, values
    from remote.launchers.rank_command import BUILT_IN_FOLDER, Script, built_in_tree
    from remote.runs.run_files import read_metrics

    script = Script(kind="built-in", target="train.allreduce")
    tree = built_in_tree()
    machines = [node.machine for node in nodes.values()]
    try:
        code = values(fan_out(lambda node: send_code(view, node, tree, BUILT_IN_FOLDER).root, nodes))
    except RemoteError as error:
        return None, [_row(False, "the job could not be sent", str(error))]
    with tempfile.TemporaryDirectory(prefix="gpuctl-doctor-") as home:
        run_folder = Store(Path(home)).new_run(started_at := datetime.now(UTC))
        run = plan_run(run_folder.id, inventory, TrainRequest(), script, machines, facts, started_at, {})
        if run.world_size == 1:
            return [], [_row(True, "one rank: nothing to measure")]
        # Without usable GPUs, the ranks run on the CPUs here, too.
        env = {} if any(fact.gpus for fact in facts.values()) else {VISIBLE: ""}
        service = launcher_of(run.mode).start(nodes, facts, cluster, view.node, most=len(nodes))
        launches = service.launches(run, script, facts, code, env)
        result = _run(view, run, run_folder, nodes, cluster, launches)
        lines = [line for file in read_metrics(run_folder, run).values() for line in file.lines]
    measured: list[Line] = [
        line for line in lines if line.get("event") == "allreduce" and line.keys() >= set(SHOWN)
    ]
    if result.status == "succeeded" and measured:
        return measured, rows_of(measured, run)
    late = result.status == "stopped"
    why = f"it did not end within {LIMIT_S:.0f} s, or was stopped" if late else what_failed(result)
    return None, [_row(False, f"failed: {why}", "gpuctl train shows all ranks' logs")]


def _run(
    view: View,
    run: Run,
    folder: RunFolder,
    nodes: "Mapping[str, Node]",
    cluster: ClusterFolder,
    launches: Mapping[str, dict[str, Any]],
) -> Result:
    """Wait for the job, or stop it after the limit; return its result. Raises KeyboardInterrupt on Ctrl-C."""
    from remote.runs.monitor import RunMonitor

    machines = {name: node.machine for name, node in nodes.items()}
    began = passed_s()
    watch = RunMonitor(run, folder, machines, cluster, view, gang=True, nodes=nodes)
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        watch.interrupt()

    limit = Timer(LIMIT_S, end)
    limit.daemon = True
    limit.start()
    folder.save_run(run)
    try:
        with on_interrupt(watch.interrupt):
            watch.go(launches=launches)
    finally:
        limit.cancel()
        watch.close()
    if watch.interrupts > overdue.is_set():
        raise KeyboardInterrupt
    return conclude(run, folder, watch, launched=began, began=began)


def rows_of(lines: Sequence[Line], run: Run) -> list[DoctorFinding]:
    """Return the rows of a measurement: the largest size of each scope, and nodes below the floor of their GPUs."""
    largest = {(line["scope"], line["rank"]): line for line in sorted(lines, key=lambda line: line["bytes"])}
    rows = []
    for line in (largest[key] for key in sorted(largest)):
        node = next(
            part.name for part in run.nodes if part.first_rank <= line["rank"] < part.first_rank + part.nproc
        )
        where = f"within {node}" if line["scope"] == "node" else f"between {plural(len(run.nodes), 'node')}"
        rows.append(
            _row(
                True,
                f"{line['bus_gb_s']:.2f} GB/s {where} ({plural(line['world_size'], 'rank')}, {line['backend']}, "
                f"{line['bytes'] / 1e6:.0f} MB in {line['seconds'] * 1000:.1f} ms)",
            )
        )
        floor = floor_of(line, alone=line["scope"] == "node" or len(run.nodes) == 1)
        if floor is not None and line["bus_gb_s"] < floor:
            rows.append(
                _row(
                    None,
                    f"{node}: {line['bus_gb_s']:.0f} GB/s between its GPUs, where a healthy node has {floor:.0f}",
                    "look at nvidia-smi topo -m and nvidia-smi nvlink --status there, and replace the machine",
                )
            )
    return rows


def floor_of(line: Line, *, alone: bool) -> float | None:
    """Return the GB/s that a healthy node reaches. `None`: no known floor. `alone`: measured within a node."""
    device = str(line["device"])
    if not alone or line["world_size"] != FLOOR_RANKS or line["bytes"] < FLOOR_BYTES:
        return None
    if any(kind in device for kind in NO_NVLINK_SWITCH):
        return None
    return next((floor for part, floor in FLOORS_GB_S.items() if part in device), None)


def _row(ok: bool | None, detail: str, fix: str | None = None) -> DoctorFinding:
    return DoctorFinding("all-reduce", ok, detail, fix)
