"""Redirect the output of single threads, while all others print as before.

`sys.stdout` belongs to the whole process, so all redirected threads share one stand-in for it: the first thread
installs it, and the last restores the stream of before.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, Literal, TextIO, TypeAlias

Stream: TypeAlias = TextIO | io.TextIOBase


class _StandIn:
    """In place of `sys.stdout` or `sys.stderr`: each thread finds its own stream behind it, or the usual one."""

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._usual: TextIO | None = None
        self._nowhere = io.StringIO()
        self._of: dict[int, Stream] = {}
        self._users = 0
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        usual = self._nowhere if self._usual is None else self._usual
        return getattr(self._of.get(get_ident(), usual), name)

    @contextmanager
    def to(self, stream: Stream) -> Iterator[None]:
        """Send what this thread prints to a stream."""
        thread = get_ident()
        self._begin()
        before = self._of.get(thread)
        self._of[thread] = stream
        try:
            yield
        finally:
            if before is None:
                del self._of[thread]
            else:
                self._of[thread] = before
            self._end()

    def _begin(self) -> None:
        with self._lock:
            now = getattr(sys, self._name)
            if self._users == 0 and now is not self:
                self._usual = now
                setattr(sys, self._name, self)
            self._users += 1

    def _end(self) -> None:
        with self._lock:
            self._users -= 1
            # Another stream installed since is not ours to remove.
            if self._users == 0 and getattr(sys, self._name) is self:
                setattr(sys, self._name, self._usual)


_STDOUT, _STDERR = _StandIn("stdout"), _StandIn("stderr")


@contextmanager
def thread_output(out: Stream, err: Stream) -> Iterator[None]:
    """Send what this thread prints to these streams."""
    with _STDOUT.to(out), _STDERR.to(err):
        yield
