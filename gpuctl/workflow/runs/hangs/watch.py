"""What is done when a run that is followed hangs: its nodes are asked, the cause is told and kept, the run ended."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from gpuctl.workflow.runs.hangs.compare import Kind, blocks, compare, in_vain
from gpuctl.workflow.runs.hangs.rank import Rank
from gpuctl.workflow.runs.hangs.sentences import hang_of, in_the_past
from inventories.codec import dump, load
from inventories.disk.files import private_dir, write_atomic
from inventories.disk.store import ClusterFolder, RunFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.runs.hang import Hang
from inventories.runs.run import Run
from remote.errors import RemoteError
from remote.launchers import drives_itself

if TYPE_CHECKING:
    from remote.runs.observer import Observer
    from remote.runs.rank_activity import HangReport, RankActivity

STACKS = "stacks/rank-{}.txt"
PROBLEMS = (OSError, ValueError, InventoryError, RemoteError)
"""What can go wrong with what is asked, or kept; it may not end the watch."""
SAME_MOMENT_S = 2.0
"""What two machines' clocks may differ by beside the offset that is known."""


class Answer(NamedTuple):
    """What the nodes tell when they are asked."""

    hang: Hang
    blocked: bool
    """Whether by it and the report of a watch the run hangs."""
    in_vain: bool
    """Whether nobody works that is waited for, so that it hangs also where it has made no step yet."""


class HangWatch:
    """Waits for the reports of the nodes' own watches, in the command that follows the run."""

    def __init__(
        self,
        folder: RunFolder,
        observer: "Observer",
        ask: "Callable[[HangReport], Answer]",
        *,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        """`ask` asks the nodes. `give_up` ends a run that hangs; `None`: it is told of."""
        self._folder, self._observer = folder, observer
        self._ask_nodes = ask
        self.give_up = give_up
        self._changing = Lock()
        """Of all that follows, and of what is kept of the run's hang."""
        self._reports: dict[str, HangReport] = {}
        """Those that stand, by node."""
        self._withdrawn = 0
        """How many were withdrawn: an answer to what was asked before the last of them counts for nothing."""
        self._asking = self._gave_up = False
        self._told = ""

    def reported(self, node: str, report: "HangReport | None") -> None:
        """Take a node's report; returns at once. The nodes report at about the same time, and are asked once.

        `None`: its ranks make progress, so that what was told is over.
        """
        with self._changing:
            if (
                self._gave_up
            ):  # ranks that are being ended tell nothing of the hang, and what they write is no progress
                return
            if report is None:
                self._goes_on(node)
                return
            self._reports[node] = report
            if not self._asking:
                self._asking = True
                Thread(target=self._ask, daemon=True, name="ask of a hang").start()

    def _goes_on(self, node: str) -> None:
        if self._reports.pop(node, None) is None:
            return  # it had nothing to report before either
        self._withdrawn += 1
        self._folder.hang_path.unlink(missing_ok=True)
        if self._told:
            self._told = ""
            self._observer.note("the run goes on")

    def _ask(self) -> None:
        """Ask until there is an answer that counts, or no report that stands."""
        while (asked := self._question()) is not None:
            report, withdrawn = asked
            try:
                answer = self._ask_nodes(report)
            except PROBLEMS as error:
                with self._changing:
                    self._asking = False  # the nodes report again when the silence has doubled
                self._observer.note(f"why the run makes no progress is not known: {error}")
                return
            with self._changing:
                if withdrawn == self._withdrawn:
                    self._asking = False
                    if answer.blocked:
                        self._tell(answer)
                    return

    def _question(self) -> "tuple[HangReport, int] | None":
        """The report to ask after, and how many were withdrawn by now."""
        with self._changing:
            report = next(reversed(self._reports.values()), None)
            self._asking = report is not None
            return None if report is None else (report, self._withdrawn)

    def _tell(self, answer: Answer) -> None:
        hang, first = answer.hang, not self._told
        try:
            keep(self._folder, hang)
        except PROBLEMS as error:
            self._observer.note(f"what is known of the hang could not be kept: {error}")
        if first:
            self._observer.note(f"{hang.sentence} `gpuctl why --stacks {hang.run}` shows all stacks.")
            self._told = hang.sentence
        if self.give_up is None:
            return
        if answer.in_vain or any(report.stepped for report in self._reports.values()):
            self._gave_up = True
            self._observer.note("stopping the run, as --on-hang says")
            self.give_up()
        elif first:
            self._observer.note(
                "the run is not stopped: it has made no step yet, and who is waited for may work"
            )


def ask(
    run: Run,
    machines: Mapping[str, Machine],
    cluster: ClusterFolder,
    report: "HangReport | None" = None,
) -> Answer:
    """Ask the nodes what their ranks do. `report`: of a watch, which says that there is no progress."""
    from remote.runs.rank_activity import ask_nodes

    told = ask_nodes(run, machines, cluster)
    finding = compare(ranks_of(run, {one.rank: one for node in told for one in node.ranks}))
    if drives_itself(run.mode, built_in=run.built_in):
        finding = replace(finding, kind=Kind.DRIVER)
    blocked = report is not None and blocks(finding, report.silent_s, report.allowed_s)
    errors = tuple(f"{node.node}: {node.error}" for node in told if node.error)
    hang = hang_of(run.run, finding, at=datetime.now(UTC), hung=blocked, errors=errors)
    return Answer(hang, blocked, in_vain(finding))


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


def kept(folder: RunFolder, *, running: bool = False) -> Hang | None:
    """Return what was found out last, by a command here, by the nodes' watches or by NCCL's; `None`: nothing was.

    It is told as of the past, unless the run is running and a node's watch still reports it.
    """
    from remote.runs.run_files import read_hang_reports

    hang = _last_found(folder)
    if hang is None or (running and read_hang_reports(folder, folder.load_run().nodes)):
        return hang
    hang = in_the_past(hang)
    return replace(hang, sentence=f"{hang.sentence} `gpuctl why` asks its ranks again.") if running else hang


def _last_found(folder: RunFolder) -> Hang | None:
    path = folder.hang_path
    again = "Remove the file; `gpuctl why` makes it again while the run goes on."
    known = load(Hang, path.read_bytes(), str(path), rebuild=again) if path.exists() else None
    run = folder.load_run()
    if known is not None and known.ranks and all(rank.begun is False for rank in known.ranks):
        known = None  # that a run had not begun tells nothing of it later
    if known is not None and known.verdict == "hung":
        if not _went_on(run, folder, known):
            return known
        known = None
    hang = _of_reports(run, folder) or _of_dumps(run, folder)
    if hang is not None:
        _keep_stacks(folder, hang)
    return hang or known


def _went_on(run: Run, folder: RunFolder, hang: Hang) -> bool:
    """Whether a rank that has ended wrote metrics after the run was found to hang, and not as it was stopped."""
    from remote.runs.run_files import read_node_records, read_rank_records

    if hang.at is None:
        return False
    found_at = datetime.fromisoformat(hang.at).timestamp() + SAME_MOMENT_S
    stopped_at = {node.node: node.stopped_at for node in read_node_records(folder, run.nodes)}
    records = read_rank_records(folder, run.nodes)
    for part in run.nodes:
        told = stopped_at.get(part.name) or inf
        wrote = (record.metrics_ended_at or 0.0 for record in records[part.name])
        if any(found_at < at - part.clock_offset_s and at < told for at in wrote):
            return True
    return False


def _of_reports(run: Run, folder: RunFolder) -> Hang | None:
    """What the nodes' watches have written. `None` while one of them has nothing to report: there the run goes on."""
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
