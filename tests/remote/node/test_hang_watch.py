"""The watch on a node: how long a run may be silent, and what is written down when it was so for too long."""

import json
from pathlib import Path

import pytest

from remote.node.hangs.watch import Progress, Watch
from remote.shared.constants import HANG_REPORT


def with_steps(every_s: float, count: int, *, after_s: float | None = None) -> Progress:
    progress = Progress(after_s, 0.0)
    for number in range(count):
        progress.sign(number * every_s, step=True)
    return progress


@pytest.mark.parametrize(
    ("every_s", "allowed_s"),
    [(0.1, 120.0), (5.0, 120.0), (10.0, 200.0), (60.0, 1200.0)],
)
def test_allowed_silence_follows_the_usual_step(every_s: float, allowed_s: float) -> None:
    assert with_steps(every_s, 100).allowed_s == pytest.approx(allowed_s)


def test_nothing_is_told_before_the_first_step() -> None:
    progress = Progress(None, 0.0)
    progress.sign(10, step=False)
    assert progress.allowed_s is None
    assert not progress.is_due(100_000)
    assert not Progress(60.0, 0.0).is_due(100_000)


def test_evaluation_as_long_as_one_before_is_no_hang() -> None:
    progress = with_steps(1.0, 100)
    progress.sign(99 + 400, step=True)
    assert not progress.is_due(499 + 790)
    assert progress.is_due(499 + 800)


def test_time_that_was_given_counts() -> None:
    progress = with_steps(60.0, 100, after_s=30.0)
    assert progress.is_due(99 * 60 + 30)


def test_hang_is_told_again_each_time_the_silence_has_doubled() -> None:
    progress = with_steps(1.0, 11)
    told = [second for second in range(11, 1000) if progress.is_due(second)]
    assert told == [130, 250, 490, 970]


def test_sign_of_life_without_a_step_puts_off_the_alarm() -> None:
    progress = with_steps(1.0, 11)
    progress.sign(100, step=False)
    assert not progress.is_due(219)
    assert progress.is_due(220)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in ("ranks", "metrics", "logs", "hangs"):
        (tmp_path / name).mkdir()
    for rank in (0, 1):
        record = {"rank": rank, "pid": 1, "group": 1, "birth": "never", "started_at": 1.0}
        (tmp_path / f"ranks/rank-{rank}.json").write_text(json.dumps(record))
    return tmp_path


def test_report_is_written_once_all_ranks_are_silent_and_removed_when_one_goes_on(run_dir: Path) -> None:
    metrics = [run_dir / f"metrics/rank-{rank}.jsonl" for rank in (0, 1)]
    watch = Watch(run_dir, 60.0)
    watch.look(1000.0)
    metrics[0].write_text("{}\n")
    watch.look(1010.0)
    metrics[1].write_text("{}\n")
    watch.look(1050.0)
    watch.look(1109.0)
    assert not (run_dir / HANG_REPORT).exists()
    watch.look(1110.0)
    report = json.loads((run_dir / HANG_REPORT).read_text())
    assert (report["silent_s"], report["allowed_s"]) == (60.0, 60.0)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    metrics[0].write_text("{}\n{}\n")
    watch.look(1115.0)
    assert not (run_dir / HANG_REPORT).exists()


def test_run_that_is_being_stopped_gets_no_report(run_dir: Path) -> None:
    watch = Watch(run_dir, 60.0)
    (run_dir / "metrics/rank-0.jsonl").write_text("{}\n")
    watch.look(0.0)
    (run_dir / "stop").touch()
    watch.look(60.0)
    assert not (run_dir / HANG_REPORT).exists()


def test_rank_that_only_prints_is_never_said_to_hang(run_dir: Path) -> None:
    watch = Watch(run_dir, 60.0)
    (run_dir / "logs/rank-0.log").write_text("begins\n")
    for second in range(0, 1000, 50):
        watch.look(float(second))
    assert not (run_dir / HANG_REPORT).exists()
