"""The job itself: real processes, real torchrun, real images."""

import json
import signal
import statistics
import time

import pytest
import torch

from train.batches.batch import Normalize
from train.data.load import load_dataset
from train.distributed.devices import usable_cores
from train.distributed.environment import DistributedEnvironment
from train.models.networks import build_model
from train.options import Options
from train.torchvision_import import import_torchvision

import_torchvision()  # torchmetrics imports it
from torchmetrics.functional.classification import multiclass_accuracy  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def default_run(run, tmp_path_factory):
    """The job as it comes, with two ranks; every step is written down."""
    done = run("--log-every", "1", "--device", "cpu", ranks=2, run_dir=tmp_path_factory.mktemp("default"))
    assert done.status == 0, done.err
    return done


def lines(run_dir, rank):
    """The rank's lines in the metrics file."""
    every = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["rank"] == rank]


def events(run_dir, rank, event):
    return [line for line in lines(run_dir, rank) if line.get("event") == event]


def end(run_dir, rank):
    (line,) = events(run_dir, rank, "end")
    return line


def steps(run_dir, rank):
    return [line for line in lines(run_dir, rank) if "step" in line]


def losses(run_dir, rank):
    return [line["loss"] for line in steps(run_dir, rank)]


def test_default_run_reaches_97_percent_accuracy(default_run):
    assert end(default_run.run_dir, 0)["accuracy"] >= 0.97


