"""How much a node may send, and for how long: whatever it does, a conversation with it has an end.

A node is told apart by what it does not keep to: one that falls silent, or sends a frame byte by byte, may be
behind a broken link; one that goes on and on is not ours.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inventories.clocks import awake_s
from remote.shared import frames

SLOWEST_BYTES_PER_S = 4000.0
"""No link is slower on which anybody works; what has begun to come is waited for so long."""
TALK_BYTES = 64 * 1024 * 1024
"""Enough for everything but files and logs."""
ANSWER_BYTES = 4 * 1024 * 1024
BRING_S = 900.0
"""Beside the time that the files themselves take: the node looks for them, and reads them from its disk."""
HEADERS_BYTES = 1024 * 1024 * 1024
"""What the names of the files may come to, beside the files: some millions of them."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """`total_s`: from the first look until the end. `grows`: each byte that comes adds to it what it may take."""

    total_s: float | None = None
    max_bytes: int | None = TALK_BYTES
    grows: bool = False


def of_files(max_bytes: int | None) -> Bounds:
    """Those of a conversation in which files of so many bytes in all come; None: as many as there is room for."""
    limit = None if max_bytes is None else max_bytes + HEADERS_BYTES
    return Bounds(total_s=BRING_S, max_bytes=limit, grows=True)


class Endless(Exception):
    """The node does not come to an end, in time or in bytes; the message says by how much."""


class Source(Protocol):
    """What a transport's stream is here."""

    def recv(self, nbytes: int, /) -> bytes:
        """As a socket's."""
        ...

    def settimeout(self, timeout: float | None, /) -> None:
        """As a socket's."""
        ...


class BoundedStream(io.RawIOBase):
    """What a node sends, read within bounds. Raises TimeoutError and Endless."""

    def __init__(
        self,
        source: Source,
        bounds: Bounds,
        *,
        silence_s: float | None,
        now: Callable[[], float] = awake_s,
    ) -> None:
        super().__init__()
        self.silence_s = silence_s
        """How long it may say nothing."""
        self._source = source
        self._bounds = bounds
        self._now = now
        self._began = now()
        self._bytes = 0
        self._frame_began = self._began
        self._frame_bytes = 0

    def next_frame(self) -> None:
        """What comes from now on is another frame; what the last one took is over."""
        self._frame_bytes = 0

    def bound(self, bounds: Bounds) -> None:
        """From now on these hold."""
        self._bounds = bounds
        self._began = self._now()
        self._bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """As of any stream."""
        frame_left_s, total_left_s = self._left()
        waits_s = [left for left in (self.silence_s, frame_left_s, total_left_s) if left is not None]
        timeout_s = min(waits_s, default=None)
        data = self._receive(len(buffer), timeout_s)
        if data is None:
            raise self._late(timeout_s or 0.0)
        if not self._frame_bytes:
            self._frame_began = self._now()
        self._bytes += len(data)
        self._frame_bytes += len(data)
        limit = self._bounds.max_bytes
        if limit is not None and self._bytes > limit:
            raise Endless(f"it sent more than {limit / 1e6:.0f} MB")
        buffer[: len(data)] = data
        return len(data)

    def _receive(self, size: int, timeout_s: float | None) -> bytes | None:
        """Receive data. None: nothing came in that time, of which only what this process saw counts."""
        left_s, limit = timeout_s, self._now() + (timeout_s or 0.0)
        while left_s is None or left_s > 0:
            self._source.settimeout(left_s)
            try:
                return self._source.recv(size)
            except TimeoutError:
                left_s = limit - self._now()
        return None

    def _left(self) -> tuple[float | None, float | None]:
        """Seconds until the frame, and until all of it, has to be here."""
        now, frame_left_s, total_left_s = self._now(), None, None
        if self.silence_s is not None and self._frame_bytes:
            may_take_s = self.silence_s + self._frame_bytes / SLOWEST_BYTES_PER_S
            frame_left_s = self._frame_began + may_take_s - now
        if self._bounds.total_s is not None:
            more_s = self._bytes / SLOWEST_BYTES_PER_S if self._bounds.grows else 0.0
            total_left_s = self._began + self._bounds.total_s + more_s - now
        return frame_left_s, total_left_s

    def _late(self, waited_s: float) -> Exception:
        frame_left_s, total_left_s = self._left()
        if total_left_s is not None and total_left_s <= 0 and self._bytes:
            return Endless(f"it went on for {self._now() - self._began:.0f} s")
        if frame_left_s is not None and frame_left_s <= 0:
            return TimeoutError(f"a message did not end within {self._now() - self._frame_began:.0f} s")
        return TimeoutError(f"nothing was heard for {waited_s:.0f} s")


def buffered(stream: BoundedStream) -> io.BufferedReader:
    """The stream as `frames.decode` reads it."""
    return io.BufferedReader(stream, frames.CHUNK_BYTES)
