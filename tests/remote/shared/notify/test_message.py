"""Test the bodies of notifications, also of texts that try to steer their reader."""

import json
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.notify import message
from remote.shared.notify.message import Notice, notice

HOSTILE = (
    "Error: <!channel> <http://evil|ok> & *b*\r\nX-Priority: 5\x1b[2J\x1b]0;t\x07 \u202egnp\u200b\x00\ud800"
)


def a_notice(*lines: str, title: str = "my.py failed after 2 min") -> Notice:
    data = {"run": "20261121-054625-3fa9"}
    return notice("run ended", type="run.failed", at=1.5, tone="bad", title=title, lines=lines, data=data)


def test_document_has_type_time_and_text() -> None:
    made = a_notice("rank 0: ValueError: x", "", "gpuctl logs")
    assert json.loads(message.body_of(made)) == {
        "type": "run.failed",
        "timestamp": "1970-01-01T00:00:01+00:00",
        "id": made.id,
        "data": {
            "run": "20261121-054625-3fa9",
            "title": "my.py failed after 2 min",
            "text": "rank 0: ValueError: x\ngpuctl logs",
        },
    }


def test_ids_are_those_of_events() -> None:
    assert a_notice("one").id == a_notice("another").id
    assert message.event_id("a ended") != message.event_id("b ended")
    assert message.event_id("a.b\n").replace("_", "").isalnum()


def test_hostile_text_is_one_plain_line() -> None:
    made = a_notice(HOSTILE, title=HOSTILE)
    assert made.text == "Error: <!channel> <http://evil|ok> & *b* X-Priority: 5 gnp"
    slack = json.loads(message.slack_body(made))
    assert "Error: &lt;!channel&gt; &lt;http://evil|ok&gt; &amp; *b* X-Priority" in slack["text"]
    assert slack["mrkdwn"] is False
    mail = message.mail_of(made, "me@example.org", "you@example.org").as_bytes()
    assert b"\nX-Priority: 5" not in mail
    ntfy = json.loads(message.ntfy_body(made, "https://ntfy.sh/topic"))
    assert (ntfy["topic"], ntfy["title"], ntfy["message"]) == ("topic", made.title, made.text)


@given(st.lists(st.text(max_size=2000), max_size=20), st.text())
def test_any_text_fits_and_is_printable(lines: list[str], title: str) -> None:
    made = a_notice(*lines, title=title)
    assert len(made.text.encode()) <= message.MAX_BYTES
    hidden = {category(character) for character in made.text.replace("\n", "") + made.title}
    assert hidden.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
    assert len(made.title) <= message.MAX_TITLE
    for body in (message.body_of(made), message.slack_body(made), message.ntfy_body(made, "https://n/t")):
        json.loads(body)
    message.mail_of(made, "me@example.org", "you@example.org").as_bytes()


@pytest.mark.parametrize("character", ["é", "\U0001f525"])
def test_long_lines_are_cut_and_the_command_stays(character: str) -> None:
    made = a_notice(character * 5000, "loss", "about", "gpuctl logs 20261121-054625-3fa9")
    assert made.text.endswith("\ngpuctl logs 20261121-054625-3fa9")