@pytest.mark.parametrize("rank", [0, 1])
def test_metrics_file_of_a_rank_has_start_steps_and_end(default_run, rank):
    every = lines(default_run.run_dir, rank)
    assert every[0] == {
        "time": every[0]["time"],
        "rank": rank,
        "event": "start",
        "local_rank": rank,
        "world_size": 2,
        "device": "cpu",
        "model": "cnn",
        "dataset": "digits",
        "strategy": "ddp",
        "epochs": 10,
        "steps_per_epoch": 12,
        "batch_size": 64,
        "precision": "fp32",
        "memory_savers": [],
        "place": None,
        "loop": "fast",
        "parameters": 53_002,
        "gradient_bytes": 4 * 53_002,
        "seconds": every[0]["seconds"],
    }
    assert set(every[0]["seconds"]) == {"device", "data", "model"}
    assert min(every[0]["seconds"].values()) > 0
    assert [line["time"] for line in every] == sorted(line["time"] for line in every)
    assert [line.get("event") for line in every].count("epoch") == (10 if rank == 0 else 0)

    step_lines = steps(default_run.run_dir, rank)
    assert [(line["step"], line["epoch"]) for line in step_lines] == [
        (n, (n - 1) // 12 + 1) for n in range(1, 121)
    ]
    # 719 images an epoch: eleven batches of 64 and a last one of 15
    assert [line["samples"] for line in step_lines[:13]] == [*range(64, 705, 64), 719, 719 + 64]
    assert step_lines[-1]["samples"] == 10 * 719
    for line in step_lines:
        parts = [line["data_ms"], line["compute_ms"], line["communication_ms"]]
        assert min(parts) > 0
        assert line["step_ms"] == pytest.approx(sum(parts), abs=0.002)

    last = every[-1]
    assert last["event"] == "end"
    assert 0 < last["step_ms"]["p50"] <= last["step_ms"]["p95"]
    assert set(last["share"]) == {"compute", "communication", "data"}
    assert sum(last["share"].values()) == pytest.approx(1)
    assert min(last["share"].values()) > 0


PLANTED = """
import train.trainer as trainer
from train.checkpoints.checkpointer import Checkpointer

def late(function, is_late=lambda *_: True):
    def call(*words, **named):
        if is_late(*words):
            time.sleep(1)
        return function(*words, **named)
    return call

StepTimer.data_ready = late(StepTimer.data_ready, lambda timer, samples: samples not in timer._sizes)
trainer.evaluate = late(trainer.evaluate)
Checkpointer.save = late(Checkpointer.save)
"""


def test_slow_first_steps_evaluations_and_saves_change_no_speed(run, changed, tmp_path):
    args = ("--model", "mlp", "--epochs", "2", "--device", "cpu", "--checkpoint-every", "0.5")
    began = time.time()
    done = run(*args, script=changed(PLANTED), run_dir=tmp_path)
    assert done.status == 0, done.err
    last, taken_s = end(tmp_path, 0), time.time() - began
    for line in (*events(tmp_path, 0, "epoch"), last):
        assert 64 / line["samples_per_s"] < 0.5
    assert last["step_ms"]["p95"] < 500
    parts = last["parts"]
    # Batches of 64 and a smaller last batch; two epochs; a checkpoint each half epoch.
    assert 2 <= parts["first_steps"] < 3
    assert parts["evaluation"] >= 2
    assert parts["checkpoints"] >= 4
    [start] = events(tmp_path, 0, "start")
    assert sum(parts.values()) == pytest.approx(last["time"] - start["time"], rel=0.05)
    assert sum(start["seconds"].values()) + sum(parts.values()) < taken_s


def test_epoch_metrics_cover_all_ranks(default_run):
    epochs = events(default_run.run_dir, 0, "epoch")
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    for rank in (0, 1):
        last = end(default_run.run_dir, rank)
        assert (last["accuracy"], last["loss"]) == (epochs[-1]["accuracy"], epochs[-1]["loss"])
    for line in epochs:
        # Most steps are steady ones.
        assert line["samples_per_s"] * line["epoch_s"] >= 719
        weighted = [
            step["loss"] * (15 if step["step"] % 12 == 0 else 64)
            for rank in (0, 1)
            for step in steps(default_run.run_dir, rank)
            if step["epoch"] == line["epoch"]
        ]
        assert line["loss"] == pytest.approx(sum(weighted) / (2 * 719))


def test_only_rank_0_prints_progress(default_run):
    assert default_run.out.count("world size 2 (ddp, cpu)") == 1
    assert default_run.out.count("epoch 10/10") == 1
    assert default_run.out.count("model written to") == 1


def test_saved_model_has_the_reported_accuracy(default_run):
    state = torch.load(default_run.run_dir / "artifacts" / "model.pt", weights_only=True)
    digits = load_dataset(Options(), DistributedEnvironment())
    model = build_model(Options(), digits.shape, digits.classes)
    model.load_state_dict(state)
    images = Normalize(digits.mean, digits.std, torch.device("cpu"))(digits.validation.inputs)
    with torch.inference_mode():
        accuracy = multiclass_accuracy(
            model(images), digits.validation.labels, num_classes=10, average="micro"
        )
    assert end(default_run.run_dir, 0)["accuracy"] == pytest.approx(float(accuracy))


def test_two_torchrun_launchers_have_bit_identical_losses(default_run, start, free_port, tmp_path):
    rendezvous = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    job = ("-m", "train", "--log-every", "1", "--epochs", "2", "--device", "cpu")
    first, second = (("-m", "torch.distributed.run", *rendezvous, "--node-rank", rank, *job) for rank in "01")
    with start(*first, run_dir=tmp_path / "0") as node_0, start(*second, run_dir=tmp_path / "1") as node_1:
        (out, err_0), (silence, err_1) = (node.communicate(timeout=200) for node in (node_0, node_1))
    assert (node_0.returncode, node_1.returncode) == (0, 0), err_0 + err_1
    for rank in (0, 1):
        assert losses(tmp_path / str(rank), rank) == losses(default_run.run_dir, rank)[:24]
        assert events(tmp_path / str(rank), rank, "start")[0]["local_rank"] == 0
    assert f"CPU threads {max(1, usable_cores() // 2)} a rank" in out
    assert silence == ""
    assert (tmp_path / "0" / "artifacts" / "model.pt").exists()
    assert not (tmp_path / "1" / "artifacts").exists()


@pytest.mark.parametrize(
    ("slow", "sleep_s", "model"),
    [
        (1, 0.03, ("--model", "mlp")),
        # A normalisation's running statistics are rank 0's in the end, but nobody waits for them on the way.
        (
            0,
            0.4,
            (
                "--model",
                "resnet18",
                "--dataset",
                "synthetic",
                "--synthetic",
                "96,3,8,8,4",
                "--batch-size",
                "4",
            ),
        ),
    ],
)
def test_waiting_for_a_slow_rank_counts_as_communication(run, changed, tmp_path, slow, sleep_s, model):
    script = changed(
        f"""
ready = StepTimer.data_ready
def slow(timer, samples):
    ready(timer, samples)
    time.sleep({sleep_s})
if os.environ["RANK"] == "{slow}":
    StepTimer.data_ready = slow
""",
    )
    args = (*model, "--epochs", "1", "--device", "cpu", "--no-save", "--log-every", "1")
    done = run(*args, ranks=2, script=script, run_dir=tmp_path)
    assert done.status == 0, done.err
    waiting, busy = (end(tmp_path, rank)["share"] for rank in (1 - slow, slow))
    assert waiting["communication"] > busy["communication"]
    assert waiting["compute"] < busy["compute"]

    def mean_s(rank, part):
        return statistics.mean(line[part] for line in steps(tmp_path, rank)) / 1000

    # In seconds, not shares: how long the rest of a step takes is the machine's affair.
    assert mean_s(slow, "compute_ms") > sleep_s
    assert mean_s(1 - slow, "communication_ms") - mean_s(slow, "communication_ms") > sleep_s / 2


def test_error_on_one_rank_is_printed_and_ends_the_job(run, changed, tmp_path):
    broken = changed("if here: StepTimer.end = lambda timer: 1 / 0")
    done = run("--model", "mlp", ranks=2, script=broken, run_dir=tmp_path)
    assert done.status == 1
    before, root_cause = done.err.split("Root Cause")
    assert "ZeroDivisionError: division by zero" in before
    assert "ZeroDivisionError: division by zero" in root_cause
    assert not (tmp_path / "artifacts" / "model.pt").exists()


def two_by_hand(port, run_dir):
    """Return the common environment of two ranks on this machine, without torchrun."""
    return {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "run_dir": run_dir,
    }


@pytest.mark.parametrize(
    ("fault", "sentence", "reason"),
    [
        (
            "time.sleep(60)",
            "error: Rank 0 waited 5 s for another rank in vain (Timed out waiting",
            "timed_out",
        ),
        ("os.kill(os.getpid(), 9)", "error: Rank 0 lost another rank", "lost_peer"),
    ],
    ids=["hangs", "is killed"],
)
def test_rank_whose_peer_is_lost_exits_1_with_a_message(
    start, free_port, changed, tmp_path, fault, sentence, reason
):
    """Without torchrun, which would end it anyway."""
    faulty = str(changed(f"if here: StepTimer.end = lambda timer: {fault}"))
    by_hand = two_by_hand(free_port(), tmp_path)
    args = (faulty, "--timeout-s", "5", "--device", "cpu", "--model", "mlp", "--no-save")
    metrics = tmp_path / "rank-0.jsonl"
    with (
        start(*args, RANK="0", LOCAL_RANK="0", GPUCTL_METRICS=str(metrics), **by_hand) as survivor,
        start(*args, RANK="1", LOCAL_RANK="1", **by_hand),
    ):
        _, err = survivor.communicate(timeout=150)
    assert survivor.returncode == 1
    assert err.startswith(sentence)
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("failed", reason)
    assert "Traceback" not in err


def test_rank_lost_during_checkpoint_is_reported_as_lost(start, free_port, changed, tmp_path):
    dies = (
        "import train.checkpoints.checkpointer as c\n"
        "if not here:\n    c.barrier = lambda *a, **k: os.kill(os.getpid(), 9)"
    )
    by_hand = two_by_hand(free_port(), tmp_path)
    args = (str(changed(dies)), "--device", "cpu", "--model", "mlp", "--no-save", "--checkpoint-every", "1")
    with (
        start(*args, RANK="0", LOCAL_RANK="0", **by_hand),
        start(*args, RANK="1", LOCAL_RANK="1", **by_hand) as survivor,
    ):
        _, err = survivor.communicate(timeout=200)
    assert survivor.returncode == 1
    assert "error: Rank 1 lost another rank" in err
    assert "waited" not in err


def test_missing_peers_time_out_with_a_message(run, free_port, tmp_path):
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = run("--timeout-s", "1", "--device", "cpu", run_dir=tmp_path, **alone, **where)
    assert done.status == 1
    assert (
        f"error: Rank 0 did not find the other 1 within 1 s at 127.0.0.1:{where['MASTER_PORT']}" in done.err
    )
    assert "Traceback" not in done.err


def test_signal_ends_the_job_silently(start, tmp_path):
    endless = ("-m", "train", "--model", "mlp", "--epochs", "1000000", "--no-save")
    with start(*endless, run_dir=tmp_path / "0") as first, start(*endless, run_dir=tmp_path / "1") as second:
        for job, sent in ((first, signal.SIGTERM), (second, signal.SIGINT)):
            assert any(line.startswith("epoch 2/") for line in job.stdout)
            job.send_signal(sent)
            _, err = job.communicate(timeout=150)
            assert job.returncode == -sent
            assert err == ""
