"""Test the targets of notifications: their forms, and that no error and no record shows a secret."""

import pytest

from remote.shared.notify.target import Target, check_mail_server, parse, shown


@pytest.mark.parametrize(
    ("text", "target", "record"),
    [
        ("ntfy:my-topic", Target("ntfy", "https://ntfy.sh/my-topic"), "ntfy:ntfy.sh/…"),
        (
            "ntfy:https://tk_1@ntfy.example.org:8443/t",
            Target("ntfy", "https://tk_1@ntfy.example.org:8443/t"),
            "ntfy:ntfy.example.org:8443/…",
        ),
        (
            "slack:https://hooks.slack.com/services/T0/B0/s3cret",
            Target("slack", "https://hooks.slack.com/services/T0/B0/s3cret"),
            "slack:hooks.slack.com/…",
        ),
        ("mail:you@example.org", Target("mail", "you@example.org"), "mail:you@example.org"),
        ("command:notify-send s3cret", Target("command", "notify-send s3cret"), "command:…"),
        ("http://127.0.0.1:80/s3cret", Target("url", "http://127.0.0.1:80/s3cret"), "http://127.0.0.1:80/…"),
    ],
)
def test_forms_of_a_target(text: str, target: Target, record: str) -> None:
    assert parse(text) == target
    assert shown(target) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3cret",
        "pigeon:s3cret",
        "ntfy:",
        "ntfy:s3cret topic",
        "ntfy:https://ntfy.sh/a/s3cret",
        "ntfy:https://ntfy.sh/a?auth=s3cret",
        "slack:s3cret",
        "slack:http://hooks.slack.com/s3cret",
        "http://example.org/s3cret",
        "https:///s3cret",
        "https://example.org:port/s3cret",
        "https://[s3cret/",
        "https://example.org/s3cret\r\nX-Header: 1",
        "https://example.org/s3crét",
        "https://a..example.org/s3cret",
        "https://" + "s3cret" * 11 + ".example.org/",
        "https://s3cret%0A@example.org/x",
        "ntfy:https://:s3cret%C3%A9@example.org/topic",
        "mail:s3cret",
        "mail:s3cret@example.org,other@example.org",
        "mail:s3cret@example.org\nBcc: other@example.org",
        "command: ",
        "https://example.org/s3cret" + "x" * 4000,
    ],
)
def test_impossible_target_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(ValueError, match=r"needs|give ntfy:TOPIC") as error:
        parse(text)
    assert "s3cr" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "shown"), [("foo", "'foo'"), ("my-topic", "'my-…'"), ("nfty:topic", "'nfty:…'"), ("", "''")]
)
def test_word_that_is_no_target_is_named_by_its_begin(text: str, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^{shown} is no target: give ntfy:TOPIC"):
        parse(text)


def test_mail_server_is_named_by_a_url() -> None:
    check_mail_server("smtps://user:s3cret@mail.example.org")
    for url in ("", "mail.example.org", "smtp://", "https://mail.example.org", "smtp://host:s3cret"):
        with pytest.raises(ValueError, match="GPUCTL_SMTP") as error:
            check_mail_server(url)
        assert "s3cret" not in str(error.value)
