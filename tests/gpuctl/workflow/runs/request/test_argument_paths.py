"""Notes before a run on mistyped paths in a script's arguments, and on paths that only this computer has."""

from pathlib import Path

import pytest

from gpuctl.workflow.runs.request.argument_paths import notes_on_paths


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        "job/data/train.csv",
        "job/conf/Base.yaml",
        "job/out/model1.pt",
        "beside/val.csv",
        "sets/part",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path / "job"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["--data", "dta/train.csv"], "data/train.csv"),
        (["--data=data/trian.csv"], "data/train.csv"),
        (["data.path=data/train.cvs"], "data/train.csv"),
        (["./dat/tran.csv"], "data/train.csv"),
        (["--epochs", "3", "conf/base.yml"], "conf/Base.yaml"),
        (["--data-dir", "dta"], "data"),
        (["--x", "../besides/val.csv"], "../beside/val.csv"),
        (["--data", "data/train.csv"], None),
        (["--data", "data/other.csv"], None),
        (["--model", "dta"], None),
        (["--out", "dta/train.csv"], None),
        (["--save-dir=dat"], None),
        (["--init", "out/model2.pt"], None),
        (["--model", "dta-llama/train-7b"], None),
        (["--url", "s3://dta/train.csv"], None),
        (["--lr", "1e-3", "--steps", "0.5", "--text", "a dta/train.csv"], None),
        (["--shift", "-.5", "dta/train.csv"], "data/train.csv"),
        (["--out", "-1", "--fast", "dta/train.csv"], "data/train.csv"),
        (["/dta/train.csv"], None),
    ],
)
def test_missing_path_names_the_path_that_is_nearly_the_same(
    project: Path, words: list[str], near: str | None
) -> None:
    value = words[-1].partition("=")[2] or words[-1]
    expected = [f"note: {value} does not exist: did you mean {near}?"] if near else []
    for local in (False, True):
        assert notes_on_paths(words, project, project, local=local) == expected


def test_absolute_path_of_this_computer_is_noted_on_local_hosts_alone(project: Path) -> None:
    inside, outside, absent = (
        project / "data" / "train.csv",
        project.parent / "sets",
        project / "new" / "x.pt",
    )
    words = ["--data", str(inside), "--sets", str(outside), "--out", str(outside), str(absent), "/usr/share"]
    note = "note: {} is on this computer, and rented machines do not have it: {}"
    assert notes_on_paths(words, project, project, local=True) == [
        note.format(inside, "write data/train.csv, which is sent with the project"),
        note.format(outside, f"gpuctl push {outside} data copies it to ~/data on each node"),
    ]
    mistyped = str(inside).replace("train", "trian")
    expected = [f"note: {mistyped} does not exist: did you mean {inside}?"]
    assert notes_on_paths([mistyped], project, project, local=True) == expected
    assert notes_on_paths([*words, str(outside / "prt")], project, project, local=False) == []
