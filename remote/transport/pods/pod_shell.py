"""A shell in a pod on this terminal, or a command with this process's own streams."""

import json
import os
import selectors
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import IO, TYPE_CHECKING

from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.errors import ConnectionLost
from remote.transport import NO_STATUS
from remote.transport.pods.pod import BROKEN, RESIZE, STATUS, STDIN, STDOUT, PodProcess, connect, end_of

if TYPE_CHECKING:
    import websocket

CONNECT_TIMEOUT_S = 20.0
CHUNK_BYTES = 32 * 1024
NOBODY_READS = 141
"""Exit status of a program whose output nobody reads, as a shell has it for SIGPIPE."""
LOGIN = "cd; exec $(command -v bash || command -v sh) -l"


def run(machine: Machine, cluster: ClusterFiles, command: str) -> int:
    """Run a command, or where it is empty a shell, as ssh does; its exit status, 255 for a broken connection.

    A shell has a terminal where this process has one. Raises Unreachable, AuthenticationFailed, ConnectionLost.
    """
    transport = connect(machine, cluster, CONNECT_TIMEOUT_S)
    try:
        if command or not sys.stdin.isatty():
            status = _piped(transport.start(command or LOGIN))
        else:
            status = _on_terminal(transport.link(["sh", "-c", LOGIN], terminal=True))
    finally:
        transport.close()
    if status == NO_STATUS:
        raise ConnectionLost(f"{machine.name}: the connection broke before the command's end.")
    return status


def _piped(process: PodProcess) -> int:
    """Carry this process's streams to the command and back."""
    Thread(target=_feed, args=(process,), daemon=True).start()
    errors = Thread(target=_copy, args=(process.recv_stderr, sys.stderr.buffer), daemon=True)
    errors.start()
    try:
        if _copy(process.recv, sys.stdout.buffer):
            errors.join()
            return process.exit_status(CONNECT_TIMEOUT_S) or 0
        return NOBODY_READS
    finally:
        process.close()


def _feed(process: PodProcess) -> None:
    with suppress(OSError):
        while data := os.read(sys.stdin.fileno(), CHUNK_BYTES):
            while data:
                data = data[process.send(data) :]
        process.end_input()


def _copy(take: Callable[[int], bytes], to: "IO[bytes]") -> bool:
    """Pass the output on; False if nobody reads it any more."""
    try:
        while data := take(CHUNK_BYTES):
            to.write(data)
            to.flush()
    except BrokenPipeError:
        return False
    except OSError:
        pass  # the connection broke: the status shows it
    return True


def _on_terminal(link: "websocket.WebSocket") -> int:
    """Carry keys and output, until the shell has ended."""
    ended: list[int] = []
    link.settimeout(None)
    wake_read, wake_write = os.pipe()

    def listen() -> None:
        try:
            while message := link.recv():
                data = message.encode() if isinstance(message, str) else message
                if data[0] == STDOUT:
                    sys.stdout.buffer.write(data[1:])
                    sys.stdout.buffer.flush()
                elif data[0] == STATUS:
                    status, _ = end_of(data[1:])
                    ended.append(NO_STATUS if status is None else status)
                    break
        except BROKEN:
            pass  # without a status, which is reported
        finally:
            os.write(wake_write, b"x")

    with _raw(sys.stdin.fileno()), _sizes(link):
        listener = Thread(target=listen, daemon=True)
        listener.start()
        with selectors.DefaultSelector() as waiting:
            waiting.register(sys.stdin, selectors.EVENT_READ)
            waiting.register(wake_read, selectors.EVENT_READ)
            while not any(key.fileobj == wake_read for key, _ in waiting.select()):
                keys = os.read(sys.stdin.fileno(), CHUNK_BYTES)
                if not keys:
                    break
                with suppress(*BROKEN):
                    link.send_binary(bytes([STDIN]) + keys)
        listener.join(CONNECT_TIMEOUT_S)
    link.shutdown()  # type: ignore[no-untyped-call]
    os.close(wake_read)
    os.close(wake_write)
    return ended[0] if ended else NO_STATUS


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Have every key go to the shell while the body runs: Ctrl-C is the shell's."""
    before = termios.tcgetattr(terminal)
    try:
        # Earlier typed keys are not lost.
        tty.setraw(terminal, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _sizes(link: "websocket.WebSocket") -> Iterator[None]:
    """Tell the other side the terminal's size, now and whenever it changes."""

    def tell(*_: object) -> None:
        columns, lines = shutil.get_terminal_size()
        with suppress(*BROKEN):
            link.send_binary(bytes([RESIZE]) + json.dumps({"Width": columns, "Height": lines}).encode())

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        tell()
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
