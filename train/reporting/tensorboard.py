"""Curves for TensorBoard, whose package is imported with the first point, as that takes seconds."""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.distributed.environment import DistributedEnvironment
from train.errors import NotWritten


class Writer:
    """An event file of curves, created with the first point. A context manager.

    Where the package is missing or broken, one line says so and there is no file. Each point is written at once: the
    file can be followed while the job runs, and a killed job leaves all of its points. (SummaryWriter writes in a
    thread, two minutes later, whose errors the job does not get.)
    """

    def __init__(self, path: Path | None, say: Callable[[str], object] = print) -> None:
        """`path`: None writes nothing."""
        self._path = path
        self._say = say
        self._records: Any = None

    def __enter__(self) -> "Writer":  # noqa: PYI034  # typing.Self needs a newer Python than the nodes may have
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`. Raises NotWritten."""
        if self._records is None and self._path is not None:
            self._open(self._path)
        if self._records is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._records is not None:
            with contextlib.suppress(
                OSError
            ):  # only what could not be written before, and was told, can be left
                self._records.close()
        self._path = self._records = None

    def _open(self, path: Path) -> None:
        try:
            import tensorboard.compat.proto.event_pb2  # noqa: F401
            from tensorboard.summary.writer.record_writer import RecordWriter
        except (ImportError, TypeError) as error:  # TypeError: an old tensorboard beside a newer protobuf
            self._say(
                f"no curves for TensorBoard: its package can't be used here ({str(error).splitlines()[0]})"
            )
            self._path = None
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter(path.open("wb"))
        except OSError as error:
            raise _not_written(path, error) from error
        self._write(file_version="brain.Event:2")

    def _write(self, **what: Any) -> None:  # noqa: ANN401 - the fields of TensorBoard's own message
        from tensorboard.compat.proto.event_pb2 import Event

        path = self._path
        assert path is not None
        try:
            self._records.write(Event(wall_time=time.time(), **what).SerializeToString())
            self._records.flush()
        except OSError as error:
            self.close()
            raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> NotWritten:
    return NotWritten(
        f"TensorBoard's file {path} can't be written: {error.strerror}. Make room or give access there, or train "
        "with --no-tensorboard."
    )


def open_writer(
    folder: Path, env: DistributedEnvironment, *, wanted: bool = True, say: Callable[[str], object] = print
) -> Writer:
    """Return a writer of a new event file in `folder` on rank 0; elsewhere, and if not `wanted`, without a file."""
    if not wanted or env.rank != 0:
        return Writer(None)
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    return Writer(folder / name, say)
