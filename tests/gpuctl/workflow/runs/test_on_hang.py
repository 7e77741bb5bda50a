"""A following command's reaction to a hang, and the hang found later: saved here, or reported."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from support import a_run

from gpuctl.run_results.hangs.culprit import compare
from gpuctl.run_results.hangs.recorded import last_hang, ranks_of
from gpuctl.run_results.hangs.sentences import hang_of, past_tense
from gpuctl.run_results.read_run import read_records
from gpuctl.workflow.runs.on_hang import Answer, HangWatch, keep_stacks, save_hang
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import RunFolder, Store
from inventories.runs.activity import HangReport, RankActivity
from inventories.runs.hang import Hang, RankStacks
from inventories.runs.records import NodeRecord
from inventories.runs.run import RunNode
from remote.errors import BadAnswer
from remote.runs.run_files import RunFiles, save_node_record

STACKS = 'Thread 0x1 (most recent call first):\n  File "{}", line {} in {}\n'
LOADS = STACKS.format("/root/.gpuctl-node/code/job-1/data.py", 41, "load_batch")


def report(rank: int, *, over: bool, stacks: str = LOADS, silent_s: float = 200.0) -> bytes:
    entry = {"group": "0", "title": "default_pg", "sequence": 2 - over, "name": "all_reduce", "over": over}
    activity: dict[str, Any] = {
        "rank": rank,
        "now": 1000.0,
        "began_at": 1.0,
        "state": "S",
        "stacks": stacks,
        "stacks_by": "server",
        "collectives": [{**entry, "entered_at": 800.0}],
        "code": "/root/.gpuctl-node/code",
    }
    return json.dumps(
        {"silent_s": silent_s, "allowed_s": 120.0, "stepped": True, "ranks": [activity]}
    ).encode()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = Store(tmp_path).new_run(datetime.now(UTC))
    parts = tuple(
        RunNode(name=name, rank=at, nproc=1, first_rank=at, run_dir="/r") for at, name in enumerate("ab")
    )
    made.save_run(
        a_run(run=made.id, cluster="n", script="x", nodes=parts, started_at="2026-01-01T00:00:00+00:00")
    )  # fmt: skip
    return made


def recorded(folder: RunFolder, *, running: bool = False) -> Hang | None:
    hang = last_hang(read_records(folder, folder.load_run()), running=running)
    if hang is not None:
        keep_stacks(folder, hang)
    return hang


def bring(folder: RunFolder, *bodies: bytes) -> None:
    for part, body in zip(folder.load_run().nodes, bodies, strict=False):
        RunFiles(folder, part, folder.path / "incoming").hang_report(body)


def test_reports_of_the_nodes_are_compared_when_nobody_watched(folder: RunFolder) -> None:
    bring(folder, report(0, over=False), report(1, over=True))
    hang = recorded(folder)
    assert hang.verdict == "hung"
    assert hang.sentence.startswith(
        "The run hung (1970-01-01 00:16:40 UTC): rank 1 on b never entered all_reduce #2"
    )
    assert (folder.path / "stacks" / "rank-1.txt").read_text() == LOADS


def test_report_of_one_node_alone_is_no_hang(folder: RunFolder) -> None:
    bring(folder, report(0, over=False))
    assert recorded(folder) is None, "the other node's watch has nothing to report: there the run goes on"


def test_node_whose_rank_had_ended_reports_no_more(folder: RunFolder) -> None:
    bring(folder, report(0, over=False))
    record = {"rank": 1, "local_rank": 0, "pid": 1, "started_at": 1.0, "ended_at": 900.0, "exit_code": 0}
    files = RunFiles(folder, folder.load_run().nodes[1], folder.path / "incoming")
    files.record("ranks/rank-1.json", json.dumps(record).encode())
    hang = recorded(folder)
    assert hang.sentence.startswith(
        "The run hung (1970-01-01 00:16:40 UTC): the process of rank 1 on b has ended; "
    )


def test_hang_of_a_run_that_goes_on_is_told_as_of_now_while_a_node_reports_it(folder: RunFolder) -> None:
    hang = Hang(run=folder.id, verdict="hung", sentence="The run hangs: so.", at="2026-01-01T00:05:00+00:00")
    save_hang(folder, hang)
    then = "The run hung (2026-01-01 00:05:00 UTC): so."
    assert (over := recorded(folder)) is not None
    assert over.sentence == then
    assert past_tense(over) == over
    assert (unreported := recorded(folder, running=True)) is not None
    assert unreported.sentence == f"{then} `gpuctl why` asks its ranks again."
    bring(folder, report(0, over=False))
    assert recorded(folder, running=True) == hang


def test_run_that_had_not_begun_when_it_was_asked_is_not_told_so_later(folder: RunFolder) -> None:
    activities = {0: RankActivity(rank=0, now=1000.0), 1: RankActivity(rank=1, now=1000.0)}
    early = hang_of(folder.id, compare(ranks_of(folder.load_run(), activities)), at=datetime.now(UTC))
    assert early.sentence == "The run starts: none of its ranks has begun yet."
    save_hang(folder, early)
    assert recorded(folder) is None
    assert recorded(folder, running=True) is None
    bring(folder, report(0, over=False), report(1, over=True))
    assert (later := recorded(folder)) is not None
    assert later.verdict == "hung"


def test_report_that_is_withdrawn_counts_no_more(folder: RunFolder) -> None:
    bring(folder, report(0, over=False), report(1, over=True))
    assert recorded(folder) is not None
    bring(folder, b"")
    assert recorded(folder) is None


def test_ranks_that_all_work_are_no_hang(folder: RunFolder) -> None:
    bring(folder, report(0, over=True), report(1, over=True))
    assert recorded(folder) is None


def test_what_was_found_here_comes_before_reports(folder: RunFolder) -> None:
    stacks = RankStacks(rank=0, node="a", state="S", cpu=None, last_collective=None, at=None, stacks="x")
    hang = Hang(run=folder.id, verdict="hung", sentence="The run hangs: so.", ranks=(stacks,))
    save_hang(folder, hang)
    bring(folder, report(0, over=False), report(1, over=True))
    assert recorded(folder) == past_tense(hang)


def ended(folder: RunFolder, rank: int, wrote_at: float) -> None:
    """A rank's record, which says when it wrote its last metrics."""
    part = folder.load_run().nodes[rank]
    record = {
        "rank": rank, "local_rank": 0, "pid": 1, "started_at": 1.0, "ended_at": 2000.0, "exit_code": -9,
        "metrics_ended_at": wrote_at,
    }  # fmt: skip
    body = json.dumps(record).encode()
    RunFiles(folder, part, folder.path / "incoming").record(f"ranks/rank-{rank}.json", body)


