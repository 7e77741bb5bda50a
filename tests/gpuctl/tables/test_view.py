"""The live view on a real terminal, the plain one elsewhere."""

import io
import re
import threading
from pathlib import Path

import pytest
from terminal import Terminal, python

from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.tables import view as views
from gpuctl.tables.view import PlainView, open_view

HEAD = """
import sys, threading, time
from gpuctl.command_line.options import Options
from gpuctl.output import Output
from gpuctl.tables.view import open_view
output = Output(Options(no_color="--no-color" in sys.argv, verbose="--verbose" in sys.argv))
"""
WORK = (
    HEAD
    + """
with open_view(output, logs="--logs" in sys.argv) as view:
    print(type(view).__name__)
    view.phase("connect", "connecting to 2 nodes")
    view.node("node-0", "asked for \\x1b[31mfacts\\x1b[2J")
    time.sleep(0.5)
    view.phase("train", "train.py: starting 2 ranks")
    view.node("node-0", "ranks are starting")
    view.phase("train", "train.py: 2 ranks running")
    if "--script" not in sys.argv:
        view.metric(0, {"event": "start", "epochs": 2, "steps_per_epoch": 10})
    for step in range(1, 11 if "--script" not in sys.argv else 1):
        view.metric(0, {"step": step, "loss": 0.5, "samples": step * 32, "time": step * 0.1})
    output.say("said beside it")
    view.note("a note")
    view.log(1, "node-1", "a line\\r\\n")
    view.log(None, "node-1", "the launcher's line")
    if "--script" in sys.argv:
        view.log(0, "node-0", "Epoch [2/4], Step [50/100], Loss: 0.25")
    time.sleep(0.5)
    if "--failed" in sys.argv:
        view.phase("collect", "bringing the results back", previous="failed")
    if "--fail" in sys.argv:
        raise SystemExit(7)
view.phase("late", "late")
view.note("late")
view.log(0, "node-0", "late")
view.node("node-0", "late")
view.metric(0, {"step": 20})
output.say("after it")
"""
)
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def lines(seen: str) -> list[str]:
    """The lines without colours and cursor moves."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).replace("\r", "\n").splitlines()


def test_live_view_shows_phases_progress_and_logs_on_terminal() -> None:
    with Terminal(WORK, "--logs") as terminal:
        assert terminal.wait() == 0
    calls = lines(terminal.seen)
    assert "LiveView" in calls
    assert any(re.fullmatch(r"✓ connect +0\.\d s  connecting to 2 nodes", line) for line in calls)
    assert any(re.fullmatch(r"✓ train +0\.\d s  train.py: 2 ranks running", line) for line in calls)
    assert "    node-0  asked for facts" in calls
    assert "  ████████████░░░░░░░░░░░░  epoch 1/2  step 10/20  1.0 s left" in calls
    assert "  loss 0.500  320 samples/s" in calls
    for line in ("said beside it", "a note", "rank 1 │ a line"):
        assert calls.count(line) == 1, line
    assert "launcher" not in terminal.seen
    assert "late" not in terminal.seen
    assert "\x1b[2J" not in terminal.seen
    assert terminal.seen.index(HIDE) < terminal.seen.rindex(SHOW) < terminal.seen.index("after it")


def test_live_view_shows_progress_in_lines_of_a_script() -> None:
    with Terminal(WORK, "--logs", "--script") as terminal:
        assert terminal.wait() == 0
    calls = lines(terminal.seen)
    assert "  █████████░░░░░░░░░░░░░░░  epoch 2/4  step 50/100" in calls
    assert "  loss 0.250 (log)" in calls


def test_live_view_marks_a_failed_phase_before_the_next_one() -> None:
    with Terminal(WORK, "--failed") as terminal:
        assert terminal.wait() == 0
    calls = lines(terminal.seen)
    assert any(re.fullmatch(r"✗ train +0\.\d s  train.py: 2 ranks running", line) for line in calls)
    assert any(line.startswith("✓ collect") for line in calls)


def test_view_shows_logs_only_on_request() -> None:
    with Terminal(WORK) as terminal:
        assert terminal.wait() == 0
    assert "a line" not in terminal.seen
    assert "a note" in terminal.seen


def test_view_shows_launcher_log_only_with_verbose() -> None:
    assert "node-1 │ the launcher's line\n" in python(WORK, "--logs", "--verbose").stderr
    with Terminal(WORK, "--logs", "--verbose") as terminal:
        assert terminal.wait() == 0
    assert "node-1 │ the launcher's line" in lines(terminal.seen)


def test_live_view_works_without_colour() -> None:
    with Terminal(WORK, "--no-color") as terminal:
        assert terminal.wait() == 0
    assert "LiveView" in terminal.seen
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.seen)


def test_live_view_restores_terminal_after_error() -> None:
    with Terminal(WORK, "--fail") as terminal:
        assert terminal.wait() == 7
    assert any(line.startswith("✗ train") for line in lines(terminal.seen))
    assert terminal.seen.rindex(SHOW) > terminal.seen.rindex(HIDE)
    assert "after it" not in terminal.seen


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_simple_terminal_gets_plain_view(environment: dict[str, str]) -> None:
    with Terminal(WORK, "--logs", **environment) as terminal:
        assert terminal.wait() == 0
    assert "PlainView" in terminal.seen
    assert HIDE not in terminal.seen


def test_plain_view_writes_to_stderr_without_terminal() -> None:
    done = python(WORK, "--logs")
    assert done.stdout == "PlainView\n"
    assert re.sub(r"\d\.\d s$", "N s", done.stderr, flags=re.MULTILINE).splitlines() == [
        "connect: connecting to 2 nodes",
        "node-0: asked for facts",
        "connect: done in N s",
        "train: train.py: starting 2 ranks",
        "node-0: ranks are starting",
        "train: train.py: 2 ranks running",
        "epoch 1/2, step 1/20, loss 0.500",
        "said beside it",
        "a note",
        "rank 1 │ a line",
        "train: done in N s",
        "after it",
    ]


def test_live_view_accepts_updates_from_many_threads() -> None:
    code = (
        HEAD
        + """
