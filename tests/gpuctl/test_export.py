"""Results as files."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl import export
from gpuctl.errors import Failed, Usage
from inventories.run import FirstError, RankResult, Result, Seconds, Share, StepMs, TrainSummary

RESULT = Result(
    run="20261121-054625-3fa9",
    cluster="default",
    mode="torchrun",
    script="built-in",
    status="succeeded",
    exit_code=0,
    nnodes=2,
    nproc_per_node=1,
    world_size=2,
    started_at="2026-11-21T05:46:25+00:00",
    ended_at=None,
    seconds=Seconds(total=16.0),
    train=TrainSummary(
        loss=(0.9, float("nan"), 0.3),
        samples_per_s=8412.0,
        step_ms=StepMs(p50=3.1),
        share=Share(compute=0.6, communication=0.3, data=0.1),
    ),
    ranks=(RankResult(rank=0, local_rank=0, node="node-0"),),
    first_error=None,
    cost_usd=None,
    dir="/here",
)
FAILED = replace(
    RESULT,
    run="20261121-054625-aaaa",
    train=TrainSummary(),
    first_error=FirstError(rank=1, node="node-1", message='exit status 3: "boom", he said\nand left'),
)


def test_a_csv_row_a_run(tmp_path: Path) -> None:
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
    assert first["train.loss"] == "0.9 nan 0.3"
    assert second["first_error.message"] == 'exit status 3: "boom", he said\nand left'
    assert "ranks" not in first


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="No such file or directory"):
        export.write_csv([RESULT], tmp_path / "missing" / "runs.csv")


def test_a_plot_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"\.png.*runs\.xls"):
        export.write_plot([RESULT], tmp_path / "runs.xls")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(Failed, match=r"gpuctl\[plot\]"):
        export.write_plot([RESULT], tmp_path / "runs.png")


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_a_plot(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    faster = replace(RESULT, world_size=4, train=replace(RESULT.train, samples_per_s=15_000.0))
    for results in ([RESULT], [RESULT, faster, FAILED], [FAILED]):
        export.write_plot(results, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
