"""Test the price, length and precision of a whole training: the price is of the answer's options."""

from dataclasses import replace

import pytest

from train.advice.machines import Machines
from train.advice.question import question_of
from train.advice.rows import rows, training_cost
from train.command_line import parse
from train.errors import BadOptions

TEXT = ("--model", "gpt-124m")


def machines(*, shape="s", count=1, gpus=1, gpu="A10", gb=24.0, usd=2.0):
    return Machines(
        shape=shape, count=count, gpus=gpus, gpu=gpu, gpu_memory_gb=gb, between_gb_s=6.0, hourly_usd=usd
    )


def spelled_out(*words, among=(), batch_tokens=None, tokens=None):
    question = question_of(words, batch_tokens=batch_tokens, tokens=tokens, spelled_out=True)
    return rows(question, among or [machines()])


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("x" * 1024 * 1000)  # 900 sequences to train on
    return ("--data-dir", str(file))


def test_boot_and_setup_are_paid_for():
    cost = training_cost(replace(machines(usd=6.0), setup_s=900.0), 100.0, (0.9, 1.1))
    assert cost.total_s == pytest.approx((990.0, 1010.0))
    assert cost.usd == pytest.approx(1000 * 6.0 / 3600)


def test_no_training_costs_less_than_the_shortest_time_that_is_billed():
    bare_metal = replace(machines(usd=8.0), setup_s=900.0, min_billed_s=3600.0)
    assert training_cost(bare_metal, 100.0, (1.0, 1.0)).usd == pytest.approx(8.0)
    assert training_cost(bare_metal, 6300.0, (1.0, 1.0)).usd == pytest.approx(16.0)


def test_price_of_machines_without_a_price_is_not_known_and_their_time_is():
    cost = training_cost(machines(usd=None), 100.0, (1.0, 2.0))
    assert (cost.total_s, cost.usd) == ((100.0, 200.0), None)


def test_cheapest_row_is_cheapest_with_boot_and_the_shortest_time_that_is_billed(text):
    virtual = replace(machines(shape="virtual", usd=3.0), setup_s=900.0, min_billed_s=60.0)
    bare_metal = replace(machines(shape="bare metal"), setup_s=2100.0, min_billed_s=3600.0)
    answer = spelled_out(*TEXT, *text, "--epochs", "1", among=[bare_metal, virtual])
    assert [row.shape for row in answer] == ["virtual", "bare metal"]
    assert answer[0].usd_total == pytest.approx(3.0 * 900 / 3600, rel=0.1)
    assert answer[1].usd_total == 2.0


def test_tokens_of_a_text_become_epochs_which_are_priced_whole(text):
    [row] = spelled_out(*TEXT, *text, tokens=1_000_000)
    assert parse(row.words).epochs == 2
    assert row.usd_total == pytest.approx(2 * row.usd_per_epoch, rel=1e-3)
    assert row.without_command is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "No command: no text is named"),
        (("--data-dir", "/nowhere"), "No command: how many epochs 1,000,000 tokens are is not known"),
        (("--data-dir", "/nowhere", "--epochs", "3"), None),
    ],
)
def test_tokens_of_an_unknown_text_are_priced_and_have_a_command_if_epochs_are_named(words, reason):
    [row] = spelled_out(*TEXT, *words, tokens=1_000_000)
    assert row.usd_total > 0
    if reason is None:
        assert row.without_command is None
        assert parse(row.words).epochs == 3
    else:
        assert row.without_command.startswith(reason)


def test_tokens_and_epochs_of_a_text_on_this_computer_are_refused(text):
    with pytest.raises(BadOptions, match="both say how long to train"):
        spelled_out(*TEXT, *text, "--epochs", "3", tokens=1_000_000)


def test_default_epochs_are_named_and_priced(text):
    [row] = spelled_out(*TEXT, *text)
    assert parse(row.words).epochs == 10
    assert row.usd_total == pytest.approx(10 * row.usd_per_epoch, rel=1e-3)


def test_batch_that_the_job_would_refuse_is_refused(text):
    [row] = spelled_out(*TEXT, *text, batch_tokens=1_000_000)
    assert not row.fits
    assert row.reason == (
        "The batch has 977 sequences a rank, and an epoch has 900: give a smaller batch, or more data."
    )
    [row] = spelled_out(*TEXT, *text, batch_tokens=900 * 1024)
    assert row.reason is None or "an epoch has" not in row.reason


def test_default_batch_is_no_larger_than_the_samples_of_a_rank(tmp_path):
    (tmp_path / "short.txt").write_text("x" * 1024 * 4)
    [row] = spelled_out(*TEXT, "--data-dir", str(tmp_path / "short.txt"))
    assert row.batch_samples == 3


@pytest.mark.parametrize(
    ("gpu", "precisions"),
    [("A10", {"bf16"}), ("V100", {"fp16", "fp32"}), ("T4", {"fp16", "fp32"}), ("P100", {"fp32"})],
)
def test_precision_that_is_not_named_suits_the_gpu_and_is_in_the_options(gpu, precisions):
    answer = spelled_out(*TEXT, among=[machines(gpu=gpu, gb=16.0, count=2)])
    assert {row.precision for row in answer if row.fits} == precisions
    assert all(parse(row.words).precision == row.precision for row in answer)


def test_strategy_that_has_no_fp16_is_offered_in_fp32():
    answer = spelled_out(*TEXT, among=[machines(gpu="V100", gb=16.0, gpus=2)])
    assert {row.precision for row in answer if row.strategy.startswith("tp")} == {"fp32"}
    assert {row.precision for row in answer if row.strategy == "ddp"} == {"fp16", "fp32"}


def test_precision_that_is_named_is_the_only_one():
    answer = spelled_out(*TEXT, "--precision", "fp32", among=[machines(), machines(gpu="V100", gb=16.0)])
    assert {row.precision for row in answer} == {"fp32"}
    assert all(row.words.count("--precision") == 1 for row in answer)
