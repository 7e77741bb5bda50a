"""Test leftovers on a node's disk and their removal, with the node's part in a separate home."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from node_here import ROOT, NodeHere

from remote.errors import BadAnswer, RemoteError
from remote.files.leftovers import Item, Leftovers, Retained, RunFile, clean, find_leftovers
from remote.node import process
from remote.node.storage import sync_lock
from remote.node.storage.leftovers import Sizes
from remote.shared.trees import remove_tree, walk

RUN, OTHER = "20261122-110000-cccc", "20261101-110000-dddd"


@pytest.fixture
def node(tmp_path: Path) -> NodeHere:
    (tmp_path / "home" / ".gpuctl-node").mkdir(parents=True)
    return NodeHere(tmp_path / "home")


def write(node: NodeHere, path: str, data: bytes = b"x", *, modified: float | None = None) -> Path:
    """Write a gpuctl file on the node."""
    file = node.home / ".gpuctl-node" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    if modified is not None:
        os.utime(file, (modified, modified))
    return file


def write_run(node: NodeHere, run: str, *, ended: bool = True, boot_id: str | None = None) -> Path:
    """A run that was launched, and ended."""
    part = f"runs/{run}/gpu-0"
    runner = {"pid": 2**22 + 1, "birth": "0", "boot_id": boot_id or process.boot_id()}
    write(node, f"{part}/runner.json", json.dumps({**runner, "launcher": 2**22 + 1}).encode())
    if ended:
        write(node, f"{part}/exit.json", b'{"exit_code": 0}')
    write(node, f"{part}/logs/rank-0.log", b"said")
    return node.home / ".gpuctl-node" / part


def send(node: NodeHere, name: str, **files: bytes) -> None:
    """A project's folder as a sync leaves it."""
    manifest = {}
    for path, data in files.items():
        status = write(node, f"code/{name}/{path}", data).stat()
        manifest[path] = [status.st_size, status.st_mtime_ns, status.st_mode & 0o777]
    write(node, f"code/{name}.manifest.json", json.dumps(manifest).encode())


def by_name(left: Leftovers) -> dict[tuple[str, str], Item]:
    return {(item.kind, item.name): item for item in left.items}


def there(node: NodeHere, path: str) -> bool:
    return os.path.lexists(node.home / ".gpuctl-node" / path)


def test_look_lists_everything_gpuctl_left_on_a_node(node: NodeHere) -> None:
    write(node, "envs/key-py3/venv/lib/big.so", b"x" * 100_000)
    write(node, "envs/key-py3/ready.json", b"{}", modified=1000)
    write(node, "envs/key-py3/used", modified=2000)
    write(node, "envs/torn-py3/venv/pyvenv.cfg")
    write(node, "wheels/torch.whl", b"x" * 50_000)
    write(node, "uv/0.13.9/uv")
    write(node, "bin/0123456789abcdef/__main__.py")
    write(node, ".removed-0a/rest")
    send(node, "proj-1", **{"train.py": b"code", "changed.py": b"code"})
    write(node, "code/proj-1/changed.py", b"changed by a run")
    write(node, "code/proj-1/out.pt", b"x" * 20_000)
    part = write_run(node, RUN)
    write(node, f"runs/{RUN}/gpu-0/checkpoints/c.pt", b"x" * 8)
    (part / "artifacts").symlink_to("/etc")
    left = find_leftovers(node)
    items = by_name(left)
    assert set(items) == {
        ("environment", "key-py3"),
        ("environment", "torn-py3"),
        ("wheels", "wheels"),
        ("uv", "0.13.9"),
        ("program", "0123456789abcdef"),
        ("removed", ".removed-0a"),
        ("code", "proj-1"),
        ("written", "proj-1"),
        ("run", RUN),
    }
    assert items["environment", "key-py3"].used == 2000
    assert 100_000 <= items["environment", "key-py3"].bytes < 200_000
    assert items["environment", "torn-py3"].used == 0
    assert 20_000 <= items["written", "proj-1"].bytes < 40_000
    run = items["run", RUN]
    assert (run.keep, run.checkpoints) == ("", True)
    assert run.files is not None
    assert set(run.files) == {
        RunFile(node="gpu-0", path="checkpoints/c.pt", bytes=8),
        RunFile(node="gpu-0", path="artifacts", bytes=4),
    }
    assert left.home is not None
    assert find_leftovers(node).home == left.home


