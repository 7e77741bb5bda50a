"""A machine's serial console as text, what tells most of it, and how patient the calls for it are.

It is asked for when something has gone wrong already, so it may neither take long nor hide that.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from provision.waiting import Clock, Retry

T = TypeVar("T")

MOST_BYTES = 64 * 1024
PATIENCE_S = 20.0
MOST_LINES = 10
LAST_LINES = 4
"""Of them, those that are the last of all, whatever they say."""

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
    """The last MOST_BYTES of what a console showed, printable and in lines. None: it has shown nothing."""
    data = raw.encode(errors="replace") if isinstance(raw, str) else raw
    text = data[-MOST_BYTES:].decode(errors="replace")
    text = _CONTROLS.sub("", _ESCAPES.sub("", _LINE_ENDS.sub("\n", text))).strip("\n")
    return f"{text}\n" if text.strip() else None


def telling(text: str, most: int = MOST_LINES) -> tuple[str, ...]:
    """The lines of a console that tell most of why a machine is not ready: complaints, and the last ones."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line and not _NOISE.search(line) and line not in lines[-1:]:
            lines.append(line)
    last = lines[-LAST_LINES:]
    before = list(enumerate(lines[:-LAST_LINES]))
    complaints = [number for number, line in before if _COMPLAINT.search(line)]
    others = [number for number, line in before if not _COMPLAINT.search(line)]
    room = most - len(last)
    chosen = complaints[-room:]
    chosen += others[len(others) - min(len(others), room - len(chosen)) :]
    return (*(lines[number] for number in sorted(chosen)), *last)


def briefly(clock: Clock, do: Callable[[], T]) -> T:
    """What `do` returns, which does no harm twice: patient for some seconds, not for the minutes of other calls."""
    return Retry(clock=clock, throttled_for_s=PATIENCE_S, unclear_for_s=PATIENCE_S).call(do, again=True)
