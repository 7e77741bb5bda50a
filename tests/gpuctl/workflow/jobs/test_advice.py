"""`gpuctl advise`, and the strategy that gpuctl chooses for machines that are there."""

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from node_facts import facts as a_fact
from support import Gpuctl, a_machine, a_result, a_run, an_inventory

from gpuctl.app import App
from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.library.functions import cluster as cluster_named
from gpuctl.output import Output
from gpuctl.workflow.jobs.advise import compared, machines_of_cluster, verdict
from gpuctl.workflow.runs.request.request import TrainRequest, check_built_in, with_plain_strategy
from gpuctl.workflow.runs.strategy.auto import with_strategy
from inventories.codec import plain
from inventories.disk.store import Store
from inventories.machine import Inventory, Machine
from inventories.runs.result import StepMs, TrainSummary
from inventories.runs.run import RunNode
from tests.fakes import nvidia_smi

Advise = Callable[..., tuple[int, str, str]]
KEYS = {
    "shape", "count", "strategy", "fits", "memory_gb", "step_s", "usd_per_epoch", "tokens_per_s", "mfu", "usd_total",
    "reason",
}  # fmt: skip
MODEL = ("--model", "gpt-124m")


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Advise:
    """`gpuctl advise`, in this process: status, stdout, stderr."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["advise", "--no-check", *words])
        return status, *capsys.readouterr()

    return run


def test_document_has_the_keys_of_the_contract_and_null_for_what_is_not_known(advise: Advise) -> None:
    status, out, _ = advise("--shape", "VM.GPU.A10.2,VM.GPU2.1", "--count", "2", "--json", "--", *MODEL)
    rows = json.loads(out)["rows"]
    assert status == 0
    assert all(set(row) >= KEYS for row in rows)
    assert [row["fits"] for row in rows] == sorted((row["fits"] for row in rows), reverse=True)
    priced = [row["usd_per_epoch"] for row in rows if row["usd_per_epoch"] is not None]
    assert priced == pytest.approx(sorted(priced), rel=0.03)
    assert rows[0]["usd_total"] > rows[0]["usd_per_epoch"] * 10, "ten epochs, boot and set-up"
    unknown = next(row for row in rows if row["shape"] == "VM.GPU2.1")
    assert (unknown["fits"], unknown["step_s"], unknown["usd_per_epoch"]) == (True, None, None)


def test_run_on_this_computers_records_is_what_a_row_is_measured_in(advise: Advise, tmp_path: Path) -> None:
    options = ("--shape", "VM.GPU.A10.2", "--count", "1", "--json", "--", *MODEL, "--strategy", "ddp")
    [before] = json.loads(advise(*options)[1])["rows"]
    words = tuple(shlex.split(before["command"].partition(" -- ")[2].partition(" && ")[0]))
    store = Store(tmp_path / "home")
    folder = store.new_run(datetime.now(UTC))
    node = RunNode(name="work-0", rank=0, nproc=2, first_rank=0, run_dir="/nowhere")
    folder.save_run(a_run(run=folder.id, nodes=(node,), script="built-in", args=words, shape="VM.GPU.A10.2"))
    folder.save_result(
        a_result(
            run=folder.id,
            status="succeeded",
            train=TrainSummary(samples_per_s=before["batch_samples"] / 2.0, step_ms=StepMs(p50=1.0)),
        )
    )
    [row] = json.loads(advise(*options)[1])["rows"]
    assert (row["step_s"], row["reason"]) == ([1.8, 2.2], f"measured in {folder.id}")
    assert f"1 x VM.GPU.A10.2, ddp, bf16: measured in {folder.id}" in advise(*options[:4], *options[5:])[1]


def test_model_that_fits_nowhere_ends_with_status_1_and_says_why(advise: Advise) -> None:
    status, out, _ = advise("--shape", "VM.GPU.A10.1", "--count", "1", "--", "--model", "gpt-7b")
    assert status == 1
    assert out.startswith("It fits on none of these machines.")
    assert "1 x VM.GPU.A10.1, ddp, bf16: With one sequence at a time a rank needs 123.0 GB" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--",), "Name the model after --: gpuctl advise -- --model gpt-124m"),
        (("--", "--model", "gpt-125m"), "Did you mean gpt-124m"),
        (("--", "--model", "gpt-10m", "--engine", "deepspeed"), "leave out --engine deepspeed"),
        (("--tokens", "1B", "--", "--model", "resnet18"), "--tokens are for text"),
        (("--", *MODEL, "--seq-len", "4096"), "give at most 1024"),
        (("--count", "0", "--", *MODEL), "'0' is no number of machines"),
        (("--batch-tokens", "many", "--", *MODEL), "'many' is no number of tokens"),
        (("--shape", "A11", "--", *MODEL), "A11"),
        (
            ("--shape", "A10", "--provider", "aws", "--shape", "VM.GPU.A10.1", "--", "--modle", "x"),
            "Name the model",
        ),
        (("--provider", "aws", "--shape", "VM.GPU.A10.1", "--", *MODEL), "AWS has none of these shapes"),
        (("--model", "gpt-124m"), "go after --"),
    ],
)
def test_what_can_not_be_answered_is_refused_with_a_sentence(
    advise: Advise, words: tuple[str, ...], sentence: str
) -> None:
    status, _, err = advise(*words)
    assert status == 2
    assert sentence in err


A10 = {"name": "NVIDIA A10", "memory_mb": 23_028}


def machine(rank: int, shape: str | None) -> Machine:
    return a_machine(
        name=f"node-{rank}",
        rank=rank,
        host=f"h{rank}",
        private_ip=f"10.0.0.{rank}",
        gpus=None,
        id=f"i-{rank}",
        shape=shape,
    )


def inventory_of(count: int, cluster: str = "work", hourly_usd: float | None = None) -> Inventory:
    """Return a cluster with this number of machines of no known shape."""
    machines = tuple(machine(rank, None) for rank in range(count))
    return an_inventory(cluster=cluster, machines=machines, hourly_usd=hourly_usd)


def chosen(
    words: tuple[str, ...], *gpus: Sequence[Mapping[str, Any]], shape: str | None = None, **settings: Any
) -> tuple[TrainRequest, str]:
    """Return the request with its strategy for machines with these GPUs each, and the printed text."""
    output = io.StringIO()
    app = App(output=Output(Options(), stderr=output))
    machines = [machine(rank, shape) for rank in range(len(gpus))]
    facts = {machine.name: a_fact(gpus=tuple(each)) for machine, each in zip(machines, gpus, strict=True)}
    return with_strategy(app, TrainRequest(words=words, **settings), machines, facts), output.getvalue()


def test_auto_becomes_plain_options_for_the_machines_that_are_there() -> None:
    words = (*MODEL, "--strategy", "auto", "--global-batch-size", "64")
    request, output = chosen(words, [A10] * 2, [A10] * 2, shape="VM.GPU.A10.2")
    assert "auto" not in request.words
    assert {"--strategy", "--global-batch-size"} <= set(request.words)
    check_built_in(request.words)
    assert output.startswith("--strategy auto: ")
    assert "of 24 GB by arithmetic, on 2 machines of VM.GPU.A10.2" in output


@pytest.mark.parametrize(
    ("name", "memory_mb", "model", "choice"),
    [
        ("NVIDIA H200", 143_771, "gpt-350m", "on 1 machine of 8 x NVIDIA H200"),
        (
            "NVIDIA A100-SXM4-80GB",
            81_920,
            "gpt-7b",
            "of 86 GB by arithmetic, on 1 machine of 8 x NVIDIA A100-SXM4-80GB",
        ),
        ("Imaginary 9000", 81_920, "gpt-7b", "on 1 machine of 8 x Imaginary 9000"),
    ],
)
def test_auto_takes_the_gpus_that_nvidia_smi_lists_on_machines_of_no_shape(
    name: str, memory_mb: int, model: str, choice: str
) -> None:
    gpus = [{"name": name, "memory_mb": memory_mb}] * 8
    request, output = chosen(("--model", model, "--precision", "bf16", "--strategy", "auto"), gpus)
    check_built_in(request.words)
    assert choice in output
    if model == "gpt-7b":
        assert "--strategy auto: ddp" not in output, "the weights and their states need 100 GB"


@pytest.mark.slow
def test_auto_takes_networks_for_images_too() -> None:
    request, output = chosen(("--model", "cnn", "--strategy", "auto"), [A10] * 2)
    assert request.words[:4] == ("--model", "cnn", "--strategy", "ddp")
    assert output.startswith("--strategy auto: ddp, with 64 images at a time: ")


@pytest.mark.slow
def test_images_have_their_own_table_and_no_count_of_tokens(advise: Advise) -> None:
    status, out, err = advise(
        "--shape", "VM.GPU.A10.2", "--count", "1", "--", "--model", "cnn", "--epochs", "2"
    )
    assert status == 0
    assert "images/s" in out
    assert "at once: images of a rank" in out
    assert "note: an epoch is 1,438 images of --dataset digits" in err


@pytest.mark.parametrize(
    ("words", "gpus", "settings", "why"),
    [
        (MODEL, ([], []), {}, "the machines have no GPUs"),
        (MODEL, ([], [A10]), {}, "the machines' GPUs differ"),
        (MODEL, ([A10], [A10] * 2), {}, "the machines' GPUs differ"),
        (MODEL, ([A10, {**A10, "name": "NVIDIA L4"}],), {}, "the machines' GPUs differ"),
        (MODEL, ([{**A10, "memory_mb": None}],), {}, "nvidia-smi does not report the memory of NVIDIA A10"),
        (MODEL, ([A10],), {"device": "cpu"}, "no GPUs are used"),
        (
            ("--model", "resnet18", "--compression", "half", "--bucket-mb", "0.5", "--compile"),
            ([A10],),
            {},
            "there is no advice: --compile divides",
        ),
    ],
)
def test_auto_is_ddp_where_there_is_no_advice_and_says_so(
    words: tuple[str, ...], gpus: tuple[Sequence[Mapping[str, Any]], ...], settings: dict[str, Any], why: str
) -> None:
    request, output = chosen((*words, "--strategy=auto"), *gpus, **settings)
    assert request.words == (*words, "--strategy=ddp")
    assert output.startswith(f"--strategy auto: ddp, as {why}")
    original = TrainRequest(words=(*words, "--strategy", "auto"))
    assert with_plain_strategy(original).words == (*words, "--strategy", "ddp")


def test_auto_refuses_machines_on_which_the_model_fits_in_no_way() -> None:
    with pytest.raises(Usage, match=r"fits on 1 machine of VM\.GPU\.A10\.1 in no way\. The nearest is ddp"):
        chosen(("--model", "gpt-7b", "--strategy", "auto"), [A10], shape="VM.GPU.A10.1")


def test_other_strategies_and_scripts_are_left_alone() -> None:
    for words in ((*MODEL, "--strategy", "fsdp"), ("train.py", "--strategy", "auto")):
        request, output = chosen(words, [A10])
        assert (request.words, output) == (words, "")


def test_auto_never_reaches_the_ranks() -> None:
    with pytest.raises(Usage, match="--strategy auto is for gpuctl train"):
        check_built_in(("--strategy", "auto"))


@pytest.mark.parametrize(
    ("counts", "begin"),
    [
        ((10.9, 10.0), "memory checked on a few blocks: 10.90 GB by arithmetic, 10.00 GB by torch's tracker"),
        ((11.1, 10.0), "warning: the memory is uncertain"),
        ((8.9, 10.0), "warning: the memory is uncertain"),
    ],
)
def test_difference_to_torchs_count_above_a_tenth_is_told(counts: tuple[float, float], begin: str) -> None:
    assert verdict(*counts).startswith(begin)


def test_row_that_torch_can_not_count_is_told_to_be_unchecked() -> None:
    row = {"count": 1, "gpus": 2, "micro_batch": 1, "words": [*MODEL, "--strategy", "pp"]}
    assert compared(row, 257) == "memory not checked: a pipeline's stages can't be built on one computer"


def test_arithmetic_needs_no_torch() -> None:
    code = "import sys; import train.ask, train.advice.rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("hourly_usd", "count", "share"), [(None, 2, None), (0.0, 2, 0.0), (9.0, 3, 9.0), (9.0, 1, 3.0)]
)
def test_machines_of_a_cluster_have_their_share_of_its_price(
    hourly_usd: float | None, count: int, share: float | None
) -> None:
    inventory = inventory_of(3, hourly_usd=hourly_usd)
    facts = {machine.name: a_fact(gpus=(A10, A10)) for machine in inventory.machines}
    machines = machines_of_cluster(inventory, facts, count)
    assert (machines["shape"], machines["count"], machines["hourly_usd"]) == ("2 x NVIDIA A10", count, share)


def test_machines_of_a_cluster_without_equal_gpus_have_no_advice() -> None:
    inventory = inventory_of(2)
    for gpus, why in (((), "the machines have no GPUs"), ((A10,), "the machines' GPUs differ")):
        facts = {"node-0": a_fact(gpus=()), "node-1": a_fact(gpus=gpus)}
        with pytest.raises(
            Usage, match=f"no advice for 2 machines of the cluster work: {why}. Without --cluster, "
        ):
            machines_of_cluster(inventory, facts, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--shape", "A10", "--", *MODEL),
            "leave out --shape, --provider and --region, or leave out --cluster",
        ),
        (("--region", "eu-west-1", "--", *MODEL), "leave out --shape, --provider and --region"),
        (
            ("--count", "1,3", "--", *MODEL),
            "has 2 machines. Add some with: gpuctl up --cluster work --count 3",
        ),
        (("--",), "Name the model after --"),
    ],
)
def test_request_that_the_cluster_can_not_have_is_refused_without_a_connection(
    advise: Advise, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    Store(tmp_path / "home").cluster("work").save(inventory_of(2))
    status, _, err = advise("--cluster", "work", *words)
    assert status == 2
    assert sentence in err


def test_cluster_that_nobody_typed_is_not_asked(
    advise: Advise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpuctl.yaml").write_text("cluster: work")
    for name in ("work", "default"):
        Store(tmp_path / "home").cluster(name).save(inventory_of(1, name))
    status, out, _ = advise("--shape", "VM.GPU.A10.1", "--count", "1", "--", *MODEL)
    assert (status, out.startswith("gpuctl up --shape VM.GPU.A10.1")) == (0, True)


@pytest.mark.slow
def test_advice_for_a_cluster_goes_by_the_gpus_that_its_nodes_report(
    gpuctl: Gpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nvidia_smi.install(tmp_path / "smi")
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    gpuctl.ok("up", "--provider", "local", "--count", "2", "--cluster", "work", env=path)
    words = ("--no-check", "--cluster", "work", "--count", "1,2")
    job = (*MODEL, "--precision", "fp32")
    rows = gpuctl.ok("advise", "--json", *words, "--", *job).json["rows"]
    assert {(row["shape"], row["count"]) for row in rows} == {("1 x NVIDIA A10", 1), ("1 x NVIDIA A10", 2)}
    assert [row["strategy"] for row in rows if row["count"] == 1] == ["ddp"]
    first = rows[0]
    assert (first["fits"], first["count"], first["step_s"] is not None) == (True, 1, True)
    assert first["command"].startswith("gpuctl train --cluster work --nnodes 1 -- --model gpt-124m ")
    assert "--nnodes" not in next(row["command"] for row in rows if row["count"] == 2)
    table = gpuctl.ok("advise", *words, "--", *job).out
    assert table.startswith(f"{first['command']}\n")
    assert "time and $ in all: of the training alone" in table
    gpuctl.ok(*shlex.split(first["command"])[1:2], "--dry-run", *shlex.split(first["command"])[2:])
    monkeypatch.setenv("GPUCTL_HOME", str(gpuctl.home))
    assert [plain(row) for row in cluster_named("work").advise(job, counts=[1, 2])] == rows

    (folder / "rows.csv").write_text("")
    refused = gpuctl("advise", *words, "--", *job)
    assert (refused.status, "of the cluster work: the machines have no GPUs" in refused.err) == (2, True)