def test_look_at_a_clean_node_creates_nothing(tmp_path: Path) -> None:
    tmp_path.joinpath("home").mkdir()
    left = find_leftovers(NodeHere(tmp_path / "home"))
    assert (left.items, left.home) == ((), None)
    assert list(tmp_path.joinpath("home").iterdir()) == []


def test_clean_removes_only_the_named_items(node: NodeHere) -> None:
    for path in ("envs/a/ready.json", "envs/b/ready.json", "wheels/w.whl", "uv/1/uv", ".removed-0a/x"):
        write(node, path)
    send(node, "proj-1", **{"train.py": b"code"})
    write(node, "code/proj-1/out.pt", b"x" * 20_000)
    write_run(node, RUN)
    write_run(node, OTHER)
    write(node, "code/proj-1.lock")
    expected = [
        ("environment", "a"),
        ("wheels", "wheels"),
        ("removed", ".removed-0a"),
        ("code", "proj-1"),
        ("run", RUN),
    ]
    done = clean(node, expected)
    assert (done.removed, done.retained) == (len(expected), ())
    assert done.freed > 0
    for path in ("envs/a", "wheels", ".removed-0a", "code/proj-1/train.py", f"runs/{RUN}"):
        assert not there(node, path), path
    for path in ("envs/b/ready.json", "uv/1/uv", "code/proj-1/out.pt", f"runs/{OTHER}/gpu-0/exit.json"):
        assert there(node, path), path
    assert not there(node, "code/proj-1.manifest.json"), "else the next sync would take what is gone for sent"
    assert there(node, "code/proj-1.lock")
    assert clean(node, [("written", "proj-1")]).freed >= 20_000
    assert list((node.home / ".gpuctl-node" / "code").iterdir()) == []


def test_lock_of_a_sync_is_not_taken_from_it_and_a_removed_one_is_made_anew(tmp_path: Path) -> None:
    project, lock = str(tmp_path / "proj-1"), tmp_path / "proj-1.lock"
    beats: list[int] = []
    with sync_lock.alone(project, lambda: None):
        sync_lock.remove(project)
        assert lock.exists()
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def let_go() -> None:
            beats.append(1)
            lock.unlink()
            fcntl.flock(held, fcntl.LOCK_UN)

        with sync_lock.alone(project, let_go):
            assert lock.exists(), "a sync that comes now waits for this one"
    sync_lock.remove(project)
    assert (lock.exists(), len(beats)) == (False, 1)


def test_lock_that_took_the_place_of_a_removed_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, flock = tmp_path / "proj-1.lock", fcntl.flock
    lock.touch()

    def after_another_removed_it(file: BinaryIO, how: int) -> None:
        lock.unlink()
        lock.write_bytes(b"of a sync that came then")
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_another_removed_it)
    sync_lock.remove(str(tmp_path / "proj-1"))
    assert lock.read_bytes() == b"of a sync that came then"


def test_clean_does_not_follow_links_or_hostile_names(node: NodeHere, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "precious").write_text("safe")
    ours = node.home / ".gpuctl-node"
    (ours / "envs").mkdir()
    (ours / "envs" / "linked").symlink_to(outside)
    (ours / "wheels").symlink_to(outside)
    (ours / "runs").symlink_to(outside)
    write(node, "code/proj-1/file")
    (ours / "code" / "proj-1" / "link").symlink_to(outside)
    assert {(item.kind, item.name) for item in find_leftovers(node).items} == {
        ("written", "proj-1"),
    }
    names = ("linked", "..", ".", "", "../..", "a/b", "/etc", "no-such", "nul\0")
    expected = [("environment", name) for name in names]
    expected += [
        ("wheels", "wheels"),
        ("run", "inner"),
        ("removed", "envs"),
        ("home", ".ssh"),
        ("written", "proj-1"),
    ]
    done = clean(node, expected)
    assert done.removed == 1
    assert len(done.retained) == len(expected) - 1
    assert (outside / "inner" / "precious").read_text() == "safe"
    assert (ours / "envs" / "linked").is_symlink()


