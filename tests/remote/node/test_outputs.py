"""Test which files of the project's folder were written by a run, and which are sent."""

import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remote.node.storage import changed_files, outputs, outside
from remote.shared import frames
from remote.shared.trees import matches

EVERYTHING = {"patterns": [], "max_bytes": 10**9}


class Project:
    """A project's folder as a sync left it, and a run that has begun in it."""

    def __init__(self, home: Path, *, run: str = "20261121-060000-0000", node: str = "gpu-0") -> None:
        self.root = home / ".gpuctl-node" / "code" / "my-0123"
        self.run_dir = home / ".gpuctl-node" / "runs" / run / node
        self.root.mkdir(parents=True, exist_ok=True)
        self.run_dir.mkdir(parents=True)

    def sent(self, **texts: str) -> None:
        """Write files as the sync does."""
        manifest = {}
        for name, text in texts.items():
            status = self.write(f"{name}.py", text).lstat()
            manifest[f"{name}.py"] = [status.st_size, status.st_mtime_ns, status.st_mode & 0o777]
        Path(f"{self.root}.manifest.json").write_text(json.dumps(manifest))

    def begin(self, folder: str = ".", home_folders: Sequence[str] = ()) -> None:
        """Begin the run: all existing files are older by the disk's own clock."""
        newest = max([path.lstat().st_ctime_ns for path in self.root.rglob("*")], default=0)
        record = self.run_dir / "code.json"
        while True:
            code = {"root": str(self.root), "folder": folder, "home_folders": list(home_folders)}
            outputs.begin(self.run_dir, code)
            if record.lstat().st_ctime_ns > newest:
                return

    def write(self, name: str | bytes, text: str = "x") -> Path:
        path = self.root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def listed(self) -> list[str]:
        return [path for path, _, _ in outputs.keep(self.run_dir)["listed"]]

    def send(self, wanted: dict[str, Any] = EVERYTHING) -> list[frames.Frame]:
        output = io.BytesIO()
        outputs.send(self.run_dir, wanted, output)
        output.seek(0)
        return list(frames.decode(output.readline, output.read))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Project(tmp_path)


def arrived(said: list[frames.Frame]) -> dict[str, bytes]:
    """Return the files that were sent whole."""
    result: dict[str, bytes] = {}
    for header, body in said:
        if header["t"] == frames.CHUNK:
            result[header["path"]] = result.get(header["path"], b"") + body
        elif header["t"] == frames.COMPLETE:
            result.setdefault(header["path"], b"")
    return result


def test_new_and_changed_files_are_outputs_and_sent_ones_are_not(project: Project) -> None:
    project.sent(train="print(1)", settings="a = 1")
    project.write("of_an_earlier_run.pt")
    project.begin()
    project.write("settings.py", "a = 2")
    project.write("runs/exp1/log.csv")
    assert project.listed() == ["runs/exp1/log.csv", "settings.py"]


