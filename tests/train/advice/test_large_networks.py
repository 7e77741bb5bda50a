"""Compare the advice for networks with measurements and with the job."""

import json

import pytest

from train.advice.images import image_network
from train.advice.machines import Machines
from train.advice.network import joined
from train.advice.question import question_of
from train.advice.rows import rows
from train.command_line import parse

GPT2 = "--precision bf16 --tokenizer gpt2.json"
RESNET18 = "--model resnet18 --dataset synthetic --synthetic 50000,3,32,32,10"

GRAPH = f"{RESNET18} --graphs auto"


@pytest.mark.parametrize(
    ("words", "step_ms", "allocated_gb"),
    [
        (f"--model gpt-124m --batch-size 8 {GPT2}", 30.8, 9.89),
        (f"--model gpt-124m --batch-size 12 {GPT2} --optimizer adamw --compile", 28.4, 10.95),
        (f"--model gpt-350m --batch-size 8 {GPT2}", 65.5, 18.1),
        ("--model gpt-124m --batch-size 8 --seq-len 256", 31.7, 2.4),
        pytest.param(
            "--model resnet50 --dataset folder --precision bf16 --batch-size 64",
            31.2,
            3.65,
            marks=pytest.mark.slow,
        ),
        pytest.param(f"{RESNET18} --batch-size 64", 8.57, None, marks=pytest.mark.slow),
        pytest.param(f"{RESNET18} --precision bf16 --batch-size 64", 8.21, None, marks=pytest.mark.slow),
        pytest.param(f"{GRAPH} --precision bf16 --batch-size 64", 1.53, None, marks=pytest.mark.slow),
        pytest.param(f"{GRAPH} --precision tf32 --batch-size 64", 1.49, None, marks=pytest.mark.slow),
        pytest.param(f"{GRAPH} --precision bf16 --batch-size 1024", 2.84, None, marks=pytest.mark.slow),
    ],
)
def test_step_and_memory_of_an_h200_are_as_measured(words, step_ms, allocated_gb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2.json").write_text(json.dumps({"model": {"vocab": {"a": 50_256}}}))
    machine = Machines(
        shape="s", count=1, gpus=1, gpu="NVIDIA H200", gpu_memory_gb=150.8, between_gb_s=None, hourly_usd=None
    )
    [row] = rows(question_of(["--graphs", "off", *words.split()], batch_tokens=None, tokens=None), [machine])
    low, high = row.step_s
    assert low <= step_ms / 1000 <= high <= 1.602 * low
    if allocated_gb is not None:
        assert row.memory_gb - row.memory["libraries"] == pytest.approx(allocated_gb, rel=0.12)


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
