"""Test the conversion of a serial console's output into printable text."""

import pytest

from provision.rented.serial_console import MAX_BYTES, end_of, relevant_lines


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"\x1b[2J\r\n \r\n", None, id="nothing-that-can-be-seen"),
        pytest.param(b"a\r\nb\r\r\nc\n", "a\nb\nc\n", id="line-ends-of-terminals"),
        pytest.param(b"10 %\r20 %", "10 %\n20 %\n", id="redrawn"),
        pytest.param(b"[\x1b[0;32m  OK  \x1b[0m] Started ssh", "[  OK  ] Started ssh\n", id="colours"),
        pytest.param(b"\x1b]0;title\x07a\x1b(Bb\x1b[?25lc\x1bcd", "abcd\n", id="other-sequences"),
        pytest.param(b"\x00a\x08b\x7f\tc\xff", "ab\tc\N{REPLACEMENT CHARACTER}\n", id="no-characters"),
        pytest.param("caf\N{LATIN SMALL LETTER E WITH ACUTE}\x9b", "café\n", id="text"),
    ],
)
def test_end_of_strips_terminal_control_sequences(raw: bytes | str, text: str | None) -> None:
    assert end_of(raw) == text


def test_end_of_keeps_only_the_last_lines() -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    result = end_of(lines)
    assert result is not None
    assert len(result) <= MAX_BYTES
    assert result.endswith("line 19998\nline 19999\n")


UBUNTU = """\
[    0.000000] Linux version 6.8.0-1030-oracle
[    9.1] EXT4-fs (sda1): mounted filesystem
[  OK  ] Started Journal Service.
[FAILED] Failed to start ssh.service - OpenBSD Secure Shell server.
[  OK  ] Reached target Multi-User System.
cloud-init[1021]: Cloud-init v. 25.1 running 'modules:final'
ci-info: +--------+------+---------+
<14>#############################################################
-----BEGIN SSH HOST KEY KEYS-----
cloud-init[1188]: E: Unable to fetch some archives

cloud-init[1188]: one
cloud-init[1188]: two
cloud-init[1188]: two
cloud-init[1188]: finished
node-0 login:
"""


def test_telling_prefers_error_lines_over_the_last_lines() -> None:
    assert relevant_lines(UBUNTU, 5) == (
        "[FAILED] Failed to start ssh.service - OpenBSD Secure Shell server.",
        "cloud-init[1188]: E: Unable to fetch some archives",
        "cloud-init[1188]: one",
        "cloud-init[1188]: two",
        "cloud-init[1188]: finished",
    )
    assert relevant_lines("a\nb\n") == ("a", "b")
    assert relevant_lines("") == ()
    assert relevant_lines("\n".join(f"error {n}" for n in range(100))) == tuple(
        f"error {n}" for n in range(90, 100)
    )
    assert relevant_lines("\n".join(f"line {n}" for n in range(100))) == tuple(
        f"line {n}" for n in range(90, 100)
    )
