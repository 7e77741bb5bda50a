"""Plan a run on nodes that are ready, start it, and follow it to its end."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Failed
from gpuctl.interrupts import on_interrupt
from gpuctl.workflow.machines.notify import for_run
from gpuctl.workflow.runs.gpus import with_gpu_watch
from gpuctl.workflow.runs.request.launchable import Launchable
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.strategy.fitting import ranks_on
from inventories.clocks import passed_s
from inventories.codec import to_json
from inventories.disk.store import ClusterFolder, RunFolder, Store
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.runs.commit import Commit
from inventories.runs.run import Run, RunNode
from inventories.text import plural
from remote.launchers import launcher_of
from remote.runs.observer import Observer, Outcome
from remote.shared.constants import NODE_FOLDER, RUNS

if TYPE_CHECKING:
    from gpuctl.workflow.runs.prepare import Prepared
    from inventories.runs.result import Result
    from remote.facts import Facts
    from remote.launchers import Service
    from remote.launchers.rank_command import Script
    from remote.runs.monitor import RunMonitor
    from remote.sessions.session import Node


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A planned run, and the commands that start it on its nodes."""

    run: Run
    folder: RunFolder
    cluster: ClusterFolder
    nodes: "Mapping[str, Node]"
    """Connections to the nodes of the run, which stay open."""
    commands: Mapping[str, dict[str, Any]]
    """Node → what its supervisor is given: argv, environment, folder."""
    began: float
    """Monotonic time since which the run's total is counted."""

    def watch(self, view: Observer, *, mirror: bool = False, end_hung: bool = False) -> "RunMonitor":
        """Return what starts the run and follows it.

        `mirror`: the newest checkpoints are brought here on the way. `end_hung`: the run is stopped if it hangs.
        """
        from gpuctl.workflow.runs.on_hang import HangWatch, ask
        from remote.runs.monitor import RunMonitor

        machines = {name: node.machine for name, node in self.nodes.items()}
        hangs = HangWatch(self.folder, view, partial(ask, self.run, machines, self.cluster))
        watch = RunMonitor(
            self.run,
            self.folder,
            machines,
            self.cluster,
            view,
            gang=True,
            mirror=mirror,
            nodes=self.nodes,
            on_hang=hangs.reported,
        )
        hangs.give_up = watch.stop_hung if end_hung else None
        return watch


def launches_of(
    run: Run,
    launchable: Launchable,
    prepared: "Prepared",
    service: "Service",
    store: Store,
    inventory: Inventory,
    machines: Sequence[Machine],
) -> dict[str, dict[str, Any]]:
    """Return what each node's supervisor is given for a planned run, by node."""
    request = launchable.request
    commands = service.launches(run, launchable.script, prepared.facts, prepared.code, launchable.rank_env)
    if not request.built_in:  # the built-in job, without a project, leaves artifacts
        mode, sources = launchable.request.mode, launchable.sources
        code = {
            "folder": launchable.folder,
            "home_folders": list(launcher_of(mode).home_folders),
            "paths": sources.outside_paths,
            "names": sources.name_patterns,
        }
        commands = {
            name: {
                **launch,
                "code": {"root": prepared.roots[name], "ray_node": name if mode == "ray" else "", **code},
            }
            for name, launch in commands.items()
        }
    if request.notify:
        cluster, continues = store.cluster(run.cluster), request.continues
        requests = for_run(
            store,
            cluster,
            request.notify,
            run,
            inventory,
            machines,
            continues=continues,
            failures_only=launchable.is_of_sweep,
        )
        commands = {name: {**command, "notify": requests[name]} for name, command in commands.items()}
    return with_gpu_watch(commands, run, request)


