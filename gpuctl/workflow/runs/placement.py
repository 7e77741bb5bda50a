"""How checkpoints get to the nodes of the run that resumes from them, and go again if it is not launched."""

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


def receivers(run: Run, found: Checkpoints | None) -> Sequence[RunNode]:
    """The nodes of a run on which it is to find what an earlier one left.

    The built-in job's first rank reads a file and tells the others. Of a folder of parts each rank reads what it
    needs, and of a script any rank may look.
    """
    alone = run.built_in and found is not None and not found.in_parts
    return run.nodes[:1] if alone else run.nodes


def place(
    view: View, store: Store, nodes: "Mapping[str, Node]", point: ResumePoint, run: Run
) -> BeganWith | None:
    """Bring the checkpoints to where the run's ranks look for them, and return what each node has then.

    `None`: there are none. On a node that has them nothing is copied over the network; to others they come over this
    computer, file by file. Where they are not placed as a whole on each it raises, and where the run is not launched,
    whatever the reason, `take_back` is to follow.
    """
    if point.source is None or point.checkpoints is None:
        return None
    _place(view, store.run(point.source.run), nodes, point, run)
    placed = replace(point.checkpoints, lacks=())
    return BeganWith(
        run=point.source.run, nodes={part.name: placed for part in receivers(run, point.checkpoints)}
    )


def take_back(
    view: View, cluster: ClusterFolder, nodes: "Mapping[str, Node]", point: ResumePoint, run: Run
) -> None:
    """Remove from the run's nodes what was placed, or had begun to be. Ctrl-C has to wait for it."""
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


def _place(
    view: View,
    folder: RunFolder,
    nodes: "Mapping[str, Node]",
    point: ResumePoint,
    run: Run,
) -> None:
    from remote.fanout import fan_out, values
    from remote.files import checkpoints

    source = point.source
    assert source is not None
    targets = {part.name: part for part in receivers(run, point.checkpoints)}
    lacking = [name for name in targets if not has_them(point, run, name)]
    over = Event()

    def one(part: RunNode) -> None:
        def say(text: str) -> None:
            if not over.is_set():
                view.node(part.name, text)

        node = nodes[part.name]
        if part.name in lacking:
            checkpoints.send(node, from_here, part, say=say)
        else:
            checkpoints.place(node, source, part)

    with brought_here(folder, point, bring=bool(lacking)) as from_here:
        try:
            values(fan_out(one, targets))
        except BaseException:
            # After an interrupt threads are at work still: what they send has to end, and nobody is to hear of it.
            over.set()
            for name in targets:
                nodes[name].close()
            raise


@contextlib.contextmanager
def brought_here(folder: RunFolder, point: ResumePoint, *, bring: bool) -> Iterator[Path]:
    """A folder on this computer with what was brought before; with what a machine has, to `bring` it for now."""
    from remote.files import checkpoints
    from remote.files.receive import FileReceiver
    from remote.runs.run_files import new_incoming

    if not (bring and point.locations):
        yield folder.checkpoints_path
        return
    assert point.source is not None
    passing = new_incoming(folder)
    machines = (
        point.locations if point.checkpoints is not None and point.checkpoints.lacks else point.locations[:1]
    )
    try:
        told = point.checkpoints
        # Of what the node told just now; a file may have been replaced since.
        most = None if told is None else 2 * told.bytes + SLACK_BYTES
        with contextlib.ExitStack() as stack:
            others = [
                stack.enter_context(connected(there.cluster, [there.machine]))[there.machine.name]
                for there in machines
            ]
            checkpoints.bring_together(others, point.source, FileReceiver(passing, max_bytes=most))
        if point.checkpoints is not None:
            checkpoints.keep_times(passing, point.checkpoints)
        yield passing
    finally:
        shutil.rmtree(passing, ignore_errors=True)
