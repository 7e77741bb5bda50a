"""What is advised: which rows there are, their order, and why others are not possible."""

import pytest

from train.advice.machines import Machines
from train.advice.question import question_of
from train.advice.rows import rows
from train.command_line import parse
from train.errors import BadOptions

TEXT = ("--model", "gpt-124m")


def machines(*, shape="s", count=1, gpus=1, gpu="A10", gb=24.0, usd=2.0, between=6.0):
    return Machines(
        shape=shape,
        count=count,
        gpus=gpus,
        gpu=gpu,
        gpu_memory_gb=gb,
        between_gb_s=between,
        hourly_usd=usd,
    )


def asked(*words, among=(), batch_tokens=None, tokens=None):
    question = question_of(words, batch_tokens=batch_tokens, tokens=tokens)
    return rows(question, among or [machines()])


def test_rows_are_sorted_by_dollars_and_what_does_not_fit_is_last():
    among = [machines(shape="dear", usd=9.0), machines(shape="cheap"), machines(shape="small", gb=2.0)]
    found = asked(*TEXT, among=among, tokens=1e6)
    assert [row.shape for row in found] == ["cheap", "dear", "small"]
    assert [row.fits for row in found] == [True, True, False]
    assert found[0].usd_total < found[1].usd_total
    assert found[2].usd_total is None


def test_range_of_a_step_is_at_most_1_6_times_as_wide():
    for row in asked(*TEXT, among=[machines(count=2, gpus=4)], batch_tokens=1e5):
        if row.step_s is not None:
            assert row.step_s[0] <= row.step_s[1] <= 1.602 * row.step_s[0], row.strategy
            assert 0 < row.mfu < 0.48


def test_largest_micro_batch_that_fits_is_taken_and_the_rest_is_accumulated():
    [row] = asked(*TEXT, batch_tokens=1e5)
    assert row.fits
    assert row.micro_batch * row.gradient_accumulation_steps >= 98
    more = [
        *TEXT,
        "--batch-size",
        "98",
        "--gradient-accumulation-steps",
        str(row.gradient_accumulation_steps - 1),
    ]
    assert not asked(*more)[0].fits


def test_model_of_7b_on_one_a10_says_why_it_does_not_fit():
    [row] = asked("--model", "gpt-7b")
    assert not row.fits
    assert row.memory_gb > 100
    assert row.reason == (
        "With one sequence at a time a rank needs 113.4 GB (optimizer 51.6, weights 25.8, gradients 25.8), and 95 % "
        "of the A10's 24 GB is 22.8."
    )  # fmt: skip


def test_all_strategies_are_tried_where_there_are_several_nodes_and_gpus():
    found = {row.strategy.split()[0] for row in asked(*TEXT, among=[machines(count=2, gpus=4)])}
    assert found == {"ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp"}


def test_options_of_a_row_are_the_jobs_own():
    for row in asked(
        *TEXT, "--strategy", "auto", "--lr=0.1", among=[machines(count=2, gpus=2)], batch_tokens=1e5
    ):
        options = parse(row.words)
        assert (options.model, options.lr) == ("gpt-124m", 0.1)
        assert options.global_batch_size % 4 == 0 or options.tp or options.pp


def test_named_strategy_alone_is_answered():
    found = asked(*TEXT, "--strategy", "fsdp", "--tp", "2", among=[machines(gpus=4)])
    assert [row.strategy for row in found] == ["fsdp 2 x tp 2"]


def test_strategy_that_single_gpus_can_not_have_is_only_answered_where_it_is_named():
    single = [machines(count=2, gpus=1)]
    assert "tp" not in {row.strategy for row in asked(*TEXT, among=single)}
    [row] = asked(*TEXT, "--strategy", "tp", among=single)
    assert row.reason.startswith("The model's 12 heads and 14 layers can't be divided among 2 x 1 ranks")


def test_what_can_not_be_divided_has_the_jobs_own_reason():
    [row] = asked(*TEXT, "--strategy", "tp", "--tp", "3", among=[machines(gpus=4)])
    assert not row.fits
    assert row.reason.startswith("4 ranks can't be divided by tp 3")


def test_gpu_without_a_known_peak_fits_and_has_no_price_of_a_token():
    [row] = asked(*TEXT, among=[machines(gpu="P100", gb=80.0)])
    assert row.fits
    assert (row.step_s, row.usd_total, row.usd_per_token) == (None, None, None)
    assert row.reason == "It fits; how fast a P100 is in fp32 is not known."


def test_faster_links_and_half_precision_make_a_step_shorter():
    slow, fast = (
        asked(*TEXT, "--strategy", "ddp", among=[machines(count=2, between=gb_s)]) for gb_s in (0.5, 50)
    )
    assert fast[0].step_s[1] < slow[0].step_s[0]
    assert asked(*TEXT, "--precision", "bf16")[0].step_s[1] < asked(*TEXT)[0].step_s[0]


def test_network_of_images_is_refused_with_what_to_do():
    with pytest.raises(BadOptions, match="knows what text models need, and --model resnet50 is for images"):
        asked("--model", "resnet50")


def test_batch_that_is_said_twice_is_refused():
    with pytest.raises(BadOptions, match="--batch-tokens and a batch size"):
        asked(*TEXT, "--batch-size", "4", batch_tokens=1e5)


def test_tokenizer_that_is_here_tells_the_vocabulary(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": {"vocab": {"a": 0, "b": 6}}, "added_tokens": [{"id": 7}]}')
    here = question_of([*TEXT, "--tokenizer", str(file)], batch_tokens=None, tokens=None)
    assert here.vocabulary == 8
    gone = question_of([*TEXT, "--tokenizer", "/nowhere/t.json"], batch_tokens=None, tokens=None)
    assert gone.vocabulary == 50_257
    assert "can't be read on this computer" in gone.notes[0]


def test_epoch_is_that_of_the_text_that_is_here_and_unknown_else(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 10_240)
    here = question_of([*TEXT, "--data-dir", str(tmp_path)], batch_tokens=None, tokens=None)
    assert here.epoch_samples == 9, "one of ten sequences is for validation"
    assert here.notes == (f"an epoch is 9,216 tokens of {tmp_path}",)
    gone = question_of([*TEXT, "--data-dir", "/nowhere"], batch_tokens=None, tokens=None)
    assert gone.epoch_samples is None
    assert gone.notes == ("the cost of an epoch is not known: /nowhere is not on this computer",)
