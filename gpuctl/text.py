"""Small texts: numbers as people write them, and lines from elsewhere made safe to print."""

import math
import os
import re
from datetime import UTC, datetime

from inventories.text import dollars as amount
from remote.shared.bars import BARS

_ESCAPES = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(\x07|\x1b\\|$)|[@-Z\\^_]?)|\x9b[0-?]*[ -/]*[@-~]"
)
"""Terminal sequences: colours, cursor moves, titles, links."""
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_COMMAND = re.compile(
    r"\bgpuctl (up|down|status|train|exec|top|push|pull|runs|bench)\b(?! --help| --all)(?![^`;\n]*--cluster)"
)
"""A command in a message that is about a cluster and does not name it."""

_DOCTOR = re.compile(r"\bgpuctl doctor --cluster\b(?! [\w-])")
"""A command that is about the cluster `default` if it names no other."""

UNKNOWN = "-"
"""Shown in place of unknown values."""


ASCII = str.maketrans(BARS + "▓▒░─━│\u00d7·•\u2019", "_.,-~=+#=+.-=|x-*'") | str.maketrans(
    {"…": "...", "→": "->", "✓": "ok", "✗": "failed:"}
)
"""What stands for the characters that we print ourselves where only ASCII can be written."""


def clean(line: str, limit: int = 2000) -> str:
    """A line as it would look on a terminal, without what could steer the terminal or not be written as UTF-8.

    Of a progress bar that redraws itself with carriage returns, the last state that says anything.
    """
    states = _ESCAPES.sub("", line).rstrip("\r\n").split("\r")
    shown = next((state for state in reversed(states) if state.strip()), "")
    shown = _CONTROLS.sub("", shown).encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def for_cluster(message: str, cluster: str) -> str:
    """The message with the cluster in the commands that it advises, unless that is the one they mean anyway."""
    if cluster == "default":
        return message
    return _DOCTOR.sub(rf"\g<0> {cluster}", _COMMAND.sub(rf"gpuctl \1 --cluster {cluster}", message))


def clean_lines(text: str, limit: int = 10_000) -> str:
    """Every line of a text, cleaned."""
    return "\n".join(clean(line, limit) for line in text.split("\n"))


EXPONENT_FROM = 1e15
"""Size from which a metric is written with an exponent."""


def shorten(line: str, limit: int) -> str:
    """A line of at most `limit` (2 or more) characters; a longer one lacks its middle."""
    if len(line) <= limit:
        return line
    head = limit // 2
    return f"{line[:head]}…{line[len(line) - (limit - head - 1) :]}"


def with_tilde(path: str) -> str:
    """A path as people write it: `~` in place of this user's home folder."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - never raises
    return "~" + path[len(home) :] if home and (path + "/").startswith(home + "/") else path


def duration(seconds: float | None) -> str:
    """`85 ms`, `4.2 s`, `3 min 5 s`, `2 h 13 min`, `3 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def milliseconds(ms: float | None) -> str:
    """`0.85 ms`, `21.3 ms`, `1.20 s`."""
    if ms is None:
        return UNKNOWN
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def percent(fraction: float | None, digits: int = 1) -> str:
    """`97.2 %`."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.{digits}f} %"


def known(value: float | None, form: str) -> str:
    """Format a value by `{:.2f} x` or the like, if it is known."""
    return UNKNOWN if value is None else form.format(value)


def count(value: float | None) -> str:
    """`12,345`, or `8.52` where the number is small."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def dollars(usd: float | None) -> str:
    """`free`, `less than a cent`, `$12.30`."""
    if usd is None:
        return UNKNOWN
    if usd == 0:
        return "free"
    return "less than a cent" if usd < 0.01 else amount(usd)


def spent(usd: float | None) -> str:
    """Format billed dollars as `dollars`; a short time is never shown as free."""
    return dollars(usd or 0.001) if usd is not None else UNKNOWN


def nothing_ends(day_usd: float | None, advice: str) -> str:
    """Return the note on rented machines without a time limit. `day_usd`: the price of a day. `None`: not known."""
    price = "what a day costs is not known" if day_usd is None else f"a day costs {amount(day_usd)}"
    return f"nothing ends these machines: {price}{advice}"


def commit(sha: str, *, dirty: bool) -> str:
    """`1a2b3c4d5e`, or `1a2b3c4d5e, files changed`."""
    return f"{sha[:10]}{', files changed' if dirty else ''}"


def age(iso: str, now: datetime | None = None) -> str:
    """Return the time since an ISO 8601 time, roughly: `now`, `20 s ago`, `3 min ago`, `2 h ago`, `5 d ago`."""
    try:
        began = datetime.fromisoformat(iso)
    except ValueError:
        return UNKNOWN
    began = began if began.tzinfo else began.replace(tzinfo=UTC)
    passed_s = ((now or datetime.now(UTC)) - began).total_seconds()
    for unit_s, unit in ((86_400 * 2, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if passed_s >= unit_s:
            return f"{passed_s // min(unit_s, 86_400):.0f} {unit} ago"
    return "now"


def bar(fraction: float, width: int) -> str:
    """`████████░░░░`: a fraction, 0 .. 1, as `width` characters."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def loss(value: float) -> str:
    """`0.312`, `12.345`, `4.2e-05`, `nan`."""
    return f"{value:.3f}" if 0.01 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"


def metric(value: float) -> str:
    """Return a metric of the user's own: `4,608`, `11,111`, `12.35`, `0.8731`, `4.2e-05`, `nan`."""
    size = abs(value)
    is_decimal = size < EXPONENT_FROM and (value.is_integer() or size >= 1000)
    return f"{value:,.0f}" if is_decimal else f"{value:.4g}"


def dashed(option: str) -> str:
    """Return an option's name as gpuctl spells it: torchrun takes `--nproc_per_node`, too."""
    return option.replace("_", "-")
