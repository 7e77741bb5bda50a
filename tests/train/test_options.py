import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from train.command_line import parse
from train.models.gpt_sizes import GPT_SIZES
from train.options import DEFAULT_LR, Optimizer, Options


def test_parse_without_arguments_returns_the_defaults():
    assert parse([]) == Options()


def test_parse_reads_every_option():
    line = (
        "--model resnet18 --stem cifar --dataset synthetic --data-dir /data --no-download --synthetic 9,3,8,8,2 "
        "--image-size 64 --validation 0.1 --augmentation crop --epochs 3 --global-batch-size 32 "
        "--gradient-accumulation-steps 2 --optimizer sgd --lr 0.2 --weight-decay 0.01 --schedule plateau "
        "--warmup-epochs 0.5 "
        "--grow-batch --max-grad-norm 1 --label-smoothing 0.1 --precision bf16 --seed 7 --loop plain --graphs off "
        "--compile --compression half --bucket-mb 5 --activation-checkpointing --device cpu --threads 4 "
        "--timeout-s 9.5 --checkpoint-every 0.5 --keep-checkpoints 3 --metrics f1,top5 "
        "--no-tensorboard --log-every 2 --no-save"
    )
    options = Options(
        model="resnet18",
        stem="cifar",
        dataset="synthetic",
        data_dir="/data",
        download=False,
        synthetic=(9, 3, 8, 8, 2),
        image_size=64,
        validation=0.1,
        augmentation="crop",
        epochs=3,
        global_batch_size=32,
        gradient_accumulation_steps=2,
        optimizer="sgd",
        lr=0.2,
        weight_decay=0.01,
        schedule="plateau",
        warmup_epochs=0.5,
        grow_batch=True,
        max_grad_norm=1,
        label_smoothing=0.1,
        precision="bf16",
        seed=7,
        loop="plain",
        graphs="off",
        compile=True,
        compression="half",
        bucket_mb=5,
        activation_checkpointing=True,
        device="cpu",
        threads=4,
        timeout_s=9.5,
        checkpoint_every=0.5,
        keep_checkpoints=3,
        metrics=("f1", "top5"),
        tensorboard=False,
        log_every=2,
        save=False,
    )
    assert parse(line.split()) == options
    same = [name for name, value in vars(Options()).items() if getattr(options, name) == value]
    assert same == [
        *(
            "data_pipeline",
            "seq_len",
            "tokenizer",
            "batch_size",
            "lr_scaling",
            "strategy",
            "tp",
            "pp",
            "wrap",
        ),
        *("cpu_offload", "prefetch"),
        *("engine", "deepspeed_config"),
    ], "an option that is not tried"
    sharded = parse(["--strategy", "fsdp", "--wrap", "Block,Head", "--tp", "2", "--pp", "3"])
    assert (sharded.strategy, sharded.wrap, sharded.tp, sharded.pp) == ("fsdp", "Block,Head", 2, 3)
    ahead = parse(["--strategy", "zero2", "--cpu-offload", "--prefetch", "3"])
    assert (ahead.cpu_offload, ahead.prefetch) == (True, 3)
    streamed = parse(["--dataset", "folder", "--data-pipeline", "ray"])
    assert (streamed.dataset, streamed.data_pipeline) == ("folder", "ray"), "not for another dataset"
    text = parse(["--model", "gpt-10m", "--seq-len", "256", "--tokenizer", "bpe.json", "--data", "book.txt"])
    assert (text.seq_len, text.tokenizer, text.data_dir) == (256, "bpe.json", "book.txt")
    other = parse(["--batch-size", "16", "--lr-scaling", "linear"])
    assert (other.batch_size, other.lr_scaling) == (16, "linear"), "not beside the batch of all ranks"


def test_parse_uses_the_default_learning_rate_of_each_optimizer():
    assert {name: parse(["--optimizer", name]).lr for name in DEFAULT_LR} == DEFAULT_LR


def test_text_model_is_trained_on_text_with_the_learning_rate_of_its_size():
    options = parse(["--model", "gpt-7b"])
    assert (options.dataset, options.lr) == ("text", GPT_SIZES["gpt-7b"].lr)
    assert parse(["--model", "gpt-7b", "--optimizer", "sgd"]).lr == DEFAULT_LR["sgd"]
    assert parse(["--model", "gpt-7b", "--lr", "0.5"]).lr == 0.5


def test_help_names_every_text_model():
    models = next(field for field in fields(Options) if field.name == "model").metadata["help"]
    assert models.endswith(f"for text {', '.join(GPT_SIZES)}.")


