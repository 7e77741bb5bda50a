"""Test DeepSpeed's configuration together with the job's options: values in both agree, single values count."""

import json

import pytest

from train.command_line import parse
from train.strategies.deepspeed_config import engine_config
from train.strategies.degrees import refusal


def options_of(config, *words):
    return parse(["--engine", "deepspeed", "--deepspeed-config", json.dumps(config), *words])


def refused(capsys, config, *words):
    with pytest.raises(SystemExit) as ended:
        options_of(config, *words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


WHOLE = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95], "torch_adam": True},
    },
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"},
}


def test_options_are_what_the_configuration_says():
    job = options_of(WHOLE)
    assert (job.global_batch_size, job.gradient_accumulation_steps, job.max_grad_norm) == (64, 2, 0.5)
    assert (job.optimizer, job.lr, job.weight_decay, job.precision) == ("adamw", 0.01, 0.1, "bf16")
    same = (
        "--global-batch-size",
        "64",
        "--max-grad-norm",
        "0.5",
        "--optimizer",
        "adamw",
        "--precision",
        "bf16",
    )
    assert options_of(WHOLE, *same) == job


def test_engine_gets_the_configuration_with_what_the_options_say():
    config = engine_config(options_of(WHOLE), micro_batch=16, micro_batches=2, world_size=2)
    assert config == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def test_what_is_left_out_or_auto_comes_from_the_options():
    config = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "optimizer": {"type": "Adam", "params": {"lr": "auto", "weight_decay": "auto"}},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 1},
    }
    words = ("--batch-size", "8", "--max-grad-norm", "2", "--lr", "0.5", "--precision", "bf16")
    options = options_of(config, *words)
    assert (options.batch_size, options.max_grad_norm, options.lr, options.precision) == (8, 2, 0.5, "bf16")
    engine = engine_config(options, micro_batch=8, micro_batches=1, world_size=1)
    assert (engine["gradient_clipping"], engine["bf16"]) == (2, {"enabled": True})
    without = engine_config(options_of({}), micro_batch=8, micro_batches=1, world_size=1)
    assert without["gradient_clipping"] == 0.0, "DeepSpeed's own default clips"


@pytest.mark.parametrize(
    ("params", "words", "name"),
    [
        ({}, (), "adam"),
        ({"weight_decay": 0.1}, (), "adamw"),
        ({}, ("--weight-decay", "0.1"), "adamw"),
        ({"weight_decay": 0.1, "adam_w_mode": False}, (), "adam"),
    ],
)
def test_adam_decays_weights_as_deepspeed_does(params, words, name):
    assert options_of({"optimizer": {"type": "Adam", "params": params}}, *words).optimizer == name


