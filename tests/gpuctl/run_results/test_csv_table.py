"""Results as files."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from result_samples import FAILED, RESULT
from support import a_run

from gpuctl.errors import Usage
from gpuctl.output_files import check_picture, write_file
from gpuctl.run_results import csv_table, plots
from inventories.disk.store import RunFolder
from inventories.runs.commit import Commit
from inventories.runs.hang import Culprit, Hang
from inventories.runs.outputs import OutputFile, OutputTotal, RunFile
from inventories.runs.records import NodeEnding
from inventories.runs.result import TrainSummary
from inventories.runs.run import Checkpoints


def rows_of_runs(text: str) -> list[dict[str, str]]:
    """Return the first row of each run."""
    return [row for row in csv.DictReader(io.StringIO(text)) if row.get("epoch") in ("", "1", None)]


def test_write_csv_writes_the_values_of_each_run(tmp_path: Path) -> None:
    csv_table.write_csv([RESULT, FAILED], tmp_path / "runs.csv")
    rows = rows_of_runs((tmp_path / "runs.csv").read_text())
    assert [row["run"] for row in rows] == [RESULT.run, FAILED.run]
    first, second = rows
    assert (first["seconds.total"], first["train.step_ms.p50"], first["train.share.data"]) == (
        "16.0",
        "3.1",
        "0.1",
    )
    assert (first["ended_at"], first["cost_usd"], first["first_error.message"]) == ("", "", "")
    assert (first["first_error.reason"], second["first_error.reason"]) == ("", "exit_code")
    assert second["first_error.message"] == 'exit status 3: "boom", he said\nand left'
    assert "ranks" not in first


def test_csv_text_has_a_column_per_metric() -> None:
    judged = replace(RESULT, train=replace(RESULT.train, metrics={"f1": 0.875, "a,b": 1.0}, judged_on="test"))
    first, second = rows_of_runs(csv_table.csv_text([RESULT, judged]))
    names = ("train.metrics.f1", "train.metrics.a,b", "train.judged_on")
    assert [first[name] for name in names] == ["", "", ""]
    assert [second[name] for name in names] == ["0.875", "1.0", "test"]


def test_csv_text_has_no_columns_of_checkpoints() -> None:
    left = {"gpu-0": Checkpoints(files=1, bytes=1, newest="a.pt", written_ns=1)}
    assert csv_table.csv_text([replace(RESULT, checkpoints=left)]) == csv_table.csv_text([RESULT])


def test_csv_text_has_no_columns_of_files() -> None:
    output = OutputFile(node="node-0", path="a", bytes=1, kind=None, brought=True)
    total = OutputTotal(node="node-0", folder="p", files=1, bytes=1, whole=True)
    file = RunFile(kind="log", path="logs/rank-0.log", bytes=1)
    report = replace(RESULT, outputs=(output,), output_totals=(total,), files=(file,))
    assert csv_table.csv_text([report]) == csv_table.csv_text([RESULT])


def test_csv_text_rounds_losses_to_six_digits(tmp_path: Path) -> None:
    train = replace(RESULT.train, loss=(1 / 3, 1234567.8, 2e-9))
    rows = csv.DictReader(io.StringIO(csv_table.csv_text([replace(RESULT, train=train)])))
    assert [row["loss"] for row in rows] == ["0.333333", "1.23457e+06", "2e-09"]


def test_csv_text_tells_a_hang_by_its_sentence_and_steps_as_whole_numbers() -> None:
    culprits = (Culprit(rank=1, node="node-1"),)
    hang = Hang(run=RESULT.run, verdict="hung", sentence="The run hangs: rank 1 sleeps.", culprits=culprits)
    train = replace(RESULT.train, loss_at=(1_234_567, 1_234_568, 1_234_569), loss_by="step")
    text = csv_table.csv_text([replace(RESULT, hang=hang, train=train), RESULT])
    hung, *_, other = csv.DictReader(io.StringIO(text))
    assert (hung["hang"], other["hang"]) == ("The run hangs: rank 1 sleeps.", "")
    assert (hung["step"], other["epoch"]) == ("1234567", "3")


def test_csv_text_has_a_column_of_script_arguments(tmp_path: Path) -> None:
    run = a_run(
        run="r",
        script="train.py",
        args=("--lr", "0.1", "--name", "a b", "--hf-token", "K3Y"),
        nodes=(),
        started_at=RESULT.started_at,
    )
    (tmp_path / "r").mkdir()
    RunFolder(tmp_path / "r").save_run(run)
    text = csv_table.csv_text([replace(RESULT, dir=str(tmp_path / "r")), FAILED])
    first, second = rows_of_runs(text)
    assert list(first.items())[-4:] == [
        ("args.lr", "0.1"),
        ("args.name", "a b"),
        ("args.hf-token", "***"),
        ("args", "--lr 0.1 --name 'a b' --hf-token '***'"),
    ]
    assert (second["args.lr"], second["args"]) == ("", "")


def test_csv_text_has_the_last_loss_and_the_commit() -> None:
    of_commit = replace(RESULT, commit=Commit(sha="1a2b", dirty=True), endings={"node-0": NodeEnding()})
    text = csv_table.csv_text([of_commit, replace(FAILED, logged_error=FAILED.first_error)])
    first, second = rows_of_runs(text)
    assert (first["train.last_loss"], first["commit.sha"], first["commit.dirty"]) == ("0.3", "1a2b", "True")
    assert (second["train.last_loss"], second["commit.sha"], "commit" in second) == ("", "", False)
    assert (first["logged_error"], second["logged_error"][:13]) == ("", "exit status 3")
    assert not any(column.startswith("endings") for column in first)


def test_write_csv_and_write_plot_report_written_file(tmp_path: Path) -> None:
    assert (
        csv_table.write_csv([RESULT], tmp_path / "a.csv")
        == f"wrote {tmp_path}/a.csv: 1 run, a row for each epoch or step"
    )
    pytest.importorskip("matplotlib")
    report = plots.write_plot([RESULT, FAILED], tmp_path / "a.png")
    assert report == f"wrote {tmp_path}/a.png (losses) and {tmp_path}/a-speed.png (speed): 2 runs"


def test_write_csv_refuses_dash_as_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage, match=r"--csv runs\.csv"):
        csv_table.write_csv([RESULT], Path("-"))
    assert not list(tmp_path.iterdir())


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
    for check, suffix in ((csv_table.check_table, ".csv"), (check_picture, ".png")):
        with pytest.raises(Usage) as refused:
            check(tmp_path / name.format(suffix))
        assert str(refused.value) == refusal.format(tmp_path, suffix)


def test_link_to_a_file_that_does_not_exist_yet_is_written(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    table, lost, loop = (tmp_path / f"{name}.csv" for name in ("table", "lost", "loop"))
    table.symlink_to("sets/table.csv")
    lost.symlink_to("no/table.csv")
    loop.symlink_to("loop.csv")
    csv_table.check_table(table)
    write_file(table, b"x")
    assert (tmp_path / "sets" / "table.csv").read_bytes() == b"x"
    with pytest.raises(Usage, match=f"There is no folder '{tmp_path}/no' for lost.csv"):
        csv_table.check_table(lost)
    with pytest.raises(Usage, match="can't be written"):
        csv_table.check_table(loop)


def test_csv_text_has_a_row_for_each_line_of_metrics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.metrics_path.mkdir(parents=True)
    run = a_run(run="r", args=("--lr", "0.1"))
    folder.save_run(run)
    lines = [
        {"step": step, "loss": 1 / step, "val": {"loss": 0.5}, "samples": step * 64, "time": 1.0, "note": "x"}
        for step in range(1, 101)
    ]
    (folder.metrics_path / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    train = TrainSummary(loss=(1.0, 0.01), loss_at=(1, 100), loss_by="step")
    result = replace(RESULT, run="r", name="base", tags={"sweep": "lr"}, dir=str(folder.path), train=train)
    text = csv_table.csv_text([result, FAILED])
    assert text.startswith("run,name,step,loss,metrics.val/loss,metrics.samples,")
    *rows, failed = csv.DictReader(io.StringIO(text))
    assert [(row["step"], row["loss"]) for row in (*rows[:2], rows[-1])] == [
        ("1", "1"),
        ("2", "0.5"),
        ("100", "0.01"),
    ]
    assert {(row["name"], row["args.lr"], row["tags.sweep"], row["metrics.val/loss"]) for row in rows} == {
        ("base", "0.1", "lr", "0.5")
    }
    assert (len(rows), failed["step"], failed["loss"], failed["status"]) == (100, "", "", "succeeded")


@pytest.mark.parametrize(
    ("note", "cell"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1+1", "'+1+1"),
        ("-1e-5", "-1e-5"),
        ("a=b", "a=b"),
    ],
)
def test_text_like_a_formula_is_none(note: str, cell: str) -> None:
    (row,) = rows_of_runs(csv_table.csv_text([replace(RESULT, note=note)]))
    assert row["note"] == cell


def test_text_that_is_no_unicode_is_written_with_its_codes(tmp_path: Path) -> None:
    csv_table.write_csv([replace(RESULT, note="a\udcff")], tmp_path / "runs.csv")
    assert "a\\udcff" in (tmp_path / "runs.csv").read_text()
