"""The files of a run, sent as they grow: logs, metrics, usage, rank records, and at the end its artifacts."""

import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict

from remote.node import process, run_state
from remote.node.runs import script_files, start, supervisor
from remote.node.storage import checkpoints, outputs
from remote.node.storage.sending import send_tree
from remote.shared import frames
from remote.shared.constants import ARTIFACTS, CHECKPOINTS, HANG_REPORT, NOTIFIED
from remote.shared.files import is_regular, size_of

POLL_S = 0.2
"""How often growing files are looked at; the end of the run is noticed at once."""
BEAT_S = 5.0
"""At least this often something is sent, so that the other side can tell a quiet run from a dead node."""


def command_follow(request: Dict[str, Any], output: BinaryIO) -> None:
    """`follow`: send new content since `offsets`, until the run has ended (`wait`) or once.

    Request: run_dir, offsets (path → bytes the other side has) and records (paths): these files and no others are
    sent; wait, max_artifact_bytes, and where checkpoints are wanted `checkpoints`: whole, the run's number of ranks
    (`ranks`), max_bytes of the files sent at the end, `parts` if the first node reports them, and `mirror`
    if the other side gets reports during the run; outputs: patterns and max_bytes of the run's
    files in the project's folder; `script_files`: whether files of its libraries are sent as they grow. A `launch`
    in it is started first, so that a run begins and is followed in one round trip.
    """
    launch = request.get("launch")
    if launch:
        start.start(launch)
        frames.write(output, {"t": frames.STARTED})
    run_dir = Path(request["run_dir"])
    offsets: Dict[str, int] = dict(request["offsets"])
    records: Dict[str, int] = dict.fromkeys(request["records"], 0)
    wants_checkpoints = request["checkpoints"]
    news = None
    if wants_checkpoints and wants_checkpoints["mirror"]:
        news = checkpoints.News(run_dir / CHECKPOINTS, wants_checkpoints["whole"], wants_checkpoints["ranks"])
    files = script_files.ScriptFiles(run_dir) if request.get("script_files") else None
    report, beat = Report(run_dir), time.monotonic()
    while True:
        state = run_state.state(run_dir)
        sent = _send_growth(run_dir, offsets, output) + _send_records(run_dir, records, output)
        sent += report.send(output)
        if not state["running"] or not request["wait"]:
            break
        sent += files.send(output) if files else 0
        newest = news.poll() if news else None
        if newest:
            frames.write(output, dict(newest, t=frames.CHECKPOINT))
        now = time.monotonic()
        if sent:
            beat = now
            continue  # there may be more already
        if now - beat > BEAT_S:
            frames.write(output, {"t": frames.BEAT})
            beat = now
        process.wait_for_end([state["pid"]], POLL_S)
    if not state["running"]:
        supervisor.clean_up(run_dir)
    sizes = {path: size_of(run_dir / path) for path in offsets}
    while any(offsets[path] < size for path, size in sizes.items()):
        _send_growth(run_dir, offsets, output)
    frames.write(output, {"t": frames.END, "state": state})
    if not state["running"]:
        send_tree(run_dir / ARTIFACTS, ARTIFACTS, int(request["max_artifact_bytes"]), output)
        if wants_checkpoints:
            failed = state.get("exit_code") != 0
            checkpoints.send_if_small(
                run_dir,
                output,
                whole=wants_checkpoints["whole"],
                max_bytes=wants_checkpoints["max_bytes"],
                failed=failed,
                parts=wants_checkpoints["parts"],
            )
        outputs.send(run_dir, request["outputs"], output)
        if (run_dir / NOTIFIED).exists():
            from remote.node.notify import run_watch

            frames.write(output, {"t": frames.NOTICES, "notices": run_watch.undelivered(run_dir)})
    frames.write(output, {"t": frames.DONE})


def _send_growth(run_dir: Path, offsets: Dict[str, int], output: BinaryIO) -> int:
    """Send one chunk of each file that has grown; returns the number of frames."""
    sent = 0
    for path, offset in offsets.items():
        if size_of(run_dir / path) <= offset:
            continue
        with open(str(run_dir / path), "rb") as file:
            file.seek(offset)
            body = file.read(frames.CHUNK_BYTES)
        if body:
            frames.write(output, {"t": frames.FILE, "path": path, "offset": offset}, body)
            offsets[path] = offset + len(body)
            sent += 1
    return sent


class Report:
    """The report of the hang watch, sent each time that it changes, and empty once it is withdrawn."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / HANG_REPORT
        self._sent = -1
        """Time of the last sent record; 0: no record exists, -1: no record was sent."""

    def send(self, output: BinaryIO) -> int:
        """Returns the number of frames."""
        try:
            status = os.lstat(str(self._path))
            body = self._path.read_bytes() if status.st_mtime_ns != self._sent else b""
        except FileNotFoundError:
            if self._sent == 0:
                return 0
            self._sent = 0
            frames.write(output, {"t": frames.HANG})
            return 1
        if not body or not is_regular(status):
            return 0
        self._sent = status.st_mtime_ns
        frames.write(output, {"t": frames.HANG}, body)
        return 1


def _send_records(run_dir: Path, known: Dict[str, int], output: BinaryIO) -> int:
    """Send each rank record that is new or was replaced; returns the number of frames."""
    sent = 0
    for path, sent_time in known.items():
        try:
            status = os.lstat(str(run_dir / path))
        except FileNotFoundError:
            continue
        if is_regular(status) and status.st_mtime_ns != sent_time:
            known[path] = status.st_mtime_ns
            frames.write(output, {"t": frames.RECORD, "path": path}, (run_dir / path).read_bytes())
            sent += 1
    return sent
