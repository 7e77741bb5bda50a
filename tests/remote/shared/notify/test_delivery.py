"""Test single attempts and retries of notifications against real servers, also slow and broken ones."""

import base64
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.shared.notify.delivery import Attempt, attempt, deliver, signature
from remote.shared.notify.message import document, notice
from remote.shared.notify.target import Target, parse
from tests.fakes.smtp import mail_server
from tests.fakes.webhooks import Receiver, after, broken, receiver, redirect

SETTINGS = {"secret": "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode(), "smtp": ""}
NOTICE = notice(
    "run ended", type="run.failed", at=1.5, tone="bad", title="my.py failed", lines=["line"], data={}
)


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def sent(text: str, answer_s: float = 10.0, smtp: str = "") -> Attempt:
    return attempt(parse(text), NOTICE, {**SETTINGS, "smtp": smtp}, answer_s)


def test_signature_is_that_of_the_specification() -> None:
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, secret) == expected


def test_url_gets_the_signed_document(server: Receiver) -> None:
    assert sent(f"{server.url}/hook?a=1") == Attempt(delivered=True)
    (request,) = server.requests
    assert (request.path, request.json) == ("/hook?a=1", document(NOTICE))
    at = int(request.headers["webhook-timestamp"])
    assert abs(at - time.time()) < 60
    expected = signature(NOTICE.id, at, request.body, SETTINGS["secret"])
    assert request.headers["webhook-signature"] == expected


def test_ntfy_gets_json_with_the_token_in_a_header(server: Receiver) -> None:
    host = server.url.removeprefix("http://")
    assert sent(f"ntfy:http://tk_1@{host}/topic").delivered
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/", "Bearer tk_1")
    assert request.json["topic"] == "topic"
    assert "webhook-signature" not in request.headers


def test_slack_gets_text(server: Receiver) -> None:
    assert sent(f"slack:{server.url}/services/T/B/X").delivered
    (request,) = server.requests
    assert (request.path, request.json["text"]) == ("/services/T/B/X", "my.py failed\nline")


@pytest.mark.parametrize(
    ("status", "again"), [(500, True), (503, True), (429, True), (404, False), (410, False)]
)
def test_refusals_are_final_and_failures_are_not(server: Receiver, status: int, again: bool) -> None:
    server.answers += [status]
    assert sent(f"{server.url}/s3cret") == Attempt(
        delivered=False, detail=f"HTTP status {status}", again=again
    )


def test_redirect_is_not_followed(server: Receiver) -> None:
    with receiver() as other:
        server.answers += [redirect(other.url)]
        result = sent(server.url)
        assert other.requests == []
    assert result == Attempt(delivered=False, detail="HTTP status 307, which gpuctl does not follow")


def test_slow_answer_is_repeated_to_a_url_only(server: Receiver) -> None:
    server.answers += [after(30), after(30)]
    began = time.monotonic()
    detail = "no answer within 0 s, so it may have arrived"
    assert sent(server.url, 0.3) == Attempt(delivered=False, detail=detail, again=True)
    assert sent(f"slack:{server.url}/x", 0.3) == Attempt(delivered=False, detail=detail, again=False)
    assert time.monotonic() - began < 5


def test_server_that_is_gone_is_tried_again(server: Receiver) -> None:
    server.answers += [broken]
    result = sent(f"{server.url}/s3cret")
    assert (result.delivered, result.again) == (False, True)
    for kind in ("slack:", "ntfy:"):
        server.answers += [broken]
        result = sent(f"{kind}{server.url}/s3cret")
        assert (result.delivered, result.again) == (False, False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = sent(f"http://127.0.0.1:{unused.getsockname()[1]}/s3cret")
    assert result == Attempt(delivered=False, detail="Connection refused", again=True)
    assert not sent("http://localhost:1/s3cret").delivered


def test_attempts_are_bounded_and_have_one_id(server: Receiver) -> None:
    server.answers += [500, 500, 500]
    results: list[tuple[Attempt, float | None]] = []

    def on_attempt(result: Attempt, pause_s: float | None) -> None:
        results.append((result, pause_s))

    last = deliver(parse(server.url), NOTICE, SETTINGS, pauses_s=(0.01, 0.02), on_attempt=on_attempt)
    assert (last.delivered, [pause_s for _, pause_s in results]) == (False, [0.01, 0.02, None])
    assert {request.headers["webhook-id"] for request in server.requests} == {NOTICE.id}
    server.answers += [500]
    assert deliver(parse(server.url), NOTICE, SETTINGS, pauses_s=(0.01, 0.02)).delivered


def test_mail_is_sent_through_the_server(server: Receiver) -> None:
    with mail_server() as mails:
        assert sent("mail:you@example.org", smtp=mails.url) == Attempt(delivered=True)
        (mail,) = mails.mails
        assert "Subject: my.py failed\r\n" in mail
        assert mail.endswith("\r\n\r\nline\r\n")
        mails.answers += ["451 later", "554 no"]
        assert sent("mail:you@example.org", smtp=mails.url) == Attempt(
            delivered=False, detail="the mail server answered 451", again=True
        )
        assert sent("mail:you@example.org", smtp=mails.url) == Attempt(
            delivered=False, detail="the mail server answered 554", again=False
        )


def test_mail_is_not_repeated_once_it_may_have_arrived() -> None:
    with mail_server() as mails:
        mails.quit = "421 busy"
        assert sent("mail:you@example.org", smtp=mails.url) == Attempt(delivered=True)
        mails.answers += [""]
        assert sent("mail:you@example.org", smtp=mails.url) == Attempt(
            delivered=False, detail="the mail server broke the connection, so it may have arrived"
        )
        assert len(mails.mails) == 2


def test_error_of_a_library_is_a_result_without_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    url = "http://localhost:1/s3cret"
    result = attempt(Target("url", url.replace("localhost", "a..s3cret")), NOTICE, SETTINGS)
    assert (result.delivered, "s3cret" in result.detail, capfd.readouterr().err) == (False, False, "")


def test_command_gets_the_document_and_shows_no_secret(tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = f"cat > {out}; cat /proc/$$/cmdline > {out}.argv; printenv GPUCTL_NOTIFY_TITLE >> {out}; : s3cret"
    assert sent(f"command:{line}") == Attempt(delivered=True)
    body, title = out.read_text().rsplit("}", 1)
    assert (json.loads(body + "}"), title) == (document(NOTICE), "my.py failed\n")
    assert "s3cret" not in (tmp_path / "out.argv").read_text()
    failed = Attempt(delivered=False, detail="the command ended with exit status 3", again=False)
    assert sent("command:exit 3") == failed


def test_command_that_hangs_is_killed(tmp_path: Path) -> None:
    result = sent(f"command:echo $$ > {tmp_path}/pid; sleep 600", 1.5)
    assert (result.delivered, result.again) == (False, False)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
