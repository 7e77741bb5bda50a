"""Test servers that disconnect before their banner: the duration of retries, and the final error."""

import itertools

import pytest

from remote.errors import Unreachable
from remote.transport.paramiko_errors import HungUp, hung_up, pauses, retry_hang_ups


def test_pauses_grow_to_a_limit() -> None:
    longest = list(itertools.islice(pauses(lambda _, high: high), 6))
    assert longest == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.0, 3.0])
    shortest = list(itertools.islice(pauses(lambda low, _: low), 6))
    assert shortest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.5, 1.5])


def test_connect_is_retried_after_a_hang_up() -> None:
    answers = iter([HungUp("it hung up."), HungUp("it hung up."), None])

    def connect() -> str:
        if error := next(answers):
            raise error
        return "open"

    assert retry_hang_ups(connect, deadline_s=30) == "open"


def test_connect_gives_up_on_hang_ups_with_advice() -> None:
    def connect() -> str:
        raise HungUp("gpu-0: the server hung up.")

    with pytest.raises(
        Unreachable, match=r"^gpu-0: the server hung up\. It was tried 2 times in 0 s\. "
    ) as raised:
        retry_hang_ups(connect, deadline_s=0.3)
    assert "MaxStartups" in str(raised.value)
    assert type(raised.value) is Unreachable


def test_connect_is_not_retried_after_other_errors() -> None:
    answers = iter([Unreachable("no TCP connection."), None])

    def connect() -> None:
        if error := next(answers):
            raise error

    with pytest.raises(Unreachable, match="no TCP"):
        retry_hang_ups(connect, deadline_s=30)


@pytest.mark.parametrize(
    ("text", "cause", "is_one"),
    [
        ("Error reading SSH protocol banner", EOFError(), True),
        ("Error reading SSH protocol banner[Errno 104]", ConnectionResetError(104, "reset"), True),
        ("Error reading SSH protocol banner", TimeoutError(), False),
        ("Negotiation failed.", EOFError(), False),
    ],
)
def test_hung_up_recognizes_a_connection_closed_before_the_banner(
    text: str, cause: Exception, is_one: bool
) -> None:
    try:
        try:
            raise cause
        except Exception:  # noqa: BLE001 - as paramiko does
            raise OSError(text)  # noqa: B904 - the same
    except OSError as error:
        assert hung_up(error) is is_one
