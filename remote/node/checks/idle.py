"""The watch that ends this machine after a time without use: its state, peers and time to keep."""

import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Set

from remote.node import process
from remote.node.home_folder import NODE_HOME
from remote.node.queue.spool import has_entries
from remote.node.run_state import active_runs
from remote.shared import frames
from remote.shared.constants import IDLE_KEEP, IDLE_PEERS, IDLE_STATE
from remote.shared.files import read_json, write_json

SS_S = 10.0
"""Deadline of ss."""


def command_idle(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `idle` with the watch's state (empty: no watch has run since the boot), and the time since the boot.

    `peers`: addresses of the cluster's other machines, which get to know of use here. `keep_s`: time from now on in
    which the machine does not end (`None`: as before; `extends`: at least). A machine with an active run or an
    entry in its queue, or with another login than this one, is not over, whatever the last look found.
    """
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    watch = read_json(Path(IDLE_STATE))
    if watch:
        NODE_HOME.mkdir(mode=0o700, exist_ok=True)
        write_json(NODE_HOME / IDLE_PEERS, {"peers": request["peers"]})
        if request["keep_s"] is not None:
            before = read_json(NODE_HOME / IDLE_KEEP) if request["extends"] else {}
            same_boot = before.get("boot_id") == process.boot_id()
            until_s = max(now_s + request["keep_s"], before["until_s"] if same_boot else 0.0)
            write_json(NODE_HOME / IDLE_KEEP, {"until_s": until_s, "boot_id": process.boot_id()})
            watch.update(keep_until_s=until_s, ends_at_s=max(watch["ends_at_s"], until_s), over=False)
        watch["over"] = bool(watch["over"]) and not (active_runs() or has_entries() or has_other_logins())
    frames.write(output, {"t": frames.STATE, "now_s": now_s, "watch": watch})


def has_other_logins() -> bool:
    """Return whether another client than this command's is connected to sshd, or that is not known."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) != 4:
        return True
    # Clients count as strangers if they were at both times: each of them has its row in between.
    before = _strangers()
    of_this_port = "( sport = :{} )".format(connection[3])
    ss = ["ss", "-tnH", "state", "established", "state", "close-wait", of_this_port]
    status, listed = process.output_of(ss, SS_S)
    if status != 0:
        return True
    rows = [line.split() for line in listed.splitlines()]
    other_clients = [row for row in rows if row and row[-1].rpartition(":")[2] != connection[1]]
    return len(other_clients) > len(before & _strangers())


def _strangers() -> Set[str]:
    """Return the processes of sshd whose client did not log in yet: each has one with such a title."""
    strangers = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes().replace(b"\0", b" ").rstrip()
        except OSError:  # it ended
            continue
        if title.startswith(b"sshd") and title.endswith((b"[net]", b"[accepted]", b"-R")):
            strangers.add(path.parent.name)
    return strangers
