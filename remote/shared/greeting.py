"""The first words of the nodes' part: it speaks before it is given anything, so that login shells may print and read.

This file is also sent as text, ahead of all others: it imports nothing of ours.
"""

from typing import BinaryIO

RUNS = b"gpuctl: shell\n"
"""Line of /bin/sh as it starts the interpreter: the login shell has run the command."""
INSTALLED = b"gpuctl: installed\n"
"""Line before READY: the nodes' part is on the machine, so the client need not send it."""
READY = b"gpuctl: ready\n"
"""Line of the interpreter as it begins to read."""
BEGIN = b"gpuctl: begin\n"
"""Line of the client, after which all bytes are the command's own."""


def greet(source: BinaryIO, output: BinaryIO) -> None:
    """Write READY, skip lines until BEGIN, and write their number: a shell may have taken some that were sent."""
    output.write(b"\n" + READY)
    output.flush()
    skipped = 0
    while True:
        line = source.readline()
        if not line:
            raise SystemExit(0)
        if line == BEGIN:
            break
        skipped += 1
    output.write(b"%d\n" % skipped)
