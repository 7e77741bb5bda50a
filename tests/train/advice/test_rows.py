"""Test the rows of the advice: their order, and the reasons against others."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from train.advice.candidates import layouts
from train.advice.machines import Machines
from train.advice.measured import BESIDE_STEPS, SIZES, MeasuredRun, measured
from train.advice.question import question_of
from train.advice.rows import network_of, rows
from train.command_line import parse
from train.errors import BadOptions
from train.options import Options

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


def ask(*words, among=(), batch_tokens=None, tokens=None):
    question = question_of(words, batch_tokens=batch_tokens, tokens=tokens)
    return rows(question, among or [machines()])


def test_rows_are_sorted_by_dollars_and_what_does_not_fit_is_last():
    among = [machines(shape="dear", usd=9.0), machines(shape="cheap"), machines(shape="small", gb=2.0)]
    answer = ask(*TEXT, among=among, tokens=1e6)
    assert [row.shape for row in answer] == ["cheap", "dear", "small"]
    assert [row.fits for row in answer] == [True, True, False]
    assert answer[0].usd_total < answer[1].usd_total
    assert answer[2].usd_total is None


@pytest.mark.parametrize("usd", [None, 0.0])
def test_rows_without_a_price_are_sorted_by_the_time_of_all_gpus(usd):
    among = [machines(shape="priced", usd=9.0), machines(gpus=8, gpu="A100-SXM4-40GB", gb=43.0, usd=usd)]
    answer = ask("--model", "gpt-7b", "--precision", "bf16", among=among, batch_tokens=5e5)
    fitting = [row for row in answer if row.fits]
    assert [row.strategy for row in fitting] == ["pp 8", "tp 8"]
    assert fitting[0].samples_per_s > 1.2 * fitting[1].samples_per_s
    priced, *unpriced = ask(
        *TEXT, among=[machines(usd=usd), machines(usd=None, gb=48.0), machines(usd=900.0)]
    )
    assert (priced.hourly_usd, len(unpriced)) == (900.0, 2)


def test_range_of_a_step_is_at_most_1_6_times_as_wide():
    for row in ask(*TEXT, among=[machines(count=2, gpus=4)], batch_tokens=1e5):
        if row.step_s is not None:
            assert row.step_s[0] <= row.step_s[1] <= 1.602 * row.step_s[0], row.strategy
            assert 0 < row.mfu < 0.75


def test_offload_is_advised_with_the_strategies_that_have_parts_of_the_weights():
    answer = ask(*TEXT, "--cpu-offload", among=[machines(gpus=4)])
    plain = {row.strategy: row for row in ask(*TEXT, among=[machines(gpus=4)])}
    assert {row.strategy for row in answer if row.fits} == {"zero2", "fsdp"}
    assert all(row.step_s is None and "a host updates" in row.reason for row in answer if row.fits)
    assert all(row.memory_gb < plain[row.strategy].memory_gb for row in answer if row.fits)
    assert all("take fsdp, hsdp or zero2" in row.reason for row in answer if row.strategy in ("ddp", "zero1"))


def test_largest_micro_batch_that_fits_is_taken_and_the_rest_is_accumulated():
    [row] = ask(*TEXT, batch_tokens=1e5)
    assert row.fits
    assert row.micro_batch * row.gradient_accumulation_steps >= 98
    more = [
        *TEXT,
        "--batch-size",
        "98",
        "--gradient-accumulation-steps",
        str(row.gradient_accumulation_steps - 1),
    ]
    assert not ask(*more)[0].fits


def test_steps_that_are_graphs_do_not_wait_for_the_host():
    words = [*TEXT, "--precision", "bf16", "--batch-size", "2"]
    h200 = machines(gpu="NVIDIA H200", gb=150.8)
    [graph] = ask(*words, among=[h200])
    alike = [
        [*words, "--graphs", "off"],
        [*words, "--precision", "fp16"],
        [*words, "--compression", "half", "--graphs", "off"],
    ]
    for other in alike:
        [row] = ask(*other, among=[h200])
        assert row.step_s[0] > 1.5 * graph.step_s[1], other
    full = replace(h200, gpu_memory_gb=graph.memory_gb / 0.95 + 0.01)
    [row] = ask(*words, among=[full])
    assert row.fits
    assert row.step_s[0] > 1.5 * graph.step_s[1], (
        "the memory of a graph is left for other batches, or none is recorded"
    )


@pytest.mark.parametrize("divided", [["--strategy", "dp"], ["--tp", "2"], ["--pp", "2"]])
def test_strategies_without_graphs_wait_for_the_host(divided):
    words = [*TEXT, "--precision", "bf16", "--batch-size", "4", *divided]
    h200 = machines(gpu="NVIDIA H200", gb=150.8, gpus=1 if "dp" in divided else 4)
    requested, without = (ask(*words, "--graphs", graphs, among=[h200]) for graphs in ("on", "off"))
    assert [row.step_s for row in requested] == [row.step_s for row in without]
    assert requested


def test_model_of_7b_on_one_a10_says_why_it_does_not_fit():
    [row] = ask("--model", "gpt-7b")
    assert not row.fits
    assert row.memory_gb > 100
    assert row.reason == (
        "With one sequence at a time a rank needs 113.4 GB (optimizer 51.6, weights 25.8, gradients 25.8), and 95 % "
        "of the A10's 24 GB is 22.8."
    )  # fmt: skip


def test_all_strategies_are_tried_where_there_are_several_nodes_and_gpus():
    tried = {row.strategy.split()[0] for row in ask(*TEXT, among=[machines(count=2, gpus=4)])}
    assert tried == {"ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp"}


def test_options_of_a_row_are_the_jobs_own():
    for row in ask(
        *TEXT, "--strategy", "auto", "--lr=0.1", among=[machines(count=2, gpus=2)], batch_tokens=1e5
    ):
        options = parse(row.words)
        assert (options.model, options.lr) == ("gpt-124m", 0.1)
        assert options.global_batch_size % 4 == 0 or options.tp or options.pp


def test_named_strategy_alone_is_answered():
    answer = ask(*TEXT, "--strategy", "fsdp", "--tp", "2", among=[machines(gpus=4)])
    assert [row.strategy for row in answer] == ["fsdp 2 x tp 2"]


def test_strategy_that_single_gpus_can_not_have_is_only_answered_where_it_is_named():
    single = [machines(count=2, gpus=1)]
    assert "tp" not in {row.strategy for row in ask(*TEXT, among=single)}
    [row] = ask(*TEXT, "--strategy", "tp", among=single)
    assert row.reason.startswith("The model's 12 heads and 14 layers can't be divided among 2 x 1 ranks")


def test_network_that_is_no_chain_has_no_pipeline_and_says_so_where_one_is_named():
    for named in (True, False):
        question = question_of(
            [*TEXT, *(("--strategy", "pp") if named else ())], batch_tokens=None, tokens=None
        )
        network = replace(network_of(question, pipelines=True), uncut="It is no chain of layers.")
        refused = list(layouts(question, network, machines(gpus=2), "pp"))
        assert [layout.reason for layout in refused] == (["It is no chain of layers."] if named else [])


def test_what_can_not_be_divided_has_the_jobs_own_reason():
    [row] = ask(*TEXT, "--strategy", "tp", "--tp", "3", among=[machines(gpus=4)])
    assert not row.fits
    assert row.reason.startswith("4 ranks can't be divided by tp 3")


def test_gpu_without_a_known_peak_fits_and_has_no_price_of_a_token():
    [row] = ask(*TEXT, among=[machines(gpu="P100", gb=80.0)])
    assert row.fits
    assert (row.step_s, row.usd_total, row.usd_per_sample) == (None, None, None)
    assert row.reason == "It fits; how fast a P100 is in fp32 is not known."


def test_faster_links_and_half_precision_make_a_step_shorter():
    slow, fast = (
        ask(*TEXT, "--strategy", "ddp", among=[machines(count=2, between=gb_s)]) for gb_s in (0.5, 50)
    )
    assert fast[0].step_s[1] < slow[0].step_s[0]
    assert ask(*TEXT, "--precision", "bf16")[0].step_s[1] < ask(*TEXT)[0].step_s[0]


def test_simpler_strategy_is_first_where_others_are_hardly_faster():
    answer = ask(*TEXT, "--precision", "bf16", among=[machines(gpus=2, gb=80.0)], batch_tokens=1e6)
    assert answer[0].strategy == "ddp"
    assert max(row.tokens_per_s for row in answer if row.fits) < 1.03 * answer[0].tokens_per_s


def test_epochs_that_are_typed_tell_the_cost_in_all():
    [row] = ask(*TEXT, "--epochs", "3")
    assert row.usd_total == pytest.approx(3 * row.usd_per_epoch, rel=1e-3)
    [row] = ask(*TEXT)
    assert row.usd_total == pytest.approx(10 * row.usd_per_epoch, rel=1e-3), "the job's default"


def test_tokens_of_images_are_refused_with_what_to_do():
    with pytest.raises(BadOptions, match="--global-batch-size and --epochs"):
        ask("--model", "resnet50", tokens=1e9)


def measured_run(words, *, step_s=0.5, batch=96, **changed):
    same = {
        "run": "20260101-000000-abcd",
        "shape": "s",
        "count": 2,
        "ranks": 4,
        "samples_per_s": batch / step_s,
    }
    return MeasuredRun(**{**same, "words": tuple(words), **changed})


def test_step_that_was_measured_on_the_same_machines_counts():
    two = [machines(count=2, gpus=4)]
    question = question_of([*TEXT, "--strategy", "fsdp"], batch_tokens=1e5, tokens=None)
    [row] = rows(question, two)
    assert row.reason is None
    same = measured_run([*row.words, "--lr", "0.1", "--epochs", "3"])
    [replaced] = rows(question, two, [measured_run(row.words, run="older", step_s=9.0), same])
    assert replaced.step_s == (0.45, 0.55)
    assert replaced.reason == "measured in 20260101-000000-abcd"
    assert replaced.tokens_per_s == pytest.approx(row.batch_tokens / 0.5, rel=1e-3)
    other_runs = [
        measured_run(row.words, shape="t"),
        measured_run(row.words, count=1),
        measured_run([*row.words, "--seq-len", "512"]),
        measured_run([*row.words, "--precision", "bf16"]),
        measured_run([*row.words, "--strategy", "zero2"]),
        measured_run([*row.words, "--global-batch-size", "8"]),
        measured_run(["--an-option-of-before", "1"]),
    ]
    assert rows(question, two, other_runs) == [row]


def test_every_option_but_a_few_makes_a_run_another_job():
    group = machines(count=2, gpus=4)
    question = question_of([*TEXT, "--strategy", "fsdp"], batch_tokens=1e5, tokens=None)
    [layout] = layouts(question, network_of(question, pipelines=False), group, "fsdp")
    [row] = rows(question, [group])
    run = measured_run(row.words)
    names = {field.name for field in fields(Options)}
    assert names >= BESIDE_STEPS | SIZES
    for name in names:
        other = replace(layout, options=replace(layout.options, **{name: "another value"}))
        match = measured([run], other, group)
        assert (match == run) == (name in BESIDE_STEPS | SIZES), name
    for words in (
        ["--prefetch", "2"],
        ["--cpu-offload"],
        ["--activation-checkpointing"],
        ["--device", "cuda"],
    ):
        assert measured([measured_run([*row.words, *words])], layout, group) is None


def test_text_of_a_measured_run_may_have_another_path():
    two = [machines(count=2, gpus=4)]
    words = [*TEXT, "--strategy", "fsdp", "--data-dir", "/home/me/books"]
    question = question_of(words, batch_tokens=1e5, tokens=None)
    [row] = rows(question, two)
    same, other = (measured_run([*row.words, "--data-dir", path]) for path in ("~/books", "/home/me/letters"))
    [measured_row] = rows(question, two, [same])
    assert measured_row.reason == f"measured in {same.run}"
    assert rows(question, two, [other]) == [row]


def test_run_of_deepspeed_is_not_a_measured_one_of_ddp():
    groups = [machines(count=2, gpus=4)]
    question = question_of([*TEXT, "--strategy", "ddp"], batch_tokens=1e5, tokens=None)
    [row] = rows(question, groups)
    run = measured_run([*row.words, "--engine", "deepspeed"])
    assert parse(run.words).engine == "deepspeed"
    assert rows(question, groups, [run]) == [row]


def test_run_that_succeeded_has_proved_that_it_fits():
    question = question_of(["--model", "gpt-7b"], batch_tokens=None, tokens=None)
    small = [machines()]
    [row] = rows(question, small)
    assert not row.fits
    run = measured_run(row.words, count=1, ranks=1, batch=row.batch_samples)
    [proved] = rows(question, small, [run])
    assert proved.fits
    assert (proved.step_s, proved.reason) == ((0.45, 0.55), f"measured in {run.run}")
    assert proved.usd_per_sample is not None


def test_images_without_torch_on_this_computer_say_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from train.ask import main; sys.exit(main(sys.argv[1:]))"
    asked_of = {"machines": [], "batch_tokens": None, "tokens": None, "spelled_out": False, "runs": []}
    done = subprocess.run(
        [sys.executable, "-c", code, "advice", "--model", "resnet50"],
        input=json.dumps(asked_of), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: What resnet50 needs is measured with torch")
    assert "this computer has no torch: pip install torch torchvision." in done.stderr


def test_batch_that_is_said_twice_is_refused():
    with pytest.raises(BadOptions, match="--batch-tokens and a batch size"):
        ask(*TEXT, "--batch-size", "4", batch_tokens=1e5)


def test_tokenizer_that_is_here_tells_the_vocabulary(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": {"vocab": {"a": 0, "b": 6}}, "added_tokens": [{"id": 7}]}')
    local = question_of([*TEXT, "--tokenizer", str(file)], batch_tokens=None, tokens=None)
    assert local.data.classes == 8
    missing = question_of([*TEXT, "--tokenizer", "/nowhere/t.json"], batch_tokens=None, tokens=None)
    assert missing.data.classes == 50_257
    assert "can't be read on this computer" in missing.data.assumed[0]


def test_epoch_is_that_of_the_text_that_is_here_and_unknown_else(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 10_240)
    local = question_of([*TEXT, "--data-dir", str(tmp_path)], batch_tokens=None, tokens=None)
    assert local.data.training == 9, "one of ten sequences is for validation"
    assert local.data.epoch == f"an epoch is 9,216 tokens of {tmp_path}"
    missing = question_of([*TEXT, "--data-dir", "/nowhere"], batch_tokens=None, tokens=None)
    assert missing.data.training is None
    assert missing.data.epoch == "the cost of an epoch is not known: /nowhere is not on this computer"
