"""Networks of torchvision, beside what others measured of them and what the job says of them."""

import pytest

from train.advice.images import image_network
from train.advice.machines import Machines
from train.advice.network import joined
from train.advice.question import question_of
from train.advice.rows import rows
from train.command_line import parse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "gb", "precision", "measured"),
    [
        ("V100", 16.0, "fp32", 367),
        ("V100", 16.0, "fp16", 1200),
        ("A100", 80.0, "tf32", 938),
        ("A100", 80.0, "bf16", 2470),
    ],
)
def test_what_others_measured_of_resnet50_is_in_the_range(gpu, gb, precision, measured):
    words = ["--model", "resnet50", "--dataset", "folder", "--precision", precision, "--batch-size", "256"]
    among = Machines(
        shape="s", count=1, gpus=1, gpu=gpu, gpu_memory_gb=gb, between_gb_s=None, hourly_usd=None
    )
    [row] = rows(question_of(words, batch_tokens=None, tokens=None), [among])
    low, high = (256 / seconds for seconds in reversed(row.step_s))
    assert low <= measured <= high


@pytest.mark.slow
def test_transformer_of_torchvision_is_no_chain_and_the_job_says_so():
    options = parse(["--model", "vit_b_32", "--dataset", "folder", "--image-size", "224"])
    vit = image_network(options, (3, 224, 224), 10, pipelines=True)
    assert vit.uncut.startswith("A pipeline needs a network of layers that follow each other")
    assert joined(vit.layers).split_flops > joined(vit.layers).flops / 2
