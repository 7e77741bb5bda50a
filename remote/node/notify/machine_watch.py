"""Watches a machine between runs (`up --notify`), and sends a notice before it ends."""

import contextlib
import os
import signal
import time
from typing import Any, BinaryIO, Dict, List, Mapping

from remote.node import process
from remote.node.home_folder import NODE_HOME
from remote.node.notify.machine_end import MachineEnd
from remote.node.notify.spool import Outbox
from remote.shared import frames
from remote.shared.constants import NOTICES
from remote.shared.files import read_json, write_json

TICK_S = 5.0
WATCH = "watch.json"
"""In the folder of the notices: the watch's process."""


def command_notify(request: Dict[str, Any], output: BinaryIO) -> None:
    """`notify`: watch this machine until it ends, in place of an earlier watch.

    Request: `targets`, `settings`, and `machine` as `MachineEnd` takes it. The process has the targets in its memory
    only: a machine that is restarted is watched again after the next `gpuctl up`.
    """
    folder = NODE_HOME / NOTICES
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = read_json(folder / WATCH)
    if before and process.alive(before["pid"], before["birth"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(before["pid"], signal.SIGTERM)

    def work(answers: int) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        write_json(folder / WATCH, {"pid": os.getpid(), "birth": process.birth(os.getpid())})
        os.write(answers, b"ok")
        os.close(answers)
        watch(request)

    process.start_detached(work, "the watch of the machine's end died")
    frames.write(output, {"t": frames.STATE})


def watch(request: Mapping[str, Any]) -> None:
    """Send a notice of each end that is near, until SIGTERM; then finish the deliveries that have begun."""
    ended: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    end = MachineEnd(request["machine"])
    outbox = Outbox(request["targets"], request["settings"], request["machine"]["cluster"])
    while not ended:
        for notice in end.poll(time.time()):
            outbox.send_aside(notice)
        time.sleep(TICK_S)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    outbox.join()
