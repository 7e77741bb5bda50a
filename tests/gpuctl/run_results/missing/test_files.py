"""Test the advice on a file or folder missing on a rank: only remedies that certainly work."""

import shlex
import subprocess
from pathlib import Path

import pytest

from gpuctl.run_results.missing.files import how_to_send, not_here
from inventories.runs.run import RunOptions

LACKS = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
NO_PARENT = "RuntimeError: Parent directory {} does not exist."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a new repository with ignored files, a link that leads out, and an empty folder."""
    root = tmp_path / "project"
    for name in ("a.py", "data/train.bin", "logs/old.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "x.bin").touch()
    for link in ("linked", "ignored link"):
        (root / link).symlink_to(tmp_path / "big")
    (root / "empty").mkdir()
    (root / ".gitignore").write_text("data\nlogs\nignored link\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.chdir(root)
    return root


def test_how_to_send_explains_the_folder_of_tasks_of_ray(project: Path) -> None:
    (project / "a.yaml").touch()
    options = RunOptions(project=str(project), root=str(project))
    sentence = how_to_send(LACKS.format("a.yaml"), options, mode="ray")
    assert sentence.endswith("os.path.abspath('a.yaml') in the script, outside them")
    assert how_to_send(LACKS.format("a.yaml"), options) == ""
    assert how_to_send(LACKS.format("data/train.bin"), options, mode="ray").endswith("--include data")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (LACKS.format("data/train.bin"), "Send it with this option: --include data"),
        (LACKS.format("data"), "Send it with this option: --include data"),
        (LACKS.format("logs/new.csv"), "os.makedirs('logs', exist_ok=True). Or send it with all that it holds: "
         "--include logs"),
        (NO_PARENT.format("logs"), "The folder logs is on this computer and was not sent, because git ignores it"),
        (LACKS.format("linked/x.bin"), "gpuctl push --into-project linked"),
        (LACKS.format("ignored link/x.bin"), "gpuctl push --into-project 'ignored link'"),
        (LACKS.format("../big/x.bin"), "/big/x.bin data"),
        (LACKS.format("nowhere/x.bin"), ""),
        (NO_PARENT.format("nowhere"), ""),
        (NO_PARENT.format("empty"), ""),
        (LACKS.format("new.csv"), ""),
        (LACKS.format("/etc/hosts"), ""),
    ],
)  # fmt: skip
def test_how_to_send_names_what_brings_a_path(project: Path, words: str, sentence: str) -> None:
    result = how_to_send(words, RunOptions(project=str(project), root=str(project)))
    assert sentence in result
    assert bool(sentence) == bool(result)


@pytest.mark.parametrize(
    ("words", "path", "folder"),
    [
        (LACKS.format("nowhere/x 1.bin"), "nowhere/x 1.bin", "nowhere"),
        (LACKS.format("/home/u/.gpuctl-node/code/project-01/sets/x.bin"), "sets/x.bin", "sets"),
        (LACKS.format("new.csv"), "new.csv", ""),
        (LACKS.format("data/new.csv"), "data/new.csv", ""),
        (LACKS.format("data/train.bin"), "", ""),
        (LACKS.format("/data/x.bin"), "", ""),
        (LACKS.format("ffmpeg"), "", ""),
        (NO_PARENT.format("nowhere"), "", ""),
        ("ValueError: no file", "", ""),
    ],
)
def test_file_of_the_project_that_this_computer_lacks_is_named(
    project: Path, words: str, path: str, folder: str
) -> None:
    sentence = not_here(words, RunOptions(project=str(project), root=str(project)))
    expected = (
        f"{path} is not on this computer either (gpuctl looked in {project}). Copy it there, then send it: "
        f"gpuctl push --into-project {shlex.quote(path)}"
    )
    made = f"os.makedirs({folder!r}, exist_ok=True)"
    assert sentence.startswith(expected if path else "") and bool(sentence) == bool(path)
    assert sentence.endswith(made) == bool(folder)
