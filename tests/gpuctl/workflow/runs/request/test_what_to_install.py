"""Packages for a run's ranks: the environment, the project, and the project's requirements."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support import a_machine

from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.request.what_to_install import ToInstall, read_packages
from inventories.machine import Machine
from remote.files.tree import tree_of
from remote.launchers.rank_command import built_in_tree

PROJECT = '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "mine"\ndependencies = ["torch"]\n'
MACHINE = a_machine(name="n-0", host="h", private_ip="10.0.0.1")
LOCAL = {**vars(MACHINE), "python": "/own/python"}


@pytest.fixture(autouse=True)
def no_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


def decided(folder: Path, notes: list[str], *, local: bool = False, **options: Any) -> ToInstall:
    request = TrainRequest(words=("s.py",), project=folder, **options)
    machines = [Machine(**LOCAL)] if local else [MACHINE]
    install = read_packages(request, tree_of(folder, "**/*"), None).on(machines, same_machine=local)
    notes += [install.note] if install.note else []
    return install


def test_project_brings_what_it_needs_unless_something_else_decides(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    notes: list[str] = []
    on_nodes = decided(tmp_path, notes)
    assert (on_nodes.environment and on_nodes.environment.kind, on_nodes.dependencies) == ("project", "tell")
    on_hosts = decided(tmp_path, notes, local=True)
    assert (on_hosts.environment, on_hosts.dependencies) == (None, "install")
    assert notes == [], "what the project lists is installed over the hosts' own Python"
    with_python = decided(tmp_path, notes, local=True, python="/own/python")
    assert (with_python.environment, with_python.dependencies) == (None, "tell")
    assert with_python.project is not None
    (tmp_path / "requirements.txt").write_text("torch\n-e .[more]\n")
    by_folder = decided(tmp_path, notes)
    assert (by_folder.project.extras, by_folder.dependencies) == (("more",), "install")
    on_hosts = decided(tmp_path, notes, local=True)
    assert (on_hosts.environment, on_hosts.project.extras, on_hosts.dependencies) == (
        None,
        ("more",),
        "install",
    )
    assert notes == [
        "/own/python, which local hosts use, may lack packages that requirements.txt lists. Install them: "
        "/own/python -m pip install torch"
    ]


def test_local_hosts_get_no_environment_for_projects_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for options in ({"pip": (".[more]",)}, {"requirements": tmp_path / "r.txt"}):
        (tmp_path / "r.txt").write_text("-e .[more]\n")
        install = decided(tmp_path, [], local=True, **options)
        assert (install.environment, install.dependencies) == (None, "install")
        assert install.project.extras == ("more",)
        on_nodes = decided(tmp_path, [], **options)
        assert (on_nodes.environment and on_nodes.environment.always) == ("torch",)
    notes: list[str] = []
    monkeypatch.setitem(LOCAL, "python", sys.executable)
    (tmp_path / "requirements.txt").write_text("torch>=2\nno-such-thing==1\n-e .\n")
    decided(tmp_path, notes, local=True)
    assert notes == [
        f"{sys.executable}, which local hosts use, lacks packages that requirements.txt lists. Install them: "
        f"{sys.executable} -m pip install no-such-thing==1"
    ]


def test_project_is_left_out_where_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "requirements.txt").write_text("torch\n-e .\n")
    without = decided(tmp_path, [], install_project=False)
    assert (without.project, without.dependencies) == (None, "tell")


def test_dry_run_tells_of_the_project_and_of_the_names_of_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:secret@index.corp/simple")
    install = decided(tmp_path, [], local=True)
    assert "secret" not in repr(install)
    assert list(install.lines()) == [
        "the project mine is installed, editable, with what it needs and is not there; that Python stays as it is",
        "what installs there is given this computer's UV_DEFAULT_INDEX",
    ]


def test_engine_of_the_built_in_job_is_installed_beside_what_it_needs() -> None:
    def always(*words: str) -> tuple[str, ...]:
        packages = read_packages(TrainRequest(words=words), built_in_tree(), None)
        install = packages.on([MACHINE], same_machine=False)
        return install.environment.always

    assert always("--epochs", "1") == ("torch",)
    assert always("--engine", "torch") == ("torch",)
    assert always("--engine=deepspeed") == ("torch", "deepspeed>=0.19")