def test_hang_that_the_run_survived_is_not_why_it_ended(folder: RunFolder) -> None:
    at = datetime.fromtimestamp(1000, UTC).isoformat()
    hang = Hang(run=folder.id, verdict="hung", sentence="The run hangs: so.", at=at)
    save_hang(folder, hang)
    ended(folder, 0, 900.0)
    assert recorded(folder) == past_tense(hang)
    ended(folder, 1, 1500.0)
    assert recorded(folder) is None, "rank 1 made steps after that"
    stopped = NodeRecord(node="b", launcher="torchrun", stopped=True, stopped_at=1400.0)
    save_node_record(folder, stopped)
    assert recorded(folder) == past_tense(hang), "what a rank writes as it is stopped is no step"


def test_report_that_is_withdrawn_takes_back_what_another_command_found(folder: RunFolder) -> None:
    hang = Hang(run=folder.id, verdict="hung", sentence="The run hangs: so.")
    save_hang(folder, hang)
    bring(folder, b"")
    assert recorded(folder) == past_tense(hang), "nothing was reported: `gpuctl why` found it"
    bring(folder, report(0, over=False))
    bring(folder, b"")
    assert recorded(folder) is None


def dump(folder: RunFolder, rank: int, sequence: int) -> None:
    """Write torch's flight recorder dump of a rank at a timeout of NCCL's, and the rank's record."""
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "profiling_name": "nccl:all_reduce",
            "collective_seq_id": number,
            "state": "completed" if number < 5 else "started",
            "time_created_ns": number * 10**9,
        }
        for number in range(1, sequence + 1)
    ]
    part = folder.load_run().nodes[rank]
    files = RunFiles(folder, part, folder.path / "incoming")
    files.append(f"hangs/nccl-{rank}", 0, pickle.dumps({"version": "2.10", "entries": entries}, protocol=2))
    record = {"rank": rank, "local_rank": 0, "pid": 1, "started_at": 0.0, "ended_at": 605.0, "exit_code": -6}
    files.record(f"ranks/rank-{rank}.json", json.dumps(record).encode())


def test_dumps_of_nccls_timeout_tell_who_never_came(folder: RunFolder) -> None:
    dump(folder, 0, 5)
    dump(folder, 1, 4)
    hang = recorded(folder)
    assert hang.verdict == "hung"
    assert hang.sentence == (
        "The run hung (1970-01-01 00:10:05 UTC): rank 1 on b never entered all_reduce #5, which rank 0 waits in; "
        "where it was is not known, for 10 min 0 s."
    )
    assert recorded(folder) == hang


def test_dumps_that_say_nothing_are_passed_over(folder: RunFolder) -> None:
    dump(folder, 0, 4)
    (folder.path / "hangs" / "nccl-1").write_bytes(b"no dump")
    assert recorded(folder) is None


def test_report_that_can_not_be_read_is_refused(folder: RunFolder) -> None:
    with pytest.raises(BadAnswer):
        bring(folder, b'{"silent_s": 1}')
    with pytest.raises(BadAnswer):
        bring(folder, b"[" * 100_000)


