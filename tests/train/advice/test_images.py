"""Test the needs of image networks, as torch counts them on tensors without memory."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from train.advice.data import data_of
from train.advice.images import image_network
from train.advice.machines import Machines
from train.advice.network import joined
from train.advice.question import question_of
from train.advice.rows import rows
from train.advice.speed import RECOMPUTED
from train.command_line import parse
from train.data import load
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.models.networks import build_model
from train.reporting.device_use import stored_bytes
from train.strategies.recompute import recompute_blocks
from train.train_step import mean_loss

CNN = ("--model", "cnn", "--dataset", "mnist")
SHAPE, CLASSES = (1, 28, 28), 10


def network(*words, pipelines=False):
    return image_network(parse(words), SHAPE, CLASSES, pipelines=pipelines)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_count_without_memory_agrees_with_torchs_storages(precision):
    options = parse([*CNN, "--precision", precision])
    model = build_model(options, SHAPE, CLASSES)
    saved, ours = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in ours:
            saved[tensor.untyped_storage().data_ptr()] = tensor  # held: another tensor would get its place
        return tensor

    samples = 8
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        mean_loss(model(torch.rand(samples, *SHAPE)), torch.zeros(samples, dtype=torch.int64))
    whole = joined(network(*CNN, "--precision", precision).layers)
    assert whole.weights == sum(p.numel() for p in model.parameters())
    retained = samples * whole.saved_bytes + 2 * whole.copied_weights
    assert stored_bytes(saved.values()) == pytest.approx(retained, rel=0.02)


def test_operations_are_those_of_matrices_and_convolutions():
    whole = joined(network(*CNN).layers)
    forward = 28 * 28 * 32 * 9 + 14 * 14 * 64 * 32 * 9 + 64 * 49 * 128 + 128 * 10
    first = 28 * 28 * 32 * 9  # the images have no gradient
    assert whole.flops == 2 * (3 * forward - first)


def test_layers_of_a_chain_are_together_the_network():
    layered, cut = network(*CNN), network(*CNN, pipelines=True)
    assert (len(layered.layers), len(cut.layers)) == (1, 10)
    whole, parts = joined(layered.layers), joined(cut.layers)
    for name in ("weights", "saved_bytes", "flops", "moved_bytes"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
    assert cut.layers[0].passed_bytes == 32 * 28 * 28 * 4


def test_pairs_of_linear_layers_are_split_and_others_are_not():
    mlp = network("--model", "mlp", "--dataset", "mnist")
    whole = joined(mlp.layers)
    assert mlp.heads == 128
    assert whole.split_weights == 784 * 128 + 128 + 128 * 64
    assert joined([whole.of_rank(2)]).weights == whole.weights - whole.split_weights // 2
    cnn = network("--model", "resnet18", "--dataset", "mnist", "--stem", "cifar")
    assert cnn.heads is None
    assert cnn.unsplit.startswith("--tp splits pairs of linear layers")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (("--dataset", "digits"), load.read_digits),
        (("--dataset", "digits", "--validation", "0.5"), load.read_digits),
        (("--dataset", "synthetic", "--synthetic", "50,3,8,8,4"), load.read_synthetic),
        (("--dataset", "synthetic", "--synthetic", "50,3,8,8,4", "--validation", "0.1"), load.read_synthetic),
    ],
)
def test_samples_are_those_of_the_dataset(words, read):
    options = parse(["--model", "mlp", *words])
    known, data = data_of(options), read(options, DistributedEnvironment())
    assert (known.shape, known.classes, known.training) == (data.shape, data.classes, len(data.training))


def test_folder_that_is_here_tells_its_classes_and_images(tmp_path):
    for name in ("train/a/1.png", "train/a/2.jpg", "train/b/3.jpeg", "train/b/readme.txt", "val/a/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    words = ["--model", "mlp", "--dataset", "folder", "--image-size", "32", "--data-dir"]
    local = data_of(parse([*words, str(tmp_path)]))
    assert (local.shape, local.classes, local.training) == ((3, 32, 32), 2, 3)
    missing = data_of(parse([*words, "/nowhere"]))
    assert (missing.classes, missing.training) == (1000, None)
    assert "1,000 classes are assumed" in missing.assumed[0]


@pytest.mark.parametrize("words", [("--model", "resnet18"), ("--model", "resnet18", "--precision", "bf16")])
def test_blocks_that_compute_again_keep_their_inputs_and_one_block_at_a_time(words):
    shape = (3, 64, 64)
    again = (*words, "--activation-checkpointing")
    whole = joined(image_network(parse(words), shape, CLASSES, pipelines=False).layers)
    counted = joined(image_network(parse(again), shape, CLASSES, pipelines=False).layers)
    model = build_model(parse(again), shape, CLASSES)
    recompute_blocks(model)
    storages, ours, samples = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}, 4

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in ours:
            storages[tensor.untyped_storage().data_ptr()] = tensor  # held: another tensor would get its place
        return tensor

    autocast = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in words)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        mean_loss(model(torch.rand(samples, *shape)), torch.zeros(samples, dtype=torch.int64))
    recomputed = counted.recomputed()
    assert stored_bytes(storages.values()) == pytest.approx(
        samples * recomputed.saved_bytes + 2 * recomputed.copied_weights, rel=0.02
    )
    assert recomputed.saved_bytes + counted.block.saved_bytes < 0.75 * whole.saved_bytes
    assert counted.block.saved_bytes < 0.5 * whole.saved_bytes
    assert (counted.flops, counted.moved_bytes) == pytest.approx((whole.flops, whole.moved_bytes))


def test_computing_again_is_a_third_more_as_torch_counts_it():
    options = parse(["--model", "resnet18"])
    shape = (3, 64, 64)
    counted = []
    for again in (False, True):
        model = build_model(options, shape, CLASSES)
        if again:
            recompute_blocks(model)
        with FlopCounterMode(display=False) as operations:
            mean_loss(model(torch.rand(2, *shape)), torch.zeros(2, dtype=torch.int64)).backward()
        counted.append(operations.get_total_flops())
    assert 1.2 < counted[1] / counted[0] <= RECOMPUTED


def test_less_memory_and_more_time_are_advised_where_blocks_compute_again():
    machine = Machines(
        shape="s", count=1, gpus=1, gpu="A10", gpu_memory_gb=24.0, between_gb_s=6.0, hourly_usd=4.0
    )
    words = (
        "--model",
        "resnet18",
        "--dataset",
        "synthetic",
        "--synthetic",
        "50,3,224,224,4",
        "--batch-size",
        "64",
    )
    plain, again = (
        rows(question_of([*words, *more], batch_tokens=None, tokens=None), [machine])[0]
        for more in ((), ("--activation-checkpointing",))
    )
    assert again.memory["activations"] < 0.75 * plain.memory["activations"]
    assert 1.1 < again.step_s[1] / plain.step_s[1] < 1.34
    with pytest.raises(BadOptions, match="leave it out"):
        network(*CNN, "--activation-checkpointing")


def test_rows_of_images_have_samples_and_no_tokens():
    among = Machines(
        shape="s", count=2, gpus=2, gpu="A10", gpu_memory_gb=24.0, between_gb_s=6.0, hourly_usd=4.0
    )
    question = question_of(
        [*CNN, "--global-batch-size", "256", "--epochs", "2"], batch_tokens=None, tokens=None
    )
    offer = rows(question, [among])
    assert {row.strategy.split()[0] for row in offer} == {"ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp"}
    for row in offer:
        assert (row.batch_samples, row.batch_tokens, row.tokens_per_s) == (256, None, None)
        middle = sum(row.step_s) / 2
        assert row.samples_per_s == pytest.approx(256 / middle, rel=1e-2)
        assert row.step_s[1] <= 1.602 * row.step_s[0]
        assert row.usd_per_epoch == pytest.approx(60_000 / row.samples_per_s * 4 / 3600, rel=1e-2)
        assert row.usd_total == pytest.approx(2 * row.usd_per_epoch, rel=1e-2)


def test_strategy_that_images_can_not_have_says_why_where_it_is_named():
    among = [
        Machines(shape="s", count=1, gpus=2, gpu="A10", gpu_memory_gb=24.0, between_gb_s=6.0, hourly_usd=4.0)
    ]
    words = ("--model", "resnet18", "--dataset", "mnist")
    named = question_of([*words, "--strategy", "tp"], batch_tokens=None, tokens=None)
    [row] = rows(named, among)
    assert not row.fits
    assert row.reason.startswith("--tp splits pairs of linear layers")
    unnamed = question_of(words, batch_tokens=None, tokens=None)
    assert "tp" not in {row.strategy for row in rows(unnamed, among)}
