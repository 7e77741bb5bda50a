"""The same numbers on every way: fast or plain, one rank or two, at once or in parts, through or interrupted."""

import json
import random
import re
import shutil

import pytest
import torch

from train.checkpoints import files

pytestmark = pytest.mark.slow

EXACT = "torch.set_default_dtype(torch.float64)"
SMALL = (
    *("--dataset", "synthetic", "--synthetic", "320,3,12,12,4", "--augmentation", "crop"),
    *("--epochs", "2", "--log-every", "1", "--device", "cpu", "--threads", "1", "--no-tensorboard"),
)
"""Five steps of 64 images an epoch, and every kind of chance."""


def losses(run_dir, rank=0):
    """The rank's loss at each step; of steps that were taken twice, the last."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "step" in line and line["rank"] == rank}


def epochs(run_dir):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["epoch"]: line for line in lines if line.get("event") == "epoch"}


def model(run_dir):
    return torch.load(run_dir / "artifacts" / "model.pt", weights_only=True)


def same(actual, other, **tolerance):
    assert actual.keys() == other.keys()
    assert list(actual.values()) == pytest.approx(list(other.values()), **tolerance)


@pytest.mark.parametrize(
    ("kind", "ranks", "exact", "tolerance"),
    [
        ("cnn", None, False, 2e-3),
        ("cnn", 2, False, 2e-3),
        # Where batches are normalised, what rounding does grows from step to step.
        ("resnet18", None, True, 1e-6),
    ],
)
def test_fast_loop_has_the_losses_of_the_plain_loop(run, changed, tmp_path, kind, ranks, exact, tolerance):
    args = (*SMALL, "--model", kind, "--batch-size", "32" if ranks else "64", "--lr", "0.001")
    script = changed(EXACT) if exact else None
    done = [
        run(*args, "--loop", loop, ranks=ranks, script=script, run_dir=tmp_path / loop)
        for loop in ("fast", "plain")
    ]
    assert [job.status for job in done] == [0, 0], done[0].err + done[1].err
    for rank in range(ranks or 1):
        fast, plain = (losses(job.run_dir, rank) for job in done)
        assert len(fast) == 10
        same(fast, plain, rel=tolerance)


def test_bf16_losses_are_close_to_fp32(run, tmp_path):
    exact, near = (
        run(*SMALL, "--model", "mlp", "--precision", precision, run_dir=tmp_path / precision)
        for precision in ("fp32", "bf16")
    )
    assert (exact.status, near.status) == (0, 0), exact.err + near.err
    same(losses(near.run_dir), losses(exact.run_dir), rel=0.03)
    assert losses(near.run_dir) != losses(exact.run_dir), "it was computed in half precision"


COMPILED = (
    *(
        *SMALL,
        "--model",
        "mlp",
        "--batch-size",
        "40",
        "--gradient-accumulation-steps",
        "3",
        "--max-grad-norm",
        "0.5",
        "--lr",
        "0.01",
    ),
    *("--label-smoothing", "0.1", "--schedule", "cosine"),
    *("--checkpoint-every", "0.4", "--keep-checkpoints", "9"),
)
"""Each step has its own learning rate, and a part that is smaller than the others."""
COMPILED_TEXT = (
    *(
        "--dataset",
        "text",
        "--model",
        "gpt-10m",
        "--seq-len",
        "8",
        "--batch-size",
        "4",
        "--validation",
        "0.2",
    ),
    *("--activation-checkpointing", "--epochs", "2", "--log-every", "1", "--device", "cpu", "--threads", "1"),
    *("--checkpoint-every", "0", "--no-tensorboard"),
)
"""Of 20 sequences, each of two ranks has two batches of four and one of two in an epoch; three blocks are alike."""
COUNTED = (
    "import train.job\nrun = train.job.run\ndef counted(options):\n    run(options)\n"
    "    from torch._dynamo.utils import counters\n"
    # In one piece: another rank writes to the same pipe.
    "    graphs = counters['stats']['unique_graphs'], counters['aot_autograd']['total']\n"
    "    print(f\"graphs: {graphs}\\n\", end='', flush=True)\n"
    "train.job.run = counted\nfrom train.models.gpt_sizes import GPT_SIZES, GPTSize\n"
    "GPT_SIZES['gpt-10m'] = GPTSize(layers=3, width=16, heads=2, context=1024, lr=1e-3)"
)


@pytest.fixture(
    scope="module",
    params=[(COMPILED, "sgd", None), (COMPILED_TEXT, "adamw", 2)],
    ids=["whole-1", "blocks-2"],
)
def compiled(request, run, changed, tmp_path_factory):
    """The options of a run, the number of its ranks, and the run with and without --compile."""
    args, optimizer, ranks = request.param
    folder = tmp_path_factory.mktemp("compiled")
    if args is COMPILED_TEXT:
        (folder / "book.txt").write_text(("All ranks read, and every rank waits for the last. " * 4)[:203])
        args = (*args, "--data-dir", str(folder / "book.txt"))
    args = (*args, "--optimizer", optimizer)
    done = [
        run(
            *args,
            word,
            ranks=ranks,
            script=changed(f"{EXACT}\n{COUNTED}"),
            run_dir=folder / word,
            timeout_s=400,
            GPUCTL_DATA_DIR=str(folder / "cache"),
        )
        for word in ("--compile", "--no-compile")
    ]
    assert [job.status for job in done] == [0, 0], done[0].err + done[1].err
    return args, ranks, *done


def test_compiled_step_has_the_same_losses(compiled):
    _, ranks, whole, plain = compiled
    for rank in range(ranks or 1):
        assert len(losses(whole.run_dir, rank)) == (6 if ranks else 16)
        same(losses(whole.run_dir, rank), losses(plain.run_dir, rank), rel=1e-9)
    for ours, theirs in zip(epochs(whole.run_dir).values(), epochs(plain.run_dir).values(), strict=True):
        assert ours["validation"] == pytest.approx(theirs["validation"], rel=1e-9)
    assert model(whole.run_dir).keys() == model(plain.run_dir).keys()


def test_compiled_code_is_made_once_for_the_parts_of_a_whole_batch(compiled):
    """Two sizes of a part, or a block and the loss: no epoch, smaller batch, evaluation or rate makes more."""
    _, ranks, whole, _ = compiled
    # The other rank, or its launcher, may be in the middle of a line.
    assert re.findall(r"graphs: (.*?\))", whole.out) == ["(2, 2)"] * (ranks or 1)


@pytest.mark.parametrize(("word", "tolerance"), [("--compile", 1e-12), ("--no-compile", 1e-9)])
@pytest.mark.parametrize("compiled", [(COMPILED, "sgd", None)], indirect=True, ids=["whole-1"])
def test_compiled_run_resumes_from_its_checkpoint(run, changed, tmp_path, compiled, word, tolerance):
    args, _, whole, _ = compiled
    shutil.copytree(whole.run_dir / "checkpoints", tmp_path / "checkpoints")
    for document in (tmp_path / "checkpoints").glob("*.json"):
        if document.stem != "step-000004":
            document.unlink()
    again = run(*args, word, script=changed(EXACT), run_dir=tmp_path, timeout_s=400)
    assert again.status == 0, again.err
    assert "resuming from step-000004.pt: epoch 1, 50% of it done" in again.out
    after = {step: loss for step, loss in losses(whole.run_dir).items() if step > 4}
    same(losses(tmp_path), after, rel=tolerance)


def test_two_ranks_train_like_one_with_twice_the_batch(run, changed, tmp_path):
    args = (*SMALL, "--max-grad-norm", "0.5", "--schedule", "cosine", "--warmup-epochs", "0.5")
    two = run(*args, "--batch-size", "32", ranks=2, script=changed(EXACT), run_dir=tmp_path / "two")
    single = run(*args, "--global-batch-size", "64", script=changed(EXACT), run_dir=tmp_path / "one")
    assert (two.status, single.status) == (0, 0), two.err + single.err
    first, second = (losses(two.run_dir, rank) for rank in (0, 1))
    mean = {step: (first[step] + second[step]) / 2 for step in first}
    assert len(mean) == 10
    same(mean, losses(single.run_dir), rel=1e-9)
    for ours, theirs in zip(epochs(two.run_dir).values(), epochs(single.run_dir).values(), strict=True):
        for name in ("loss", "accuracy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-9)
        assert ours["validation"] == pytest.approx(theirs["validation"], rel=1e-9)


def test_gradient_accumulation_gives_the_same_losses(run, changed, tmp_path):
    whole = run(*SMALL, "--batch-size", "64", script=changed(EXACT), run_dir=tmp_path / "whole")
    parts = run(
        *SMALL,
        "--batch-size",
        "64",
        "--gradient-accumulation-steps",
        "3",
        script=changed(EXACT),
        run_dir=tmp_path / "parts",
    )
    assert (whole.status, parts.status) == (0, 0), whole.err + parts.err
    same(losses(parts.run_dir), losses(whole.run_dir), rel=1e-9)


def test_compressed_gradients_give_close_losses(run, tmp_path):
    args = (*SMALL, "--batch-size", "32", "--lr", "0.001")
    whole, half, low_rank = (
        run(*args, "--compression", compression, ranks=2, run_dir=tmp_path / compression)
        for compression in ("none", "half", "powersgd")
    )
    assert (whole.status, half.status, low_rank.status) == (0, 0, 0), whole.err + half.err + low_rank.err
    assert losses(half.run_dir) != losses(whole.run_dir) != losses(low_rank.run_dir)
    same(losses(half.run_dir), losses(whole.run_dir), rel=0.02)
    same(losses(low_rank.run_dir), losses(whole.run_dir), rel=0.1)


WHOLE = """
import train.checkpoints.checkpointer as c
save = c.Checkpointer.save
def whole(checkpointer):
    save(checkpointer)
    checkpointer.wait()
