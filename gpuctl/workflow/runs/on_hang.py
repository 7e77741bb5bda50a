"""React to a hang of a followed run: ask its nodes, print and save the cause, end the run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from gpuctl.run_results.hangs.culprit import Kind, blocks, compare, culprits_idle
from gpuctl.run_results.hangs.recorded import ranks_of
from gpuctl.run_results.hangs.sentences import hang_of
from inventories.codec import dump
from inventories.disk.files import private_dir, write_atomic
from inventories.disk.store import ClusterFolder, RunFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.runs.activity import HangReport
from inventories.runs.hang import Hang
from inventories.runs.run import Run
from remote.errors import RemoteError
from remote.launchers import drives_itself

if TYPE_CHECKING:
    from remote.runs.observer import Observer

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
        ask: Callable[[HangReport], Answer],
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

    def reported(self, node: str, report: HangReport | None) -> None:
        """Take a node's report and return at once. Several nodes report at about the same time, and are asked once.

        `None`: its ranks make progress, so the hang is over.
        """
        with self._changing:
            if (
                self._gave_up
            ):  # ranks that are being ended tell nothing of the hang, and what they write is no progress
                return
            if report is None:
                if self._reports.pop(node, None) is None:
                    return  # it had nothing to report before either
                self._withdrawn += 1
                self._folder.hang_path.unlink(missing_ok=True)
                if self._printed:
                    self._printed = ""
                    self._observer.note("the run goes on")
                return
            self._reports[node] = report
            if not self._asking:
                self._asking = True
                Thread(target=self._ask, daemon=True, name="ask of a hang").start()

    def _ask(self) -> None:
        """Ask until an answer is valid, or no report is left."""
        while True:
            with self._changing:
                report, withdrawn = next(reversed(self._reports.values()), None), self._withdrawn
                self._asking = report is not None
            if report is None:
                return
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
    report: HangReport | None = None,
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


def save_hang(folder: RunFolder, hang: Hang) -> None:
    """Keep it as `hang.json`, and each rank's stacks as a text of its own."""
    keep_stacks(folder, hang)
    write_atomic(folder.hang_path, dump(hang))


def keep_stacks(folder: RunFolder, hang: Hang) -> None:
    """Save each rank's stacks as a text of its own."""
    private_dir(folder.path / "stacks")
    for rank in filter(lambda rank: rank.stacks, hang.ranks):
        write_atomic(folder.path / STACKS.format(rank.rank), rank.stacks.encode())