def placed_long_ago(node: NodeHere) -> Path:
    """Place a checkpoint for a run that was never launched, and return the file."""
    file = write(node, f"runs/{RUN}/gpu-0.checkpoints/step-1")
    for path in (file, *file.parents[:2]):
        os.utime(path, (time.time() - 48 * 3600,) * 2)
    return file


@pytest.mark.parametrize("changed", [None, "step-1", ".", ".."])
def test_clean_removes_checkpoints_of_a_launch_that_was_cut_off(node: NodeHere, changed: str | None) -> None:
    file = placed_long_ago(node)
    if changed:
        os.utime(file.parent / changed)
    assert [item.kind for item in find_leftovers(node).items] == ["run" if changed else "removed"]
    clean(node, [("removed", RUN)])
    assert file.exists() is bool(changed)


def test_clean_keeps_placed_checkpoints_that_a_process_works_in(node: NodeHere) -> None:
    file = placed_long_ago(node)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=file.parent) as user:
        saved = clean(node, [("removed", RUN)]).retained
        user.communicate()
    assert saved == (Retained(kind="removed", name=RUN, why="in use"),)
    assert file.exists()


def test_clean_refuses_while_a_run_is_active(node: NodeHere) -> None:
    write(node, "envs/a/ready.json")
    part = write_run(node, RUN, ended=False)
    local = {"pid": os.getpid(), "birth": process.birth(os.getpid()), "boot_id": process.boot_id()}
    (part / "runner.json").write_text(json.dumps(local))
    assert by_name(find_leftovers(node))["run", RUN].keep == "not known to be over"
    with pytest.raises((RemoteError, AssertionError), match="is going on here, and nothing was removed"):
        clean(node, [("environment", "a")])
    assert there(node, "envs/a/ready.json")


def test_clean_keeps_a_run_that_may_be_active_elsewhere(node: NodeHere) -> None:
    write_run(node, RUN, ended=False, boot_id="another machine's")
    assert by_name(find_leftovers(node))["run", RUN].keep == "not known to be over"
    assert clean(node, [("run", RUN)]).retained == (
        Retained(kind="run", name=RUN, why="not known to be over"),
    )
    assert there(node, f"runs/{RUN}/gpu-0/runner.json")


@pytest.mark.parametrize(("silent_h", "retained"), [(1, True), (48, False)])
def test_clean_keeps_what_a_run_of_another_machine_with_this_home_uses(
    node: NodeHere, silent_h: float, retained: bool
) -> None:
    write(node, "envs/a/ready.json")
    part = write_run(node, RUN, ended=False, boot_id="another machine's")
    runner = part / "runner.json"
    runner.write_text(
        json.dumps({**json.loads(runner.read_text()), "uses": [["envs", "a"], ["code", "p-1"]]})
    )
    wrote = time.time() - silent_h * 3600
    os.utime(runner, (wrote, wrote))
    assert by_name(find_leftovers(node))["environment", "a"].keep == "in use" * retained
    clean(node, [("environment", "a")])
    assert there(node, "envs/a/ready.json") is retained


def test_clean_keeps_a_run_of_which_a_file_changed_since_it_was_brought(node: NodeHere) -> None:
    write_run(node, RUN)
    write(node, f"runs/{RUN}/gpu-0/artifacts/a.bin", b"newer")
    path, brought = (
        "gpu-0/artifacts/a.bin",
        [hashlib.sha256(body).hexdigest() for body in (b"other", b"older")],
    )
    saved = clean(node, [("run", RUN)], {RUN: {path: brought}}).retained
    assert [item.why for item in saved] == [f"{path} is not what was brought of it; --all removes it"]
    brought.append(hashlib.sha256(b"newer").hexdigest())
    assert clean(node, [("run", RUN)], {RUN: {path: brought}}).removed == 1