def plan_run(
    run_id: str,
    inventory: Inventory,
    request: TrainRequest,
    script: "Script",
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    started_at: datetime,
    seconds: Mapping[str, float],
    *,
    root: Path | None = None,
    names_ranks: bool = True,
    commit: Commit | None = None,
) -> Run:
    """Return the run's record: the ranks on each node, and their meeting point. `root`: the folder to send.

    A script that drives Ray is one process on the first node; it starts the others itself.
    """
    parts: list[RunNode] = []
    first_rank = 0
    mode, options, drives = request.mode, request.options(root), request.drives
    hourly_usd = inventory.hourly_usd
    if hourly_usd is not None:  # the share of the run's machines, or of its GPUs, in the cluster's price
        shares = [request.gpus / facts[m.name].driver.listed if request.gpus else 1.0 for m in machines]
        hourly_usd = hourly_usd * sum(shares) / len(inventory.machines)
    if drives:
        machines, request = machines[:1], replace(request, nproc_per_node=1)
    for rank, machine in enumerate(machines):
        fact = facts[machine.name]
        nproc = ranks_on(request, fact)
        parts.append(
            RunNode(
                name=machine.name,
                rank=rank,
                nproc=nproc,
                first_rank=first_rank,
                # A home may be shared by all nodes.
                run_dir=f"{fact.home}/{NODE_FOLDER}/{RUNS}/{run_id}/{machine.name}",
                host_key=machine.host_key,
                machine_id=machine.id if machine.transport == "pod" else None,
                clock_offset_s=round(fact.clock_offset_s, 3),
                gpus=tuple(gpu["uuid"] for gpu in fact.gpus) if request.gpus else (),
            )
        )
        first_rank += nproc
    shapes = {machine.shape or inventory.shape for machine in machines}
    port = facts[machines[0].name].free_port or 0  # the preflight refuses a node without a free port
    return Run(
        run=run_id,
        cluster=inventory.cluster,
        mode=mode,
        script=script.title,
        args=script.args,
        nodes=tuple(parts),
        master_addr=machines[0].private_ip,
        master_port=port,
        started_at=started_at.isoformat(timespec="milliseconds"),
        seconds=rounded(seconds),
        hourly_usd=hourly_usd,
        shape=shapes.pop() if len(shapes) == 1 else None,
        options=options,
        names_ranks=names_ranks,
        commit=commit,
    )


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the phases' times as a run's record has them."""
    return {name: round(value, 3) for name, value in seconds.items()}


@contextmanager
def removed_unless_launched(folder: RunFolder) -> Iterator[None]:
    """Remove a run's folder where the body fails before its record is written: nothing was launched."""
    try:
        yield
    except BaseException:
        if not folder.run_path.exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _outcome(watch: "RunMonitor") -> Outcome:
    """Return how the ranks of a run that is over ended, for the line of its phase."""
    records = watch.records.values()
    if any(record.failure or (record.exit_code != 0 and not record.stop_ordered) for record in records):
        return "failed"
    return "stopped" if any(record.stop_ordered for record in records) else "done"


def see_through(
    view: Observer,
    launch: Launch,
    watch: "RunMonitor",
    *,
    detach: bool = False,
    on_started: Callable[[], None] = lambda: None,
) -> "tuple[Result, bool]":
    """Start the ranks and see the run to its end, or leave it alone once they have started (`detach`).

    `watch`: of this launch. Returns the result, and whether a person interrupted the run.
    """
    from gpuctl.workflow.runs.collect import conclude

    run, folder = launch.run, launch.folder
    ranks = plural(run.world_size, "rank")

    def started() -> None:
        on_started()
        if not detach:
            view.phase("train", f"{run.script}: {launcher_of(run.mode).starts} {ranks}")

    def begun() -> None:
        if not detach:
            view.phase("train", f"{run.script}: {ranks} running")

    with on_interrupt(watch.interrupt):
        # From here on nothing is broken off half-way.
        folder.save_run(run)
        view.phase("launch", f"run {run.run}: starting {ranks} on {plural(len(run.nodes), 'node')}")
        mark = passed_s()
        try:
            record = to_json(run)
            commands = {name: {**command, "record": record} for name, command in launch.commands.items()}
            watch.go(launches=commands, wait=not detach, on_started=started, on_begun=begun)
            launched = max(watch.started_s.values(), default=mark)
            run = replace(run, seconds={**run.seconds, "launch": round(launched - mark, 3)})
            folder.save_run(run)
            if not detach:
                view.phase("collect", "bringing the results back", previous=_outcome(watch))
            result = conclude(run, folder, watch, launched=launched, began=launch.began)
        except (OSError, InventoryError) as error:
            why = str(error).removesuffix(".")
            raise Failed(
                f"Run {run.run} can no longer be watched from here: {why}. If it has not ended, it continues. Mend "
                f"that, then gpuctl logs -f {run.run} follows it and gpuctl stop {run.run} ends it."
            ) from error
        finally:
            watch.close()
    return result, watch.interrupts > 0
