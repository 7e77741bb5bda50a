"""Deadlines leave out the time in which this process did not run; durations count it."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest

from inventories.clocks import AWAY_S, TICK_S, AwakeClock, Watch, retry_if_away


class Time:
    """A clock that advances only when set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_awake_clock_leaves_out_what_lies_between_two_late_ticks() -> None:
    passed = Time()
    clock = AwakeClock(passed)
    began = clock.tick()
    assert (began.away_s, began.back_for_s) == (0.0, math.inf)
    for _ in range(30):
        passed.now_s += TICK_S
        clock.tick()
    assert clock.tick().awake_s - began.awake_s == 30 * TICK_S
    passed.now_s += AWAY_S  # a busy computer
    assert clock.tick().awake_s - began.awake_s == 30 * TICK_S + AWAY_S
    passed.now_s += 3600.0
    back = clock.tick()
    assert (back.away_s, back.back_for_s) == (3600.0, 0.0)
    assert back.awake_s - began.awake_s == 30 * TICK_S + AWAY_S
    passed.now_s += 2.0
    assert clock.tick().back_for_s == 2.0
    assert clock.tick().awake_s > back.awake_s


def test_watch_and_retry_tell_nothing_of_a_process_that_always_ran() -> None:
    watch, calls = Watch(), list[int]()

    def fail() -> None:
        calls.append(1)
        raise OSError("no answer")

    with pytest.raises(OSError, match="no answer"):
        retry_if_away(fail, OSError)
    assert len(calls) == 1
    assert not watch.was_away()


CHILD = """
import threading, time
from inventories import clocks
from inventories.threads import within
began, passed, calls, late = clocks.awake_s(), clocks.passed_s(), [], []
clocks.Timer(3.0, lambda: late.append(clocks.awake_s() - began)).start()
def connect():
    calls.append(1)
    time.sleep(0.5)
    if len(calls) == 1:
        print("stop me", flush=True)
        time.sleep(1.0)
        raise OSError("timed out")
clocks.retry_if_away(connect, OSError)
assert len(calls) == 2, calls
try:
    within(1.0, threading.Event().wait, what="nobody came")
    raise AssertionError
except TimeoutError:
    pass
while not late:
    time.sleep(0.1)
assert 2.9 < late[0] < 6.0, late
assert clocks.passed_s() - passed > 8.0
print("well")
"""


def test_stopped_process_calls_again_and_waits_as_long_as_it_runs() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "stop me\n"
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(AWAY_S + 2 * TICK_S)
    os.kill(child.pid, signal.SIGCONT)
    assert child.communicate(timeout=60)[0] == "well\n"
