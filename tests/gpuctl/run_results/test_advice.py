"""Test the advice on a run that failed or hung because only some nodes had an earlier run's files."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
import torch
from support import a_result, a_run, drawn

from gpuctl.run_results.advice import WITHOUT_BLOCKS, advice_on
from gpuctl.tables.run import run_table
from inventories.disk.store import Store
from inventories.runs.commit import Commit
from inventories.runs.end_reasons import Cause, Reason
from inventories.runs.hang import Culprit, Hang, WaitingRank
from inventories.runs.result import FirstError, Result, TrainSummary
from inventories.runs.run import Misplaced, RunOptions
from train.models.networks import build_model
from train.options import Options
from train.strategies.wrapping import repeated_blocks

UNEVEN = "a.pt is on gpu-0 alone, from an earlier run: if the script loads it, add --fresh (begin without it)"
SMALLER = "More --gradient-accumulation-steps compute the same batch in smaller parts"
FSDP = "with --strategy fsdp each rank keeps a part of the model, and it resumes these checkpoints, too"
AGAIN = "--activation-checkpointing keeps less of the forward pass of repeated blocks"
MORE = "with more machines each rank keeps less of the model"
LARGER = "with more machines, and a larger --pp or --tp, each rank keeps less of the model"
ZERO3 = '{"zero_optimization": {"stage": 3}} in --deepspeed-config divides the weights, too'
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'runs/a.pt'"


SLEEPS = "import time\n" * 9 + "time.sleep(1)\n"
WAITS = 'while not os.path.exists("a.pt"):\n    time.sleep(1)\n'
STATE = "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for weight"


@pytest.mark.parametrize(
    ("reason", "detail", "source", "advised"),
    [
        (Reason.ENDED_EARLY, "", SLEEPS, True),
        (Reason.HUNG, "", SLEEPS, True),
        (Reason.EXIT_CODE, STATE, SLEEPS, True),
        (Reason.EXIT_CODE, "EOFError: Ran out of input", SLEEPS, True),
        (Reason.EXIT_CODE, "KeyError: 'x'", SLEEPS, False),
        (Reason.EXIT_CODE, "KeyError: 'epoch'", 'x = torch.load("a.pt")["epoch"]\n', True),
        (Cause.ARGUMENTS, MISSING, SLEEPS, False),
        (Reason.FILE_NOT_FOUND, MISSING, SLEEPS, True),
        (Reason.FILE_NOT_FOUND, MISSING.replace("a.pt", "b.pt"), SLEEPS, False),
        (Reason.LOST_PEER, "", SLEEPS, True),
        (Reason.NCCL_ERROR, "ProcessGroupNCCL is only supported with GPUs, no GPUs found!", SLEEPS, False),
        (Reason.OUT_OF_MEMORY, "", SLEEPS, False),
        (Reason.NODE_LOST, "", SLEEPS, False),
        (Culprit(rank=0, node="gpu-0"), "", SLEEPS, True),
        (Culprit(rank=0, node="gpu-0", file="x.py", line=10), "", SLEEPS, False),
        (Culprit(rank=0, node="gpu-0", file="x.py", line=2), "", WAITS, True),
        (Culprit(rank=1, node="gpu-0", file="x.py", line=10), "", SLEEPS, True),
        (None, "", SLEEPS, False),
    ],
)
def test_files_that_differed_are_named_where_they_explain_the_end(
    tmp_path: Path, reason: Reason | Cause | Culprit | None, detail: str, source: str, advised: bool
) -> None:
    cause = reason if isinstance(reason, Cause) else None
    (tmp_path / "x.py").write_text(source)
    run = a_run(script="x.py", uneven_files=UNEVEN, options=RunOptions(project=str(tmp_path)))
    line = len(source.splitlines())
    error = (
        FirstError(
            rank=0, node="gpu-0", message=f"{detail} (x.py:{line})", detail=detail, cause=cause,
            reason=Reason.EXIT_CODE if isinstance(reason, Cause) else reason,
        )
        if isinstance(reason, Reason | Cause)
        else None
    )  # fmt: skip
    hang = None
    if isinstance(reason, Culprit):
        waits = (WaitingRank(rank=1, node="gpu-1"),)
        hang = Hang(run=run.run, verdict="hung", sentence="so", culprits=(reason,), waiting=waits)
    result = a_result(status="failed", first_error=error, hang=hang, dir=str(tmp_path / "run"))
    sentence = advice_on(result, run)
    assert (
        sentence == f"The nodes' files differed: {UNEVEN}." if advised else "files differed:" not in sentence
    )


@pytest.mark.parametrize(
    ("status", "uneven", "noted"),
    [("succeeded", UNEVEN, True), ("succeeded", "", False), ("failed", UNEVEN, False)],
)
def test_success_of_a_run_whose_nodes_files_differed_repeats_the_note(
    tmp_path: Path, status: Literal["succeeded", "failed"], uneven: str, noted: bool
) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    folder.save_run(a_run(run=folder.id, script="x.py", uneven_files=uneven))
    output = drawn(run_table(a_result(status=status, dir=str(folder.path))))
    note = f"When this run began, the nodes' files differed: {UNEVEN}."
    assert (note in " ".join(output.split())) is noted


@pytest.mark.parametrize(
    ("model", "strategy", "ranks", "args", "advised"),
    [
        ("resnet18", "ddp", 2, (), f"{SMALLER}; {AGAIN}; {FSDP}."),
        ("cnn", "ddp", 2, (), f"{SMALLER}; {FSDP}."),
        ("resnet18", "hsdp", 2, ("--activation-checkpointing",), f"{SMALLER}; {FSDP}."),
        ("resnet18", None, 2, (), f"{SMALLER}; {AGAIN}; {FSDP}."),
        ("resnet18", "single", 1, (), f"{SMALLER}; {AGAIN}; {FSDP.replace('fsdp', 'fsdp on several ranks')}."),
        (
            "resnet18", "ddp", 2, ("--compile", "--bucket-mb=8"),
            f"{SMALLER}; {AGAIN}; {FSDP.replace('fsdp', 'fsdp and without --compile and --bucket-mb')}.",
        ),
        ("resnet18", "pp 2 x ddp 2", 4, (), f"{SMALLER}; {AGAIN}; {LARGER}."),
        ("resnet18", "ddp 2 x tp 2", 4, (), f"{SMALLER}; {AGAIN}; {LARGER}."),
        ("resnet18", "deepspeed", 2, (), f"{SMALLER}; {AGAIN}; {ZERO3}."),
        ("resnet18", "deepspeed zero2", 1, (), f"{SMALLER}; {AGAIN}; {ZERO3} on several ranks."),
        ("resnet18", "deepspeed zero3", 2, (), f"{SMALLER}; {AGAIN}; {MORE}."),
        (
            "gpt-1b", "fsdp 4 x tp 2", 8, (),
            f"{SMALLER}; {AGAIN}; {MORE}. gpuctl advise -- --model gpt-1b says what fits.",
        ),
    ],
)  # fmt: skip
def test_rank_of_the_built_in_job_without_memory_gets_what_its_strategy_can_do(
    model: str, strategy: str | None, ranks: int, args: tuple[str, ...], advised: str
) -> None:
    run = a_run(script="built-in", args=args)
    assert advice_on(without_memory("built-in", model, strategy, ranks), run) == advised


@pytest.mark.parametrize("model", ["cnn", "mlp", "alexnet", "vgg11", "resnet18", "vit_b_16", "mobilenet_v2"])
def test_networks_that_repeat_no_block_are_those_of_the_job(model: str) -> None:
    with torch.device("meta"):
        network = build_model(Options(model=model), (3, 224, 224), 10)
    assert bool(repeated_blocks(network)) is not model.startswith(WITHOUT_BLOCKS)


@pytest.mark.parametrize(
    ("script", "args", "advised"),
    [
        ("v.py", ("--", "--lr", "0.1", "a b"), "gpuctl train --cluster n v.py --lr 0.1 'a b'"),
        ("-m pkg.mod", ("--", "--lr", "0.1"), "gpuctl train --cluster n -m pkg.mod --lr 0.1"),
        ("v.py", ("--lr", "0.1", "--", "x"), ""),
    ],
)
def test_script_that_refuses_the_dashes_after_its_name_comes_with_the_line_without_them(
    script: str, args: tuple[str, ...], advised: str
) -> None:
    run = a_run(cluster="n", script=script, args=args)
    output = "v.py: error: unrecognized arguments: -- --lr 0.1"
    error = FirstError(
        rank=0, node="n-0", message=output, reason=Reason.EXIT_CODE, cause=Cause.ARGUMENTS, detail=output
    )
    result = advice_on(a_result(status="failed", first_error=error), run)
    assert result.endswith(f"Leave out the `--`: {advised}") if advised else result == ""


@pytest.mark.parametrize(
    ("words", "cause", "names"),
    [
        ("my.py: error: unrecognized arguments: --device cpu -v", Cause.ARGUMENTS, "--device and -v"),
        ("Error: No such option '--device'.", Cause.ARGUMENTS, "--device"),
        ("No such option: -v", Cause.ARGUMENTS, "-v"),
        ("ERROR: Could not consume arg: --device", Cause.ARGUMENTS, "--device"),
        ("FATAL Flags parsing error: Unknown command line flag 'device'", Cause.ARGUMENTS, "--device"),
        ("Unrecognized options: --device, cpu", Cause.ARGUMENTS, "--device"),
        ("getopt.GetoptError: option --device not recognized", None, "--device"),
        ("ValueError: arguments are not used: ['--device', 'cpu', '-v']", None, "--device and -v"),
        ("Usage: my.py [--lr=LR]", None, "--device and -v"),
        ("my.py: error: argument --lr: invalid float value: 'x'", Cause.ARGUMENTS, ""),
        ("my.py: error: unrecognized arguments: --device-map", Cause.ARGUMENTS, ""),
        ("RuntimeError: device cpu", None, ""),
    ],
)
def test_script_that_refuses_options_of_gpuctl_comes_with_the_line_that_moves_them(
    tmp_path: Path, words: str, cause: Cause | None, names: str
) -> None:
    options = RunOptions(
        misplaced=Misplaced(
            command=("train", "--cluster", "n", "--env", "KEY"),
            options=(("--device", "gpu"), ("-v",), ("--resume",), ("--device", "cpu")),
            unknown=("--device", "-v"),
        )
    )
    args = ("--device", "gpu", "--lr", "x y", "--device", "cpu", "--resume", "-v")
    run = a_run(cluster="n", script="my.py", args=args, options=options)
    error = FirstError(rank=0, node="n-0", message=words, reason=Reason.EXIT_CODE, cause=cause, detail=words)
    result = advice_on(a_result(status="failed", first_error=error), run)
    line = "gpuctl train --device gpu -v --device cpu --cluster n --env KEY my.py --lr 'x y' --resume"
    assert result == (
        f"The script got {names}. gpuctl's own options go before the script: {line}" if names else ""
    )


def test_script_without_memory_gets_no_options_of_the_built_in_job() -> None:
    assert advice_on(without_memory("my.py", "cnn", "ddp", 2), a_run(script="my.py")) == ""


def test_run_whose_record_is_gone_gets_the_advice_as_well() -> None:
    result = advice_on(without_memory("built-in", "resnet18", "ddp", 2), None)
    assert result == f"{SMALLER}; {AGAIN}; {FSDP}."


def without_memory(script: str, model: str, strategy: str | None, ranks: int) -> Result:
    error = FirstError(rank=1, node="gpu-1", message="so", reason=Reason.OUT_OF_MEMORY)
    summary = TrainSummary(model=model, strategy=strategy)
    return a_result(script=script, status="failed", first_error=error, train=summary, world_size=ranks)


@pytest.mark.parametrize(
    "message",
    [
        "subprocess.CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        "subprocess.CalledProcessError: Command 'git describe --tags' returned non-zero exit status 128.",
        "RuntimeError: fatal: not a git repository (or any of the parent directories): .git",
        "FileNotFoundError: [Errno 2] No such file or directory: 'git'",
        "git.exc.InvalidGitRepositoryError: /home/me/.gpuctl-node/code/x",
        "LookupError: setuptools-scm was unable to detect version for /home/me/x.",
    ],
)
def test_script_that_asks_git_is_told_which_variable_has_the_commit(message: str) -> None:
    error = FirstError(rank=0, node="gpu-0", message=message, reason=Reason.EXIT_CODE, detail=message)
    failed = a_result(status="failed", first_error=error)
    assert advice_on(failed, None).endswith("Here, too, the project has no commit")
    of_commit = replace(failed, commit=Commit(sha="abc", dirty=False))
    assert 'in the variable GPUCTL_COMMIT (os.environ["GPUCTL_COMMIT"] in Python)' in advice_on(
        of_commit, None
    )


def test_other_failed_commands_have_nothing_to_do_with_git() -> None:
    output = "subprocess.CalledProcessError: Command '['make', 'digits']' returned non-zero exit status 2."
    error = FirstError(rank=0, node="gpu-0", message=output, reason=Reason.EXIT_CODE, detail=output)
    assert advice_on(a_result(status="failed", first_error=error), a_run()) == ""


@pytest.mark.parametrize(
    ("message", "advised"),
    [
        (
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            "--env WANDB_API_KEY",
        ),
        (
            "wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.",
            "--env WANDB_API_KEY",
        ),
        (
            "OSError: You are trying to access a gated repo. Make sure to have access to it.",
            "--env HF_TOKEN",
        ),
        (
            "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x",
            "--env HF_TOKEN",
        ),
        (
            "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
            "--env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY",
        ),
        ("KeyError: 'DATA_ROOT'", "add --env DATA_ROOT"),
        ("KeyError: 'SLURM_PROCID'", "The same number is in RANK"),
        ("EOFError: EOF when reading a line", "ranks have no keyboard"),
        ("t.py: error: the following arguments are required: --local_rank", 'os.environ["LOCAL_RANK"]'),
        (
            "ValueError: Default process group has not been initialized, please make sure to call "
            "init_process_group.",
            "did not call torch.distributed.init_process_group",
        ),
        (
            "ValueError: When connecting to an existing cluster, num_cpus and num_gpus must not be provided.",
            "leave num_cpus and num_gpus out of ray.init()",
        ),
        ("KeyError: 'LABELS_OF_NOBODY'", ""),
        ("KeyError: 'lr'", ""),
        ("EOFError: Ran out of input", ""),
        ("t.py: error: the following arguments are required: --lr", ""),
        ("AttributeError: module 'wandb' has no attribute 'init'", ""),
        ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://example.org", ""),
    ],
)
def test_missing_setting_comes_with_the_way_to_give_it(
    message: str, advised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    cause = Cause.ARGUMENTS if "error: the" in message else None
    error = FirstError(
        rank=0, node="n-0", message=message, reason=Reason.EXIT_CODE, cause=cause, detail=message
    )
    result = advice_on(a_result(status="failed", first_error=error), None)
    assert advised in result
    assert bool(advised) == bool(result)
