"""The commit of a project and the version that git gives it, as this computer works them out for the nodes."""

import subprocess
from datetime import date
from pathlib import Path

import pytest

from inventories.runs.commit import Commit
from remote.files.git import Described, commit_of, describe
from remote.files.tree import read_tree
from remote.python_env import project
from remote.python_env.project import project_above, with_version

SHA = "0123456789abcdef"
TOML = '[build-system]\nrequires = ["{}"]\n[project]\nname = "my.pkg"\ndynamic = ["version"]\n'


def git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def commit(folder: Path, *tags: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "--allow-empty", "-m", "Change")
    for tag in tags:
        git(folder, "tag", tag)
    return git(folder, "rev-parse", "HEAD")


def test_commit_is_dirty_where_files_that_are_sent_differ_from_it(repository: Path) -> None:
    assert commit_of(repository) is None, "there is no commit yet"
    (repository / ".gitignore").write_text("out\n")
    (repository / "a.py").write_text("")
    sha = commit(repository)
    (repository / "out").write_text("ignored")
    assert commit_of(repository) == Commit(sha=sha, dirty=False)
    (repository / "new.py").write_text("")
    assert commit_of(repository) == Commit(sha=sha, dirty=True)
    (repository / "new.py").unlink()
    (repository / "sub").mkdir()
    (repository / "a.py").write_text("1")
    assert commit_of(repository) == Commit(sha=sha, dirty=True)
    assert commit_of(repository / "sub") == Commit(sha=sha, dirty=False), "files beside it are not sent"


def test_folder_outside_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None


def test_commit_is_described_by_the_nearest_tag_with_a_digit(repository: Path) -> None:
    commit(repository)
    assert describe(repository) == Described(tag="", distance=1)
    commit(repository, "v1.2-rc1", "nightly")
    commit(repository, "latest")
    assert describe(repository) == Described(tag="v1.2-rc1", distance=1)


@pytest.mark.parametrize(
    ("tag", "distance", "dirty", "version"),
    [
        ("v1.2.3", 0, False, "1.2.3"),
        ("1.2.3", 2, False, "1.2.4.dev2+g012345678"),
        ("pkg-v1.9", 1, True, "1.10.dev1+g012345678.d20260102"),
        ("v1.2.3", 0, True, "1.2.4.dev0+g012345678.d20260102"),
        ("v2.0.0rc1", 0, False, "2.0.0rc1"),
        ("v2.0.0rc1", 4, False, "2.0.0rc2.dev4+g012345678"),
        ("", 7, False, "0.1.dev7+g012345678"),
        ("model-3-best", 5, False, "0.1.dev5+g012345678"),
    ],
)
def test_version_is_the_tags_or_a_development_version_before_the_next(
    tag: str, distance: int, dirty: bool, version: str
) -> None:
    described = Described(tag=tag, distance=distance)
    assert project.version_of(Commit(sha=SHA, dirty=dirty), described, date(2026, 1, 2)) == version


@pytest.mark.parametrize(
    ("name", "text", "of_git"),
    [
        ("pyproject.toml", TOML.format("setuptools-scm>=8"), True),
        ("pyproject.toml", TOML.format("hatch-vcs"), True),
        ("pyproject.toml", TOML.format("versioningit~=3.0"), True),
        ("pyproject.toml", TOML.format("uv-dynamic-versioning"), True),
        ("pyproject.toml", TOML.format("poetry-dynamic-versioning"), True),
        ("pyproject.toml", TOML.format("setuptools-git-versioning"), True),
        ("pyproject.toml", TOML.format("pdm-backend") + '[tool.pdm.version]\nsource = "scm"\n', True),
        ("pyproject.toml", TOML.format("setuptools"), False),
        ("setup.py", "from setuptools import setup\nsetup(use_scm_version=True)\n", True),
        ("setup.py", "from setuptools import setup\nsetup(setup_requires=['pbr'], pbr=True)\n", True),
    ],
)
def test_project_has_its_version_where_the_build_system_takes_it_from_git(
    repository: Path, name: str, text: str, of_git: bool
) -> None:
    (repository / name).write_text(text)
    commit(repository, "v3.1")
    project = project_above(repository, read_tree(repository))
    assert project is not None
    result = with_version(project, commit_of(repository), repository)
    assert result.version == ("3.1" if of_git else None)
    assert set(result.version_variables.values()) == {result.version or "0"}
    assert all("_PRETEND_VERSION_FOR_" in variable for variable in result.version_variables)
    if name == "pyproject.toml":
        assert list(result.version_variables) == ["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MY_PKG"]
    assert with_version(project, None, repository) == project