@pytest.mark.parametrize(
    ("config", "words", "sentence"),
    [
        ({"gradient_clipping": 1}, ("--max-grad-norm", "0.5"), "gradient_clipping 1, and --max-grad-norm says 0.5"),
        ({"train_batch_size": 64}, ("--global-batch-size", "32"), "64, and --global-batch-size says 32"),
        ({"train_batch_size": 64}, ("--batch-size", "32"), "is of all ranks together, and --batch-size is of a rank"),
        (
            {"gradient_accumulation_steps": 2}, ("--gradient-accumulation-steps", "3"),
            "says gradient_accumulation_steps 2, and --gradient-accumulation-steps says 3",
        ),
        ({"optimizer": {"type": "SGD"}}, ("--optimizer", "adam"), "optimizer.type SGD, and --optimizer says adam"),
        ({"optimizer": {"params": {"lr": 1}}}, ("--lr", "2"), "says optimizer.params.lr 1, and --lr says 2"),
        ({"bf16": {"enabled": True}}, ("--precision", "fp16"), "says bf16.enabled true, and --precision says fp16"),
        ({"bf16": {"enabled": False}}, ("--precision", "bf16"), "says bf16.enabled false, and --precision says bf16"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, (), "enables bf16 and fp16: enable one of them"),
        ({"optimizer": {"type": "Lamb"}}, (), "says optimizer.type Lamb, and the job has Adam, AdamW, SGD"),
        ({"optimizer": {"params": {"beta": 1}}}, (), "params.beta, which the job's adam does not have. Did"),
        ({"scheduler": {"type": "WarmupLR"}}, (), 'has "scheduler", and the learning rate is the job\'s: --schedule'),
        ({"comet": {"enabled": True}}, (), 'has "comet", and the job writes its own metrics'),
        (
            {"activation_checkpointing": {}}, (),
            'has "activation_checkpointing", and --activation-checkpointing is the job\'s option for it',
        ),
        (
            {"zero_optimisation": {}}, (),
            'has "zero_optimisation", which the job does not know. Did you mean zero_optimization? Else take it out.',
        ),
        ({"Wandb": {}}, (), 'has "Wandb", and the job writes its own metrics'),
        ({"my_secret": 1}, (), 'has "my_secret", which the job does not know. Take it out.'),
        (
            {"zero_optimization": {"mics_shard_size": 2}}, (),
            'has "zero_optimization.mics_shard_size", and the job\'s checkpoints can\'t be gathered from weights',
        ),
        (
            {"zero_optimization": {"zero_quantized_gradients": True}}, (),
            'has "zero_optimization.zero_quantized_gradients", and the job\'s checkpoints',
        ),
        (
            {"zero_optimization": {"overlap_com": True}}, (),
            "which the job does not know. Did you mean zero_optimization.overlap_comm? Else take it out.",
        ),
        ({"zero_optimization": {"stage": 4}}, (), "says zero_optimization.stage 4: give 0, 1, 2 or 3"),
        ({"train_batch_size": "64"}, (), "says train_batch_size '64': give a whole number from 1"),
        ({"bf16": {"enabled": True}}, (), "--precision bf16 needs ZeRO with --engine deepspeed: give"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, (), "keeps the model on a disk"),
        ({}, ("--strategy", "fsdp"), "--strategy fsdp is for --engine torch"),
        ({}, ("--tp", "2"), "--tp is for --engine torch"),
        ({}, ("--compile",), "--compile is for --engine torch"),
        ({}, ("--compression", "half"), "--compression is for --engine torch"),
        ({}, ("--precision", "fp64"), "--precision fp64 is for --engine torch"),
    ],
)  # fmt: skip
def test_what_does_not_agree_or_fit_is_refused(capsys, config, words, sentence):
    assert sentence in refused(capsys, config, *words)


def test_another_engine_leaves_the_configuration_out():
    assert options_of(WHOLE, "--engine", "torch") == parse([]), "as where it resumes DeepSpeed's run"


def test_configuration_without_its_engine_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--deepspeed-config", "{}"])
    assert "--deepspeed-config is for --engine deepspeed: give it, too." in capsys.readouterr().err


def test_file_that_is_no_configuration_is_refused(capsys, tmp_path):
    (tmp_path / "bad.json").write_text("{'a': 1}")
    (tmp_path / "list.json").write_text("[]")
    sentences = {
        "nothere.json": "No such file",
        "bad.json": "is no JSON: Expecting property",
        "list.json": "a JSON object",
    }
    for name, sentence in sentences.items():
        with pytest.raises(SystemExit):
            parse(["--engine", "deepspeed", "--deepspeed-config", str(tmp_path / name)])
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "words", "ranks", "sentence"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}, (), (2, 2), None),
        ({"train_batch_size": 64}, (), (2, 1), "64 can't be divided among 3 ranks"),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 24}, (), (2,), "of 32 a rank is not some"),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}, (), (2,),
            "A batch of 32 a rank is not 2 times train_micro_batch_size_per_gpu (8): change --deepspeed-config, or",
        ),
        ({"train_micro_batch_size_per_gpu": 8}, ("--batch-size", "24"), (1, 1), None),
        ({"train_micro_batch_size_per_gpu": 8}, ("--gradient-accumulation-steps", "3"), (1,), None),
    ],
)  # fmt: skip
def test_sizes_that_these_ranks_can_not_have_are_refused_before_they_start(config, words, ranks, sentence):
    reason = refusal(options_of(config, *words), ranks)
    assert reason is None if sentence is None else sentence in reason
