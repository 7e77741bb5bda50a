"""A port of this computer that leads to one of a machine."""

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Thread

from remote.errors import ConnectionLost, PortTaken
from remote.transport import LOOPBACK, Stream, Transport

CHUNK_BYTES = 64 * 1024
LOOK_S = 1.0


@contextmanager
def forward(
    transport: Transport, port: int, local_port: int | None, *, usual: int = 0, host: str = LOOPBACK
) -> Iterator[int]:
    """Pass on what connects to a port of this computer's loopback to `port` of the machine's; yields that port.

    `local_port`: exactly this port, or PortTaken is raised. `None`: `usual` if that is free, else another. `host`: a
    host that the machine reaches, in its place.
    """
    with closing(_listener(local_port, usual)) as listener:
        Thread(
            target=_accept, args=(partial(transport.connect_port, port, host), listener), daemon=True
        ).start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # to close it alone wakes nobody


def wait_until_lost(transport: Transport) -> None:
    """Block until the connection is known to have broken."""
    while transport.is_open():
        time.sleep(LOOK_S)


def _listener(local_port: int | None, usual: int) -> socket.socket:
    if local_port is None:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", usual))
    try:
        return socket.create_server(("127.0.0.1", local_port or 0))
    except OSError as error:
        raise PortTaken(f"Port {local_port or 0} of this computer can't be had: {error.strerror}.") from error


def _accept(connect: Callable[[], Stream], listener: socket.socket) -> None:
    """Pass on each connection, until the listener is closed."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):
                return  # it was closed
            time.sleep(LOOK_S)  # too many are open, or this one has gone
            continue
        Thread(target=_pass_on, args=(connect, near), daemon=True).start()


def _pass_on(connect: Callable[[], Stream], near: socket.socket) -> None:
    """Pass on one connection until both sides have ended."""
    with closing(near):
        try:
            far = connect()
        except ConnectionLost:
            return
        with closing(far):
            sending = Thread(target=_pump, args=(near.recv, far.send, far.end_input), daemon=True)
            sending.start()
            _pump(far.recv, near.send, lambda: near.shutdown(socket.SHUT_WR))
            sending.join()


def _pump(receive: Callable[[int], bytes], send: Callable[[bytes], int], end: Callable[[], None]) -> None:
    """Pass bytes on, and then the end of the stream."""
    with suppress(OSError):
        while data := receive(CHUNK_BYTES):
            while data:
                if not (sent := send(data)):
                    return
                data = data[sent:]
        end()