def tell(rank):
    for n in range(200):
        view.metric(rank, {"step": n, "loss": 1.0, "samples": n})
        view.node(f"node-{rank}", f"{n}")
        if n % 20 == 0:
            view.log(rank, "node", f"<{rank}:{n}>")
            view.phase(f"phase{rank}", "text")
with open_view(output, logs=True) as view:
    threads = [threading.Thread(target=tell, args=(rank,)) for rank in range(8)]
    for thread in threads: thread.start()
    time.sleep(0.1)
    output.say("beside")
    for thread in threads: thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
print("END")
"""
    )
    with Terminal(code) as terminal:
        assert terminal.wait() == 0
    calls = lines(terminal.seen)
    for rank in range(8):
        for n in range(0, 200, 20):
            assert calls.count(f"rank {rank} │ <{rank}:{n}>") == 1
    assert calls[-1] == "END"


def test_live_view_closes_while_threads_still_log() -> None:
    code = (
        HEAD
        + """
going = True
def tell():
    while going:
        view.log(0, "node", "told")
with open_view(output, logs=True) as view:
    thread = threading.Thread(target=tell)
    thread.start()
    time.sleep(0.3)
output.say("CLOSED")
time.sleep(0.3)
going = False
thread.join(10)
"""
    )
    with Terminal(code) as terminal:
        assert terminal.wait() == 0
    assert "told" in terminal.seen
    assert terminal.seen.endswith("CLOSED\n")


def test_live_view_limits_number_of_node_lines() -> None:
    code = (
        HEAD
        + """
with open_view(output, logs=False) as view:
    view.phase("connect", "connecting")
    for n in range(20):
        view.node(f"node-{n:02}", "here")
    time.sleep(0.5)
"""
    )
    with Terminal(code) as terminal:
        assert terminal.wait() == 0
    assert "    and 12 more" in lines(terminal.seen)
    assert "node-19" in terminal.seen
    assert "node-00" not in terminal.seen


def plain(*, logs: bool = False) -> tuple[PlainView, io.StringIO]:
    err = io.StringIO()
    return PlainView(Output(Options(), stderr=err), logs=logs), err


def test_plain_view_prints_progress_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    view, err = plain()
    with view:
        for step in range(1, 101):
            view.metric(0, {"step": step})
            now[0] += 0.5
    assert err.getvalue().splitlines() == ["step 1", *(f"step {n}, 2 steps/s" for n in range(11, 100, 10))]


def test_plain_view_limits_rate_of_epoch_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    view, err = plain()
    with view:
        for number in range(1, 9):
            view.metric(0, {"step": number})
            view.metric(0, {"event": "epoch", "epoch": number, "accuracy": number / 10})
            now[0] += 0.6
    report = [line.split(",")[0] for line in err.getvalue().splitlines() if "accuracy" in line]
    assert report == ["step 3", "step 5", "step 7"]


@pytest.mark.parametrize("item", [True, False])
def test_log_lines_count_as_seen_where_both_streams_are_one(tmp_path: Path, item: bool) -> None:
    with (tmp_path / "err").open("w") as err, (tmp_path / "out").open("w") as out:
        output = Output(Options(), stdout=err if item else out, stderr=err)
        PlainView(output, logs=False).log(1, "b", "hidden")
        PlainView(output, logs=True).log(1, "b", "boom")
        assert output.just_seen == (frozenset({"rank 1 │ boom"}) if item else frozenset())


def test_plain_view_keeps_lines_of_threads_whole() -> None:
    view, err = plain(logs=True)
    with view:
        threads = [
            threading.Thread(target=lambda: [view.log(0, "node", "x" * 200) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert set(err.getvalue().splitlines()) == {"rank 0 │ " + "x" * 200}
    assert len(err.getvalue().splitlines()) == 200


def test_open_view_returns_plain_view_without_terminal() -> None:
    assert isinstance(open_view(Output(Options(), stderr=io.StringIO()), logs=False), PlainView)
