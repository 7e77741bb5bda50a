"""Ctrl-C where it must not break off what is under way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` for each Ctrl-C during the body, in place of raising KeyboardInterrupt.

    Only the main thread gets Ctrl-C, and may say what becomes of it: in any other the body just runs.
    """
    before = signal.getsignal(signal.SIGINT)
    # None: whoever runs Python in their own program deals with it, and could not be given it back.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
