"""Test that leaving a running run leaves nothing behind: no following thread, no connection."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest
from support import a_machine, a_run, wait_for

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.runs.run import RunNode
from remote.errors import ConnectionLost, Unreachable
from remote.runs.monitor import RunMonitor
from remote.runs.observer import Observer
from remote.sessions.connect import connect
from remote.shared import frames, greeting
from remote.transport import LOOPBACK, TRANSPORTS


class Nobody(Observer):
    """Ignores the output, and records the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Following:
    """The node's part: accepts the request, and sends nothing until the connection is closed."""

    def __init__(self, transport: "Way", *, follows: bool = True) -> None:
        self._transport = transport
        self._follows = follows
        """False: the answer to another command, which must not take what is sent to the follower."""
        self._closed = Event()
        self._said = [frames.encode({"t": frames.BEAT}), *reversed(transport.says), greeting.READY + b"0\n"]

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, size: int) -> bytes:
        if self._said:
            self._transport.streaming.set()
            return self._said.pop()
        while not (self._closed.is_set() or self._transport.closed.is_set()):
            if not self._follows:
                self._closed.wait(0.01)
            elif self._transport.more.wait(0.01):
                self._transport.more.clear()
                return self._transport.later or frames.encode({"t": frames.BEAT})
        return b""

    def recv_stderr(self, size: int) -> bytes:
        return b""

    def exit_status(self, timeout_s: float) -> int | None:
        return None

    def end_input(self) -> None: ...

    def settimeout(self, timeout_s: float | None) -> None: ...

    def close(self) -> None:
        self._closed.set()


class Way:
    """An open connection."""

    ssh_config = None

    def __init__(self, says: list[bytes]) -> None:
        self.says = says
        self.streaming, self.more, self.closed = Event(), Event(), Event()
        self.later = b""
        """Output after each `more`; empty: only a sign of life."""

    def start(
        self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False
    ) -> Following:
        if self.closed.is_set():
            raise ConnectionLost("it is closed.")
        return Following(self, follows=" follow" in command)

    def connect_port(self, port: int, host: str = LOOPBACK) -> Following:
        raise ConnectionLost("nobody listens there.")

    def is_open(self) -> bool:
        return not self.closed.is_set()

    def close(self) -> None:
        self.closed.set()


class Ways(ModuleType):
    """A kind of transport of which each connection takes until it is let in."""

    def __init__(self) -> None:
        super().__init__("ways")
        self.asked, self.let_in = Event(), Event()
        self.refuses = False
        self.says: list[bytes] = []
        """Outputs of the node's part before it falls silent, in order."""
        self.open: list[Way] = []

    def connect(self, machine: Machine, cluster: ClusterFolder, timeout_s: float) -> Way:
        self.asked.set()
        assert self.let_in.wait(30)
        if self.refuses:
            raise Unreachable(f"{machine.name}: refused.")
        self.open.append(Way(self.says))
        return self.open[-1]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    made = Ways()
    monkeypatch.setitem(sys.modules, "ways", made)
    monkeypatch.setitem(TRANSPORTS, "ways", "ways")
    yield made
    made.let_in.set()


MACHINE = a_machine(name="n-0", host="h", transport="ways")


@pytest.fixture
def monitor(tmp_path: Path, ways: Ways) -> Callable[..., RunMonitor]:
    store = Store(tmp_path)
    folder = store.new_run(datetime.now(UTC))
    part = RunNode(name="n-0", rank=0, nproc=1, first_rank=0, run_dir="/r")
    run = a_run(run=folder.id, cluster="n", script="x", nodes=(part,), started_at="2026-01-01T00:00:00+00:00")
    machines, cluster = {"n-0": MACHINE}, store.cluster("n")

    def make(*, given: bool = False) -> RunMonitor:
        nodes = {"n-0": connect(MACHINE, cluster)} if given else None
        return RunMonitor(run, folder, machines, cluster, Nobody(), gang=False, nodes=nodes)

    return make


END = {
    "t": frames.END,
    "state": {"running": False, "exit_code": 0, "ended_at": 1.0, "stopped": False, "ended": None},
}


def followers() -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "follow n-0"]


def followed(watch: RunMonitor) -> tuple[Event, Thread]:
    """Start `go` in a thread. Return the event that ends it early, and the thread."""
    left = Event()
    thread = Thread(target=watch.go, kwargs={"left": left}, daemon=True)
    thread.start()
    return left, thread


def test_close_ends_who_is_connecting(ways: Ways, monitor: Callable[..., RunMonitor]) -> None:
    watch = monitor()
    left, running = followed(watch)
    assert ways.asked.wait(30)
    left.set()
    running.join(30)
    watch.close()
    ways.let_in.set()
    wait_for(lambda: not followers(), what="the follower's end", deadline_s=30)
    assert [way.closed.is_set() for way in ways.open] == [True]
    watch.close()


def test_close_ends_who_follows(ways: Ways, monitor: Callable[..., RunMonitor]) -> None:
    ways.let_in.set()
    watch = monitor()
    left, running = followed(watch)
    wait_for(lambda: ways.open and ways.open[0].streaming.is_set(), what="the first word", deadline_s=30)
    left.set()
    running.join(30)
    watch.close()
    wait_for(lambda: not followers(), what="the follower's end", deadline_s=30)
    assert [way.closed.is_set() for way in ways.open] == [True]


