"""The delivery of a notice to one target: a single attempt with a deadline, and the times of the next attempts.

A redirect is never followed: the URL, the signature and the text are for the host that a person named.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import signal
import smtplib
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional
from urllib.parse import unquote, urlsplit

from remote.shared.notify import message
from remote.shared.notify.message import Notice
from remote.shared.notify.target import Target, is_private, key_of

ANSWER_S = 30.0
"""For one attempt, from the connection to the answer."""
PAUSES_S = (2.0, 15.0, 60.0, 300.0, 900.0)
"""Before each further attempt: some 21 minutes in all."""
BUSY = (408, 425, 429)
"""Statuses of HTTP below 500 after which another attempt may succeed."""
SHELL = ["/bin/sh", "-c", 'eval "$GPUCTL_NOTIFY_COMMAND"']
"""The command line itself is in the environment, which other users can't read: it may hold a secret."""


class Attempt(NamedTuple):
    """The result of an attempt."""

    delivered: bool
    detail: str = ""
    """A clause on the problem, without secrets and without words of the server."""
    again: bool = False
    """Whether another attempt may deliver it, and not a second time."""


def attempt(
    target: Target, notice: Notice, settings: Mapping[str, Any], answer_s: float = ANSWER_S
) -> Attempt:
    """Try to deliver a notice once. `settings`: `secret` for signatures, `smtp` as URL of the mail server."""
    results: List[Attempt] = []
    deliver = {"mail": _mail, "command": _command}.get(target.kind, _post)

    def work() -> None:
        try:
            results.append(deliver(target, notice, settings, answer_s))
        except Exception as error:  # noqa: BLE001 - its words and its traceback may show the secret
            results.append(Attempt(delivered=False, detail=type(error).__name__))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(answer_s)  # a server that sends a byte now and then never runs into a socket's timeout
    return results[0] if results else _silent(target, answer_s)


def deliver(
    target: Target,
    notice: Notice,
    settings: Mapping[str, Any],
    *,
    pauses_s: "tuple[float, ...]" = PAUSES_S,
    answer_s: float = ANSWER_S,
    on_attempt: Callable[[Attempt, Optional[float]], None] = lambda *_: None,
) -> Attempt:
    """Try until the notice is delivered, can't be, or the last attempt has failed.

    `on_attempt` gets each result with the time until the next attempt (`None`: no other follows).
    """
    pauses = list(pauses_s)
    while True:
        result = attempt(target, notice, settings, answer_s)
        pause_s = pauses.pop(0) if pauses and result.again else None
        on_attempt(result, pause_s)
        if pause_s is None:
            return result
        time.sleep(pause_s)


def signature(notice_id: str, at: int, body: bytes, secret: str) -> str:
    """Return the signature of a body, as Standard Webhooks defines it: HMAC-SHA256 over id, time and body."""
    signed = "{}.{}.".format(notice_id, at).encode() + body
    return "v1," + base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode()


def _silent(target: Target, answer_s: float) -> Attempt:
    """Return the result without an answer in time."""
    return _unsure(target, "no answer within {:.0f} s".format(answer_s))


def _unsure(target: Target, why: str) -> Attempt:
    """Return the result without an answer. Only a URL gets another attempt: its receiver knows the id again."""
    return Attempt(delivered=False, detail=why + ", so it may have arrived", again=target.kind == "url")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - as urllib calls it
        """Follow no redirect."""


def _post(target: Target, notice: Notice, settings: Mapping[str, Any], answer_s: float) -> Attempt:
    """Send an HTTP POST."""
    parts = urlsplit(target.address)
    headers = {"Content-Type": "application/json", "User-Agent": "gpuctl"}
    headers.update(_authorization(parts.username, parts.password))
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    if target.kind == "ntfy":
        body, address = message.ntfy_body(notice, target.address), address._replace(path="/")
    elif target.kind == "slack":
        body = message.slack_body(notice)
    else:
        body, at = message.body_of(notice), int(time.time())
        headers.update({"webhook-id": notice.id, "webhook-timestamp": str(at)})
        headers["webhook-signature"] = signature(notice.id, at, body, settings["secret"])
    request = urllib.request.Request(address.geturl(), body, headers)  # noqa: S310 - `parse` lets only http(s) pass
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=answer_s):
            return Attempt(delivered=True)
    except urllib.error.HTTPError as error:
        with error:
            moved = ", which gpuctl does not follow" if 300 <= error.code < 400 else ""
            again = error.code >= 500 or error.code in BUSY
            return Attempt(delivered=False, detail="HTTP status {}{}".format(error.code, moved), again=again)
    except urllib.error.URLError as error:  # before the request was sent
        return Attempt(delivered=False, detail=_why(error.reason), again=True)
    except (TimeoutError, socket.timeout):
        return _silent(target, answer_s)
    except (OSError, http.client.HTTPException) as error:
        return _unsure(target, "the connection broke ({})".format(_why(error)))


