import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from train.distributed.environment import DistributedEnvironment
from train.errors import NoPeers, NotWritten, PeerLost, PeerSilent
from train.options import Options
from train.reporting.device_use import DeviceUse
from train.reporting.report import Epoch, Report
from train.reporting.timing import StepTime, Timing

RANK_1 = DistributedEnvironment(rank=1, world_size=2, local_rank=1, local_world_size=2)
STEP_TIME = StepTime(data_ms=1, compute_ms=2, communication_ms=0.5, samples=64, apart_ms=4, is_first=False)
TIMING = Timing(
    samples_per_s=200.0,
    p50_ms=3.0,
    p95_ms=4.0,
    data_share=0.1,
    compute_share=0.6,
    communication_share=0.3,
    graphs=True,
)
EPOCH = Epoch(
    number=1,
    seconds=2.0,
    samples=100,
    first_steps_s=1.5,
    timing=TIMING,
    loss=0.5,
    lr=0.01,
    training={"loss": 0.5, "accuracy": 0.8},
    validation={"loss": float("nan"), "accuracy": 0.9},
)
START = {
    "steps_per_epoch": 12,
    "batch_size": 64,
    "parameters": 53_002,
    "gradient_bytes": None,
    "strategy": "ddp",
    "seconds": {"device": 0.1, "data": 0.2, "model": 0.3},
}


def test_report_lines_are_readable_while_the_job_runs(tmp_path):
    path = tmp_path / "not" / "yet" / "metrics.jsonl"
    with Report(path=path, env=RANK_1, options=Options()) as report:
        report.start(torch.device("cpu"), **START)
        report.step(10, epoch=1, loss=0.25, samples=640, step_time=STEP_TIME)
        start, step = (json.loads(line) for line in path.read_text().splitlines())
    assert start["event"] == "start"
    assert step == {
        "time": pytest.approx(start["time"], abs=5),
        "rank": 1,
        "step": 10,
        "epoch": 1,
        "loss": 0.25,
        "samples": 640,
        "step_ms": 3.5,
        "data_ms": 1,
        "compute_ms": 2,
        "communication_ms": 0.5,
    }


def test_parts_of_a_step_that_overlap_are_not_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Report(path=path, env=RANK_1, options=Options()) as report:
        report.start(torch.device("cpu"), **START | {"strategy": "fsdp"}, parts_known=False)
        report.step(10, epoch=1, loss=0.25, samples=640, step_time=STEP_TIME)
    _, step = (json.loads(line) for line in path.read_text().splitlines())
    assert [step[f"{part}_ms"] for part in ("step", "data", "compute", "communication")] == [
        3.5,
        1,
        None,
        None,
    ]


def test_report_appends_to_an_existing_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"mine": 1}\n')
    with Report(path=path, env=DistributedEnvironment(), options=Options()) as report:
        report.epoch(EPOCH)
    assert path.read_text().startswith('{"mine": 1}\n{')


@pytest.mark.parametrize(
    ("error", "reason", "ranks"),
    [
        (PeerLost("gone"), "lost_peer", []),
        (PeerSilent("late"), "timed_out", []),
        (NoPeers("late", [1, 3]), "timed_out", [1, 3]),
    ],
)
def test_report_tells_that_other_ranks_are_gone_or_late(tmp_path, error, reason, ranks):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(type(error)), Report(path=path, env=RANK_1, options=Options()):
        raise error
    line = json.loads(path.read_text())
    assert (line["event"], line["reason"], line["ranks"]) == ("failed", reason, ranks)


def test_report_writes_no_failure_for_other_errors(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ValueError, match="mine"), Report(path=path, env=RANK_1, options=Options()):
        raise ValueError("mine")
    assert path.read_text() == ""


def test_report_on_a_full_disk_raises_what_the_job_ended_of():
    with pytest.raises(PeerLost), Report(path=Path("/dev/full"), env=RANK_1, options=Options()):
        raise PeerLost("gone")


def test_report_writes_non_finite_numbers_as_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Report(path=path, env=DistributedEnvironment(), options=Options()) as report:
        report.step(1, epoch=1, loss=float("nan"), samples=1, step_time=STEP_TIME)
    assert json.loads(path.read_text())["loss"] is None


def test_report_writes_and_prints_epochs_only_on_rank_0(tmp_path, capsys):
    for env in (DistributedEnvironment(world_size=2), RANK_1):
        with Report(path=tmp_path / f"{env.rank}", env=env, options=Options()) as report:
            report.epoch(EPOCH)
    line = json.loads((tmp_path / "0").read_text())
    assert (line["samples_per_s"], line["accuracy"]) == (200, 0.9)
    assert line["validation"] == {"loss": None, "accuracy": 0.9}
    assert EPOCH.scalars()["training/accuracy"] == 0.8
    assert (tmp_path / "1").read_text() == ""
    assert (
        capsys.readouterr().out
        == "epoch 1/10  loss 0.5000  accuracy 0.9000  200 images/s  2.00 s (first steps 1.50 s)\n"
    )


def test_report_of_text_tells_perplexity_tokens_memory_and_mfu(tmp_path, capsys):
    epoch = replace(EPOCH, validation={"loss": 2.0, "perplexity": 7.389})
    options, use = Options(dataset="text", seq_len=128), DeviceUse(memory_gb=1.5, peak_tflops=250.0)
    with Report(path=tmp_path / "0", env=DistributedEnvironment(), options=options) as report:
        report.epoch(epoch)
        report.end([epoch], TIMING, use=use, flops_per_sample=1e12, test=None, parts={"steps": 2.0})
    line, end = (json.loads(line) for line in (tmp_path / "0").read_text().splitlines())
    assert (line["perplexity"], line["accuracy"]) == (7.389, None)
    assert (end["perplexity"], end["accuracy"], end["memory_gb"]) == (7.389, None, 1.5)
    assert (end["samples_per_s"], end["tokens_per_s"], end["mfu"]) == (200, 200 * 128, pytest.approx(0.8))
    assert "perplexity 7.3890  25,600 tokens/s" in capsys.readouterr().out


def test_report_without_a_file_prints_to_the_console(capsys):
    with Report(path=None, env=DistributedEnvironment(), options=Options()) as report:
        report.start(torch.device("cpu"), **START | {"strategy": "single"})
    assert capsys.readouterr().out.startswith("cnn (53,002 weights) on digits  world size 1 (single, cpu)")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_report_raises_not_written_on_a_full_disk():
    full = Report(path=Path("/dev/full"), env=DistributedEnvironment(), options=Options())
    with (
        full as report,
        pytest.raises(NotWritten, match="/dev/full can't be written: No space left on device"),
    ):
        report.epoch(EPOCH)


def test_report_raises_not_written_if_the_file_cannot_be_opened(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotWritten, match=r"metrics\.jsonl can't be written"):
        Report(
            path=tmp_path / "file" / "metrics.jsonl", env=DistributedEnvironment(), options=Options()
        ).__enter__()
