"""`python3 -I <folder> COMMAND`: what a node can be asked to do."""

import errno
import importlib
import json
import os
import sys
from typing import Any, Callable, List

FAILED = 90
"""Exit status of a command that failed with a sentence on standard error."""
DISK_FULL = 91
"""Exit status of a command that found no space left."""

ANSWERING = {
    "facts": "facts",
    "firewall": "firewall",
    "ready": "ready",
    "driver": "driver",
    "stop": "runner",
    "run_state": "runner",
    "follow": "follow",
    "send": "sending",
    "usage": "usage",
    "checkpoints": "checkpoints",
    "place": "checkpoints",
    "discard": "checkpoints",
    "send_checkpoints": "checkpoints",
    "leftovers": "leftovers",
    "clean": "removal",
    "ray_start": "ray_daemons",
    "ray_ready": "ray_daemons",
    "ray_state": "ray_daemons",
    "ray_stop": "ray_daemons",
}
"""Command → the module whose `command_NAME(request, output)` answers it; imported when it is asked for."""
CONVERSING = {"sync": "sync", "probe": "probe", "environment": "python_env"}
"""As above, for those that also take frames: `command_NAME(request, output, incoming)`."""


def load(module: str, command: str) -> Callable[..., Any]:
    """The function of a command."""
    function: Callable[..., Any] = getattr(
        importlib.import_module("remote.node." + module), "command_" + command
    )
    return function


def main(arguments: List[str]) -> int:
    """Run one command: its request is the first line of standard input."""
    command = arguments[0]
    if command == "rank":
        from remote.node import rank

        return rank.main(arguments[1:])
    if command == "ray_ranks":
        from remote.node import ray_ranks

        return ray_ranks.main(arguments[1:])
    if command == "ray_tune":
        from remote.node import ray_tune

        return ray_tune.main(arguments[1:])
    source, output = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    try:
        if command in ANSWERING:
            load(ANSWERING[command], command)(request, output)
        elif command in CONVERSING:
            from remote.node import frames

            incoming = frames.decode(source.readline, source.read)
            load(CONVERSING[command], command)(request, output, incoming)
        else:
            raise ValueError("unknown command {}".format(command))
    except BrokenPipeError:
        # The other side went away: whatever was started goes on without it.
        return FAILED
    except (OSError, ValueError) as error:
        sys.stderr.write("{}\n".format(error))
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        return DISK_FULL if full else FAILED
    return 0


def run(arguments: List[str]) -> None:
    """`main` as a whole process: never returns."""
    code = main(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = FAILED
    # The interpreter would flush again at its end, and complain of a pipe that is closed.
    os._exit(code)