def _authorization(user: Optional[str], password: Optional[str]) -> Dict[str, str]:
    """Return the header for the login of a URL: a user alone is a token. Empty: the URL has no login."""
    if not user and not password:
        return {}
    if not user or not password:
        return {"Authorization": "Bearer " + unquote(user or password or "")}
    pair = "{}:{}".format(unquote(user), unquote(password)).encode()
    return {"Authorization": "Basic " + base64.b64encode(pair).decode()}


def _why(error: object) -> str:
    """Return a clause on an error of the network. Words of a server are left out: it may repeat the secret."""
    if isinstance(error, ssl.SSLError):
        return "TLS: {}".format(getattr(error, "verify_message", "") or error.reason or "failed")
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "the connection timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _mail(target: Target, notice: Notice, settings: Mapping[str, Any], answer_s: float) -> Attempt:
    """Send a mail through the server of `smtp`: smtps://, or smtp:// with STARTTLS."""
    server = urlsplit(settings["smtp"])
    host, user = server.hostname or "", unquote(server.username or "")
    sender = user if "@" in user else target.address
    tls = ssl.create_default_context()
    client: smtplib.SMTP
    begun = False
    try:
        if server.scheme == "smtps":
            client = smtplib.SMTP_SSL(host, server.port or 465, timeout=answer_s, context=tls)
        else:
            client = smtplib.SMTP(host, server.port or 587, timeout=answer_s)
        with contextlib.closing(client):
            if server.scheme == "smtp" and not is_private(host):
                client.starttls(context=tls)
            if user:
                client.login(user, unquote(server.password or ""))
            begun = True
            client.send_message(message.mail_of(notice, sender, target.address))
            with contextlib.suppress(OSError):  # the mail is accepted, whatever follows
                client.putcmd("quit")
        return Attempt(delivered=True)
    except smtplib.SMTPResponseException as error:
        detail = "the mail server answered {}".format(error.smtp_code)
        return Attempt(delivered=False, detail=detail, again=400 <= error.smtp_code < 500)
    except smtplib.SMTPServerDisconnected:
        detail = "the mail server broke the connection"
        return _unsure(target, detail) if begun else Attempt(delivered=False, detail=detail, again=True)
    except smtplib.SMTPException as error:
        detail = "the mail server refused it ({})".format(type(error).__name__)
        return Attempt(delivered=False, detail=detail)
    except OSError as error:
        detail = "the mail server: {}".format(_why(error))
        return _unsure(target, detail) if begun else Attempt(delivered=False, detail=detail, again=True)


def _command(target: Target, notice: Notice, _settings: Mapping[str, Any], answer_s: float) -> Attempt:
    """Run a command line: the JSON on its standard input, title and text in its environment."""
    environment = dict(
        os.environ,
        GPUCTL_NOTIFY_COMMAND=target.address,
        GPUCTL_NOTIFY_TYPE=notice.type,
        GPUCTL_NOTIFY_TITLE=notice.title,
        GPUCTL_NOTIFY_TEXT=notice.text,
    )
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            SHELL,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
    except OSError as error:
        return Attempt(delivered=False, detail="the command could not be started: {}".format(_why(error)))
    try:
        process.communicate(message.body_of(notice), timeout=answer_s - 1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return _silent(target, answer_s)
    if process.returncode:
        detail = "the command ended with exit status {}".format(process.returncode)
        return Attempt(delivered=False, detail=detail)
    return Attempt(delivered=True)
