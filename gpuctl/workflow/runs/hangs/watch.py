"""React to a hang of a followed run: ask its nodes, print and save the cause, end the run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from gpuctl.workflow.runs.hangs.compare import Kind, blocks, compare, culprits_idle
from gpuctl.workflow.runs.hangs.rank import Rank
from gpuctl.workflow.runs.hangs.sentences import hang_of, past_tense
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
"""Errors of the nodes' answers and of files, which must not end the watch."""
SAME_MOMENT_S = 2.0
"""Maximum difference of two machines' clocks beyond the known offset, seconds."""


class Answer(NamedTuple):
    """The nodes' answer about a hang."""

    hang: Hang
    blocked: bool
    """True: with the watch's report it shows that the run hangs."""
    culprits_idle: bool
    """True: no awaited rank works, so that the run hangs even before its first step."""


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
        """`ask` asks the nodes. `give_up` ends a run that hangs; `None`: the hang is only printed."""
        self._folder, self._observer = folder, observer
        self._ask_nodes = ask
        self.give_up = give_up
        self._changing = Lock()
        """Guards all attributes below, and the saved hang."""
        self._reports: dict[str, HangReport] = {}
        """Current reports, by node."""
        self._withdrawn = 0
        """Number of withdrawn reports: an answer to a question from before the last withdrawal is ignored."""
        self._asking = self._gave_up = False
        self._printed = ""

    def reported(self, node: str, report: "HangReport | None") -> None:
        """Take a node's report and return at once. Several nodes report at about the same time, and are asked once.

        `None`: its ranks make progress, so the hang is over.
        """
        with self._changing:
            if (
                self._gave_up
            ):  # ranks that are being ended tell nothing of the hang, and what they write is no progress
                return
            if report is None:
                self._withdraw(node)
                return
            self._reports[node] = report
            if not self._asking:
                self._asking = True
                Thread(target=self._ask, daemon=True, name="ask of a hang").start()

    def _withdraw(self, node: str) -> None:
        if self._reports.pop(node, None) is None:
            return  # it had nothing to report before either
        self._withdrawn += 1
        self._folder.hang_path.unlink(missing_ok=True)
        if self._printed:
            self._printed = ""
            self._observer.note("the run goes on")

    def _ask(self) -> None:
        """Ask until an answer is valid, or no report is left."""
        while (question := self._question()) is not None:
            report, withdrawn = question
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
        """Return the report to ask about, and the number of withdrawals so far."""
        with self._changing:
            report = next(reversed(self._reports.values()), None)
            self._asking = report is not None
            return None if report is None else (report, self._withdrawn)

    def _tell(self, answer: Answer) -> None:
        hang, first = answer.hang, not self._printed
        try:
            save_hang(self._folder, hang)
        except PROBLEMS as error:
            self._observer.note(f"what is known of the hang could not be kept: {error}")
        if first:
            self._observer.note(f"{hang.sentence} `gpuctl why --stacks {hang.run}` shows all stacks.")
            self._printed = hang.sentence
        if self.give_up is None:
            return
        if answer.culprits_idle or any(report.stepped for report in self._reports.values()):
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
    """Ask the nodes for their ranks' activity. `report`: of a watch, about missing progress."""
    from remote.runs.rank_activity import ask_nodes

    answers = ask_nodes(run, machines, cluster)
    finding = compare(ranks_of(run, {activity.rank: activity for node in answers for activity in node.ranks}))
    if drives_itself(run.mode, built_in=run.built_in):
        finding = replace(finding, kind=Kind.DRIVER)
    blocked = report is not None and blocks(finding, report.silent_s, report.allowed_s)
    errors = tuple(f"{node.node}: {node.error}" for node in answers if node.error)
    hang = hang_of(run.run, finding, at=datetime.now(UTC), hung=blocked, errors=errors)
    return Answer(hang, blocked, culprits_idle(finding))


def ranks_of(run: Run, activities: "Mapping[int, RankActivity]") -> list[Rank]:
    """Return all ranks of a run, each with its node's report."""
    return [
        Rank(rank=rank, node=part.name, activity=activities.get(rank), clock_offset_s=part.clock_offset_s)
        for part in run.nodes
        for rank in range(part.first_rank, part.first_rank + part.nproc)
    ]


