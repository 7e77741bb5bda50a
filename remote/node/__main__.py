"""`python3 -I <folder> COMMAND`: what a node can be asked to do."""

import errno
import json
import os
import sys
from typing import List

FAILED = 90
"""Exit status of a command that failed with a sentence on standard error."""
DISK_FULL = 91
"""Exit status of a command that found no space left."""


def main(arguments: List[str]) -> int:
    """Run one command: its request is the first line of standard input."""
    command = arguments[0]
    if command == "rank":
        from remote.node import rank

        return rank.main(arguments[1:])
    source, output = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    try:
        if command == "facts":
            from remote.node import facts

            facts.command_facts(request, output)
        elif command == "sync":
            from remote.node import frames, sync

            sync.command_sync(request, output, frames.decode(source.readline, source.read))
        elif command == "stop":
            from remote.node import runner

            runner.command_stop(request, output)
        elif command in ("follow", "send"):
            from remote.node import follow

            (follow.command_follow if command == "follow" else follow.command_send)(request, output)
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
