"""Waiting on the node itself for the end of its set-up by cloud-init."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional

from remote.shared import frames

RESULT = Path("/run/cloud-init/result.json")
BEAT_S = 5.0
AGAIN_S = 1.0
EXITS = {0: "done", 1: "failed", 2: "degraded"}
"""What `cloud-init status --wait` ends with."""


def command_ready(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `ready` (deadline_s): beats while cloud-init is running, then its end and its complaints."""
    program = shutil.which("cloud-init")
    if program is None:
        frames.write(output, {"t": frames.READY, "cloud_init": "absent", "complaints": []})
        return
    state = "running"
    limit = time.monotonic() + float(request["deadline_s"])
    while time.monotonic() < limit:
        code = _status(program, limit, output)
        if code is None:
            break
        if code >= 0:
            state = EXITS.get(code, "unknown")
            break
        # A signal ended it, as it ends all processes when the machine goes down: cloud-init's state stays unknown.
        time.sleep(AGAIN_S)
    frames.write(output, {"t": frames.READY, "cloud_init": state, "complaints": complaints(RESULT)})


def _status(program: str, limit: float, output: BinaryIO) -> Optional[int]:
    """Return the exit status of `cloud-init status --wait`; `None` if it still runs at `limit` (monotonic clock)."""
    with open(os.devnull, "r+b") as nothing:
        waiting = subprocess.Popen(
            [program, "status", "--wait"], stdin=nothing, stdout=nothing, stderr=nothing
        )
    try:
        while time.monotonic() < limit:
            try:
                return waiting.wait(timeout=min(BEAT_S, max(0.1, limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                # The other side can tell a long wait from a dead link, and this one a dead link from a long wait.
                frames.write(output, {"t": frames.BEAT})
        return None
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.wait()


def complaints(result: Path) -> List[str]:
    """Return the errors in cloud-init's records; empty if it did not get that far."""
    try:
        document = json.loads(result.read_text())
        return [str(error) for error in document["v1"]["errors"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
