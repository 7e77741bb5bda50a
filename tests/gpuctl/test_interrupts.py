"""Ctrl-C in place of an exception, for the thread that gets it."""

import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import pytest

from gpuctl.interrupts import interrupts_held_back, on_interrupt


def test_on_interrupt_calls_the_handler_and_gives_the_former_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    came: list[str] = []
    with on_interrupt(lambda: came.append("once")):
        signal.raise_signal(signal.SIGINT)
    assert came == ["once"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("within", "message"), [(True, "\nit goes on\n"), (False, "")])
def test_told_if_terminated_ends_the_process_with_a_line(within: bool, message: str) -> None:
    code = (
        "import signal\nfrom gpuctl.interrupts import told_if_terminated\n"
        "with told_if_terminated('it goes on'):\n"
        f"    {'signal.raise_signal(signal.SIGTERM)' if within else 'pass'}\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, message)


def test_other_threads_leave_ctrl_c_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    calls: list[object] = []

    def work() -> None:
        with on_interrupt(lambda: None), interrupts_held_back():
            calls.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert calls == [before]


def test_interrupts_held_back_raises_interrupt_at_the_end() -> None:
    done = []

    def body(fails: Callable[[], None]) -> None:
        with interrupts_held_back():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
            fails()

    for fails in (lambda: None, lambda: (_ for _ in ()).throw(OSError("full"))):
        with pytest.raises(KeyboardInterrupt):
            body(fails)
    assert len(done) == 2
    with interrupts_held_back():
        done.append(3)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
