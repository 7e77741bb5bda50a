"""Notices: the text of a notification for a telephone, and the bodies that carry it. Pure.

Parts of the text come from scripts and libraries: `notice` bounds them, and takes out what could steer a reader.
"""

import hashlib
import json
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Sequence, Tuple
from unicodedata import category
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from email.message import EmailMessage

MAX_TITLE, MAX_LINE, MAX_LINES = 120, 300, 12
MAX_BYTES = 3500
"""Of the text: ntfy takes 4,096 bytes, a section of Slack 3,000 characters."""
TAGS = {"good": "white_check_mark", "bad": "x", "warning": "warning"}
"""Names of ntfy's emoji."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of characters that show nothing, and that may turn the direction of a line."""


class Notice(NamedTuple):
    """A notification, before it is known how it is sent."""

    id: str
    """The same for each attempt to deliver it; another for each event."""
    type: str
    """`run.succeeded`, …"""
    at: float
    """Time of the event, Unix seconds."""
    tone: str
    """`good`, `bad` or `warning`."""
    title: str
    lines: Tuple[str, ...]
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Return the lines as one text, within its bound."""
        return "\n".join(self.lines).encode()[:MAX_BYTES].decode(errors="ignore")


def notice(
    event: str,
    *,
    type: str,  # noqa: A002 - the name in the document
    at: float,
    tone: str,
    title: str,
    lines: Sequence[str],
    data: Mapping[str, Any],
) -> Notice:
    """Return a notice whose text is clean and bounded. `event`: the event's own key; empty lines are left out."""
    texts = [clean(line) for line in lines]
    return Notice(
        id=event_id(event),
        type=type,
        at=at,
        tone=tone,
        title=clean(title, MAX_TITLE),
        lines=tuple(text for text in texts if text)[:MAX_LINES],
        data=data,
    )


def event_id(event: str) -> str:
    """Return the id of an event: letters and digits, as headers and file names take them."""
    return "evt_" + hashlib.sha256(event.encode()).hexdigest()[:24]


def clean(text: str, limit: int = MAX_LINE) -> str:
    """Return a line without escapes, control characters and invisible ones, of at most `limit` characters."""
    text = _ESCAPES.sub("", text[: 20 * limit])
    line = " ".join("".join(" " if category(char) in _HIDDEN else char for char in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def document(message: Notice) -> Dict[str, Any]:
    """Return the JSON of a notice, for URLs and commands."""
    at = datetime.fromtimestamp(message.at, timezone.utc).isoformat(timespec="seconds")
    data = dict(message.data, title=message.title, text=message.text)
    return {"type": message.type, "timestamp": at, "id": message.id, "data": data}


def body_of(message: Notice) -> bytes:
    """Return the body of a request to a URL, and of a command's standard input."""
    return json.dumps(document(message), separators=(",", ":")).encode()


def ntfy_body(message: Notice, url: str) -> bytes:
    """Return the JSON by which ntfy publishes: in headers, a line end of a hostile text could add others."""
    return json.dumps({
        "topic": urlsplit(url).path.lstrip("/"),
        "title": message.title,
        "message": message.text or message.title,
        "tags": [TAGS[message.tone]],
        "priority": 3 if message.tone == "good" else 4,
    }).encode()  # fmt: skip


def slack_body(message: Notice) -> bytes:
    """Return the JSON of a Slack webhook: plain text, in which no mention and no link of a hostile text works."""
    title, text = _slack_escaped(message.title), _slack_escaped(message.text)
    return json.dumps({"text": title + "\n" + text, "mrkdwn": False, "unfurl_links": False}).encode()


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail_of(message: Notice, sender: str, receiver: str) -> "EmailMessage":
    """Return the mail of a notice."""
    from email.message import EmailMessage  # only mails need it

    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, receiver, message.title
    mail["Message-ID"] = "<{}@gpuctl.invalid>".format(message.id)
    mail["Date"] = datetime.fromtimestamp(message.at, timezone.utc)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text + "\n")
    return mail
