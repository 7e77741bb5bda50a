"""An option is declared once: its command, help, checks and keys follow from the declaration."""

from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuctl.command_line.options import command_options
from gpuctl.errors import Usage
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.option_table.tune_options import TuneSettings
from gpuctl.option_table.values import read_options
from inventories.option import Option, option, options_of
from inventories.runs.run import RunOptions


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Options of a command that does not exist."""

    depth: int | None = option("--depth", metavar="N", min=1, max=9, help="Layers.")
    data: tuple[Path, ...] = option("--data", default=(), help="Files. Repeatable.")
    public: bool = option("--no-public", default=True, help="Hide it.", commands=("show",))
    grace_s: float = option("--grace", keyword="grace", kind=str, read=float, after="data", help="Wait.")


def test_command_takes_the_declared_options_and_shows_their_help() -> None:
    values: dict[str, object] = {}
    more = Option(flags=("--dry-run",), keyword="dry_run", kind=bool, default=False, help="Only show.")
    command = click.command()(
        command_options("show", Sample, more=[more])(lambda **words: values.update(words))
    )
    words = ["--depth", "3", "--data", "a", "--data", "b", "--no-public", "--grace", "5"]
    assert CliRunner().invoke(command, words).exit_code == 0
    assert values == {
        "depth": 3, "data": (Path("a"), Path("b")), "grace": "5", "public": False, "dry_run": False,
    }  # fmt: skip
    assert read_options(values, Sample) == {
        "depth": 3, "data": (Path("a"), Path("b")), "public": False, "grace_s": 5.0,
    }  # fmt: skip
    assert "10 is not in the range 1<=x<=9" in CliRunner().invoke(command, ["--depth", "10"]).output
    text = CliRunner().invoke(command, ["--help"]).output
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  --")] == [
        "--depth", "--data", "--grace", "--no-public", "--dry-run", "--help",
    ]  # fmt: skip
    assert [each.keyword for each in options_of(Sample, command="list")] == ["depth", "data", "grace"]


def test_values_are_checked_as_declared() -> None:
    assert read_options({"depth": None, "public": True}, Sample) == {}
    with pytest.raises(Usage, match=r"--depth 10 is not possible: give a number from 1 to 9\."):
        read_options({"depth": 10}, Sample)
    with pytest.raises(TypeError, match="data is a list"):
        read_options({"data": "a"}, Sample)


def test_record_of_a_run_has_the_options_that_a_resumed_run_takes_over() -> None:
    resumed = {each.name for each in options_of(TrainSettings) if each.resumed}
    assert resumed <= {field.name for field in fields(RunOptions)}


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"max_restarts": "3"}, TypeError, "max_restarts is a value of type int, not str"),
        ({"max_restarts": 2.5}, TypeError, "not float"),
        ({"max_restarts": True}, TypeError, "not bool"),
        ({"detach": "no"}, TypeError, "detach is a value of type bool, not str"),
        ({"max_restarts": -1}, Usage, "--max-restarts -1 is not possible"),
    ],
)
def test_library_checks_values_as_the_command_line_does(
    options: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        read_options(options, TrainSettings)


@pytest.mark.parametrize("value", [0, -1])
def test_library_refuses_a_value_that_is_not_above_its_bound(value: int) -> None:
    with pytest.raises(Usage, match=r"--cpus-per-trial .* give a number above 0\.$"):
        read_options({"cpus_per_trial": value}, TuneSettings)
