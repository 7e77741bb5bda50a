"""Test the watch on a node: the permitted silence of a run, and the records after a longer silence."""

import json
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from node_here import ROOT
from support import wait_for

from remote.node import process
from remote.node.hangs.watch import Progress, Watch
from remote.node.hangs.why import place_of
from remote.shared.constants import HANG_REPORT

NOW = time.monotonic() + 1


def with_steps(every_s: float, count: int, *, after_s: float | None = None) -> Progress:
    progress = Progress(after_s)
    for number in range(count):
        progress.sign(number * every_s, step=True)
    return progress


@pytest.mark.parametrize(
    ("every_s", "allowed_s"),
    [(0.1, 120.0), (5.0, 120.0), (10.0, 200.0), (60.0, 1200.0)],
)
def test_allowed_silence_follows_the_usual_step(every_s: float, allowed_s: float) -> None:
    assert with_steps(every_s, 100).allowed_s == pytest.approx(allowed_s)


def test_nothing_is_told_before_a_rank_has_begun() -> None:
    assert Progress(None).allowed_s is None
    assert not Progress(60.0).is_due(100_000)


@pytest.mark.parametrize(
    ("after_s", "allowed_s"), [(None, 300.0), (5.0, 25.0), (60.0, 300.0), (300.0, 300.0), (900.0, 900.0)]
)
def test_silence_before_the_first_step_has_minutes(after_s: float | None, allowed_s: float) -> None:
    progress = Progress(after_s)
    progress.began(100)
    progress.began(200)
    assert not progress.is_due(100 + allowed_s - 1)
    assert progress.is_due(100 + allowed_s)
    progress.sign(200, step=False)
    assert not progress.is_due(200 + allowed_s - 1)
    assert progress.is_due(200 + allowed_s)


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
    messages = []
    for second in range(11, 1000):
        if progress.is_due(second):
            progress.step(second)
            messages.append(second)
    assert messages == [130, 250, 490, 970]


def test_collectives_tell_the_usual_step_though_they_are_looked_at_seldom() -> None:
    progress = Progress(None)
    for number in range(1, 4):
        progress.sign(30.0 * number, step=True, took=[0.1] * 300)
    assert progress.allowed_s == 120
    progress.sign(200.0, step=True, took=[0.1, 90.0])
    assert progress.allowed_s == 180


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
    watch.poll(NOW + 1000)
    metrics[0].write_text("{}\n")
    watch.poll(NOW + 1010)
    metrics[1].write_text("{}\n")
    watch.poll(NOW + 1050)
    watch.poll(NOW + 1109)
    assert not (run_dir / HANG_REPORT).exists()
    watch.poll(NOW + 1110)
    report = json.loads((run_dir / HANG_REPORT).read_text())
    assert (report["silent_s"], report["allowed_s"]) == (pytest.approx(60), 60)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["stepped"] is False, "the first line of metrics may tell of the start"
    metrics[0].write_text("{}\n{}\n")
    watch.poll(NOW + 1115)
    assert not (run_dir / HANG_REPORT).exists()
    watch.poll(NOW + 1175)
    assert json.loads((run_dir / HANG_REPORT).read_text())["stepped"] is True


def test_run_that_is_being_stopped_gets_no_report(run_dir: Path) -> None:
    watch = Watch(run_dir, 60.0)
    (run_dir / "metrics/rank-0.jsonl").write_text("{}\n")
    watch.poll(NOW + 0)
    (run_dir / "stop").touch()
    watch.poll(NOW + 60)
    assert not (run_dir / HANG_REPORT).exists()


def test_report_stays_when_the_run_is_stopped(run_dir: Path) -> None:
    watch = Watch(run_dir, 60.0)
    (run_dir / "metrics/rank-0.jsonl").write_text("{}\n")
    watch.poll(NOW + 0)
    watch.poll(NOW + 60)
    (run_dir / "stop").touch()
    (run_dir / "logs/rank-0.log").write_text("terminated\n")
    watch.poll(NOW + 61)
    assert (run_dir / HANG_REPORT).exists()


KEEP_ON = """
import sys
from pathlib import Path
from remote.node.hangs.watch import Watch
pid, birth, run_dir = sys.argv[1:]
Watch(Path(run_dir), 1.0).keep_on({"pid": int(pid), "birth": birth})
"""


