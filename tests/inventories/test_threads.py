"""Test calls in threads: outcomes in order, deadlines, and Ctrl-C."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from inventories import threads, yaml_source
from inventories.errors import InvalidInput
from inventories.threads import Calls, Late, run_all, values


def test_within_raises_named_timeout() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"^nobody came within 0 s$"):
        threads.within(0.05, never.wait, what="nobody came")
    never.set()


def test_within_returns_value_or_raises_error_of_call() -> None:
    assert threads.within(30, lambda: 7, what="no seven") == 7
    assert threads.within(30, lambda: None, what="nothing") is None
    with pytest.raises(KeyError, match="mine"):
        threads.within(30, lambda: {}["mine"], what="no value")


def test_yaml_read_times_out_on_silent_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "READ_S", 0.1)
    silent, pipe = tmp_path / "spec.yaml", tmp_path / "other.yaml"
    os.mkfifo(silent)
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match=r"spec.yaml': it did not come to its end within 0 s"):
        yaml_source.read(silent)
    monkeypatch.setattr(threads, "READ_S", 30.0)
    writing = threading.Thread(target=pipe.write_text, args=("count: 2\n",))
    writing.start()
    assert yaml_source.read(pipe).data == {"count": 2}
    writing.join(30)
    silent.write_text("")  # lets the thread go that still waits


def test_calls_return_what_came_before_the_deadline() -> None:
    began = time.monotonic()
    calls = Calls(lambda wait_s: time.sleep(wait_s) or wait_s, [5.0, 0.0, 0.0], at_once=2, deadline_s=0.5)
    late, *others = calls.begin().outcomes()
    assert (type(late), others) == (Late, [0.0, 0.0])
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("items", [[], [2], [2, 0, 1]])
def test_run_all_returns_values_and_errors_in_order(items: list[int]) -> None:
    outcomes = run_all(lambda item: 2 // item, items)
    assert [outcome for outcome in outcomes if outcome not in (1, 2)] == [
        outcome for outcome in outcomes if isinstance(outcome, ZeroDivisionError)
    ]
    assert len(outcomes) == len(items)


def test_ctrl_c_waits_for_the_calls_that_have_begun_and_begins_no_other() -> None:
    begun, ended = [], []

    def work(item: str) -> None:
        begun.append(item)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        run_all(work, ["a", "b", "c", "d"], at_once=2)
    assert sorted(begun) == sorted(ended) == ["a", "b"]


def test_exit_in_a_thread_is_raised_in_the_callers() -> None:
    def leave(_: int) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        values(run_all(leave, [1, 2]))
