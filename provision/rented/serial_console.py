"""A machine's serial console as text, its relevant lines, and short retries of the calls.

It is read after another failure, so it may neither take long nor hide that.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from provision.retries import Retry
from provision.waiting import Clock

T = TypeVar("T")

MAX_BYTES = 64 * 1024
PATIENCE_S = 20.0
MAX_LINES = 10
LAST_LINES = 4
"""Number of last lines that are always included."""

_LINE_ENDS = re.compile(r"\r*\n|\r+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""Colours and cursor moves, titles, choices of a character set."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


_COMPLAINT = re.compile(
    r"fail|error|panic|emergency|time[d ]*out|denied|refused|cannot|can't|unable|no space|not found|oops"
    r"|traceback|nvrm|xid|start job is running|warn",
    re.IGNORECASE,
)
_NOISE = re.compile(
    # Tables of addresses and keys, the login prompt, and what systemd has begun without trouble.
    r"^ci-info:|SSH HOST KEY|^(ssh|ecdsa)-\S+ AAAA|^(<\d+>)?(ec2|cloud-init)?:? *#{5,}|login: *$|^\[ +OK +\]"
)


def end_of(raw: bytes | str) -> str | None:
    """Return the last MAX_BYTES of a console's output, printable and in lines. `None`: no output."""
    data = raw.encode(errors="replace") if isinstance(raw, str) else raw
    text = data[-MAX_BYTES:].decode(errors="replace")
    text = _CONTROLS.sub("", _ESCAPES.sub("", _LINE_ENDS.sub("\n", text))).strip("\n")
    return f"{text}\n" if text.strip() else None


def relevant_lines(text: str, max_lines: int = MAX_LINES) -> tuple[str, ...]:
    """Return the console's lines that best explain why a machine is not ready: complaints, and the last lines."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line and not _NOISE.search(line) and line not in lines[-1:]:
            lines.append(line)
    last = lines[-LAST_LINES:]
    before = list(enumerate(lines[:-LAST_LINES]))
    complaints = [number for number, line in before if _COMPLAINT.search(line)]
    plain = [number for number, line in before if not _COMPLAINT.search(line)]
    room = max_lines - len(last)
    chosen = complaints[-room:]
    chosen += plain[len(plain) - min(len(plain), room - len(chosen)) :]
    return (*(lines[number] for number in sorted(chosen)), *last)


def with_short_retry(clock: Clock, do: Callable[[], T]) -> T:
    """Call `do`, which does no harm twice, with retries for some seconds, not for the minutes of other calls."""
    return Retry(clock=clock, throttled_for_s=PATIENCE_S, unclear_for_s=PATIENCE_S).call(do, again=True)