def test_ranks_are_told_when_a_run_counts_as_hung() -> None:
    assert TrainRequest().rank_env == {}
    assert TrainRequest(hang_after="off").rank_env == {"GPUCTL_HANG_AFTER": "off"}
    assert replace(TrainRequest(), hang_after=600.0).rank_env == {"GPUCTL_HANG_AFTER": "600"}


SILENT = HangReport(silent_s=200.0, allowed_s=120.0, stepped=True, ranks=())
WAIT_S = 30.0


class Following:
    """A followed run: it collects notes, and the test answers for the nodes."""

    def __init__(self, folder: RunFolder) -> None:
        self.notes: SimpleQueue[str] = SimpleQueue()
        self.asked: SimpleQueue[HangReport] = SimpleQueue()
        self.answers: SimpleQueue[Answer | Exception] = SimpleQueue()
        self.given_up: SimpleQueue[bool] = SimpleQueue()
        self.watch = HangWatch(folder, self, self._ask, give_up=lambda: self.given_up.put(True))

    def _ask(self, report: HangReport) -> Answer:
        self.asked.put(report)
        answer = self.answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def note(self, text: str) -> None:
        self.notes.put(text)

    def node(self, name: str, text: str) -> None:
        raise AssertionError(f"{name}: {text}")

    def log(self, rank: int | None, node: str, line: str) -> None:
        raise AssertionError(f"{rank} on {node}: {line}")

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        raise AssertionError(f"{rank}: {line}")


def hung(folder: RunFolder, why: str, *, culprits_idle: bool = False) -> Answer:
    return Answer(Hang(run=folder.id, verdict="hung", sentence=f"The run hangs: {why}."), True, culprits_idle)


def test_run_that_goes_on_before_the_nodes_have_answered_is_not_stopped(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", SILENT)
    following.asked.get(timeout=WAIT_S)
    following.watch.reported("a", None)
    again = replace(SILENT, silent_s=500.0)
    following.watch.reported("b", again)
    following.answers.put(hung(folder, "so it was"))
    assert following.asked.get(timeout=WAIT_S) == again, "the answer before it is out of date"
    assert not folder.hang_path.exists()
    following.answers.put(hung(folder, "so it is"))
    following.given_up.get(timeout=WAIT_S)
    assert following.notes.get(timeout=WAIT_S).startswith("The run hangs: so it is.")


def test_node_that_never_reported_does_not_say_that_the_run_goes_on(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", SILENT)
    following.watch.reported("b", None)
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)
    assert recorded(folder) == past_tense(hung(folder, "so")[0])


def test_what_ranks_write_when_they_are_ended_is_no_progress(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", SILENT)
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)
    following.watch.reported("a", None)
    assert recorded(folder) == past_tense(hung(folder, "so")[0])


def test_ranks_that_are_being_ended_are_not_asked_again(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", SILENT)
    following.asked.get(timeout=WAIT_S)
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)
    following.watch.reported("b", replace(SILENT, silent_s=400.0))
    assert following.asked.empty()
    assert recorded(folder) == past_tense(hung(folder, "so")[0])


def test_answer_that_fails_is_told_and_the_next_report_asks_again(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", SILENT)
    following.answers.put(BadAnswer("a says nothing that can be read."))
    note = following.notes.get(timeout=WAIT_S)
    assert note == "why the run makes no progress is not known: a says nothing that can be read."
    following.watch.reported("a", replace(SILENT, silent_s=400.0))
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)


def test_run_without_a_step_is_stopped_only_once_nobody_works_that_is_waited_for(folder: RunFolder) -> None:
    following = Following(folder)
    starts = replace(SILENT, stepped=False)
    following.watch.reported("a", starts)
    following.answers.put(hung(folder, "so"))
    assert following.notes.get(timeout=WAIT_S).startswith("The run hangs: so.")
    note = following.notes.get(timeout=WAIT_S)
    assert note == "the run is not stopped: it has made no step yet, and who is waited for may work"
    assert following.given_up.empty()
    following.watch.reported("a", replace(starts, silent_s=400.0))
    following.answers.put(hung(folder, "so", culprits_idle=True))
    following.given_up.get(timeout=WAIT_S)
    assert following.notes.get(timeout=WAIT_S) == "stopping the run, as --on-hang says"


def test_run_has_made_a_step_where_the_watch_of_any_node_says_so(folder: RunFolder) -> None:
    following = Following(folder)
    following.watch.reported("a", replace(SILENT, stepped=False))
    following.watch.reported("b", SILENT)
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)


def test_run_is_stopped_though_its_hang_can_not_be_kept(folder: RunFolder) -> None:
    following = Following(folder)
    folder.hang_path.mkdir()  # in the way
    following.watch.reported("a", SILENT)
    following.answers.put(hung(folder, "so"))
    following.given_up.get(timeout=WAIT_S)
    assert following.notes.get(timeout=WAIT_S).startswith("what is known of the hang could not be kept: ")
