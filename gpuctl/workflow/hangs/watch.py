"""What is done when a run that is followed hangs: its nodes are asked, the cause is told and kept, the run ended."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING

from gpuctl.hangs.compare import Kind, Rank, blocks, compare
from gpuctl.hangs.sentences import hang_of
from inventories.disk.codec import dump, load
from inventories.disk.files import private_dir, write_atomic
from inventories.disk.store import ClusterFolder, RunFolder
from inventories.hang import Hang
from inventories.machine import Machine
from inventories.run import Run
from remote.launchers import drives_itself

if TYPE_CHECKING:
    from remote.runs.observer import Observer
    from remote.runs.rank_activity import HangReport, RankActivity

STACKS = "stacks/rank-{}.txt"


class HangWatch:
    """Waits for the reports of the nodes' own watches, in the command that follows the run."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        machines: Mapping[str, Machine],
        cluster: ClusterFolder,
        observer: "Observer",
        *,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        """`give_up` ends a run that hangs. None: it is only told of."""
        self._run, self._folder = run, folder
        self._machines, self._cluster = machines, cluster
        self._observer = observer
        self.give_up = give_up
        self._asking: Thread | None = None
        self._told = ""

    def reported(self, report: "HangReport | None") -> None:
        """Take a node's report; returns at once. The nodes report at about the same time, and are asked once.

        None: its ranks make progress, so that what was told is over.
        """
        if report is None:
            if self._told:
                self._told = ""
                self._folder.hang_path.unlink(missing_ok=True)
                self._observer.note("the run goes on")
        elif self._asking is None or not self._asking.is_alive():
            self._asking = Thread(target=self._ask, args=(report,), daemon=True, name="ask of a hang")
            self._asking.start()

    def _ask(self, report: "HangReport") -> None:
        hang, blocked = ask(self._run, self._folder, self._machines, self._cluster, report)
        if not blocked or hang.sentence == self._told:
            return
        if not self._told:
            self._observer.note(f"{hang.sentence} `gpuctl why --stacks {self._run.run}` shows all stacks.")
            self._told = hang.sentence
        if self.give_up is not None:
            self._observer.note("stopping the run, as --on-hang says")
            self.give_up()


def ask(
    run: Run,
    folder: RunFolder,
    machines: Mapping[str, Machine],
    cluster: ClusterFolder,
    report: "HangReport | None" = None,
) -> tuple[Hang, bool]:
    """Ask the nodes what their ranks do, and keep it. `report`: of a watch, which says that there is no progress.

    Returns it, and whether by it and the report the run hangs.
    """
    from remote.runs.rank_activity import ask_nodes

    told = ask_nodes(run, machines, cluster)
    finding = compare(ranks_of(run, {one.rank: one for node in told for one in node.ranks}))
    if drives_itself(run.mode, built_in=run.built_in):
        finding = replace(finding, kind=Kind.DRIVER)
    blocked = report is not None and blocks(finding, report.silent_s, report.allowed_s)
    errors = tuple(f"{node.node}: {node.error}" for node in told if node.error)
    hang = hang_of(run.run, finding, at=datetime.now(UTC), hung=blocked, errors=errors)
    if blocked or report is None:
        keep(folder, hang)
    return hang, blocked


def ranks_of(run: Run, told: "Mapping[int, RankActivity]") -> list[Rank]:
    """Return all ranks of a run, each with what its node tells of it."""
    return [
        Rank(rank=rank, node=part.name, told=told.get(rank), clock_offset_s=part.clock_offset_s)
        for part in run.nodes
        for rank in range(part.first_rank, part.first_rank + part.nproc)
    ]


def keep(folder: RunFolder, hang: Hang) -> None:
    """Keep it as `hang.json`, and each rank's stacks as a text of its own."""
    _keep_stacks(folder, hang)
    write_atomic(folder.hang_path, dump(hang))


def _keep_stacks(folder: RunFolder, hang: Hang) -> None:
    private_dir(folder.path / "stacks")
    for rank in filter(lambda rank: rank.stacks, hang.ranks):
        write_atomic(folder.path / STACKS.format(rank.rank), rank.stacks.encode())


def kept(folder: RunFolder) -> Hang | None:
    """Return what was found out last, by a command here, by the nodes' watches or by NCCL's; None: nothing was."""
    path = folder.hang_path
    again = "Remove the file; `gpuctl why` makes it again while the run goes on."
    known = load(Hang, path.read_bytes(), str(path), rebuild=again) if path.exists() else None
    if known is not None and known.verdict == "hung":
        return known
    run = folder.load_run()
    hang = _of_reports(run, folder) or _of_dumps(run, folder)
    if hang is not None:
        _keep_stacks(folder, hang)
    return hang or known


def _of_reports(run: Run, folder: RunFolder) -> Hang | None:
    """What the nodes' watches have written. None while one of them has nothing to report: there the run goes on."""
    from remote.runs.rank_activity import ended_activity
    from remote.runs.run_files import read_hang_reports, read_rank_records

    reports = read_hang_reports(folder, run.nodes)
    told = {one.rank: one for report in reports.values() for one in report.ranks}
    if not told:
        return None
    last = max(one.now for one in told.values())
    records = read_rank_records(folder, run.nodes)
    for record in (record for name, found in records.items() if name not in reports for record in found):
        if record.ended_at is None or record.ended_at > last:
            return None
        told[record.rank] = ended_activity(record)
    finding = compare(ranks_of(run, told))
    if len(told) < run.world_size or not any(
        blocks(finding, report.silent_s, report.allowed_s) for report in reports.values()
    ):
        return None
    return hang_of(run.run, finding, at=datetime.fromtimestamp(last, UTC), hung=True)


def _of_dumps(run: Run, folder: RunFolder) -> Hang | None:
    """What torch wrote when a collective of NCCL's took longer than its timeout."""
    from remote.runs.run_files import read_dumps

    dumps = read_dumps(folder, run.nodes)
    finding = compare(ranks_of(run, dumps))
    if not finding.waiting:
        return None
    at = max(one.now for one in dumps.values())
    return hang_of(run.run, finding, at=datetime.fromtimestamp(at, UTC), hung=True)