def test_files_outside_the_project_are_listed_where_the_launch_says(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "NODE_HOME", tmp_path / ".gpuctl-node")
    monkeypatch.setattr(outside, "SHARED", (str(tmp_path / "shared"),))

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x" * 10)

    write("out/old.pt", "shared/part/old", "sets/old")
    newest = max(path.lstat().st_ctime_ns for path in tmp_path.rglob("old*"))
    patterns = ["~", "out", "out/sub", "shared/*", "single-*.txt", "sets", ".gpuctl-node/code/my-0123/in.txt"]
    paths = [path if path == "~" else str(tmp_path / path) for path in patterns]
    names = ["model.pt", "part", "*.log", "mine", ".gpuctl-node"]
    record = project.run_dir / "code.json"
    while not record.exists() or record.lstat().st_ctime_ns <= newest:
        code = {
            "root": str(project.root),
            "folder": "job",
            "paths": ["../../side.txt", *paths],
            "names": names,
        }
        outputs.begin(project.run_dir, code)
    project.write("in.txt")
    write("out/new.pt", "out/sub/new.pt", "shared/other.txt", "shared/part/a", "shared/of-0.log", "mine/a.pt")
    write("single-0.txt", "notes.txt", ".cache/model.pt", ".gpuctl-node/code/side.txt", "shared/partial")
    if os.geteuid() == 0:
        write("mine/of-another-user.pt", "shared/model.pt")
        for name in ("mine/of-another-user.pt", "shared/model.pt"):
            os.chown(tmp_path / name, 12345, -1)
    listing = outputs.keep(project.run_dir)
    assert [path for path, _, _ in listing["listed"]] == ["in.txt"]
    assert sorted(listing["outside"]) == [
        (".gpuctl-node/code/side.txt", 10, 1),
        ("mine/", 10, 1),
        ("out/", 20, 2),
        ("shared/of-0.log", 10, 1),
        ("shared/part/", 10, 1),
        ("single-0.txt", 10, 1),
    ]
    assert project.send()[0][0]["outside"] == [list(entry) for entry in listing["outside"]]
    assert changed_files.find_changes(str(tmp_path / "mine"), {}, 0, uid=os.geteuid() + 1).files == 0
    monkeypatch.setattr(outside, "LOOK_S", -1)
    assert outputs.keep(project.run_dir)["outside"] == [], "the time for it is over"


def test_folder_that_cannot_be_listed_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").touch()
    names = [changed_files.names_in(str(path)) for path in (tmp_path, tmp_path / "a", tmp_path / "gone")]
    assert names == [["a", "b"], [], []]


