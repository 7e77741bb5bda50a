"""`why`: what the ranks of a run are doing, asked of its nodes, compared, and kept in the run's folder here."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuctl.hangs.compare import Rank, compare
from gpuctl.hangs.sentences import hang_of
from gpuctl.options import App
from gpuctl.view import open_view
from gpuctl.workflow.training.collect import final_result, machines_of
from gpuctl.workflow.training.runs import latest
from inventories.disk.codec import dump, load
from inventories.disk.files import private_dir, write_atomic
from inventories.disk.store import RunFolder, Store
from inventories.hang import Hang
from inventories.run import Result, Run

if TYPE_CHECKING:
    from remote.runs.rank_activity import NodeActivity

STACKS = "stacks/rank-{}.txt"


def why(app: App, named: str | None) -> tuple[Hang, list[str]]:
    """Return why a run makes no progress, and a sentence for each node that could not be asked.

    Of one that is over, what was found out while it was going on.
    """
    folder = latest(app, named)
    over = final_result(folder)
    if over is not None:
        return kept(folder) or _of_the_past(over), []
    with open_view(app.output, logs=False) as view:
        view.phase("why", f"asking the ranks of run {folder.id}")
        return ask(app.store, folder)


def ask(store: Store, folder: RunFolder, *, hung: bool = False) -> tuple[Hang, list[str]]:
    """Ask the nodes of a run that goes on, and keep what they tell. `hung`: as for `hang_of`."""
    from remote.runs.rank_activity import ask_nodes

    run = folder.load_run()
    told = ask_nodes(run, machines_of(store, run), store.cluster(run.cluster))
    hang = hang_of(run.run, compare(ranks_of(run, told)), at=datetime.now(UTC), hung=hung)
    keep(folder, hang)
    return hang, [f"{node.node}: {node.error}" for node in told if node.error]


def ranks_of(run: Run, told: "Sequence[NodeActivity]") -> list[Rank]:
    """Return all ranks of a run with what their nodes tell of them."""
    known = {one.rank: one for node in told for one in node.ranks}
    return [
        Rank(rank=rank, node=part.name, told=known.get(rank))
        for part in run.nodes
        for rank in range(part.first_rank, part.first_rank + part.nproc)
    ]


def keep(folder: RunFolder, hang: Hang) -> None:
    """Keep it as `hang.json`, and each rank's stacks as a text of its own."""
    private_dir(folder.path / "stacks")
    for rank in hang.ranks:
        write_atomic(folder.path / STACKS.format(rank.rank), rank.stacks.encode())
    write_atomic(folder.hang_path, dump(hang))


def kept(folder: RunFolder) -> Hang | None:
    """Return what was found out last; None: nothing was."""
    path = folder.hang_path
    again = "Remove the file; `gpuctl why` makes it again while the run goes on."
    return load(Hang, path.read_bytes(), str(path), rebuild=again) if path.exists() else None


def _of_the_past(result: Result) -> Hang:
    error = result.first_error
    why_ended = f": {error.message.removesuffix('.')}" if error else ""
    return Hang(
        run=result.run,
        verdict="unknown",
        sentence=f"The run is over, it {result.status}{why_ended}. Its ranks can no longer be asked.",
    )
