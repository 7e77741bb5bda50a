"""The job itself: real processes, real torchrun, real images."""

import signal

import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy

from train.data import digits, split
from train.models import MODELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def default_run(run, tmp_path_factory):
    """The job as it comes, with two ranks; every step is written down."""
    done = run("--log-every", "1", ranks=2, run_dir=tmp_path_factory.mktemp("default"))
    assert done.status == 0, done.err
    return done


def losses(done, rank):
    return [line["loss"] for line in done.events(rank, None)]


def test_the_default_run_learns_to_read(default_run):
    assert [default_run.events(rank, "end")[0]["accuracy"] >= 0.95 for rank in (0, 1)] == [True, True]


def test_the_lines_of_each_rank(default_run):
    for rank in (0, 1):
        lines = default_run.lines(rank)
        start, *steps, end = [line for line in lines if line.get("event") != "epoch"]
        assert start == {
            "time": start["time"],
            "rank": rank,
            "event": "start",
            "local_rank": rank,
            "world_size": 2,
            "device": f"cuda:{rank}" if torch.cuda.is_available() else "cpu",
            "model": "cnn",
            "dataset": "digits",
            "strategy": "ddp",
            "epochs": 10,
            "steps_per_epoch": 12,
            "batch_size": 64,
        }
        assert lines[0] == start
        assert lines[-1] == end
        assert sorted(line["time"] for line in lines) == [line["time"] for line in lines]

        assert [(line["step"], line["epoch"]) for line in steps] == [
            (n, (n - 1) // 12 + 1) for n in range(1, 121)
        ]
        # 719 images an epoch: eleven batches of 64, and the last one of 15
        assert [line["samples"] for line in steps[:13]] == [*range(64, 705, 64), 719, 719 + 64]
        assert steps[-1]["samples"] == 10 * 719
        for line in steps:
            parts = [line["data_ms"], line["compute_ms"], line["communication_ms"]]
            assert min(parts) >= 0
            assert line["communication_ms"] > 0
            assert line["step_ms"] == pytest.approx(sum(parts), abs=0.002)

        assert end["event"] == "end"
        assert 0 < end["step_ms"]["p50"] <= end["step_ms"]["p95"]
        assert sum(end["share"].values()) == pytest.approx(1)
        assert end["share"]["communication"] > 0


def test_the_lines_of_the_epochs(default_run):
    epochs = default_run.events(0, "epoch")
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert default_run.events(1, "epoch") == []
    end = default_run.events(0, "end")[0]
    assert (end["accuracy"], end["loss"]) == (epochs[-1]["accuracy"], epochs[-1]["loss"])
    for line in epochs:
        assert line["samples_per_s"] * line["epoch_s"] == pytest.approx(2 * 719)
        # both ranks' losses, by the images that they were taken over: 64 a step and 15 in the last
        weighted = [
            step["loss"] * (15 if step["step"] % 12 == 0 else 64)
            for rank in (0, 1)
            for step in default_run.events(rank, None)
            if step["epoch"] == line["epoch"]
        ]
        assert line["loss"] == pytest.approx(sum(weighted) / (2 * 719))


def test_rank_0_alone_speaks_to_people(default_run):
    assert default_run.out.count("world size 2 (ddp") == 1
    assert default_run.out.count("epoch 10/10") == 1
    assert default_run.out.count("model written to") == 1


def test_the_model_is_the_bare_one_and_as_accurate_as_was_reported(default_run):
    state = torch.load(default_run.run_dir / "artifacts" / "model.pt", weights_only=True)
    model = MODELS["cnn"]((1, 8, 8), 10)
    model.load_state_dict(state)
    images, labels = split(digits())[1].tensors
    with torch.inference_mode():
        accuracy = multiclass_accuracy(model(images), labels, num_classes=10, average="micro")
    assert default_run.events(0, "end")[0]["accuracy"] == pytest.approx(float(accuracy))


def test_two_launchers_as_on_two_nodes_have_the_same_losses_to_the_last_bit(default_run, start, free_port, tmp_path):
    rendezvous = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", free_port())
    job = ("-m", "train", "--log-every", "1", "--epochs", "2")
    launchers = [("-m", "torch.distributed.run", *rendezvous, "--node-rank", str(node), *job) for node in (0, 1)]
    with (
        start(*launchers[0], run_dir=tmp_path / "0") as first,
        start(*launchers[1], run_dir=tmp_path / "1") as second,
    ):
        outputs = [launcher.communicate(timeout=60) for launcher in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    fair = max(1, usable_cores() // 2)
    assert f"world size 2 (ddp, cpu)  epochs 2 of 12 steps  batch 64 a rank  CPU threads {fair} a rank" in outputs[0][0]
    assert outputs[1][0] == ""
    for rank in (0, 1):
        again = metrics(tmp_path / str(rank))
        assert again[0]["local_rank"] == 0
        assert losses(again) == losses(default_run)[rank * 120:24]
    assert (tmp_path / "0" / "artifacts" / "model.pt").exists()
    assert not (tmp_path / "1" / "artifacts").exists()


def changed(folder, change):
    """A script that is the job, but for a change to it; `here` is 1 on rank 1 only."""
    path = folder / "changed.py"
    path.write_text(
        "import os, runpy, time\n"
        "import torch\n"
        "from train.timing import StepTimer\n"
        "here = os.environ.get('RANK') == '1'\n"
        f"{change}\n"
        "runpy.run_module('train', run_name='__main__', alter_sys=True)\n"
    )
    return path


def test_two_ranks_train_as_one_with_twice_the_batch(run, tmp_path):
    exact = changed(tmp_path, "torch.set_default_dtype(torch.float64)")
    common = ("--model", "mlp", "--epochs", "3", "--log-every", "1", "--device", "cpu")
    two = run(*common, "--batch-size", "32", ranks=2, script=exact, run_dir=tmp_path / "two")
    one = run(*common, "--batch-size", "64", script=exact, run_dir=tmp_path / "one")
    assert (two.status, one.status) == (0, 0), two.err + one.err
    mean_of_two = [(first + second) / 2 for first, second in zip(losses(two, 0), losses(two, 1), strict=True)]
    assert len(mean_of_two) == 3 * 23
    assert mean_of_two == pytest.approx(losses(one, 0), rel=1e-9)
    assert one.events(0, "start")[0]["strategy"] == "single"
    assert one.events(0, "end")[0]["share"]["communication"] == 0


def test_waiting_for_a_slow_rank_is_communication_of_the_one_that_waits(run, tmp_path):
    slow = changed(
        tmp_path,
        """
ready = StepTimer.data_ready
def slow(timer):
    ready(timer)
    time.sleep(0.03)
if here:
    StepTimer.data_ready = slow
""",
    )
    args = ("--model", "mlp", "--epochs", "1", "--device", "cpu", "--no-save")
    done = run(*args, ranks=2, script=slow, run_dir=tmp_path)
    assert done.status == 0, done.err
    waiting, busy = (done.events(rank, "end")[0]["share"] for rank in (0, 1))
    assert waiting["communication"] > 0.7
    assert busy["compute"] > 0.7


def test_an_error_on_one_rank_is_shown_and_ends_the_job(run, tmp_path):
    broken = changed(tmp_path, "if here: StepTimer.end = lambda timer: 1 / 0")
    done = run("--model", "mlp", ranks=2, script=broken, run_dir=tmp_path)
    assert done.status == 1
    before, root_cause = done.err.split("Root Cause")
    assert "ZeroDivisionError: division by zero" in before
    assert "error: Rank 0 lost another rank" in before
    assert "ZeroDivisionError: division by zero" in root_cause
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize("fault", ["time.sleep(60)", "os.kill(os.getpid(), 9)"], ids=["hangs", "is killed"])
def test_a_rank_whose_peer_is_lost_does_not_wait_forever(start, free_port, tmp_path, fault):
    """Without torchrun, which would end it anyway."""
    faulty = str(changed(tmp_path, f"if here: StepTimer.end = lambda timer: {fault}"))
    by_hand = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "run_dir": tmp_path,
    }
    args = (faulty, "--timeout-s", "5", "--device", "cpu", "--model", "mlp", "--no-save")
    with (
        start(*args, RANK="0", LOCAL_RANK="0", **by_hand) as survivor,
        start(*args, RANK="1", LOCAL_RANK="1", **by_hand),
    ):
        _, err = survivor.communicate(timeout=30)
    assert survivor.returncode == 1
    assert err.startswith("error: Rank 0 lost another rank")
    assert "Traceback" not in err


def test_peers_that_never_come_are_a_sentence(run, free_port, tmp_path):
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = run("--timeout-s", "1", "--device", "cpu", run_dir=tmp_path, **alone, **where)
    assert done.status == 1
    assert (
        f"error: Rank 0 did not find the other 1 within 1 s at 127.0.0.1:{where['MASTER_PORT']}" in done.err
    )
    assert "Traceback" not in done.err


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_at_once_and_silently(start, tmp_path, sent):
    endless = ("--model", "mlp", "--epochs", "1000000", "--no-save")
    with start("-m", "train", *endless, run_dir=tmp_path) as job:
        assert any(line.startswith("epoch 2/") for line in job.stdout)
        job.send_signal(sent)
        _, err = job.communicate(timeout=5)
    assert job.returncode == -sent
    assert err == ""
