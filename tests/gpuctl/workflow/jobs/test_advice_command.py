"""The commands that `gpuctl advise` prints: gpuctl's own parsers and a cloud's plan take each of them."""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clouds import KINDS
from support import a_machine, an_inventory

from gpuctl.command_line import cli
from gpuctl.workflow.jobs.advice_command import command_on, ttl_s
from gpuctl.workflow.machines.reach import BOOT_TIMEOUT_S
from gpuctl.workflow.runs.request.request import check_built_in, value_of
from gpuctl.workflow.runs.strategy.ask import VIRTUAL_MACHINE_S, min_billed_s, setup_s
from provision.pricing.catalog import SHAPES
from tests.fakes.client import FakeCloud, start_fake

MODEL = ("--model", "gpt-124m")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FakeCloud]]:
    with ExitStack() as stack:
        yield {
            kind.provider: stack.enter_context(start_fake(kind.fake, tmp_path_factory.mktemp(kind.provider)))
            for kind in KINDS.values()
        }


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A person's home with a text, and no account."""
    for name in os.environ:
        if name.startswith(("OCI_", "AWS_", "GPUCTL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / ".gpuctl"))
    (tmp_path / "books.txt").write_text("word " * 1_000_000)
    return tmp_path


def advised(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """Return the rows of `gpuctl advise --json`."""
    cli.main(["advise", "--no-check", "--json", *words])
    return json.loads(capsys.readouterr().out)["rows"]


def command_words(row: dict[str, Any]) -> dict[str, list[str]]:
    """Return the words of each gpuctl command of a row, by its name."""
    commands = [shlex.split(part) for part in row["command"].split(" && ")]
    assert all(words[0] == "gpuctl" for words in commands)
    return {words[1]: words[2:] for words in commands}


def parsed(name: str, words: list[str]) -> dict[str, Any]:
    """Return the values that gpuctl's command of that name gets from these words."""
    with cli.group.make_context("gpuctl", [name, *words]) as parent:
        command = cli.group.get_command(parent, name)
        with command.make_context(name, list(words), parent=parent) as context:
            return context.params


@pytest.mark.parametrize(
    ("provider", "shapes"),
    [("oci", "VM.GPU.A10.1,BM.GPU.A10.4"), ("aws", "g5.xlarge,g4dn.12xlarge")],
)
def test_printed_line_passes_the_parsers_and_the_plan_of_up(
    home: Path,
    running: dict[str, FakeCloud],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    provider: str,
    shapes: str,
) -> None:
    length = ("--tokens", "20M", "--batch-tokens", "0.1M")
    rows = advised(
        capsys, "--shape", shapes, "--count", "1,2", *length, "--", *MODEL, "--data-dir", "~/books.txt"
    )
    for name, value in running[provider].env.items():
        monkeypatch.setenv(name, value)
    plans: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not row["fits"]:
            continue
        commands = command_words(row)
        assert list(commands) == ["up", "push", "train", "down"]
        if (line := shlex.join(commands["up"])) not in plans:
            assert cli.main(["up", *commands["up"], "--dry-run", "--json", "--ssh-cidr", "127.0.0.1/32"]) == 0
            plans[line] = json.loads(capsys.readouterr().out)
        assert parsed("push", commands["push"])["source"] == home / "books.txt"
        words = parsed("train", commands["train"])["words"]
        check_built_in(words)
        assert value_of(words, "--data-dir") == "~/books.txt"
        assert value_of(words, "--epochs") == "5"
        assert value_of(words, "--precision") == row["precision"]
        assert value_of(words, "--strategy") == row["strategy"].split()[0]
        parsed("down", commands["down"])
        assert plans[line]["until_s"] >= row["total_s"][1]
        assert plans[line]["hourly_usd"] >= row["hourly_usd"]
    assert {line.split()[1] for line in plans} == set(shapes.split(","))


def test_line_names_the_region_whose_prices_it_has(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aws, oci = (
        command_words(advised(capsys, "--shape", shape, "--count", "1", "--", *MODEL)[0])["up"]
        for shape in ("g5.xlarge", "VM.GPU.A10.1")
    )
    assert value_of(aws, "--region") == "us-east-1"
    assert value_of(oci, "--region") is None


def test_line_installs_and_pushes_what_a_tokenizer_needs(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    words = ("--tokenizer", "~/tokenizer.json", "--data-dir=~/books.txt", "--epochs", "2")
    [row] = advised(capsys, "--shape", "VM.GPU.A10.1", "--count", "1", "--", *MODEL, *words)
    assert row["command"].startswith("gpuctl up --shape VM.GPU.A10.1 --count 1 && ")
    assert f"gpuctl push {home}/books.txt && gpuctl push {home}/tokenizer.json && " in row["command"]
    assert "gpuctl train --pip=tokenizers -- --model gpt-124m" in row["command"]
    assert "--tokenizer '~/tokenizer.json' '--data-dir=~/books.txt' --epochs 2" in row["command"]


@pytest.mark.parametrize(("count", "nnodes"), [(2, ""), (1, " --nnodes 1")])
def test_line_for_a_cluster_pushes_to_it_and_trains_on_it(home: Path, count: int, nnodes: str) -> None:
    machines = tuple(
        a_machine(name=f"n{rank}", rank=rank, host="h", private_ip="p", gpus=1) for rank in range(2)
    )
    inventory = an_inventory(cluster="work", machines=machines)
    words = (*MODEL, "--data-dir", f"{home}/books.txt", "--strategy", "ddp")
    assert command_on(inventory, {"count": count, "words": words}, {f"{home}/books.txt"}) == (
        f"gpuctl push --cluster work --yes {home}/books.txt && gpuctl train --cluster work{nnodes} -- "
        "--model gpt-124m --data-dir '~/books.txt' --strategy ddp"
    )


def test_text_in_the_current_folder_is_read_priced_and_pushed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    words = (
        "--shape",
        "VM.GPU.A10.1",
        "--count",
        "1",
        "--tokens",
        "20M",
        "--",
        *MODEL,
        "--data-dir",
        "books.txt",
    )
    [row] = advised(capsys, *words)
    assert row["usd_per_epoch"] > 0
    assert (
        " && gpuctl push books.txt && gpuctl train -- --model gpt-124m --data-dir '~/books.txt' "
        in row["command"]
    )


def test_folder_of_many_files_is_pushed_with_consent(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "books").mkdir()
    for number in range(20_001):
        (home / "books" / f"{number}.txt").write_text("a few words")
    words = ("--epochs", "1", "--data-dir", "~/books")
    [row] = advised(capsys, "--shape", "VM.GPU.A10.1", "--count", "1", "--", *MODEL, *words)
    assert f" && gpuctl push --yes {home}/books && " in row["command"]
    assert parsed("push", command_words(row)["push"])["yes"]


def test_shape_that_gpuctl_does_not_launch_is_left_out_and_has_no_command_if_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "BM.GPU.GB200.4" not in {row["shape"] for row in advised(capsys, "--count", "1", "--", *MODEL)}
    rows = advised(capsys, "--shape", "BM.GPU.GB200.4", "--count", "1", "--", *MODEL)
    assert {row["command"] for row in rows} == {None}
    assert f"No command: {SHAPES['BM.GPU.GB200.4'].not_launched}." in rows[0]["reason"]


def test_row_without_a_command_says_why_in_place_of_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = advised(capsys, "--shape", "VM.GPU.A10.1", "--count", "1", "--tokens", "1B", "--", *MODEL)
    assert (row["fits"], row["command"]) == (True, None)
    assert row["usd_total"] > 0
    assert row["reason"].startswith("No command: no text is named")
    assert cli.main(["advise", "--no-check", "--shape", "VM.GPU.A10.1", "--tokens", "1B", "--", *MODEL]) == 0
    assert capsys.readouterr().out.startswith("No command: no text is named")


@pytest.mark.parametrize(
    ("forecast_s", "limit_s"),
    [
        (1.0, 600.0),
        (480.0, 600.0),
        (481.0, 1200.0),
        (3600.0, 4800.0),
        (11_520.0, 14_400.0),
        (11_521.0, 18_000.0),
    ],
)
def test_time_limit_is_a_quarter_longer_than_the_forecast_and_rounded_up(
    forecast_s: float, limit_s: float
) -> None:
    assert ttl_s(forecast_s) == limit_s


@pytest.mark.parametrize(
    ("shape", "setup", "billed"),
    [
        ("VM.GPU.A10.1", 900.0, 60.0),
        ("BM.GPU.A10.4", 2100.0, 3600.0),
        ("g5.xlarge", 900.0, 60.0),
        ("g4dn.metal", 2100.0, 60.0),
    ],
)
def test_machine_takes_and_is_billed_for_at_least_some_minutes(
    shape: str, setup: float, billed: float
) -> None:
    assert (setup_s(SHAPES[shape]), min_billed_s(SHAPES[shape])) == (setup, billed)


def test_setup_has_the_whole_time_that_up_waits_for_a_boot() -> None:
    assert VIRTUAL_MACHINE_S == BOOT_TIMEOUT_S