def test_what_a_second_run_put_aside_is_files_of_runs(node: NodeHere) -> None:
    write(node, "code/proj-1.aside-20261121-060000/snapshot.pt")
    assert set(by_name(find_leftovers(node))) == {("written", "proj-1.aside-20261121-060000")}


def test_what_gpuctl_keeps_beside_a_run_is_not_missed_here(node: NodeHere) -> None:
    write_run(node, RUN)
    before = by_name(find_leftovers(node))["run", RUN].files
    for name in ("code.json", "outputs.json", "hangs/report.json", "hangs/rank-0.state"):
        write(node, f"runs/{RUN}/gpu-0/{name}")
    assert by_name(find_leftovers(node))["run", RUN].files == before


def test_clean_keeps_an_environment_in_use(node: NodeHere) -> None:
    python = write(node, "envs/a/venv/bin/python")
    python.unlink()
    python.symlink_to(sys.executable)
    write(node, "envs/b/ready.json")
    with subprocess.Popen([python, "-I", "-c", "input()"], stdin=subprocess.PIPE) as user:
        assert by_name(find_leftovers(node))["environment", "a"].keep == "in use"
        done = clean(node, [("environment", "a"), ("environment", "b")])
        user.communicate(b"\n")
    assert done.retained == (Retained(kind="environment", name="a", why="in use"),)
    assert done.removed == 1
    assert clean(node, [("environment", "a")]).retained == ()


def test_clean_keeps_an_environment_being_built_and_its_wheels(node: NodeHere) -> None:
    write(node, "envs/a/venv/pyvenv.cfg")
    write(node, "wheels/w.whl")
    lock = write(node, "envs/a.lock")
    with lock.open("r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        saved = clean(node, [("environment", "a"), ("wheels", "wheels")]).retained
    assert [item.why for item in saved] == ["it is being built", "an environment is being built from them"]
    assert clean(node, [("environment", "a"), ("wheels", "wheels")]).retained == ()


def test_look_and_clean_refuse_malformed_answers(node: NodeHere, monkeypatch: pytest.MonkeyPatch) -> None:
    for output in (
        {"t": "item", "kind": "secret", "name": "x", "bytes": 1},
        {"t": "item", "kind": "run"},
        {"t": "end"},
    ):
        with pytest.raises(BadAnswer, match=r"gpu-0: what it says of its disk can't be read"):
            find_leftovers(Saying(output))
    with pytest.raises(BadAnswer, match="of the removal"):
        clean(Saying({"t": "cleaned", "freed": 1, "removed": 1, "retained": [["run"]]}), [])


class Saying(NodeHere):
    """A node with one fixed answer."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(Path("/nowhere"))
        self.said = said

    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Any:  # type: ignore[override]
        return nullcontext(SimpleNamespace(frames=lambda: iter([(self.said, b"")])))


def test_remove_tree_removes_deep_and_unreadable_folders(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (victim / "file").write_text("safe")
    root = tmp_path / "root"
    root.mkdir()
    local = os.open(root, os.O_RDONLY)
    for _ in range(1100):  # longer than any path can be, deeper than Python recurses
        os.mkdir("deep", dir_fd=local)
        inner = os.open("deep", os.O_RDONLY, dir_fd=local)
        os.close(local)
        local = inner
    os.symlink(victim, "link", dir_fd=local)
    os.close(local)
    (root / "closed").mkdir()
    (root / "closed" / "new\nline").write_bytes(b"x" * 10_000)
    (root / "closed").chmod(0)
    (root / "shared").write_bytes(b"x" * 10_000)
    os.link(root / "shared", tmp_path / "other name")
    assert sum(1 for _ in walk(root)) >= 2
    freed, problem = remove_tree(root)
    assert problem is None
    assert not root.exists()
    assert (victim / "file").read_text() == "safe"
    assert victim.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "other name").read_bytes() == b"x" * 10_000
    assert freed > 10_000


def test_remove_tree_refuses_a_link_as_root(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("safe")
    (tmp_path / "root").symlink_to(tmp_path / "victim")
    assert remove_tree(tmp_path / "root") == (0, "root: it is a link")
    assert (tmp_path / "victim" / "file").read_text() == "safe"


def with_mounts(mounts: str, code: str, home: Path) -> list[str]:
    """Run code of the node's part with private mounts; return its lines of output."""
    script = f'{mounts} && exec "$0" "$@"'
    python = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    command = ["unshare", "-rm", "sh", "-ec", script, *python]
    done = subprocess.run(
        command, cwd=home, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, timeout=20
    )
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("mount -t tmpfs none {} && echo safe >{}/precious", "data: something else is mounted there"),
        ("mount --bind other {}", "data: Device or resource busy"),
    ],
)
@pytest.mark.parametrize("point", ["root/data", "root/deep/data"])
def test_remove_tree_keeps_mounts_within_the_tree(tmp_path: Path, mount: str, why: str, point: str) -> None:
    for folder in (tmp_path / point, tmp_path / "other"):
        folder.mkdir(parents=True)
    (tmp_path / "root" / "file").write_bytes(b"x")
    (tmp_path / "other" / "precious").write_text("safe")
    code = (
        "from pathlib import Path\n"
        "from remote.shared.trees import remove_tree\n"
        "print(remove_tree(Path('root'))[1])\n"
        "print(*[path.name for path in Path('root').rglob('*') if path.is_file()])"
    )
    assert with_mounts(mount.replace("{}", point), code, tmp_path) == [why, "precious"]
    assert (tmp_path / "other" / "precious").read_text() == "safe"


