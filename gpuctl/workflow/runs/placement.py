"""Place checkpoints on the nodes of the run that resumes from them; remove them if it is not launched."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from gpuctl.interrupts import interrupts_held_back
from gpuctl.tables.view import View
from gpuctl.workflow.machines.connect import connected
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint, has_them
from inventories.disk.store import ClusterFolder, RunFolder, Store
from inventories.runs.run import BeganWith, Checkpoints, Run, RunNode

if TYPE_CHECKING:
    from remote.sessions.session import Node

SLACK_BYTES = 64 * 1000**2


def receivers(run: Run, checkpoints: Checkpoints | None) -> Sequence[RunNode]:
    """Return the nodes of a run that need an earlier run's checkpoints.

    A single file is read by the built-in job's first rank, which shares it. Of a folder of parts each rank reads the
    parts it needs, and in a script any rank may read.
    """
    alone = run.built_in and checkpoints is not None and not checkpoints.in_parts
    return run.nodes[:1] if alone else run.nodes


def place(
    view: View, store: Store, nodes: "Mapping[str, Node]", point: ResumePoint, run: Run
) -> BeganWith | None:
    """Place the checkpoints where the run's ranks look for them, and return each node's checkpoints.

    `None`: no checkpoints. A node that has them copies them locally; others get them over this computer, file by
    file. Raises if a node does not get all of them; if the run is then not launched, for whatever reason, call
    `take_back`.
    """
    from remote.fanout import fan_out, values
    from remote.files import checkpoints

    source = point.source
    if source is None or point.checkpoints is None:
        return None
    targets = {part.name: part for part in receivers(run, point.checkpoints)}
    lacking = [name for name in targets if not has_them(point, run, name)]
    over = Event()

    def fill(part: RunNode) -> None:
        def say(text: str) -> None:
            if not over.is_set():
                view.node(part.name, text)

        node = nodes[part.name]
        if part.name in lacking:
            checkpoints.send(node, from_here, part, say=say)
        else:
            checkpoints.place(node, source, part)

    with brought_here(store.run(source.run), point, bring=bool(lacking)) as from_here:
        try:
            values(fan_out(fill, targets))
        except BaseException:
            # After an interrupt threads still run: their transfers must end, and print nothing.
            over.set()
            for name in targets:
                nodes[name].close()
            raise
    placed = replace(point.checkpoints, lacks=())
    return BeganWith(run=source.run, nodes=dict.fromkeys(targets, placed))


def take_back(
    view: View, cluster: ClusterFolder, nodes: "Mapping[str, Node]", point: ResumePoint, run: Run
) -> None:
    """Remove the placed checkpoints, also incomplete ones, from the run's nodes. Ctrl-C waits for the removal."""
    from remote.fanout import fan_out
    from remote.files import checkpoints
    from remote.sessions.connect import connect

    targets = {part.name: part for part in receivers(run, point.checkpoints)}

    def discard(part: RunNode) -> None:
        # The connection at hand may have been left in the middle of a packet.
        with connect(nodes[part.name].machine, cluster) as fresh:
            checkpoints.discard(fresh, part)

    with interrupts_held_back():
        view.note(f"{', '.join(targets)}: removing the checkpoints that were placed for run {run.run}")
        for outcome in fan_out(discard, targets):
            if outcome.error is not None:
                left = f"they are left there, beside {targets[outcome.node].run_dir}"
                view.note(f"{outcome.node}: {left}: {outcome.error}")


@contextlib.contextmanager
def brought_here(folder: RunFolder, point: ResumePoint, *, bring: bool) -> Iterator[Path]:
    """Yield a folder on this computer with the checkpoints; with `bring`, downloaded from the machines for now."""
    from remote.files import checkpoints
    from remote.files.receive import FileReceiver
    from remote.runs.run_files import new_incoming

    if not (bring and point.locations):
        yield folder.checkpoints_path
        return
    assert point.source is not None
    passing = new_incoming(folder)
    known = point.checkpoints
    machines = point.locations if known is not None and known.lacks else point.locations[:1]
    try:
        # By the node's latest answer; a file may have been replaced since.
        max_bytes = None if known is None else 2 * known.bytes + SLACK_BYTES
        with contextlib.ExitStack() as stack:
            nodes = [
                stack.enter_context(connected(location.cluster, [location.machine]))[location.machine.name]
                for location in machines
            ]
            checkpoints.bring_together(nodes, point.source, FileReceiver(passing, max_bytes=max_bytes))
        if point.checkpoints is not None:
            checkpoints.keep_times(passing, point.checkpoints)
        yield passing
    finally:
        shutil.rmtree(passing, ignore_errors=True)
