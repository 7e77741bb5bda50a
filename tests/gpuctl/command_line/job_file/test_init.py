"""Test `gpuctl init`: the proposal for a project, and the job file that it writes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import a_machine

from gpuctl.command_line import cli
from gpuctl.command_line.job_file.look import Data
from gpuctl.command_line.job_file.propose import Proposal, propose
from gpuctl.command_line.job_file.read import Job, read_job
from inventories.disk.store import Store
from inventories.machine import Inventory, Machine

TRAINS = "import torch.distributed as dist\ndist.init_process_group()\n"
MAIN = "if __name__ == '__main__':\n    print(1)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


def put(project: Path, **files: str) -> None:
    """Write files; `__` in a name stands for `/`."""
    for name, text in files.items():
        path = project / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def proposed(project: Path, script: str | None = None) -> Proposal:
    return propose(project, Store(project.parent / "home"), script=script)


def written(proposal: Proposal) -> Job:
    """Read the proposed file as train does."""
    proposal.path.write_text(proposal.text())
    job = read_job(proposal.path)
    proposal.path.unlink()
    return job


def machine(rank: int) -> Machine:
    return a_machine(name=f"m-{rank}", rank=rank, port=1 + rank, gpus=1, id=str(rank))


@pytest.mark.parametrize(
    ("files", "path", "reason"),
    [
        ({"a": MAIN, "my": TRAINS + MAIN}, "my.py", "it has init_process_group"),
        ({"eval": MAIN + "l.backward()\n", "train": MAIN + "l.backward()\n"}, "train.py", "it has backward()"),
        ({"src__fit": TRAINS, "model": "class Trainer(object): pass\n"}, "src/fit.py", "it has init_process_group"),
        ({"fit": "t = Trainer(m)\nt.fit()\n", "setup": "Trainer()\nf()\n"}, "fit.py", "it has a Trainer"),
        ({"tests__test_train": TRAINS, "test_x": TRAINS, "only": MAIN}, "only.py", "it has __main__"),
        ({"bad": "def f(:\n", "fit": TRAINS}, "fit.py", "it has init_process_group"),
    ],
)  # fmt: skip
def test_init_finds_the_likeliest_script(
    project: Path, files: dict[str, str], path: str, reason: str
) -> None:
    put(project, **files)
    entry = proposed(project).entry
    assert (entry.path, entry.reason) == (path, reason)
    assert written(proposed(project)).script == project / path


@pytest.mark.parametrize("files", [{}, {"tool": "print(1)\n", "other": "print(1)\n"}, {"lib": "x = 1\n"}])
def test_init_proposes_the_built_in_job_where_nothing_trains(project: Path, files: dict[str, str]) -> None:
    put(project, **files)
    result = proposed(project)
    assert result.entry is None
    assert next(result.reasons()).startswith("run: the built-in job, as no script that trains was found.")
    job = written(result)
    assert (job.script, job.module) == (None, None)


def test_init_takes_the_script_that_was_named_and_tells_of_others(project: Path) -> None:
    put(project, train=TRAINS, other=TRAINS)
    assert (
        list(proposed(project).reasons())[1] == "run: not other.py; to choose one of them: gpuctl init SCRIPT"
    )
    entry = proposed(project, "other.py").entry
    assert (entry.path, entry.reason) == ("other.py", "you named it")


def test_init_runs_relative_imports_as_a_module_and_rays_drivers_with_ray(project: Path) -> None:
    put(project, pkg__train="from . import model\n" + TRAINS, drive="import ray\nray.init()\n")
    assert written(proposed(project)).module == "pkg.train"
    assert {key.keyword: value for key, value in written(proposed(project, "drive.py")).options.items()} == {
        "mode": "ray"
    }


def test_init_includes_what_git_ignores_and_the_script_names(project: Path) -> None:
    (project / ".gitignore").write_text("data\nsets\nruns\n.env\nhuge.bin\nbeside\n")
    for name in ("data/cifar/a", "sets/b", "runs/old", ".env", "my/beside/c", "sent"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("1234")
    with (project / "huge.bin").open("wb") as file:
        file.truncate(600_000_000)
    put(
        project,
        my__train=TRAINS
        + "d = 'cifar'\nopen(f'data/{d}/a'), open('huge.bin'), open('runs/old'), open('.env')\n"
        "open('sent'), open('../x'), open('gone'), open('a' * 9), open('beside')\n",
    )
    result = proposed(project)
    assert result.data == (
        Data(path="data", bytes=4),
        Data(path="huge.bin", bytes=None),
        Data(path="my/beside", bytes=4),
    )
    includes = [value for key, value in written(result).options.items() if key.keyword == "include"]
    assert includes == [(project / "data", project / "my/beside")], "what is too large is told alone"
    assert "gpuctl push --into-project huge.bin" in "\n".join(result.reasons())


@pytest.mark.parametrize(
    ("name", "source", "by_itself", "written_as"),
    [
        ("requirements.txt", "requirements.txt", True, None),
        ("requirements/gpu.txt", "requirements/gpu.txt", False, "requirements/gpu.txt"),
        ("requirements-train.txt", "requirements-train.txt", False, "requirements-train.txt"),
    ],
)
def test_init_names_requirements_that_a_run_does_not_find(
    project: Path, name: str, source: str, by_itself: bool, written_as: str | None
) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("einops\n")
    result = proposed(project)
    assert (result.requirements, result.found_by_itself) == (source, by_itself)
    options = {key.keyword: value for key, value in written(result).options.items()}
    assert options.get("requirements") == (project / written_as if written_as else None)


@pytest.mark.parametrize(
    ("facts", "spec"),
    [
        ({"provider": "local"}, {"cluster": "default", "provider": "local", "count": 2}),
        (
            {"cluster": "a10", "provider": "oci", "shape": "VM.GPU.A10.2", "region": "us-ashburn-1"},
            {"cluster": "a10", "shape": "VM.GPU.A10.2", "region": "us-ashburn-1", "count": 2},
        ),
        ({"cluster": "lab", "provider": "hosts"}, {"cluster": "lab"}),
    ],
)
def test_init_describes_the_cluster_that_is_there(
    project: Path, facts: dict[str, Any], spec: dict[str, Any]
) -> None:
    facts = {"cluster": "default", **facts}
    inventory = Inventory(created_at="2026-11-21T05:46:25+00:00", machines=(machine(0), machine(1)), **facts)
    Store(project.parent / "home").cluster(facts["cluster"]).save(inventory)
    result = written(proposed(project)).spec
    assert result is not None
    assert {name: getattr(result, name) for name in spec} == spec


@pytest.mark.parametrize("name", ["a b.py", "true.py", "ü: x.py", "'\"#.py", "-.py", "1e3.py"])
def test_init_quotes_odd_names(project: Path, name: str) -> None:
    (project / name).write_text(TRAINS)
    assert written(proposed(project)).script == project / name


def test_init_command_writes_once_and_tells_what_it_chose(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, train=TRAINS)
    assert cli.main(["init", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "file": str(project / "gpuctl.yaml"),
        "script": "train.py",
        "module": None,
        "reason": "it has init_process_group",
        "others": [],
        "requirements": None,
        "include": [],
        "too_large": [],
        "cluster": None,
    }
    assert err.splitlines() == [
        "run: train.py, because it has init_process_group",
        "wrote gpuctl.yaml. Try it: gpuctl train --dry-run",
    ]
    before = (project / "gpuctl.yaml").read_text()
    assert cli.main(["init"]) == 2
    assert "gpuctl.yaml is there already: edit it, or remove it first." in capsys.readouterr().err
    assert (project / "gpuctl.yaml").read_text() == before
    assert cli.main(["init", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "gpuctl.yaml"


def test_init_refuses_a_script_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "gone.py"]) == 2
    assert "There is no script gone.py." in capsys.readouterr().err
    assert not (project / "gpuctl.yaml").exists()


def test_init_in_a_folder_of_the_project_tells_of_the_file_above(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "gpuctl.yaml").write_text("")
    put(project, sub__train=TRAINS)
    monkeypatch.chdir(project / "sub")
    assert cli.main(["init"]) == 0
    assert "note: ../gpuctl.yaml no longer holds in this folder\n" in capsys.readouterr().err
    assert read_job(project / "sub" / "gpuctl.yaml").script == project / "sub" / "train.py"
