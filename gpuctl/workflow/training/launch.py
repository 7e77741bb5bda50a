"""A planned run on nodes that are ready: started, and seen to its end."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpuctl.errors import Failed
from gpuctl.text import plural
from gpuctl.workflow.training.collect import conclude
from inventories.errors import InventoryError
from inventories.run import Result, Run
from inventories.store import ClusterFolder, RunFolder
from remote.runs.observer import Observer

if TYPE_CHECKING:
    from remote.runs.monitor import Watch
    from remote.sessions.session import Node


class Stage(Observer, Protocol):
    """Who is told how a run goes, and which phase it is in."""

    def phase(self, name: str, text: str) -> None:
        """Begin a phase."""


def see_through(
    view: Stage,
    cluster: ClusterFolder,
    folder: RunFolder,
    run: Run,
    nodes: "Mapping[str, Node]",
    launches: Mapping[str, dict[str, Any]],
    *,
    began: float,
    detach: bool = False,
    mirror: bool = False,
    on_started: Callable[[], None] = lambda: None,
    beside: "Callable[[Watch], AbstractContextManager[None]]" = lambda _: nullcontext(),
) -> tuple[Result, bool]:
    """Start a planned run on its nodes, which are ready, and see it to its end unless `detach`.

    `nodes` are those of the run; their connections stay open. `began`: monotonic time since which its total is
    counted. `mirror`: the newest checkpoints are brought here on the way. `beside`: is entered while it is watched.
    Returns the result, and whether a person interrupted it.
    """
    from remote.runs.monitor import Watch

    machines = {name: node.machine for name, node in nodes.items()}
    watch = Watch(run, folder, machines, cluster, view, gang=True, mirror=mirror, nodes=nodes)
    with interrupts_go_to(watch), beside(watch):
        folder.save_run(run)
        return _launch(view, folder, run, watch, launches, on_started, detach=detach, began=began)


@contextmanager
def interrupts_go_to(watch: "Watch") -> Iterator[None]:
    """From here on Ctrl-C is a message to the watch: nothing is broken off half-way."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: watch.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _launch(
    view: Stage,
    folder: RunFolder,
    run: Run,
    watch: "Watch",
    launches: Mapping[str, dict[str, Any]],
    on_started: Callable[[], None],
    *,
    detach: bool,
    began: float,
) -> tuple[Result, bool]:
    """Start the ranks and see the run through, or leave it alone where that was asked for."""
    where = plural(len(run.nodes), "node")
    ranks = plural(run.world_size, "rank")
    view.phase("launch", f"run {run.run}: starting {ranks} on {where}")
    mark = time.monotonic()

    def started() -> None:
        on_started()
        if not detach:
            view.phase("train", f"{run.script}: {ranks} at work")

    try:
        watch.go(launches=launches, wait=not detach, on_started=started)
        launched = max(watch.started_s.values(), default=mark)
        run = replace(run, seconds={**run.seconds, "launch": round(launched - mark, 3)})
        folder.save_run(run)
        if not detach:
            view.phase("collect", "bringing the results back")
        result = conclude(run, folder, watch, launched=launched, began=began)
    except (OSError, InventoryError) as error:
        why = str(error).removesuffix(".")
        raise Failed(
            f"Run {run.run} can no longer be watched from here: {why}. It goes on by itself: mend that, then "
            f"gpuctl logs -f {run.run} follows it and gpuctl stop {run.run} ends it."
        ) from error
    finally:
        watch.close()
    return result, watch.interrupts > 0
