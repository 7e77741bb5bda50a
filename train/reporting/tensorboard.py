"""Curves for TensorBoard, written without its package, whose import takes longer than a short epoch.

An event file is a sequence of records (TensorFlow's TFRecord), each a message `Event` in the encoding of protobuf.
"""

import contextlib
import math
import os
import socket
import struct
import time
from io import FileIO
from pathlib import Path

from train.distributed.environment import DistributedEnvironment
from train.errors import NotWritten


class Writer:
    """An event file of curves, created with the first point. A context manager.

    Each point is written at once: the file can be followed while the job runs, and a killed job leaves all of its
    points. (SummaryWriter writes in a thread, two minutes later, whose errors the job does not get.)
    """

    def __init__(self, path: Path | None) -> None:
        """`path`: `None` writes nothing."""
        self._path = path
        self._file: FileIO | None = None

    def __enter__(self) -> "Writer":  # noqa: PYI034  # typing.Self needs a newer Python than the nodes may have
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`. Raises NotWritten."""
        if self._path is None:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("wb", buffering=0)
                self._file.write(record(event(file_version="brain.Event:2")))
            self._file.write(record(event(step=step, tag=tag, value=value)))
        except OSError as error:
            path = self._path
            self.close()
            raise NotWritten(
                f"TensorBoard's file {path} can't be written: {error.strerror}. Make room or give access there, "
                "or train with --no-tensorboard."
            ) from error

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # each point was written before
                self._file.close()
        self._path = self._file = None


def open_writer(folder: Path, env: DistributedEnvironment, *, enabled: bool = True) -> Writer:
    """Return a writer of a new event file in `folder` on rank 0; elsewhere, and if not `enabled`, without a file."""
    if not enabled or env.rank != 0:
        return Writer(None)
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    return Writer(folder / name)


def event(*, file_version: str = "", step: int = 0, tag: str = "", value: float = 0.0) -> bytes:
    """Encode an `Event`: the first one of a file has its version, each other one a point of the curve `tag`."""
    now = b"\x09" + struct.pack("<d", time.time())
    if file_version:
        return now + b"\x1a" + _sized(file_version.encode())
    try:
        single = struct.pack("<f", value)
    except OverflowError:  # finite, but above what a float of 32 bits can be
        single = struct.pack("<f", math.copysign(math.inf, value))
    point = b"\x0a" + _sized(tag.encode()) + b"\x15" + single
    return now + b"\x10" + _varint(step) + b"\x2a" + _sized(b"\x0a" + _sized(point))


def record(message: bytes) -> bytes:
    """Return a message as a record: its length, the length's checksum, the message and its checksum."""
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Encode a number in groups of seven bits, the lowest first; all but the last have the highest bit set."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _checksum(content: bytes) -> bytes:
    """Return CRC-32C, rotated and shifted as records have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