def test_code_removal_keeps_mounts_and_removes_the_rest(node: NodeHere) -> None:
    send(node, "proj-1", **{"train.py": b"code"})
    for name in ("a", "b", "c"):
        write(node, f"code/proj-1/{name}/out.pt", b"x" * 20_000)
    write(node, "code/proj-1/data/under").unlink()
    code = (
        "from remote.node.storage import leftovers, removal\n"
        "written = [one for one in leftovers.leftovers() if one.kind == 'written']\n"
        "freed, problem = removal.remove_code(written[0], heartbeat=lambda: None)\n"
        "print(freed >= 40_000, problem)\n"
        "print((removal.NODE_HOME / 'code/proj-1/data/precious').read_text())"
    )
    place = ".gpuctl-node/code/proj-1"
    busy = f"mount --bind {place}/a/out.pt {place}/b/out.pt"
    disk = f"mount -t tmpfs none {place}/data && echo safe >{place}/data/precious"
    assert with_mounts(busy, code.rpartition("\n")[0], node.home) == ["True out.pt: Device or resource busy"]
    assert [there(node, f"code/proj-1/{name}") for name in ("a", "b", "c")] == [False, True, False]
    write(node, "code/proj-1/data/under").unlink()
    write(node, "code/proj-1/c/out.pt", b"x" * 50_000)
    assert with_mounts(disk, code, node.home)[:2] == ["True data: something else is mounted there", "safe"]
    (node.home / "other").mkdir()
    (node.home / "other" / "precious").write_text("safe")
    write(node, "code/proj-1/c/out.pt", b"x" * 50_000)
    write(node, "code/proj-1/my data/under").unlink()
    same_disk = f"mount --bind other '{place}/my data'"
    output = with_mounts(same_disk, code.replace("1/data", "1/my data"), node.home)
    assert output == ["True my data: something else is mounted there", "safe"]


def test_sizes_count_hard_links_once_until_a_deadline(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a" / "one", tmp_path / "a" / "two")
    (tmp_path / "a" / "root").symlink_to("/")
    sizes = Sizes(60)
    files = [tmp_path / "a" / name for name in walk(tmp_path / "a")]
    result = sizes.of(files)
    assert 100_000 <= result["shared"] <= result["bytes"] < 150_000
    assert result["whole"] is True
    assert sizes.of(files)["shared"] == 0
    assert Sizes(-1).of(files) == {"bytes": 0, "shared": 0, "whole": False}
