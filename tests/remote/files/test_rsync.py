"""Test the command line of rsync, and the parsing of its output."""

from dataclasses import replace
from pathlib import Path

import pytest

from remote.files import rsync

TARGET = rsync.Target(
    ssh_config=Path("/home/me/.gpuctl/clusters/a/ssh_config"),
    host="a-0",
    root="/home/ubuntu/.gpuctl-node/code/p-1",
    temporary=".gpuctl-incoming-0",
    partial="/home/ubuntu/.gpuctl-node/code/p-1/.gpuctl-partial",
)


def test_rsync_argv_is_exact() -> None:
    assert rsync.argv(TARGET) == [
        "rsync", "--files-from=-", "--from0", "--perms", "--times", "--ignore-times", "--no-implied-dirs",
        "--protect-args",
        "--temp-dir=.gpuctl-incoming-0",
        "--partial-dir=/home/ubuntu/.gpuctl-node/code/p-1/.gpuctl-partial",
        "--timeout=60", "--info=progress2", "--no-human-readable", "--outbuf=N",
        "--rsh=ssh -F /home/me/.gpuctl/clusters/a/ssh_config -o Ciphers=^aes128-gcm@openssh.com "
        "-o BatchMode=yes -o ConnectTimeout=15",
        "--", "./", "a-0:/home/ubuntu/.gpuctl-node/code/p-1/",
    ]  # fmt: skip


def test_rsync_argv_quotes_a_path_with_quotes() -> None:
    words = rsync.argv(replace(TARGET, ssh_config=Path("/it's mine/config")))
    assert "--rsh=ssh -F '/it''s mine/config' -o " in " ".join(words)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("rsync  version 3.2.7  protocol version 31\nCopyright", (3, 2)),
        ("rsync  version v3.4.1  protocol version 32\n", (3, 4)),
        ("rsync  version 2.6.9  protocol version 29\n", (2, 6)),
        ("openrsync: protocol version 29\nrsync version 2.6.9 compatible\n", (0,)),
        ("", (0,)),
    ],
)
def test_rsync_version_is_read(message: str, expected: tuple[int, ...]) -> None:
    assert rsync.version(message) == expected


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (b"", 0),
        (b"\r              0   0%    0.00kB/s    0:00:00  ", 0),
        (b"\r        1048576  10%  100.00MB/s    0:00:04  \r        2097152  20%", 2097152),
        (b"\r        1048576  10%  100.00MB/s    0:00:04  \r        20", 1048576),
    ],
)
def test_rsync_progress_is_read(message: bytes, sent: int) -> None:
    assert rsync.sent_bytes(message) == sent


@pytest.mark.skipif(not rsync.usable(), reason="needs ssh and rsync 3.1 or newer")
def test_rsync_failure_reports_the_message_of_ssh(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    config = tmp_path / "it's mine" / "config"
    config.parent.mkdir()
    config.write_text("Host a-0\n  HostName 127.0.0.1\n  Port 1\n")
    output = rsync.bring(replace(TARGET, ssh_config=config), tmp_path, ["a"], lambda _: None)
    assert output == "ssh: connect to host 127.0.0.1 port 1: Connection refused"
