"""`python3 -I <folder> COMMAND`: the commands of a node."""

import errno
import importlib
import json
import os
import sys
from typing import Any, Callable, List

from remote.shared.constants import DISK_FULL, FAILED

ANSWERING = {
    "facts": "checks.facts",
    "firewall": "firewall",
    "ready": "checks.ready",
    "driver": "gpu.driver",
    "stop": "runs.supervisor",
    "run_state": "runs.supervisor",
    "runs": "runs.records",
    "follow": "runs.follow",
    "describe": "storage.sending",
    "send": "storage.sending",
    "occupancy": "checks.occupancy",
    "idle": "checks.idle",
    "usage": "runs.usage",
    "notices": "notify.spool",
    "notify": "notify.machine_watch",
    "why": "hangs.why",
    "checkpoints": "storage.checkpoints",
    "place": "storage.checkpoints",
    "discard": "storage.checkpoints",
    "send_checkpoints": "storage.checkpoints",
    "digest_earlier": "storage.earlier",
    "send_earlier": "storage.earlier",
    "leftovers": "storage.leftovers",
    "clean": "storage.removal",
    "ray_start": "ray.daemons",
    "ray_ready": "ray.daemons",
    "ray_state": "ray.daemons",
    "ray_stop": "ray.daemons",
    "ray_files": "storage.outputs",
    "kuberay_ready": "ray.daemons",
    "queue_add": "queue.commands",
    "queue_door": "queue.commands",
    "queue_follow": "queue.follower",
    "queue_list": "queue.commands",
    "queue_change": "queue.commands",
}
"""Command → the module whose `command_NAME(request, output)` answers it; imported when it is asked for."""
CONVERSING = {
    "sync": "storage.sync",
    "probe": "checks.probe",
    "environment": "environments.build",
    "project": "environments.project",
}
"""Like ANSWERING, for commands that also take frames: `command_NAME(request, output, incoming)`."""


STARTED_HERE = {
    "rank": "runs.rank_wrapper",
    "forked_ranks": "runs.forked_ranks",
    "ray_ranks": "ray.ranks",
    "ray_tune": "ray.tune",
}
"""Commands that are started on the node itself, in the place of ranks, each with the module that has its `main`."""


def load(module: str, command: str) -> Callable[..., Any]:
    """The function of a command."""
    function: Callable[..., Any] = getattr(
        importlib.import_module("remote.node." + module), "command_" + command
    )
    return function


def main(arguments: List[str]) -> int:
    """Run one command: its request is the first line of standard input."""
    command = arguments[0]
    if command == "greet":
        from remote.shared.greeting import greet

        greet(sys.stdin.buffer, sys.stdout.buffer)
        return main(arguments[1:])
    if command in STARTED_HERE:
        module = importlib.import_module("remote.node." + STARTED_HERE[command])
        return int(module.main(arguments[1:]))
    if command == "queue_continue":
        from remote.node.queue import follower, runner

        runner.begin(arguments[1])
        follower.begin(arguments[1])
        return 0
    source, output = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    try:
        if command in ANSWERING:
            load(ANSWERING[command], command)(request, output)
        elif command in CONVERSING:
            from remote.shared import frames

            incoming = frames.decode(source.readline, source.read)
            load(CONVERSING[command], command)(request, output, incoming)
        else:
            raise ValueError("unknown command {}".format(command))
    except BrokenPipeError:
        # The other side disconnected: started work continues without it.
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
