"""The notices of a node: each event is sent once to each target, and a failed delivery is kept.

A file of a notice and a target is created exclusively before the first attempt: whoever comes second sends nothing.
The files hold no secret.
"""

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from remote.node import process
from remote.node.home_folder import NODE_HOME
from remote.shared import frames
from remote.shared.constants import NOTICES
from remote.shared.files import read_json, write_json
from remote.shared.notify.delivery import PAUSES_S, Attempt, deliver
from remote.shared.notify.message import Notice
from remote.shared.notify.target import Target, parse, shown

KEPT_S = 14 * 24 * 3600.0
SENDING, WAITING, DELIVERED, FAILED = "sending", "waiting", "delivered", "failed"


class Outbox:
    """Sends the notices of one watch."""

    def __init__(self, targets: Sequence[str], settings: Mapping[str, Any], about: str) -> None:
        """`about`: the run or the cluster."""
        self._targets = targets
        self._settings = settings
        self._about = about
        self._ids: Set[str] = set()
        self._threads: List[threading.Thread] = []

    def send(self, notice: Notice, pauses_s: Tuple[float, ...] = PAUSES_S) -> None:
        """Deliver a notice; return when each target has it, or was given up. A notice is sent once."""
        if notice.id not in self._ids:
            self._ids.add(notice.id)
            post(notice, self._targets, self._settings, self._about, pauses_s)

    def send_aside(self, notice: Notice) -> None:
        """Deliver a notice in a thread of its own."""
        thread = threading.Thread(target=self.send, args=(notice,))
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join()


def post(
    notice: Notice,
    targets: Sequence[str],
    settings: Mapping[str, Any],
    about: str,
    pauses_s: Tuple[float, ...] = PAUSES_S,
) -> None:
    """Deliver a notice to all targets at the same time; return when each has it, or was given up.

    `about`: the run or the cluster.
    """
    folder = NODE_HOME / NOTICES
    with contextlib.suppress(OSError):  # a full disk
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.glob("evt_*.json"):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()
    threads = [
        threading.Thread(target=_post_to, args=(folder, notice, parse(text), settings, about, pauses_s))
        for text in targets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _post_to(
    folder: Path,
    notice: Notice,
    target: Target,
    settings: Mapping[str, Any],
    about: str,
    pauses_s: Tuple[float, ...],
) -> None:
    digest = hashlib.sha256("{}:{}".format(*target).encode()).hexdigest()[:16]
    path = folder / "{}-{}.json".format(notice.id, digest)
    with contextlib.suppress(OSError):  # a notice is worth more than its file, on a disk that fails
        try:
            os.close(os.open(str(path), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
    record: Dict[str, Any] = {
        "id": notice.id,
        "type": notice.type,
        "about": about,
        "target": shown(target),
        "at": notice.at,
        "pid": os.getpid(),
        "birth": process.birth(os.getpid()),
        "attempts": 0,
        "state": SENDING,
        "detail": "",
        "next_at": None,
    }

    def keep(attempt: Attempt, pause_s: Optional[float]) -> None:
        record["attempts"] += 1
        record["detail"] = attempt.detail
        record["next_at"] = None if pause_s is None else time.time() + pause_s
        record["state"] = DELIVERED if attempt.delivered else FAILED if pause_s is None else WAITING
        with contextlib.suppress(OSError):
            write_json(path, record)

    with contextlib.suppress(OSError):
        write_json(path, record)
    deliver(target, notice, settings, pauses_s=pauses_s, on_attempt=keep)


def undelivered(about: Optional[str] = None) -> List[Dict[str, Any]]:
    """Return the records of notices that are not delivered, oldest first. `about`: of this run or cluster only."""
    records = []
    for path in (NODE_HOME / NOTICES).glob("evt_*.json"):
        record = read_json(path)
        if not record and about is None:  # it could not be written, on a full disk
            unwritten = {
                "id": path.name.partition("-")[0],
                "type": "of an event",
                "about": "this node",
                "target": "a target",
                "at": path.stat().st_mtime,
                "state": FAILED,
                "detail": "its record could not be written, so it is not known whether it arrived",
                "next_at": None,
            }
            records.append(unwritten)
        if not record or record["state"] == DELIVERED or about not in (None, record["about"]):
            continue
        if record["state"] != FAILED and not process.alive(record["pid"], record["birth"]):
            detail = record["detail"] or "its process ended"
            record.update(state=FAILED, next_at=None, detail=detail)
        records.append(record)
    return sorted(records, key=lambda record: float(record["at"]))


def wait_for_first_attempts(notice_id: str, timeout_s: float) -> None:
    """Wait until each target of a notice had its first attempt, at most for the timeout."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        records = [read_json(path) for path in (NODE_HOME / NOTICES).glob(notice_id + "-*.json")]
        if records and all(record and record["state"] != SENDING for record in records):
            return
        time.sleep(0.05)


def command_notices(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `notices` with the notices that are not delivered."""
    frames.write(output, {"t": frames.STATE, "notices": undelivered(request["about"])})
