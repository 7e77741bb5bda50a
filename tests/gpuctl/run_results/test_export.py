"""Results as files."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import a_result, a_run

from gpuctl.errors import Failed, Usage
from gpuctl.output_files import check_picture, new_figure, write_file
from gpuctl.run_results import export
from inventories.disk.store import RunFolder
from inventories.runs.commit import Commit
from inventories.runs.end_reasons import Reason
from inventories.runs.hang import Culprit, Hang
from inventories.runs.outputs import OutputFile, OutputTotal, RunFile
from inventories.runs.records import NodeEnding
from inventories.runs.run import Checkpoints, FirstError, RankResult, Result, Share, StepMs, TrainSummary
from inventories.runs.search import Search, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULT = a_result(
    script="built-in",
    nnodes=2,
    world_size=2,
    ended_at=None,
    train=TrainSummary(
        loss=(0.9, float("nan"), 0.3),
        samples_per_s=8412.0,
        step_ms=StepMs(p50=3.1),
        share=Share(compute=0.6, communication=0.3, data=0.1),
    ),
    ranks=(RankResult(rank=0, local_rank=0, node="node-0"),),
    cost_usd=None,
    dir="/here",
)
FAILED = replace(
    RESULT,
    run="20261121-054625-aaaa",
    train=TrainSummary(),
    first_error=FirstError(
        rank=1, node="node-1", message='exit status 3: "boom", he said\nand left', reason=Reason.EXIT_CODE
    ),
)


def test_write_csv_writes_one_row_per_run(tmp_path: Path) -> None:
    export.write_csv([RESULT, FAILED], tmp_path / "runs.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert [row["run"] for row in rows] == [RESULT.run, FAILED.run]
    first, second = rows
    assert (first["seconds.total"], first["train.step_ms.p50"], first["train.share.data"]) == (
        "16.0",
        "3.1",
        "0.1",
    )
    assert (first["ended_at"], first["cost_usd"], first["first_error.message"]) == ("", "", "")
    assert (first["first_error.reason"], second["first_error.reason"]) == ("", "exit_code")
    assert first["train.loss"] == "0.9 nan 0.3"
    assert second["first_error.message"] == 'exit status 3: "boom", he said\nand left'
    assert "ranks" not in first


def test_csv_text_has_a_column_per_metric() -> None:
    judged = replace(RESULT, train=replace(RESULT.train, metrics={"f1": 0.875, "a,b": 1.0}, judged_on="test"))
    first, second = csv.DictReader(io.StringIO(export.csv_text([RESULT, judged])))
    names = ("train.metrics.f1", "train.metrics.a,b", "train.judged_on")
    assert [first[name] for name in names] == ["", "", ""]
    assert [second[name] for name in names] == ["0.875", "1.0", "test"]


def test_csv_text_has_no_columns_of_checkpoints() -> None:
    left = {"gpu-0": Checkpoints(files=1, bytes=1, newest="a.pt", written_ns=1)}
    assert export.csv_text([replace(RESULT, checkpoints=left)]) == export.csv_text([RESULT])


def test_csv_text_has_no_columns_of_files() -> None:
    output = OutputFile(node="node-0", path="a", bytes=1, kind=None, brought=True)
    total = OutputTotal(node="node-0", folder="p", files=1, bytes=1, whole=True)
    file = RunFile(kind="log", path="logs/rank-0.log", bytes=1)
    report = replace(RESULT, outputs=(output,), output_totals=(total,), files=(file,))
    assert export.csv_text([report]) == export.csv_text([RESULT])


def test_csv_text_rounds_losses_to_six_digits(tmp_path: Path) -> None:
    train = replace(RESULT.train, loss=(1 / 3, 1234567.8, 2e-9))
    assert ",0.333333 1.23457e+06 2e-09," in export.csv_text([replace(RESULT, train=train)])


def test_csv_text_tells_a_hang_by_its_sentence_and_steps_as_whole_numbers() -> None:
    culprits = (Culprit(rank=1, node="node-1"),)
    hang = Hang(run=RESULT.run, verdict="hung", sentence="The run hangs: rank 1 sleeps.", culprits=culprits)
    train = replace(RESULT.train, loss_at=(1_234_567, 1_234_568, 1_234_569))
    text = export.csv_text([replace(RESULT, hang=hang, train=train), RESULT])
    hung, other = csv.DictReader(io.StringIO(text))
    assert (hung["hang"], other["hang"]) == ("The run hangs: rank 1 sleeps.", "")
    assert hung["train.loss_at"] == "1234567 1234568 1234569"


def test_csv_text_has_a_column_of_script_arguments(tmp_path: Path) -> None:
    run = a_run(
        run="r",
        script="train.py",
        args=("--lr", "0.1", "--name", "a b"),
        nodes=(),
        started_at=RESULT.started_at,
    )
    (tmp_path / "r").mkdir()
    RunFolder(tmp_path / "r").save_run(run)
    text = export.csv_text([replace(RESULT, dir=str(tmp_path / "r")), FAILED])
    first, second = csv.DictReader(io.StringIO(text))
    assert list(first.items())[-3:] == [
        ("args.lr", "0.1"),
        ("args.name", "a b"),
        ("args", "--lr 0.1 --name 'a b'"),
    ]
    assert (second["args.lr"], second["args"]) == ("", "")


def test_csv_text_has_the_last_loss_and_the_commit() -> None:
    of_commit = replace(RESULT, commit=Commit(sha="1a2b", dirty=True), endings={"node-0": NodeEnding()})
    text = export.csv_text([of_commit, replace(FAILED, logged_error=FAILED.first_error)])
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["train.last_loss"], first["commit.sha"], first["commit.dirty"]) == ("0.3", "1a2b", "True")
    assert (second["train.last_loss"], second["commit.sha"], "commit" in second) == ("", "", False)
    assert (first["logged_error"], second["logged_error"][:13]) == ("", "exit status 3")
    assert not any(column.startswith("endings") for column in first)


def test_write_csv_and_write_plot_report_written_file(tmp_path: Path) -> None:
    assert export.write_csv([RESULT], tmp_path / "a.csv") == f"wrote {tmp_path}/a.csv: 1 run"
    pytest.importorskip("matplotlib")
    report = export.write_plot([RESULT, FAILED], tmp_path / "a.png")
    assert report == f"wrote {tmp_path}/a.png: a plot of 2 runs"


def test_write_csv_refuses_dash_as_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage, match=r"--csv runs\.csv"):
        export.write_csv([RESULT], Path("-"))
    assert not list(tmp_path.iterdir())


def test_write_plot_refuses_runs_without_timings(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="No run has timings to draw"):
        export.write_plot([FAILED], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_write_plot_draws_one_line_per_job(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    more = replace(RESULT, world_size=4)
    other = replace(RESULT, script="$other$.py", world_size=2)
    alone = replace(RESULT, world_size=1)
    export.write_plot([alone, other, more], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- $other$.py -->" in drawn
    assert "<!-- built-in -->" in drawn
    assert "<!-- measured -->" not in drawn
    assert "<!-- built-in, 1 rank, 3fa9 -->" in drawn


def test_write_plot_draws_variants_of_a_script_as_bars_without_an_ideal(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    variants = [replace(RESULT, run=f"20261121-{number}", world_size=2) for number in range(3)]
    export.write_plot(variants, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- speed -->" in drawn
    assert "<!-- 2 ranks, 2 -->" in drawn
    assert "<!-- ideal -->" not in drawn


def test_write_plot_draws_trials_of_a_search_against_each_parameter(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trials = [
        Trial(
            trial=number,
            params={"lr": 10.0**-number, "optimizer": "adam"},
            metrics={},
            value=value,
            status="done",
            reports=1,
            seconds=1.0,
        )
        for number, value in enumerate((0.5, 0.75, None))
    ]
    search = Search.of("accuracy", "max", trials)
    export.write_plot([replace(RESULT, train=TrainSummary(), search=search)], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for label in ("2 trials", "lr", "optimizer", "adam", "accuracy", "best: trial 1"):
        assert f"<!-- {label} -->" in drawn, label


def saved(run: Result, home: Path) -> Result:
    """Save a run with its result in its folder, where resuming runs find it."""
    folder = RunFolder(home / run.run)
    folder.path.mkdir()
    run = replace(run, dir=str(folder.path))
    folder.save_result(run)
    return run


def test_runs_of_a_job_are_one_curve_with_the_epochs_that_they_began_with(tmp_path: Path) -> None:
    train = replace(RESULT.train, loss=(0.9, 0.5, 0.4), loss_at=(1, 2, 3))
    first = saved(replace(RESULT, run="20261121-1", train=train), tmp_path)
    train = replace(train, loss=(0.35, 0.2), loss_at=(), epochs_before=2)
    second = saved(replace(RESULT, run="20261121-2", resumed_from=first.run, train=train), tmp_path)
    alone = replace(RESULT, run="20261121-3")
    for named in ([second], [first, second]):
        assert [run.run for runs in export.jobs_of(named) for run in runs] == [first.run, second.run]
    assert len(export.jobs_of([second, alone])) == 2
    assert export.loss_curve([first, second]) == ({1: 0.9, 2: 0.5, 3: 0.35, 4: 0.2}, [3])


def test_losses_by_step_and_by_epoch_are_not_one_curve() -> None:
    by_step = replace(
        RESULT, train=TrainSummary(loss=(3.0,), loss_at=(100,), loss_by="step", loss_from="log")
    )
    assert export.loss_curve([RESULT, by_step]) == ({100: 3.0}, [])


def test_plot_has_only_panels_with_something_in_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    export.write_plot([replace(RESULT, train=TrainSummary(loss=(0.5, 0.2)))], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- training loss -->" in drawn
    assert "<!-- speed -->" not in drawn
    assert "step's time" not in drawn


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        (
            "a b/runs{}",
            "There is no folder '{0}/a b' for runs{1}. Make it with `mkdir -p '{0}/a b'`, or name another file.",
        ),
        ("folder{}", "'{0}/folder{1}' is a folder. Name a file in it."),
        (
            "file/runs{}",
            "'{0}/file' is no folder, so '{0}/file/runs{1}' can't be written. Name another file.",
        ),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_any_work(
    tmp_path: Path, name: str, refusal: str
) -> None:
    for suffix in (".csv", ".png"):
        (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / "file").touch()
    for check, suffix in ((export.check_table, ".csv"), (check_picture, ".png")):
        with pytest.raises(Usage) as refused:
            check(tmp_path / name.format(suffix))
        assert str(refused.value) == refusal.format(tmp_path, suffix)


def test_link_to_a_file_that_does_not_exist_yet_is_written(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    table, lost, loop = (tmp_path / f"{name}.csv" for name in ("table", "lost", "loop"))
    table.symlink_to("sets/table.csv")
    lost.symlink_to("no/table.csv")
    loop.symlink_to("loop.csv")
    export.check_table(table)
    write_file(table, b"x")
    assert (tmp_path / "sets" / "table.csv").read_bytes() == b"x"
    with pytest.raises(Usage, match=f"There is no folder '{tmp_path}/no' for lost.csv"):
        export.check_table(lost)
    with pytest.raises(Usage, match="can't be written"):
        export.check_table(loop)


def test_plot_of_losses_has_the_limits_of_the_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (draw,) = (panel for panel, has in export.PANELS if has(replace(FAILED, train=TrainSummary(loss=(1.0,)))))

    def axes_of(*losses: float) -> "Axes":
        axes = new_figure(4, 4).subplots()
        draw(axes, [replace(RESULT, train=TrainSummary(loss=losses, loss_by="step"))])
        return axes

    flat = axes_of(2.31, 2.3, float("nan"), 2.29)
    assert (flat.get_yscale(), flat.get_ylim()[0] > 2.2, flat.get_xlabel()) == ("linear", True, "step")
    assert axes_of(100.0, 1.0, float("inf"), 0.1).get_yscale() == "log"
    assert axes_of(100.0, -1.0).get_yscale() == "linear"


def test_write_plot_refuses_unknown_file_type(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"\.png.*runs\.xls"):
        export.write_plot([RESULT], tmp_path / "runs.xls")
    assert not list(tmp_path.iterdir())


def test_write_plot_without_matplotlib_advises_pip_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(Failed, match="pip install matplotlib"):
        export.write_plot([RESULT], tmp_path / "runs.png")


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_write_plot_writes_png_pdf_and_svg(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    faster = replace(RESULT, world_size=4, train=replace(RESULT.train, samples_per_s=15_000.0))
    for results in ([RESULT], [RESULT, faster, FAILED]):
        export.write_plot(results, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