def test_close_keeps_a_given_connection_and_follows_no_more(
    ways: Ways, monitor: Callable[..., RunMonitor]
) -> None:
    ways.let_in.set()
    watch = monitor(given=True)
    left, running = followed(watch)
    wait_for(ways.open[0].streaming.is_set, what="the first word", deadline_s=30)
    left.set()
    running.join(30)
    watch.close()
    ways.open[0].more.set()
    wait_for(lambda: not followers(), what="the follower's end", deadline_s=30)
    assert [way.closed.is_set() for way in ways.open] == [False]


@pytest.mark.parametrize("refuses", [False, True])
def test_close_ends_who_reconnects(ways: Ways, monitor: Callable[..., RunMonitor], refuses: bool) -> None:
    ways.let_in.set()
    watch = monitor()
    left, running = followed(watch)
    wait_for(lambda: ways.open and ways.open[0].streaming.is_set(), what="the first word", deadline_s=30)
    ways.asked.clear()
    ways.let_in.clear()
    ways.open[0].close()  # the link breaks
    assert ways.asked.wait(30)
    left.set()
    running.join(30)
    watch.close()
    ways.refuses = refuses
    ways.let_in.set()
    wait_for(lambda: not followers(), what="the follower's end", deadline_s=40)
    assert all(way.closed.is_set() for way in ways.open)
    assert len(ways.open) == (1 if refuses else 2)


def test_go_asks_nobody_when_it_was_left_before(ways: Ways, monitor: Callable[..., RunMonitor]) -> None:
    watch, left = monitor(), Event()
    left.set()
    watch.go(left=left)
    watch.close()
    assert not followers()
    assert not ways.asked.is_set()


def test_interrupt_of_a_run_that_has_ended_leaves_its_files_to_results(
    ways: Ways, monitor: Callable[..., RunMonitor]
) -> None:
    ways.let_in.set()
    ways.says = [
        frames.encode(END),
        frames.encode({"t": frames.CHUNK, "path": "outputs/a", "offset": 0}, b"half"),
    ]
    watch = monitor()
    _, running = followed(watch)
    wait_for(lambda: watch.records, what="the run's end", deadline_s=30)
    watch.interrupt()
    wait_for(lambda: notes(watch), what="the first note", deadline_s=30)
    assert running.is_alive()
    watch.interrupt()
    running.join(30)
    assert not running.is_alive()
    watch.close()
    first, last = notes(watch)
    run = watch.incoming.parent.name
    assert first.endswith(f"leave that to `gpuctl results {run}`")
    assert last == f"not all files were brought: `gpuctl results {run}` brings them"
    assert not [path for path in watch.incoming.parent.rglob("*") if path.is_file()]


def test_file_that_the_view_cannot_show_ends_no_run(
    ways: Ways, monitor: Callable[..., RunMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script_file(_: Nobody, path: str, body: bytes, *, begins: bool) -> None:
        raise OverflowError(f"{path} {begins} {len(body)}")

    monkeypatch.setattr(Nobody, "script_file", script_file)
    ways.let_in.set()
    part = frames.encode({"t": frames.SCRIPT_FILE, "path": "metrics.csv", "begins": True}, b"9")
    ways.says = [part, part, frames.encode({"t": frames.FILE, "path": "logs/rank-0.log", "offset": 0}, b"on")]
    watch = monitor()
    left, running = followed(watch)
    log = watch.incoming.parent / "logs" / "rank-0.log"
    wait_for(log.exists, what="the log", deadline_s=30)
    assert running.is_alive()
    assert not watch.records
    left.set()
    running.join(30)
    watch.close()
    (note,) = notes(watch)
    assert note.startswith("metrics.csv can't be shown while the run goes on: OverflowError(")


@pytest.mark.parametrize("stopped", [True, False])
def test_report_of_a_hang_is_withdrawn_unless_the_ranks_are_being_ended(
    ways: Ways, monitor: Callable[..., RunMonitor], stopped: bool
) -> None:
    ways.let_in.set()
    body = json.dumps({"silent_s": 9.0, "allowed_s": 4.0, "stepped": True, "ranks": []}).encode()
    ways.says = [frames.encode({"t": frames.HANG}, body)]
    watch = monitor()
    left, running = followed(watch)
    folder = watch.incoming.parent
    report = folder / "hangs" / "n-0.json"
    wait_for(report.exists, what="the report", deadline_s=30)
    (folder / "hang.json").write_text("{}")
    if stopped:
        watch.stop_hung()
        wait_for(lambda: watch.stopped_as_hung, what="the stop", deadline_s=30)
    first, log = ways.open[0], folder / "logs" / "rank-0.log"
    # Two more words: what follows the withdrawal shows that it was heard.
    first.later = frames.encode({"t": frames.HANG}) + frames.encode(
        {"t": frames.FILE, "path": "logs/rank-0.log", "offset": 0}, b"Traceback"
    )
    first.more.set()
    wait_for(log.exists, what="the log", deadline_s=30)
    assert (report.exists(), (folder / "hang.json").exists()) == (stopped, stopped)
    left.set()
    running.join(30)
    watch.close()


def notes(watch: RunMonitor) -> list[str]:
    observer = watch._observer
    assert isinstance(observer, Nobody)
    return observer.notes