def test_default_lr_covers_every_optimizer():
    assert set(DEFAULT_LR) == set(get_args(Optimizer))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--epoch 3", "--epoch is not an option of this job. Did you mean --epochs?"),
        ("--epoch=3", "--epoch is not an option of this job. Did you mean --epochs?"),
        ("--zzz", "--zzz is not an option of this job. All options: python -m train --help"),
        ("stray", "stray is not an option of this job."),
        ("--epochs 0", "Argument --epochs: '0' can't be used: give a whole number from 1"),
        ("--batch-size 1.5", "Argument --batch-size: '1.5' can't be used: give a whole number from 1"),
        ("--seed -1", "Argument --seed: '-1' can't be used: give a whole number from 0"),
        ("--lr nan", "Argument --lr: 'nan' can't be used: give a number above 0"),
        ("--lr 0", "Argument --lr: '0' can't be used: give a number above 0"),
        (
            "--timeout-s inf",
            "Argument --timeout-s: 'inf' can't be used: give a number above 0, at most 86400.",
        ),
        ("--dataset mnits", "Argument --dataset: invalid choice: 'mnits'"),
        ("--validation 1", "Argument --validation: '1' can't be used: give a fraction from 0, below 1."),
        (
            "--weight-decay -1",
            "Argument --weight-decay: '-1' can't be used: give a number from 0, at most 1e+06.",
        ),
        (
            "--synthetic 9,3",
            "Argument --synthetic: '9,3' can't be used: give five whole numbers, N,CHANNELS,HEIGHT",
        ),
        (
            "--metrics f1,,f1",
            "Argument --metrics: 'f1,,f1' can't be used: give different names, separated by",
        ),
        (
            "--strategy fsdp --compile",
            "--compile is for --strategy ddp, not for fsdp: leave one of them out.",
        ),
        ("--strategy zero1 --tp 2", "--tp is not for --strategy zero1: take ddp, fsdp or hsdp."),
        (
            "--strategy pp --precision fp16",
            "--strategy pp has no way for fp16's scaled gradients: take --precision bf16.",
        ),
        (
            "--cpu-offload",
            "--cpu-offload is for strategies with parts of the weights, not for ddp: take fsdp,",
        ),
        ("--strategy tp --prefetch 2", "--prefetch is for strategies with parts of the weights, not for tp:"),
        (
            "--strategy fsdp --cpu-offload --precision fp16",
            "--cpu-offload has no way for fp16's scaled gradients",
        ),
        ("--pp 2 --compile", "--compile is not for --pp: leave one of them out."),
        ("--strategy zero1 --compression half", "--compression is for --strategy ddp, not for zero1"),
        (
            "--wrap size:0",
            "Argument --wrap: 'size:0' can't be used: give transformer, size:N such as size:100000",
        ),
        ("--compression powersgd --precision fp16", "--compression powersgd keeps what overflows, as fp16's"),
        (
            "--compile --bucket-mb 0.5",
            "--compile divides the network as the gradients are sent, the first 1 MiB",
        ),
        (
            "--batch-size 8 --global-batch-size 16",
            "--batch-size is of a rank, --global-batch-size of all ranks",
        ),
        (
            "--epochs 2 --warmup-epochs 2",
            "--warmup-epochs 2 is all of --epochs 2: the learning rate would only",
        ),
        (
            "--global-batch-size 8 --lr-scaling sqrt",
            "--lr-scaling sqrt is for a batch that grows with the ranks",
        ),
        (
            "--data-pipeline ray",
            "--data-pipeline ray reads images from files, and --dataset digits has none",
        ),
        (
            "--model gpt-10m --seq-len 1025",
            "--seq-len 1025 is more than gpt-10m takes: give at most 1024, or a",
        ),
        ("--model gpt-10m --dataset digits", "--model gpt-10m is for text, and --dataset digits has images"),
        ("--dataset text", "--dataset text is for the text models, not for cnn: give one, such as gpt-10m."),
        ("--tokenizer bpe.json", "--tokenizer is for --dataset text: leave it out."),
        ("--model gpt-10m --metrics f1", "--metrics is for images, not for --dataset text: leave it out."),
        (
            "--model gpt-10mb",
            "--model gpt-10mb is not one of torchvision's classification networks. Did you mean gpt",
        ),
        ("--grow-batch", "--grow-batch needs --schedule plateau, which says when."),
    ],
)
def test_wrong_options_exit_2_with_one_sentence(line, sentence, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(line.split())
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert f"error: {sentence}" in err
    assert "usage:" in err
    assert not out


def test_wrong_option_on_rank_1_prints_the_error_without_usage(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as exit_:
        parse(["--epoch", "3"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: --epoch is not an option of this job.")


def test_help_is_printed_only_by_rank_0(monkeypatch, capsys):
    for rank, shown in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as exit_:
            parse(["--help"])
        assert exit_.value.code == 0
        assert ("--batch-size N" in capsys.readouterr().out) == shown


def test_train_main_imports_neither_torch_nor_numpy(node):
    script = "import sys, train.__main__; print(sorted({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=node, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("resnet81", "Did you mean resnet18"),
        ("nope", "Give cnn, mlp, resnet18, or another of these, such as resnet50, "),
        ("fasterrcnn_resnet50_fpn", "is not one of torchvision's classification networks. "),
    ],
)
def test_parse_refuses_a_network_that_is_not_there_without_torch(name, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--model", name])
    assert ended.value.code == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith(f"error: --model {name} is not one of torchvision's classification networks. ")
    assert meant in sentence


def test_parse_reads_other_names_of_options():
    options = parse(["--model", "gpt-10m", "--data-dir", "text.txt"])
    assert parse(["--model", "gpt-10m", "--data", "text.txt"]) == options
    assert parse(["--model", "gpt-10m", "--data=text.txt"]) == options
