"""The words of `train --resume`: a script's arguments, and values that the options do not take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import begin_run

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.resume import resolve, superseded
from inventories.disk.store import Store
from inventories.errors import NotFound


@pytest.mark.parametrize(
    ("before", "words", "expected"),
    [
        ("", "--lr 1", "--lr 1"),
        ("--lr 1", "", "--lr 1"),
        ("--lr 1 --fast", "--lr 2", "--fast --lr 2"),
        ("--lr=1", "--lr -2", "--lr -2"),
        ("--lr -1", "--lr=2", "--lr=2"),
        ("--lr -.5", "--lr -.7", "--lr -.7"),
        ("--lr -inf --x -1e-3", "--x -NaN --lr -1,2", "--x -NaN --lr -1,2"),
        ("--input -", "--input a.csv", "--input a.csv"),
        ("--tag a --tag b", "--tag c --tag d", "--tag c --tag d"),
        ("--lr 1 data.csv", "--lr 2", "--lr 1 data.csv --lr 2"),
        ("--lr 1 data.csv --lr 2", "--lr 3", "--lr 1 data.csv --lr 3"),
        ("lr=1 opt=sgd", "lr=2", "opt=sgd lr=2"),
        ("--fast --no-fast", "--fast", "--no-fast --fast"),
    ],
)
def test_arguments_of_repeated_resumes_do_not_grow(before: str, words: str, expected: str) -> None:
    assert superseded(before.split(), words.split()) == tuple(expected.split())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"resume_from": "my.py"}, "--resume-from takes a run, and my.py is a script. To resume its latest run: "
         "gpuctl train --resume my.py"),
        ({"resume": True, "words": ("{run}", "my.py", "--lr", "a b")}, "--resume takes no value. To resume run "
         "{run}: gpuctl train --resume-from {run} my.py --lr 'a b'"),
        ({"resume": True, "words": ("{end}",)}, "--resume takes no value. To resume run {run}: gpuctl train "
         "--resume-from {run}"),
        ({"resume": True, "words": ("a b.pt", "my.py")}, "--resume takes no value: leave out 'a b.pt': gpuctl train "
         "--resume my.py"),
        ({"resume": True, "words": ("latest", "my.py", "-x")}, "--resume takes no value: leave out latest: gpuctl "
         "train --resume my.py -x"),
    ],
)  # fmt: skip
def test_value_that_resume_does_not_take_comes_with_the_line_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("my.py").touch()
    run = begin_run(Store.default())
    words = tuple(word.format(run=run, end=run[-4:]) for word in typed.get("words", ()))
    with pytest.raises(Usage) as refused:
        resolve(App(), TrainRequest(**{**typed, "words": words}))
    assert str(refused.value) == message.format(run=run)


def test_script_to_resume_is_looked_for_in_the_folder_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    run = begin_run(Store.default())
    (tmp_path / run).touch()
    request = TrainRequest(resume=True, words=(run,))
    with pytest.raises(Usage, match="--resume takes no value"):
        resolve(App(), request)
    with pytest.raises(NotFound, match="There is no cluster"):
        resolve(App(), replace(request, project=tmp_path))
