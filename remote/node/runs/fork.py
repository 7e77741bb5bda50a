"""A child process that continues with the memory of this process."""

import contextlib
import os
import signal
import sys
import traceback
from typing import Callable, Optional

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for the child from the process that ends this one, and that end it."""


class Fork:
    """A child process that does `work`, which gives its exit status or ends the process itself.

    SIGNALS that come to this process go to the child's group, which it leads, and no signal is lost.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                status = 1
                try:
                    os.setpgid(0, 0)
                    for number in SIGNALS:
                        signal.signal(number, signal.SIG_DFL)
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                    status = work()
                except BaseException:  # noqa: BLE001 - told as Python does at a process's end
                    traceback.print_exc()
                finally:
                    try:
                        with contextlib.suppress(OSError):
                            sys.stdout.flush()
                            sys.stderr.flush()
                    finally:
                        os._exit(status)
            with contextlib.suppress(OSError):  # whichever of both is first: signals go to the child's group
                os.setpgid(self.pid, self.pid)
            self._code = None  # type: Optional[int]
            self._passed = None  # type: Optional[int]
            for number in SIGNALS:
                signal.signal(number, self._pass_on)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def poll(self) -> Optional[int]:
        """Return the exit status, as the negative number of a signal; `None` while it is running."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self._code

    def let_go(self) -> None:
        """Have signals end this process from here on, as one does that came since the child has ended."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._passed is not None:
            end_by(self._passed)

    def _pass_on(self, number: int, _frame: object) -> None:
        """Signal the child's group; once it has ended, what this process still writes comes first."""
        if self._code is None:
            os.killpg(self.pid, number)
        else:
            self._passed = number


def end_by(number: int) -> None:
    """End this process by that signal."""
    if number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
