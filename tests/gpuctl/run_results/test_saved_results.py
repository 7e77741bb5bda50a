"""Settings in which several runs differ."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import a_result, a_run

from gpuctl.run_results.saved_results import differences, labels_of, options_of
from inventories.disk.store import RunFolder
from inventories.runs.commit import Commit
from inventories.runs.result import Result
from inventories.runs.run import RunOptions

RESULT = a_result(script="fit.py", nnodes=2, world_size=2, ended_at=None, dir="/nowhere")


def started(
    folder: Path,
    args: str = "",
    env: tuple[str, ...] = (),
    options: RunOptions | None = None,
    **changes: object,
) -> Result:
    """Return the result of a run that was started with these arguments and options."""
    result = replace(RESULT, dir=str(folder), **changes)  # type: ignore[arg-type]
    folder.mkdir()
    run = a_run(
        run=folder.name,
        script=result.script,
        args=tuple(args.split()),
        options=options or RunOptions(env=env),
    )
    RunFolder(folder).save_run(run)
    return result


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        (("--lr 0.1 --epochs 3", "--epochs 3 --lr=0.01"), ["lr 0.1", "lr 0.01"]),
        (("lr=0.1 model.size=2", "lr=0.1 model.size=4"), ["model.size 2", "model.size 4"]),
        (("--amp --lr 1", "--lr 1"), ["amp", "without amp"]),
        (("--lr 0.1", ""), ["lr 0.1", "lr not given"]),
        (("a.csv", "b.csv --lr -1e-3"), ["a.csv, lr not given", "b.csv, lr -1e-3"]),
        (("--lr -.5 --x -inf", "--lr -.7 --x -inf"), ["lr -.5", "lr -.7"]),
        (("--sizes 1 2", "--sizes 1 3"), ["sizes 1 2", "sizes 1 3"]),
        (("--mode a", "--mode b"), ["mode a", "mode b"]),
        (("--lr 1", "--lr 1"), ["", ""]),
        (("--name " + "x" * 40, "--name y"), ["name " + "x" * 15 + "…" + "x" * 14, "name y"]),
    ],
)
def test_differences_name_options_with_other_values(
    args: tuple[str, str], texts: list[str], tmp_path: Path
) -> None:
    runs = [started(tmp_path / str(at), words) for at, words in enumerate(args)]
    assert differences(runs) == texts


def test_differences_name_script_environment_layout_and_commit(tmp_path: Path) -> None:
    sha = "1a2b3c4d5e6f"
    first = started(tmp_path / "a", env=("A",), commit=Commit(sha=sha, dirty=False))
    second = started(tmp_path / "b", commit=Commit(sha=sha, dirty=True), script="-m pkg.fit")
    third = started(tmp_path / "c", env=("A", "B"), world_size=1, nnodes=1)
    assert differences([first, second, third]) == [
        "fit.py, --env A, 2 ranks, 2 nodes, 1a2b3c4d5e",
        "-m pkg.fit, without --env, 2 ranks, 2 nodes, 1a2b3c4d5e, files changed",
        "fit.py, --env A B, 1 rank, 1 node, without commit",
    ]
    layouts = [RESULT, replace(RESULT, world_size=4)]
    assert (differences(layouts), differences(layouts, layout=False)) == (["2 ranks", "4 ranks"], ["", ""])


def test_differences_name_python_and_packages(tmp_path: Path) -> None:
    options = [
        RunOptions(),
        RunOptions(pip=("a==1", "git+https://me:x@h/b")),
        RunOptions(pip=("a==2",), python="/opt/python"),
        RunOptions(requirements="/srv/base.txt"),
    ]
    runs = [started(tmp_path / str(at), options=option) for at, option in enumerate(options)]
    assert differences(runs) == [
        "without --pip, without --python, without --requirements",
        "--pip a==1 git+https://h/b, without --python, without --requirements",
        "--pip a==2, --python /opt/python, without --requirements",
        "without --pip, without --python, --requirements /srv/base.txt",
    ]
    assert differences([runs[1], runs[1]]) == ["", ""]


def test_terse_differences_leave_out_what_a_run_lacks(tmp_path: Path) -> None:
    runs = [started(tmp_path / str(at), words) for at, words in enumerate(("--lr 1", "--lr 2 --amp", ""))]
    assert differences(runs, terse=True) == ["lr 1", "lr 2, amp", "lr not given, without amp"]


def test_labels_name_runs_their_settings_and_if_needed_their_ids(tmp_path: Path) -> None:
    runs = [started(tmp_path / f"20261121-{at}", f"--lr {at}") for at in range(3)]
    runs = [replace(run, run=f"20261121-{at}-000{at}") for at, run in enumerate(runs)]
    assert labels_of([replace(runs[0], name="base"), runs[1]]) == ["base: lr 0", "lr 1, 0001"]
    named = [replace(run, name="base") for run in runs]
    assert labels_of(named) == ["base 0000: lr 0", "base 0001: lr 1", "base 0002: lr 2"]
    assert labels_of([replace(named[0], name="a")]) == ["a"]
    assert labels_of(runs[:1]) == ["2 ranks, 0000"]


def test_options_of_separates_words_before_the_first_option() -> None:
    assert options_of(["fit", "a=b/c", "./x=1", "--", "-v", "+seed=3"]) == {
        "arguments": "fit ./x=1",
        "a": "b/c",
        "v": "",
        "seed": "3",
    }
