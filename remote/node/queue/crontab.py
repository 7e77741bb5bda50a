"""The line in this user's crontab that continues the queue after a restart of the machine."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

CRON_S = 10.0
PROGRAM = Path(__file__).resolve().parents[3]
"""The folder of the nodes' part, which Python runs."""


def install(node: str) -> bool:
    """Have cron continue the node's queue. Returns whether it will: a machine may have no cron."""
    before, line = _lines(), line_of(node)
    return before is not None and (line in before or _write([*_without(before, node), line]))


def remove(node: str) -> None:
    """Leave the crontab without the node's line."""
    before = _lines()
    if before is not None and _without(before, node) != before:
        _write(_without(before, node))


def line_of(node: str) -> str:
    """Return the line of a node's queue. A process that lives is left alone, so it may come each minute."""
    words = [sys.executable, "-I", str(PROGRAM), "queue_continue", node]
    command = " ".join(map(shlex.quote, words)).replace("%", "\\%")  # cron's sign for the end of a line
    return "* * * * * {} >/dev/null 2>&1 {}".format(command, _mark(node))


def _mark(node: str) -> str:
    return "# gpuctl queue {}".format(node)


def _without(lines: List[str], node: str) -> List[str]:
    return [line for line in lines if not line.endswith(" " + _mark(node))]


def _lines() -> Optional[List[str]]:
    """Return the lines of the crontab. `None`: it can't be read, so it must not be replaced."""
    listed = _crontab("-l")
    if listed is None or (listed.returncode != 0 and b"no crontab for" not in listed.stderr):
        return None
    return listed.stdout.decode(errors="surrogateescape").splitlines() if listed.returncode == 0 else []


def _write(lines: List[str]) -> bool:
    text = "".join(line + "\n" for line in lines).encode(errors="surrogateescape")
    written = _crontab("-", text)
    return written is not None and written.returncode == 0


def _crontab(word: str, text: bytes = b"") -> "Optional[subprocess.CompletedProcess[bytes]]":
    """Run crontab. `None`: the machine has none, or it does not end."""
    pipe = subprocess.PIPE
    try:
        return subprocess.run(
            ["crontab", word], input=text, stdout=pipe, stderr=pipe, timeout=CRON_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