def test_watch_goes_on_after_a_look_that_failed(run_dir: Path) -> None:
    (run_dir / "metrics/rank-0.jsonl").write_text("{}\n")
    record = run_dir / "ranks/rank-0.json"
    record.rename(run_dir / "aside")
    record.mkdir()
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        name = [str(supervisor.pid), str(process.birth(supervisor.pid)), str(run_dir)]
        with subprocess.Popen([sys.executable, "-c", KEEP_ON, *name], env={"PYTHONPATH": str(ROOT)}) as watch:
            problem = run_dir / "hangs/watched.problem"
            wait_for(problem.exists, what="a look that fails")
            record.rmdir()
            (run_dir / "aside").rename(record)
            wait_for((run_dir / HANG_REPORT).exists, what="the report")
            supervisor.kill()
            assert watch.wait(30) == 0
    assert "rank 0 could not be looked at" in problem.read_text()


def test_ranks_that_never_made_a_step_are_reported_by_the_time_since_they_began(run_dir: Path) -> None:
    records = {path: path.read_text() for path in (run_dir / "ranks").iterdir()}
    for path in records:
        path.unlink()
    watch = Watch(run_dir, None)
    watch.poll(NOW + 0)
    for path, record in records.items():
        path.write_text(record)
    watch.poll(NOW + 1000)
    watch.poll(NOW + 1299)
    assert not (run_dir / HANG_REPORT).exists()
    watch.poll(NOW + 1300)
    report = json.loads((run_dir / HANG_REPORT).read_text())
    assert (report["silent_s"], report["allowed_s"]) == (pytest.approx(300), 300)


def test_rank_that_prints_is_not_reported(run_dir: Path) -> None:
    watch = Watch(run_dir, 60.0)
    for second in range(0, 1000, 50):
        with (run_dir / "logs/rank-0.log").open("a") as log:
            log.write("still here\n")
        watch.poll(NOW + second)
    assert not (run_dir / HANG_REPORT).exists()


class Recorder(socketserver.StreamRequestHandler):
    """The requests of torch's worker server that the watch uses."""

    def handle(self) -> None:
        assert self.rfile.readline() == b"POST /handler/fr_trace_json HTTP/1.1\r\n"
        body = json.dumps({"entries": self.server.entries}).encode()  # type: ignore[attr-defined]
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)


@pytest.fixture
def entries(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    """Serve the entries of rank 1's flight recorder."""
    monkeypatch.chdir(run_dir)
    with socketserver.ThreadingUnixStreamServer("hangs/rank-1.sock", Recorder) as server:
        server.entries = []  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.entries  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_silence_counts_from_the_last_collective(run_dir: Path, entries: list[dict[str, object]]) -> None:
    watch = Watch(run_dir, 60.0)
    ago_s = [59.0, 58.0, 20.0]
    entries += [{"time_created_ns": int((time.time() - ago) * 1e9), "retired": True} for ago in ago_s]
    now = time.monotonic()
    watch.poll(now)
    watch.poll(now + 30)
    assert not (run_dir / HANG_REPORT).exists()
    watch.poll(now + 42)
    report = json.loads((run_dir / HANG_REPORT).read_text())
    assert report["silent_s"] == pytest.approx(62, abs=1)


@pytest.mark.parametrize(("count", "stepped"), [(1, False), (20, False), (21, True)])
def test_many_collectives_are_steps_and_a_few_may_be_of_a_start(
    run_dir: Path, entries: list[dict[str, object]], count: int, stepped: bool
) -> None:
    entries += [{"time_created_ns": time.time_ns() - number, "retired": True} for number in range(count)]
    watch, now = Watch(run_dir, 60.0), time.monotonic()
    watch.poll(now)
    watch.poll(now + 400)
    assert json.loads((run_dir / HANG_REPORT).read_text())["stepped"] is stepped


def test_collective_that_ends_is_a_sign_of_progress(run_dir: Path, entries: list[dict[str, object]]) -> None:
    watch = Watch(run_dir, 60.0)
    entries += [{"time_created_ns": time.time_ns(), "retired": False}]
    now = time.monotonic()
    watch.poll(now)
    entries[0]["retired"] = True
    watch.poll(now + 30)
    watch.poll(now + 80)
    assert not (run_dir / HANG_REPORT).exists()
    watch.poll(now + 91)
    assert (run_dir / HANG_REPORT).exists()


def test_place_of_a_rank_is_what_its_metrics_begin_with(tmp_path: Path) -> None:
    metrics = tmp_path / "rank-1.jsonl"
    assert place_of(metrics) == ""
    start = json.dumps({"event": "start", "place": "stage 2 of 4"})
    metrics.write_text(start)
    assert place_of(metrics) == "", "a line that is not whole may be another soon"
    metrics.write_text(f"[1]\n{start}\n" + json.dumps({"step": 1}) * 1000)
    assert place_of(metrics) == "stage 2 of 4"
    for other in ('{"event": "start", "place": 7}', '{"event": "start"}', "x", "[" * 5000, '{"place": "x"}'):
        metrics.write_text(f"{other}\n")
        assert place_of(metrics) == ""