def test_new_files_of_ray_tasks_are_listed_without_those_of_ray_and_the_project(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, temporary = tmp_path / ".gpuctl-node", tmp_path / "temporary"
    monkeypatch.setattr(outputs, "NODE_HOME", home)
    daemons, session = home / "ray" / "gpu-0" / "daemons-1", temporary / "r" / "session_latest"
    package = session / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"

    def write(*paths: Path) -> int:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        return max(path.lstat().st_ctime_ns for path in paths)

    old = write(daemons / "old.json", package / "old.pt", session / "artifacts" / "old" / "c.pt")
    while (began_ns := write(tmp_path / "began")) == old:
        pass
    write(daemons / "task.json", daemons / "deep" / "a.pt", package / "b.pt", session / "artifacts/x/c.pt")
    write(daemons / "logs" / "ray.log", daemons / "runner.json", package / "train.py", package / "lib/a.py")
    record = {"run_dir": str(daemons), "temp_dir": str(temporary)}
    (home / "ray" / "gpu-0" / "node.json").write_text(json.dumps(record))

    def listed(node: str = "gpu-0") -> list[str]:
        result = outputs.written_by_tasks(node, {"job/train.py": [], "job/lib/a.py": []}, began_ns)
        return [Path(path).name for path, _, _ in result]

    assert listed() == ["deep", "task.json", "x", "b.pt"]
    assert listed("gpu-1") == []
    shutil.rmtree(daemons)
    assert listed() == ["x", "b.pt"], "Ray's daemons left no folder"


def test_files_of_ray_and_of_the_runs_own_folder_are_outputs_and_older_ones_are_not(
    project: Project, tmp_path: Path
) -> None:
    """Ray keeps checkpoints in the home folder. A script may name a place in the run's folder in its stead."""
    old = tmp_path / "ray_results" / "before" / "model.pt"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    project.begin(home_folders=["ray_results"])
    new = tmp_path / "ray_results" / "exp" / "checkpoint_0" / "model.pt"
    new.parent.mkdir(parents=True)
    new.write_text("new")
    for name in (
        "mine/a.pt",
        "artifacts/b.txt",
        "logs/rank-0.log",
        "torchrun/x",
        "checkpoints/c.pt",
        ".ray/d",
    ):
        (project.run_dir / name).parent.mkdir(exist_ok=True)
        (project.run_dir / name).write_text(name)
    project.write("c.txt", "c")
    mine, ray = "GPUCTL_RUN_DIR/mine/a.pt", "HOME/ray_results/exp/checkpoint_0/model.pt"
    assert project.listed() == [mine, ray, "c.txt"]
    assert arrived(project.send()) == {
        f"outputs/{mine}": b"mine/a.pt",
        f"outputs/{ray}": b"new",
        "outputs/c.txt": b"c",
    }
    for pattern in ("ray_results/exp", "~/ray_results", "model.pt", "ray_results/*"):
        assert list(arrived(project.send({"patterns": [pattern], "max_bytes": 0}))) == [f"outputs/{ray}"]


def test_folder_of_the_project_named_as_the_home_folder_stays_the_projects(
    project: Project, tmp_path: Path
) -> None:
    project.begin(home_folders=["ray_results"])
    project.write("HOME/a.txt", "mine")
    (tmp_path / "ray_results").mkdir()
    (tmp_path / "ray_results" / "b.txt").write_text("x")
    assert arrived(project.send()) == {"outputs/HOME/a.txt": b"mine"}


def test_file_with_an_old_time_of_its_own_is_an_output(project: Project) -> None:
    project.sent(train="print(1)")
    project.begin()
    os.utime(project.write("unpacked.txt"), (1, 1))
    assert project.listed() == ["unpacked.txt"]


def test_file_that_was_touched_and_is_as_it_was_sent_is_no_output(project: Project) -> None:
    project.sent(train="print(1)")
    project.begin()
    (project.root / "train.py").chmod(0o755)
    assert project.listed() == []


@pytest.mark.parametrize(
    "name",
    [
        "__pycache__/a.pyc", ".git/index", "pkg/__pycache__/b.pyc", ".venv/bin/python", ".ipynb_checkpoints/a.ipynb",
        "uv.lock", "data/.lock", "module.pyc", ".nfs0001", ".gpuctl-incoming-1/1", "notes.txt~", "a.egg-info/b",
    ],
)  # fmt: skip
def test_caches_are_no_outputs(project: Project, name: str) -> None:
    project.begin()
    project.write(name)
    assert project.listed() == []


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_environment_of_any_name_is_no_output(project: Project, mark: str) -> None:
    project.begin()
    project.write(f"my-env/{mark}")
    project.write("my-env/lib/torch.so")
    project.write("my-data/lib.so")
    assert project.listed() == ["my-data/lib.so"]


def test_links_are_not_followed_and_no_outputs(project: Project, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    project.begin()
    (project.root / "out").symlink_to(tmp_path / "secrets")
    (project.root / "key").symlink_to(tmp_path / "secrets" / "key")
    os.mkfifo(project.root / "pipe")
    project.write("real.txt")
    assert list(arrived(project.send())) == ["outputs/real.txt"]


def test_what_is_found_is_bounded_and_tells_how_much_there_is(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_files, "MAX_LISTED", 3)
    project.begin()
    for number in range(8):
        project.write(f"shards/{number}.bin", "four")
    project.write("model.pt", "12")
    listing = outputs.keep(project.run_dir)
    assert (listing["files"], listing["bytes"], listing["whole"]) == (9, 34, True)
    assert len(listing["listed"]) == 3
    assert "model.pt" in [path for path, _, _ in listing["listed"]], "what is near the top comes first"


def test_look_at_very_many_files_ends_and_says_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.begin()
    for number in range(changed_files.LOOK_AT_ONCE + 1):
        project.write(f"shards/{number}")
    assert not changed_files.find_changes(str(project.root), {}, 0, look_s=-1).whole
    monkeypatch.setattr(changed_files, "MAX_LOOKED_AT", 5)
    listing = outputs.keep(project.run_dir)
    assert (listing["whole"], len(listing["listed"])) == (False, 4)


def test_small_files_are_sent_smallest_first_up_to_the_limit(project: Project) -> None:
    project.begin()
    for name, size in (("a", 5), ("b", 30), ("c", 10), ("d", 20)):
        project.write(name, "x" * size)
    output = project.send({"patterns": [], "max_bytes": 40})
    assert list(arrived(output)) == ["outputs/a", "outputs/c", "outputs/d"]
    header, body = output[0]
    assert [path for path, _, _ in json.loads(body)] == ["a", "b", "c", "d"]
    assert (header["folder"], header["files"], header["bytes"]) == (".gpuctl-node/code/my-0123", 4, 65)


def test_parts_of_a_checkpoint_are_sent_whole_or_not_at_all(project: Project) -> None:
    project.begin()
    for name, size in (("ckpt/.metadata", 5), ("ckpt/__0_0.distcp", 30), ("c", 10)):
        project.write(name, "x" * size)
    assert list(arrived(project.send({"patterns": [], "max_bytes": 40}))) == ["outputs/c"]
    everything = ["outputs/c", "outputs/ckpt/.metadata", "outputs/ckpt/__0_0.distcp"]
    assert list(arrived(project.send({"patterns": [], "max_bytes": 45}))) == everything


def test_files_that_a_pattern_names_are_sent_in_any_size(project: Project) -> None:
    project.begin()
    for name in ("model.pt", "log.txt", "best/weights.bin"):
        project.write(name, "x" * 100)
    assert sorted(arrived(project.send({"patterns": ["*.pt", "best/"], "max_bytes": 0}))) == [
        "outputs/best/weights.bin",
        "outputs/model.pt",
    ]
    assert arrived(project.send({"patterns": [], "max_bytes": 0})) == {}


@pytest.mark.parametrize(
    ("path", "pattern", "folder", "expected"),
    [
        ("a/b/c.pt", "*.pt", ".", True),
        ("a/b/c.pt", "b", ".", True),
        ("a/b/c.pt", "a/*", ".", True),
        ("a/b/c.pt", "b/*", ".", False),
        ("a/b/c.pt", "b/*", "a", True),
        ("a/b/c.pt", "a/b/", ".", True),
        ("a/b/c.pt", "c", ".", False),
        ("a/b/c.pt", "*.PT", ".", False),
    ],
)
def test_pattern_names_files_and_folders(path: str, pattern: str, folder: str, expected: bool) -> None:
    assert matches(path, pattern, folder) is expected


@pytest.mark.parametrize("name", [b"caf\xe9.txt", b"new\nline", b"\x1b[31mred", b"..x", b"a\\b", b'"quoted"'])
def test_odd_names_are_sent_as_they_are(project: Project, name: bytes) -> None:
    project.begin()
    project.write(name, "odd")
    assert arrived(project.send()) == {f"outputs/{os.fsdecode(name)}": b"odd"}


def test_file_that_a_later_run_changed_is_not_sent_as_this_ones(project: Project) -> None:
    project.begin()
    project.write("model.pt", "first")
    project.write("log.txt", "first")
    outputs.keep(project.run_dir)
    project.write("model.pt", "of the later run")
    (project.root / "log.txt").unlink()
    output = project.send()
    assert arrived(output) == {}
    skipped = {header["path"]: header["reason"] for header, _ in output if header["t"] == frames.SKIPPED}
    assert skipped == dict.fromkeys(
        ["outputs/log.txt", "outputs/model.pt"], "it was changed after the run had ended"
    )


def test_home_that_nodes_share_is_sent_once(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path, node="gpu-1")
    project.begin()
    other.begin()
    project.write("model.pt", "shared")
    outputs.keep(project.run_dir)
    other.write("late.txt", "of gpu-1")
    outputs.keep(other.run_dir)
    first, second = project.send(), other.send()
    assert [item[0][0]["shared_with"] for item in (first, second)] == [["gpu-1"], ["gpu-0"]]
    assert arrived(first) == {"outputs/model.pt": b"shared"}
    assert arrived(second) == {"outputs/late.txt": b"of gpu-1"}


def test_run_without_a_project_or_with_one_that_is_gone_tells_of_no_outputs(project: Project) -> None:
    assert project.send() == []
    project.begin()
    shutil.rmtree(project.root)
    assert [header["files"] for header, _ in project.send()] == [0]
