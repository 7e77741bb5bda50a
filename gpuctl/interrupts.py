"""Ctrl-C during actions that must not be broken off, and SIGTERM with a message.

The first and later Ctrl-C of `train` are handled by `RunMonitor.interrupt` in `remote/runs/monitor.py`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def on_interrupt(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` for each Ctrl-C during the body, in place of raising KeyboardInterrupt.

    Only the main thread receives Ctrl-C; in any other thread the body just runs.
    """
    before = signal.getsignal(signal.SIGINT)
    # `None`: a program around Python handles the signal, and its handler could not be restored.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def told_if_terminated(text: str) -> Iterator[None]:
    """Write the text as the process's last line where SIGTERM ends it during the body."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def end(number: int, _frame: object) -> None:
        # Past the streams: they may be in the middle of a line, and hold their locks.
        with suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{text}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Raise KeyboardInterrupt for a Ctrl-C during the body once that is over."""
    came: list[None] = []
    try:
        with on_interrupt(lambda: came.append(None)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)