c.Checkpointer.save = whole
"""
"""A change to the job: a checkpoint is whole before the next step."""


def dies(step, *, condition="True"):
    """A change to the job: it ends as if the machine did, in the middle of that step."""
    return (
        f"{EXACT}\n{WHOLE}\nend = StepTimer.end\ndef last(timer):\n    end(timer)\n"
        f"    if {condition} and timer.count == {step}: os.kill(os.getpid(), 9)\nStepTimer.end = last"
    )


INTERRUPTED = (*SMALL, "--global-batch-size", "64", "--checkpoint-every", "0.4", "--optimizer", "adamw")


@pytest.fixture(scope="module", params=[None, 2])
def uninterrupted(request, run, changed, tmp_path_factory):
    """The number of ranks, and their run to the end."""
    done = run(
        *INTERRUPTED, ranks=request.param, script=changed(EXACT), run_dir=tmp_path_factory.mktemp("whole")
    )
    assert done.status == 0, done.err
    return request.param, done


@pytest.mark.parametrize("step", [3, 6, "any", "another"])
def test_resumed_run_ends_bit_identical_to_an_uninterrupted_one(run, changed, tmp_path, uninterrupted, step):
    """The run resumes from its last checkpoint with bit-identical weights and losses."""
    ranks, whole = uninterrupted
    if isinstance(step, str):
        step = random.randrange(3, 11)
        print("killed in step", step)
    killed = run(
        *INTERRUPTED,
        ranks=ranks,
        script=changed(dies(step, condition="here" if ranks else "True")),
        run_dir=tmp_path / "killed",
    )
    assert killed.status != 0
    assert max(losses(killed.run_dir)) in (step - 1, step)
    again = run(*INTERRUPTED, ranks=ranks, script=changed(EXACT), run_dir=tmp_path / "killed")
    assert again.status == 0, again.err
    assert "resuming from step-" in again.out
    for rank in range(ranks or 1):
        assert losses(again.run_dir, rank) == losses(whole.run_dir, rank)
    for ours, theirs in zip(epochs(again.run_dir).values(), epochs(whole.run_dir).values(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12), "it is added up in another order"
        assert (ours["accuracy"], ours["validation"]) == (theirs["accuracy"], theirs["validation"])
        assert ours["training"] == pytest.approx(theirs["training"], rel=1e-12)
    ours, theirs = model(again.run_dir), model(whole.run_dir)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_epoch_metrics_are_written_before_the_checkpoint(run, changed, tmp_path):
    """The resumed job does not report the epochs in its checkpoint again."""
    end = "import train.trainer\ntrain.trainer.Trainer.save_if_due = lambda trainer: os.kill(os.getpid(), 9)"
    assert run(*SMALL, "--checkpoint-every", "1", script=changed(end), run_dir=tmp_path).status == -9
    assert list(epochs(tmp_path)) == [1]
    later = "import train.trainer\nsave = train.trainer.Trainer.save_if_due\ndef end(trainer):\n    save(trainer)\n"
    later += "    trainer.finish()\n    os.kill(os.getpid(), 9)\ntrain.trainer.Trainer.save_if_due = end"
    assert run(*SMALL, "--checkpoint-every", "1", script=changed(later), run_dir=tmp_path).status == -9
    again = run(*SMALL, "--checkpoint-every", "1", run_dir=tmp_path)
    assert again.status == 0, again.err
    assert "resuming from step-000005.pt: the end of epoch 1" in again.out
    assert list(epochs(tmp_path)) == [1, 2]


def test_checkpoint_write_slower_than_timeout_does_not_fail_ranks(run, changed, tmp_path):
    slow = "import train.checkpoints.files as c\nsave = c.save\n"
    slow += "def late(*a, **k):\n    time.sleep(6)\n    return save(*a, **k)\nc.save = late"
    args = (*SMALL, "--epochs", "1", "--timeout-s", "4", "--batch-size", "32")
    done = run(*args, ranks=2, script=changed(slow), run_dir=tmp_path)
    assert done.status == 0, done.err
    assert (tmp_path / "checkpoints" / "step-000005.json").exists()


def test_resume_with_another_number_of_ranks_gives_the_same_losses(run, changed, tmp_path):
    args = (*SMALL, "--global-batch-size", "64", "--checkpoint-every", "0.2")
    killed = run(*args, script=changed(dies(4)), run_dir=tmp_path / "killed")
    assert killed.status != 0
    again = run(*args, ranks=2, script=changed(EXACT), run_dir=tmp_path / "killed")
    whole = run(*args, script=changed(EXACT), run_dir=tmp_path / "whole")
    assert (again.status, whole.status) == (0, 0), again.err + whole.err
    first, second = losses(again.run_dir, 0), losses(again.run_dir, 1)
    assert min(second) == 4, "it went on after the third step"
    mean = {step: (first[step] + second.get(step, first[step])) / 2 for step in first}
    same(mean, losses(whole.run_dir), rel=1e-9)
    for ours, theirs in zip(epochs(again.run_dir).values(), epochs(whole.run_dir).values(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert ours["training"] == pytest.approx(theirs["training"], rel=1e-9)


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (
            ("--model", "mlp"),
            1,
            "is of another job: it has model cnn; this one model mlp. Give the options of that",
        ),
        (("--seed", "5"), 1, "is of another job: it has seed 0; this one seed 5."),
    ],
)
def test_resume_refuses_a_checkpoint_of_another_job(run, tmp_path, args, status, sentence):
    first = run(*SMALL, "--checkpoint-every", "1", run_dir=tmp_path)
    assert first.status == 0, first.err
    before = sorted((tmp_path / "checkpoints").iterdir())
    done = run(*SMALL, *args, run_dir=tmp_path)
    assert done.status == status
    assert "Traceback" not in done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert re.search(sentence, line), line
    assert sorted((tmp_path / "checkpoints").iterdir()) == before, "nothing is lost"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ("--batch-size", "321"),
            "A batch of 321 images a rank is more than there are: 320 training images for 1 rank.",
        ),
        (
            ("--gradient-accumulation-steps", "65"),
            "A batch of 64 images can't be divided into 65 micro-batches (--gr",
        ),
        (
            ("--model", "resnet18", "--batch-size", "319"),
            "resnet18 normalises over the batch, and can't be trained on a single image,",
        ),
    ],
)
def test_invalid_batch_size_exits_2_with_a_message(run, tmp_path, args, sentence):
    done = run(*SMALL, *args, run_dir=tmp_path)
    assert done.status == 2
    assert f"error: {sentence}" in done.err
    assert "Traceback" not in done.err
    assert not losses(tmp_path), "nothing was trained before"


def test_resume_refuses_a_checkpoint_with_wrong_shapes(run, tmp_path):
    """Its digest is right, and the fused optimizer would not look at the shape."""
    first = run(*SMALL, "--epochs", "1", run_dir=tmp_path)
    assert first.status == 0, first.err
    path = tmp_path / "checkpoints" / "step-000005.pt"
    state = torch.load(path, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1, 2)
    files.save(path.parent, files.serialized(state), step=6, keep=2, world_size=1)
    done = run(*SMALL, run_dir=tmp_path)
    assert done.status == 1
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert (
        "step-000006.pt is not one of this job (its optimizer's exp_avg has shape (1, 2) for (32, 3, 3, 3))"
        in line
    )
    assert "Traceback" not in done.err


def test_resume_of_a_finished_run_writes_the_model_and_stops(run, tmp_path):
    """Resume as if a node were lost between the last checkpoint and the model."""
    first = run(*SMALL, "--checkpoint-every", "1", run_dir=tmp_path)
    assert first.status == 0, first.err
    before = model(tmp_path)
    (tmp_path / "artifacts" / "model.pt").unlink()
    again = run(*SMALL, run_dir=tmp_path)
    assert again.status == 0, again.err
    assert "resuming from step-000010.pt: the end of epoch 2, step 10" in again.out
    assert (
        "nothing is left to train: 2 of --epochs 2 are done. Give a larger number to train on." in again.out
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model(tmp_path).items())
    more = run(*SMALL, "--epochs", "3", run_dir=tmp_path)
    assert more.status == 0, more.err
    assert list(epochs(tmp_path)) == [1, 2, 3]


def test_resume_prefers_given_options_over_the_checkpoint(run, changed, tmp_path):
    """Another weight decay, and the fused kernel after the plain loop's."""
    args = (*SMALL, "--optimizer", "adamw")
    first = run(*args, "--epochs", "1", "--checkpoint-every", "1", "--loop", "plain", run_dir=tmp_path)
    assert first.status == 0, first.err
    script = changed(
        "import train.trainer as t\nbefore = t.Trainer.load_state_dict\n"
        "def after(self, *state):\n    before(self, *state)\n    [group] = self._optimizer.param_groups\n"
        "    print('decay', group['weight_decay'], 'fused', group['fused'], flush=True)\n"
        "t.Trainer.load_state_dict = after"
    )
    again = run(*args, "--weight-decay", "0.25", script=script, run_dir=tmp_path)
    assert again.status == 0, again.err
    assert "decay 0.25 fused True" in again.out


def test_global_batch_size_not_divisible_by_ranks_is_refused(run, tmp_path):
    done = run(*SMALL, "--global-batch-size", "33", ranks=2, run_dir=tmp_path)
    assert done.status == 1, "torchrun's own"
    sentence = "--global-batch-size 33 can't be divided among 2 ranks. Give a multiple of 2."
    assert f"error: {sentence}" in done.err