def save_hang(folder: RunFolder, hang: Hang) -> None:
    """Keep it as `hang.json`, and each rank's stacks as a text of its own."""
    _keep_stacks(folder, hang)
    write_atomic(folder.hang_path, dump(hang))


def _keep_stacks(folder: RunFolder, hang: Hang) -> None:
    private_dir(folder.path / "stacks")
    for rank in filter(lambda rank: rank.stacks, hang.ranks):
        write_atomic(folder.path / STACKS.format(rank.rank), rank.stacks.encode())


def last_hang(folder: RunFolder, *, running: bool = False) -> Hang | None:
    """Return the last hang found by a command here, by the nodes' watches or by NCCL's. `None`: no hang.

    The hang is in the past tense, unless the run is running and a node's watch still reports it.
    """
    from remote.runs.run_files import read_hang_reports

    hang = _last_recorded(folder)
    if hang is None or (running and read_hang_reports(folder, folder.load_run().nodes)):
        return hang
    hang = past_tense(hang)
    return replace(hang, sentence=f"{hang.sentence} `gpuctl why` asks its ranks again.") if running else hang


def _last_recorded(folder: RunFolder) -> Hang | None:
    path = folder.hang_path
    again = "Remove the file; `gpuctl why` makes it again while the run goes on."
    known = load(Hang, path.read_bytes(), str(path), rebuild=again) if path.exists() else None
    run = folder.load_run()
    if known is not None and known.ranks and all(rank.begun is False for rank in known.ranks):
        known = None  # a run that had not begun says nothing about its later state
    if known is not None and known.verdict == "hung":
        if not _progressed_since(run, folder, known):
            return known
        known = None
    hang = _of_reports(run, folder) or _of_dumps(run, folder)
    if hang is not None:
        _keep_stacks(folder, hang)
    return hang or known


def _progressed_since(run: Run, folder: RunFolder, hang: Hang) -> bool:
    """Return whether a rank that has ended wrote metrics after the hang was found, and before the run was stopped."""
    from remote.runs.run_files import read_node_records, read_rank_records

    if hang.at is None:
        return False
    found_at = datetime.fromisoformat(hang.at).timestamp() + SAME_MOMENT_S
    stopped_at = {node.node: node.stopped_at for node in read_node_records(folder, run.nodes)}
    records = read_rank_records(folder, run.nodes)
    for part in run.nodes:
        limit = stopped_at.get(part.name) or inf
        wrote = (record.metrics_ended_at or 0.0 for record in records[part.name])
        if any(found_at < at - part.clock_offset_s and at < limit for at in wrote):
            return True
    return False


def _of_reports(run: Run, folder: RunFolder) -> Hang | None:
    """Return the hang from the reports of the nodes' watches. `None` also while a node without one still runs."""
    from remote.runs.rank_activity import ended_activity
    from remote.runs.run_files import read_hang_reports, read_rank_records

    reports = read_hang_reports(folder, run.nodes)
    activities = {activity.rank: activity for report in reports.values() for activity in report.ranks}
    if not activities:
        return None
    last = max(activity.now for activity in activities.values())
    records = read_rank_records(folder, run.nodes)
    for record in (record for name, of in records.items() if name not in reports for record in of):
        if record.ended_at is None or record.ended_at > last:
            return None
        activities[record.rank] = ended_activity(record)
    finding = compare(ranks_of(run, activities))
    if len(activities) < run.world_size or not any(
        blocks(finding, report.silent_s, report.allowed_s) for report in reports.values()
    ):
        return None
    return hang_of(run.run, finding, at=datetime.fromtimestamp(last, UTC), hung=True)


def _of_dumps(run: Run, folder: RunFolder) -> Hang | None:
    """Return the hang from the dumps that torch writes when a collective of NCCL's exceeds its timeout."""
    from remote.runs.run_files import read_dumps

    dumps = read_dumps(folder, run.nodes)
    finding = compare(ranks_of(run, dumps))
    if not finding.waiting:
        return None
    at = max(activity.now for activity in dumps.values())
    return hang_of(run.run, finding, at=datetime.fromtimestamp(at, UTC), hung=True)
