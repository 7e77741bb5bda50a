"""The log of a run as an iterator: a thread follows the nodes, and waits for a slow reader."""

from collections.abc import Iterator
from queue import Full, Queue
from threading import Event, Thread

from gpuctl.app import App
from gpuctl.command_results.runs import LogLine
from gpuctl.workflow.runs.logs import ranks_of, read_logs
from gpuctl.workflow.runs.runs import latest

AHEAD = 1000
"""Lines that wait for a slow reader."""
POLL_S = 0.2
"""Time after which the thread notices that the reader left."""


def log_lines(app: App, run: str | None, *, follow: bool, rank: int | None) -> Iterator[LogLine]:
    """Yield the lines of a run's log. Raises NotFound for an unknown run, Usage for an unknown rank."""
    folder = latest(app, run)
    ranks = ranks_of(folder.load_run(), rank)
    lines: Queue[LogLine | BaseException | None] = Queue(AHEAD)
    left = Event()

    def put(line: LogLine | BaseException | None) -> None:
        while not left.is_set():
            try:
                lines.put(line, timeout=POLL_S)
            except Full:
                continue
            return

    def read() -> None:
        end: BaseException | None = None
        try:
            read_logs(app, folder, put, follow=follow, ranks=ranks, left=left)
        except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
            end = error
        finally:
            put(end)

    return _read_lines(lines, left, Thread(target=read, daemon=True, name=f"logs of {folder.id}"))


def _read_lines(
    lines: "Queue[LogLine | BaseException | None]", left: Event, thread: Thread
) -> Iterator[LogLine]:
    thread.start()
    try:
        while True:
            line = lines.get()
            if line is None:
                return
            if isinstance(line, BaseException):
                raise line
            yield line
    finally:
        left.set()
        thread.join()
