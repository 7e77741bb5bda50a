"""Test the division of a network before any rank starts."""

import json

import pytest

from train.advice.division import division
from train.command_line import parse
from train.errors import BadOptions

TEXT = ("--model", "gpt-10m")


def test_sharded_text_model_lists_its_parts_and_what_is_left():
    answer = division(parse([*TEXT, "--strategy", "fsdp", "--wrap", "transformer"]), [2, 2])
    assert (answer["strategy"], answer["shard"], answer["reason"]) == ("fsdp", 4, None)
    assert [part["name"] for part in answer["parts"]] == [f"block{number}" for number in range(6)]
    assert answer["whole"] + sum(part["weights"] for part in answer["parts"]) == answer["weights"]
    assert (answer["split"], answer["stages"], answer["recomputed"]) == ([], [], [])


def test_product_lists_stages_with_their_ranks_and_split_layers():
    words = [*TEXT, "--strategy", "fsdp", "--pp", "2", "--tp", "2", "--activation-checkpointing"]
    answer = division(parse(words), [4, 4])
    assert answer["strategy"] == "fsdp 2 x pp 2 x tp 2"
    assert [stage["ranks"] for stage in answer["stages"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    layers = [name for stage in answer["stages"] for name in stage["layers"]]
    assert layers == ["embedding", *(f"block{number}" for number in range(6)), "norm", "head"]
    assert {"name": "block5.mlp.down", "by": "rows"} in answer["split"]
    assert answer["recomputed"] == layers[1:7]


def test_network_for_images_is_looked_at_without_its_data():
    answer = division(parse(["--model", "cnn", "--dataset", "mnist", "--strategy", "pp"]), [1, 1])
    assert [stage["layers"][0] for stage in answer["stages"]] == ["0", "4"]
    folder = division(parse(["--dataset", "folder", "--image-size", "32", "--strategy", "fsdp"]), [2])
    assert folder["notes"] == [
        "the images in the data folder are not on this computer: 1,000 classes are assumed"
    ]


def test_whole_network_has_no_parts():
    answer = division(parse([*TEXT, "--activation-checkpointing"]), [2])
    assert (answer["strategy"], answer["parts"], answer["whole"]) == ("ddp", [], 0)
    assert len(answer["recomputed"]) == 6


def by_deepspeed(config, *words):
    return parse([*words, "--engine", "deepspeed", "--deepspeed-config", json.dumps(config)])


@pytest.mark.parametrize(
    ("stage", "ranks", "name", "zero"),
    [
        (3, [2, 2], "deepspeed zero3", ["the optimizer's state", "gradients", "weights"]),
        (1, [2], "deepspeed zero1", ["the optimizer's state"]),
        (0, [2], "deepspeed", []),
        (3, [1], "deepspeed zero3", []),
    ],
)
def test_deepspeed_divides_what_its_stage_of_zero_says(stage, ranks, name, zero):
    answer = division(by_deepspeed({"zero_optimization": {"stage": stage}}, *TEXT), ranks)
    assert (answer["strategy"], answer["zero"]) == (name, zero)
    assert (answer["parts"], answer["whole"]) == ([], 0)


def test_network_with_running_statistics_is_refused_in_bf16_before_deepspeed_has_it():
    half = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    with pytest.raises(BadOptions, match="resnet18 keeps running statistics, and DeepSpeed computes in bf16"):
        division(by_deepspeed(half, "--model", "resnet18"), [2])
    assert division(by_deepspeed(half, *TEXT), [2])["strategy"] == "deepspeed zero1"
    autocast = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, "zero_optimization": {"stage": 1}}
    assert division(by_deepspeed(autocast, "--model", "resnet18"), [2])["strategy"] == "deepspeed zero1"


def test_division_that_can_not_be_had_is_refused_as_in_the_job():
    with pytest.raises(BadOptions, match="the network has no such part"):
        division(parse([*TEXT, "--strategy", "fsdp", "--wrap", "Blok"]), [2])
    with pytest.raises(BadOptions, match="2 ranks can't be divided by tp 4"):
        division(parse([*TEXT, "--strategy", "tp", "--tp", "4"]), [2])
