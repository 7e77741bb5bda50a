import errno
import json
import os
import random
import stat
import time
from pathlib import Path

import pytest

from inventories.disk import files
from inventories.errors import NoAccess

KEEP_WRITING = """
import json, random, sys
from pathlib import Path
from inventories.disk.files import write_atomic
path, number = Path(sys.argv[1]), 0
print("writing", flush=True)
while True:
    number += 1
    fill = "x" * random.randrange(300_000)
    write_atomic(path, json.dumps({"number": number, "length": len(fill), "fill": fill}).encode())
"""

NO_ROOM = """
import resource, sys
from pathlib import Path
from inventories.errors import NoAccess
from inventories.disk.files import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomic(Path(sys.argv[1]), b"x" * 5000)
except NoAccess as error:
    print(error)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_write_replaces_the_file_and_sets_its_mode(tmp_path, umask):
    path = tmp_path / "file"
    path.write_text("old, and longer than the new one")
    path.chmod(0o666)
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600
    files.write_atomic(path, b"", mode=0o644)
    assert path.read_bytes() == b""
    assert mode(path) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_syncs_file_before_and_folder_after_rename(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(handle):
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        assert steps[-1] == "folder" or os.fstat(handle).st_size == 3
        fsync(handle)

    def spy_replace(self, target):
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    files.write_atomic(tmp_path / "file", b"new")
    assert steps == ["file", "rename", "folder"]


def test_write_atomic_killed_at_any_moment_leaves_whole_file(tmp_path, start_python):
    path = tmp_path / "file.json"
    rng = random.Random(0)
    for _ in range(12):
        child = start_python(KEEP_WRITING, path)
        assert child.stdout.readline() == "writing\n"
        end = time.monotonic() + rng.uniform(0.01, 0.15)
        calls, limit = set(), time.monotonic() + 30
        while time.monotonic() < end or not calls:
            assert time.monotonic() < limit, "the child does not write"
            if (data := files.read_bytes(path)) is not None:
                document = json.loads(data)
                assert len(document["fill"]) == document["length"]
                calls.add(document["number"])
        child.kill()
        child.wait(timeout=30)
        document = json.loads(path.read_bytes())
        assert len(document["fill"]) == document["length"]


def test_write_atomic_without_space_keeps_old_file(tmp_path, start_python):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_text("old")
    out, err = start_python(NO_ROOM, path).communicate(timeout=30)
    assert out == (
        f"Can't write '{path}': File too large. Give yourself access there, "
        "or set GPUCTL_HOME to another folder of your own.\n"
    ), err
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_error_advises_to_make_room(tmp_path):
    with pytest.raises(NoAccess) as caught, files.sentence("write", tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == (
        f"Can't write '{tmp_path}/x': No space left on device. Make room on that disk, "
        "or set GPUCTL_HOME to another folder of your own."
    )


def test_private_dir_makes_all_parents_private(tmp_path, umask):
    path = tmp_path / "a" / "b" / "c"
    files.private_dir(path)
    files.private_dir(path)
    assert {mode(folder) for folder in (path, path.parent, path.parent.parent)} == {0o700}


def test_private_dir_restricts_mode_of_existing_folder(tmp_path):
    path = tmp_path / "a" / "b"
    path.mkdir(parents=True)
    path.chmod(0o755)
    path.parent.chmod(0o755)
    files.private_dir(path)
    assert mode(path) == 0o700
    assert mode(path.parent) == 0o755


def test_file_errors_name_the_obstructing_path(tmp_path):
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "folder"
    for act in (lambda: files.private_dir(inside), lambda: files.write_atomic(inside / "x", b"")):
        with pytest.raises(NoAccess, match="Not a directory") as caught:
            act()
        assert str(inside) in str(caught.value)
        assert "GPUCTL_HOME" in str(caught.value)
    with pytest.raises(NoAccess, match="Is a directory"):
        files.read_bytes(tmp_path)


def test_read_bytes_of_missing_file_is_none(tmp_path):
    assert files.read_bytes(tmp_path / "file") is None
    assert files.exists(tmp_path)
    assert not files.exists(tmp_path / "file")
