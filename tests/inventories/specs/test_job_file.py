"""Test the search for a job's file, and its cluster."""

from pathlib import Path

import pytest

from inventories.errors import InvalidInput
from inventories.specs.job_file import cluster_of, find


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "a" / "b").mkdir(parents=True)
    (tmp_path / "gpuctl.yaml").write_text("")
    return folder


def test_find_returns_nearest_file_within_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "a" / "b")
    assert find() is None, "that above the repository is another's"
    (repository / "gpuctl.yaml").write_text("")
    assert find() == Path("../../gpuctl.yaml")
    (repository / "a" / "gpuctl.yaml").write_text("")
    assert find() == Path("../gpuctl.yaml")


def test_find_looks_at_the_folder_alone_outside_of_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpuctl.yaml").write_text("")
    (tmp_path / "within").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find() == Path("gpuctl.yaml")
    monkeypatch.chdir(tmp_path / "within")
    assert find() is None


def test_find_takes_no_repository_of_a_home_for_a_project(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "gpuctl.yaml").write_text("")
    monkeypatch.setenv("HOME", str(repository / "a"))
    monkeypatch.chdir(repository / "a" / "b")
    assert find() is None


def test_find_returns_none_in_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert find() is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cluster: blue", "blue"),
        ("cluster: {cluster: blue, anything: [1]}\nother: x", "blue"),
        ("cluster: {count: 2}", None),
        ("cluster:", None),
        ("run: {}", None),
        ("- a", None),
        ("", None),
    ],
)
def test_cluster_of_reads_the_name_alone(tmp_path: Path, text: str, name: str | None) -> None:
    path = tmp_path / "gpuctl.yaml"
    path.write_text(text)
    assert cluster_of(path) == name


@pytest.mark.parametrize("text", ["cluster: [", "cluster: 7", "cluster: {cluster: A B}"])
def test_cluster_of_refuses_a_name_that_is_not_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gpuctl.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"gpuctl\.yaml:1: "):
        cluster_of(path)
