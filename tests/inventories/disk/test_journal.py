import json
import stat
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from inventories.disk.journal import Journal
from inventories.errors import CorruptFile

KEEP_APPENDING = """
import sys
from pathlib import Path
from inventories.disk.journal import Journal
journal, number = Journal(Path(sys.argv[1])), 0
while True:
    number += 1
    journal.append("tick", number=number, fill="x" * 50_000)
    print(number, flush=True)
"""

APPEND_SOME = """
import sys
from pathlib import Path
from inventories.disk.journal import Journal
print("ready", flush=True)
sys.stdin.readline()
for number in range(300):
    Journal(Path(sys.argv[1])).append("tick", who=sys.argv[2], number=number)
"""

NO_ROOM = """
import resource, sys
from pathlib import Path
from inventories.errors import NoAccess
from inventories.disk.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    for number in range(100):
        Journal(Path(sys.argv[1])).append("tick", number=number)
except NoAccess as error:
    print(number, error)
"""


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / "folder" / "journal.jsonl")


def test_journal_read_returns_entries_in_order_with_time(journal):
    assert journal.read() == []
    journal.append("intent", name="demo-0", token="abc\n\u2028é", port=22, gpus=None, key=Path("/k"))
    journal.append("created", ids=["1", "2"])
    first, second = journal.read()
    assert first | {"at": ""} == {
        "at": "", "event": "intent", "name": "demo-0", "token": "abc\n\u2028é", "port": 22, "gpus": None, "key": "/k",
    }  # fmt: skip
    assert second["ids"] == ["1", "2"]
    at = datetime.fromisoformat(first["at"])
    assert at.utcoffset() == timedelta(0)
    assert abs(at.timestamp() - time.time()) < 60


def test_journal_file_and_folder_are_private(journal):
    journal.append("x")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "torn", [b'{"at": "2026', b"{", b'{"event": "complete, but unfinished line"}', b"\0\0\0"]
)
def test_journal_ignores_and_replaces_incomplete_last_line(journal, torn):
    journal.append("first")
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + torn)
    assert [line["event"] for line in journal.read()] == ["first"]
    journal.append("second")
    assert [line["event"] for line in journal.read()] == ["first", "second"]
    assert journal.path.read_bytes().startswith(whole + b'{"at"')


def test_journal_of_one_incomplete_line_reads_as_empty(journal):
    journal.append("first")
    journal.path.write_bytes(b'{"at": "2026-')
    assert journal.read() == []


@pytest.mark.parametrize("bad", [b"garbage", b"[1]", b'{"at": "x"}', b"", b"[" * 100_000])
def test_journal_refuses_damaged_line_before_the_last(journal, bad):
    journal.append("first")
    journal.path.write_bytes(journal.path.read_bytes() + bad + b"\n")
    with pytest.raises(CorruptFile) as caught:
        journal.read()
    assert str(caught.value) == (
        f"'{journal.path}' can't be used: line 2 is no journal entry. Remove that line, and compare "
        "`gpuctl status` with what your provider shows."
    )


def test_journal_keeps_reported_entries_after_kill(journal, start_python):
    for _ in range(5):
        before = len(journal.read())
        child = start_python(KEEP_APPENDING, journal.path)
        for _ in range(3):
            child.stdout.readline()
        child.kill()
        out, _ = child.communicate(timeout=30)
        report = 3 + out.count("\n")
        numbers = [line["number"] for line in journal.read()[before:]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= report


def test_journal_keeps_lines_of_concurrent_writers_whole(journal, start_python):
    children = [start_python(APPEND_SOME, journal.path, name) for name in ("a", "b", "c")]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    lines = journal.read()
    for name in ("a", "b", "c"):
        assert [line["number"] for line in lines if line["who"] == name] == list(range(300))


def test_journal_stays_readable_after_write_without_space(journal, start_python):
    out, err = start_python(NO_ROOM, journal.path).communicate(timeout=30)
    written, sentence = out.split(" ", 1)
    assert sentence.startswith(f"Can't write '{journal.path}': File too large."), err
    assert len(journal.read()) == int(written) > 2
    journal.append("after")
    assert journal.read()[-1]["event"] == "after"
    assert all(json.loads(line) for line in journal.path.read_bytes().splitlines())
