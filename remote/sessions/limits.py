"""Limits on a node's output: a conversation with a node always ends, however much it sends.

A node shows its kind by the limit that it breaks: a silent one, or one that sends a frame byte by byte, may be
behind a broken link; one that never ends is not ours.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inventories.clocks import awake_s
from remote.shared import frames

SLOWEST_BYTES_PER_S = 4000.0
"""No usable link is slower; a frame in transfer is waited for accordingly."""
TALK_BYTES = 64 * 1024 * 1024
"""Enough for everything but files and logs."""
ANSWER_BYTES = 4 * 1024 * 1024
BRING_S = 900.0
"""In addition to the time of the files themselves: the node searches for them, and reads them from its disk."""
HEADERS_BYTES = 1024 * 1024 * 1024
"""The maximum size of the files' names, in addition to the files: some millions of them."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """`total_s`: from the first look until the end. `grows`: each received byte extends the time."""

    total_s: float | None = None
    max_bytes: int | None = TALK_BYTES
    grows: bool = False


def of_files(max_bytes: int | None) -> Bounds:
    """Return the bounds of a conversation that brings files of this many bytes; `None`: as many as the disk takes."""
    limit = None if max_bytes is None else max_bytes + HEADERS_BYTES
    return Bounds(total_s=BRING_S, max_bytes=limit, grows=True)


class Endless(Exception):
    """The node does not come to an end, in time or in bytes; the message says by how much."""


class Source(Protocol):
    """The stream of a transport."""

    def recv(self, nbytes: int, /) -> bytes:
        """Receive bytes, like a socket."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Set the timeout, like a socket."""


class BoundedStream(io.RawIOBase):
    """The stream of a node, read within bounds. Raises TimeoutError and Endless."""

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
        """Begin another frame: its bytes count anew."""
        self._frame_bytes = 0

    def bound(self, bounds: Bounds) -> None:
        """From now on these hold."""
        self._bounds = bounds
        self._began = self._now()
        self._bytes = 0

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read into a buffer, like any stream."""
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
        """Receive data. `None`: nothing came in that time, of which only what this process saw counts."""
        left_s, limit = timeout_s, self._now() + (timeout_s or 0.0)
        while left_s is None or left_s > 0:
            self._source.settimeout(left_s)
            try:
                return self._source.recv(size)
            except TimeoutError:
                left_s = limit - self._now()
        return None

    def _left(self) -> tuple[float | None, float | None]:
        """Seconds until the frame, and until all frames, have to be here."""
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
