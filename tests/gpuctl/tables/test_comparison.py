"""Several runs in one table."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import a_result, a_run, drawn

from gpuctl.run_results.best import best_of, best_sentence
from gpuctl.tables.comparison import compared, comparison
from inventories.disk.store import RunFolder
from inventories.runs.commit import Commit
from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError, Result, Share, StepMs, TrainSummary
from inventories.runs.run import RunOptions

TRAIN = TrainSummary(
    model="cnn",
    dataset="digits",
    loss=(0.9, 0.12),
    samples_per_s=8412.0,
    step_ms=StepMs(p50=3.1, p95=4.0),
    share=Share(compute=0.6, communication=0.3, data=0.1),
)


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def saved(folder: Path, name: str | None, args: str, **changes: object) -> Result:
    """Return a result whose launch has a record in the folder."""
    at = len(list(folder.iterdir()))
    run = f"20261121-05462{at}-000{at}"
    (folder / run).mkdir()
    result = replace(a_result(train=TRAIN, nnodes=2, world_size=2), run=run, name=name, dir=str(folder / run))
    result = replace(result, **changes)  # type: ignore[arg-type]
    record = a_run(run=run, args=tuple(args.split()), options=RunOptions(name=name))
    RunFolder(folder / run).save_run(record)
    return result


def six(folder: Path) -> list[Result]:
    """Return six runs of a script with other rates; one failed, one has another commit."""
    rates = {"base": (0.1, 0.5), "slow": (0.01, 1.25), "fast": (0.5, 0.25), "wild": (5.0, float("nan"))}
    runs = [
        saved(folder, name, f"--lr {lr} --epochs 3", train=replace(TRAIN, loss=(2.0, loss)))
        for name, (lr, loss) in rates.items()
    ]
    error = FirstError(rank=1, node="gpu-1", message="exit status 1: boom", reason=Reason.EXIT_CODE)
    runs.append(
        saved(folder, "odd", "--lr 1 --epochs 3", train=TrainSummary(), status="failed", first_error=error)
    )
    moved = Commit(sha="1a2b3c4d5e6f", dirty=False)
    return [
        *runs,
        saved(folder, "moved", "--lr 0.1 --epochs 3", commit=moved, train=replace(TRAIN, loss=(2.0, 0.3))),
    ]


def test_six_runs_show_how_they_differ_how_they_ended_and_the_best(tmp_path: Path) -> None:
    lines = drawn(comparison(six(tmp_path))).splitlines()
    at = lines.index("") + 1
    assert " ".join(lines[:at]).strip() == (
        "6 runs: 5 succeeded, 1 failed "
        "all runs: my.py · epochs 3 · torchrun · 2 ranks · 2 nodes · cluster default · cnn · digits"
    )
    head, *rows = lines[at : at + 7]
    assert head.split() == ["run", "name", "lr", "commit", "status", "loss", "samples/s"]
    assert [row.split()[0] for row in rows if row.startswith("*")] == ["*"]
    assert rows[0].startswith("*  20261121-054622-0002  fast   0.5 ")
    assert [row.removeprefix("*").split()[1] for row in rows] == [
        *("fast", "moved", "base", "slow"),
        *("wild", "odd"),
    ]
    assert [row[head.index("status") :].split()[0] for row in rows] == [*["succeeded"] * 5, "failed"]
    assert "odd (lr 1): rank 1 on gpu-1 failed first: exit status 1: boom" in " ".join(lines)
    assert " ".join(lines[lines.index("", at) + 1 :]) == (
        "* best of 4 runs by last loss: fast (lr 0.5) with 0.250; next: moved (lr 0.1, 1a2b3c4d5e) with 0.300"
    )  # fmt: skip
    assert all(len(line) <= 80 for line in lines)


def test_runs_without_a_difference_have_no_column_of_settings(tmp_path: Path) -> None:
    runs = [saved(tmp_path, None, "--lr 0.1"), saved(tmp_path, None, "--lr=0.1")]
    text = drawn(comparison(runs))
    assert text.splitlines()[0] == "2 runs: 2 succeeded"
    assert text.splitlines()[1].startswith("all runs: my.py · lr 0.1 · torchrun · ")
    assert "\n   run                   status     loss " in text
    assert " with 0.120; equal: 20261121-054621-0001. Best mean over repeated runs: all runs" in " ".join(
        text.split()
    )


def test_settings_repeated_with_other_seeds_have_a_mean_and_a_spread(tmp_path: Path) -> None:
    losses = {(0.1, 1): 0.5, (0.1, 2): 0.7, (0.3, 1): 0.2, (0.3, 2): 0.4, (9, 1): float("nan"), (9, 2): 3.0}
    runs = [
        saved(tmp_path, "sweep", f"--lr {lr} --random-state {seed}", train=replace(TRAIN, loss=(2.0, loss)))
        for (lr, seed), loss in losses.items()
    ]
    runs += [replace(saved(tmp_path, "sweep", f"--lr 99 --seed {seed}"), status="failed") for seed in (1, 2)]
    table = drawn(comparison(runs))
    rows = [line.split() for line in table.splitlines()]
    at = rows.index(["setting", "runs", "mean", "loss", "std.", "dev.", "best", "worst"])
    assert rows[at + 1 : at + 5] == [
        ["lr", "0.3", "2", "0.300", "0.141", "0.200", "0.400"],
        ["lr", "0.1", "2", "0.600", "0.141", "0.500", "0.700"],
        ["lr", "9", "1", "of", "2", "3.000", "-", "3.000", "3.000"],
        ["lr", "99", "0", "of", "2", "-", "-", "-", "-"],
    ]
    assert (
        "* best of 5 runs by last loss: sweep 0002 (lr 0.3, random-state 1) with 0.200; next: sweep 0003 (lr 0.3, "
        "random-state 2) with 0.400. Best mean over repeated runs: lr 0.3 with 0.300 ± 0.141 (2 runs); next: "
        "lr 0.1 with 0.600 ± 0.141 (2 runs)"
    ) in " ".join(table.split())


def test_best_sentence_says_what_is_equal_and_what_lies_within_the_spread(tmp_path: Path) -> None:
    losses = {(0.1, 1): 0.2, (0.1, 2): 0.2001, (0.3, 1): 0.2, (0.3, 2): 0.4, (0.5, 1): 0.5}
    runs = [
        saved(tmp_path, f"{lr}-{seed}", f"--lr {lr} --seed {seed}", train=replace(TRAIN, loss=(loss,)))
        for (lr, seed), loss in losses.items()
    ]
    best = best_of(runs)
    assert best is not None
    assert best_sentence(best, runs) == (
        "best of 5 runs by last loss: 0.1-1 (lr 0.1, seed 1) with 0.200; equal: 0.3-1 (lr 0.3, seed 1) and 1 more "
        "run. Best mean over repeated runs: lr 0.1 with 0.200 ± 7.07e-05 (2 runs); next: lr 0.3 with 0.300 ± 0.141 "
        "(2 runs), which is within the spread"
    )


def test_best_sentence_names_the_setting_that_the_best_runs_share(tmp_path: Path) -> None:
    points = {(0.1, 16): 0.1, (0.1, 32): 0.2, (0.1, 64): 0.3, (0.5, 16): 0.4, (0.5, 32): 0.5}
    runs = [
        saved(
            tmp_path,
            f"lr-{lr}_batch={batch}",
            f"--lr {lr} --batch {batch}",
            train=replace(TRAIN, loss=(loss,)),
        )
        for (lr, batch), loss in points.items()
    ]
    text = " ".join(drawn(comparison(runs)).split())
    assert text.endswith(
        "lr-0.1_batch=16 with 0.100; next: lr-0.1_batch=32 with 0.200. The 3 best have lr 0.1"
    )


def test_many_differing_settings_share_a_column(tmp_path: Path) -> None:
    words = " ".join(f"--option-{n} {{0}}" for n in range(8))
    runs = [saved(tmp_path, None, words.format(value)) for value in (1, 2)]
    assert "\n   run                   differs by " in drawn(comparison(runs))


def test_options_with_the_name_of_a_column_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    train = replace(TRAIN, metrics={"lr": 0.125})
    runs = [
        saved(tmp_path, None, f"--loss {loss} --lr {lr}", train=train) for loss, lr in (("mse", 1), ("l1", 2))
    ]
    lines = drawn(comparison(runs)).splitlines()
    assert [lines[3].split()[at] for at in (1, 2)] == ["--loss", "lr"]
    assert "last lr" in lines[3]
    assert all(word in lines[4] for word in ("mse", "0.125", "0.120"))


def test_option_with_the_name_of_a_fact_has_a_column_if_it_says_another_thing(tmp_path: Path) -> None:
    facts = (("cnn", "0"), ("mlp", "1"))
    runs = [
        saved(
            tmp_path,
            None,
            f"--device {device} --model {model}",
            train=replace(TRAIN, model=model, device=f"cuda:{device}"),
        )
        for model, device in facts
    ]
    columns = compared(runs).columns
    assert (columns["--device"], columns["device"]) == (["0", "1"], ["cuda:0", "cuda:1"])
    assert (columns["model"], "--model" in columns) == (["cnn", "mlp"], False)


def test_flags_names_and_values_are_shown_as_text(tmp_path: Path) -> None:
    runs = [
        saved(tmp_path, "\x1b[2J[red]", "--amp --x \x1b]0;t\x07[bold]", script="[bold]\x1b[1mx"),
        saved(tmp_path, "b", ""),
    ]
    text = drawn(comparison(runs))
    assert "[red]" in text
    assert "[bold]" in text
    assert "\x1b" not in text
    lines = text.splitlines()
    head, first, second = lines[lines.index("") + 1 :][:3]
    assert (first[head.index("amp") :].split()[0], second[head.index("amp") :].split()[0]) == ("yes", "-")


def test_metrics_have_a_column_with_the_samples_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    judged = replace(TRAIN, accuracy=0.972, metrics={"accuracy": 0.972, "f1": 0.8731}, judged_on="validation")
    tested = replace(TRAIN, accuracy=0.972, metrics={"accuracy": 0.972, "top5": 1.0}, judged_on="test")
    runs = [saved(tmp_path, None, "", train=train) for train in (judged, tested)]
    text = drawn(comparison(runs))
    for cell in ("97.2 % (validation)", "97.2 % (test)", "0.8731 (validation)", "1 (test)", "f1", "top5"):
        assert cell in text, cell
    assert "The runs have different scripts or data" in " ".join(text.split())


def test_speed_up_and_efficiency_of_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    fast = replace(TRAIN, samples_per_s=15_141.6)
    runs = [saved(tmp_path, None, ""), saved(tmp_path, None, "", world_size=4, train=fast)]
    text = drawn(comparison(runs))
    assert "1.80 x" in text
    assert "90.0 %" in text
    assert text.splitlines()[-1] == f"speed-up over run {runs[0].run}; efficiency: the same per rank"


@pytest.mark.parametrize(("args", "world_size"), [("--lr 2", 4), ("--lr 2", 2), ("--lr 1", 2)])
def test_speed_up_is_omitted_for_other_arguments_or_the_same_layout(
    tmp_path: Path, args: str, world_size: int
) -> None:
    runs = [saved(tmp_path, None, "--lr 1"), saved(tmp_path, None, args, world_size=world_size)]
    assert "speed-up" not in drawn(comparison(runs))
    other = saved(tmp_path, None, "--lr 1", world_size=4, train=replace(TRAIN, dataset="cifar10"))
    assert "speed-up" not in drawn(comparison([runs[0], other]))


def test_settings_and_metrics_with_alike_names_have_columns_of_their_own(tmp_path: Path) -> None:
    lines = ((7, 0.1, 0.5), (9, 0.2, 0.6), (9, 0.2, 0.7))
    metrics = {"validation_top1_error_rate": 0.1, "validation_top5_error_rate": 0.9}
    first, *others = [
        saved(
            tmp_path,
            None,
            f"--nodes {nodes} --optimizer_max_learning_rate {most} --optimizer_min_learning_rate {least}",
            train=replace(TRAIN, metrics=metrics),
        )
        for nodes, most, least in lines
    ]
    columns = compared([replace(first, nnodes=4), *others]).columns
    assert columns["--nodes"] == ["7", "9", "9"]
    assert columns["nodes"] == ["4", "2", "2"]
    assert columns["optimizer_max_learning_rate"] == ["0.1", "0.2", "0.2"]
    assert columns["optimizer_min_learning_rate"] == ["0.5", "0.6", "0.7"]
    assert set(metrics) <= set(columns)
