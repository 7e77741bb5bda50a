"""Options, errors, exit statuses: the command line around a command."""

import errno
import importlib
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from gpuctl import errors
from gpuctl.app import App
from gpuctl.command_line import cli, root_help
from gpuctl.command_line.options import TAIL, ScriptCommand, common_options
from gpuctl.command_results.clusters import UpResult
from gpuctl.commands.train import left_behind
from gpuctl.workflow.runs.request.request import check_built_in
from inventories.codec import plain
from inventories.errors import CorruptFile, InvalidInput, Locked, NotFound
from provision.errors import CreateFailed, NoCapacity, RefusedPlan, UnknownShape
from remote.errors import PreflightFailed, ScriptNotFound, ScriptNotSynced

Register = Callable[[click.Command], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Makes a throw-away command `probe` known to the real command line."""

    def put(command: click.Command) -> None:
        monkeypatch.setitem(root_help.COMMANDS, "probe", "A probe.")
        module = types.ModuleType("gpuctl.commands.probe")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "gpuctl.commands.probe", module)

    return put


def raising(error: BaseException) -> click.Command:
    @click.command()
    @common_options
    def command(app: App) -> None:
        raise error

    return command


def telling(register: Register) -> list[App]:
    apps: list[App] = []

    @click.command()
    @common_options
    @click.option("--rank", type=int)
    def command(app: App, rank: int | None) -> int | None:
        apps.append(app)
        return rank

    register(command)
    return apps


@pytest.mark.parametrize(
    "words",
    [
        ["--cluster", "blue", "--json", "-y", "-v", "--no-color", "probe"],
        ["probe", "--cluster", "blue", "--json", "--yes", "--verbose", "--no-color"],
        ["--json", "--cluster=red", "-v", "probe", "--cluster=blue", "-y", "--no-color"],
    ],
)
def test_global_options_are_accepted_before_and_after_command(register: Register, words: list[str]) -> None:
    apps = telling(register)
    assert cli.main(words) == 0
    options = apps[0].options
    assert (options.cluster, options.json, options.yes, options.verbose, options.no_color) == (
        "blue",
        True,
        True,
        True,
        True,
    )


def test_global_options_have_defaults(register: Register) -> None:
    apps = telling(register)
    assert cli.main(["probe"]) == 0
    options = apps[0].options
    assert (options.cluster, options.json, options.yes, options.verbose, options.no_color) == (
        "default",
        False,
        False,
        False,
        False,
    )


def test_an_empty_cluster_name_is_not_the_default(register: Register) -> None:
    apps = telling(register)
    cli.main(["probe", "--cluster", ""])
    assert apps[0].options.cluster == ""


def test_main_returns_status_of_command(register: Register) -> None:
    telling(register)
    assert cli.main(["probe", "--rank", "4"]) == 4


def test_store_lies_in_gpuctl_home(
    register: Register, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    apps = telling(register)
    cli.main(["probe"])
    assert apps[0].store.cluster("blue").path == tmp_path / "clusters" / "blue"


@pytest.mark.parametrize(
    ("words", "module", "rest", "cluster"),
    [
        (
            ["--cluster", "a", "my.py", "--cluster", "b", "-m", "x"],
            None,
            ("my.py", "--cluster", "b", "-m", "x"),
            "a",
        ),
        (["-m", "pkg.mod", "--cluster", "b", "-m", "y"], "pkg.mod", ("--cluster", "b", "-m", "y"), "default"),
        (["-mpkg.mod", "--json"], "pkg.mod", ("--json",), "default"),
        (["--cluster", "-m", "-m", "pkg", "x"], "pkg", ("x",), "-m"),
        (["-y", "--", "--model", "cnn", "-m", "z"], None, ("--model", "cnn", "-m", "z"), "default"),
        (["my.py", "--", "--help"], None, ("my.py", "--", "--help"), "default"),
        (["-m", "pkg", "--", "-h"], "pkg", ("--", "-h"), "default"),
        (["-y", "--", "-m", "pkg", "--json"], "pkg", ("--json",), "default"),
        ([], None, (), "default"),
    ],
)
def test_script_command_passes_options_after_script_to_it(
    register: Register, words: list[str], module: str | None, rest: tuple[str, ...], cluster: str
) -> None:
    calls: list[Any] = []

    @click.command(cls=ScriptCommand, context_settings=TAIL)
    @common_options
    @click.option("-m", "--module")
    @click.argument("args", nargs=-1, type=click.UNPROCESSED)
    def command(app: App, module: str | None, args: tuple[str, ...]) -> None:
        calls.append((module, args, app.options.cluster))

    register(command)
    assert cli.main(["probe", *words]) == 0
    assert calls == [(module, rest, cluster)]


def test_module_option_without_value_exits_2(register: Register, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command(cls=ScriptCommand, context_settings=TAIL)
    @common_options
    @click.option("-m", "module")
    def command(app: App, module: str) -> None:
        raise AssertionError("must not be called")

    register(command)
    assert cli.main(["probe", "-m"]) == 2
    assert "-m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Usage("Sentence."), 2),
        (errors.Failed("Sentence."), 1),
        (errors.Attention("Sentence."), 4),
        (errors.GpuctlError("Sentence."), 1),
        (InvalidInput("Sentence."), 2),
        (NotFound("Sentence."), 2),
        (CorruptFile("Sentence."), 2),
        (Locked("Sentence."), 1),
        (UnknownShape("Sentence."), 2),
        (RefusedPlan("Sentence."), 2),
        (NoCapacity("Sentence."), 3),
        (CreateFailed("Sentence."), 1),
        (PreflightFailed("Sentence."), 1),
        (ScriptNotFound("Sentence."), 2),
        (ScriptNotSynced("Sentence."), 2),
        (type("OfAnotherModule", (NoCapacity,), {})("Sentence."), 3),
    ],
)
def test_errors_map_to_exit_status_and_print_one_sentence(
    register: Register, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    register(raising(error))
    assert cli.main(["probe"]) == status
    assert capsys.readouterr() == ("", "error: Sentence.\n")
    assert cli.main(["probe", "--json"]) == status
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {"type": type(error).__name__, "message": "Sentence.", "exit_status": status}
    }
    assert err == "error: Sentence.\n"


def test_declined_question_exits_1_without_error_prefix(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    register(raising(errors.Declined("Cancelled: nothing was removed.")))
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr() == ("", "Cancelled: nothing was removed.\n")
    assert cli.main(["probe", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "Declined"


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("train", "gpuctl train my.py --lr 0.1"),
        ("bench", "gpuctl bench --layouts 1x1,1x2 -- --epochs 3"),
        ("tune", "gpuctl tune --param 'lr=uniform(0.01,0.2)' -- --epochs 5"),
    ],
)
def test_unknown_option_shows_example_of_that_command(
    command: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--epochs", "3"]) == 2
    err = capsys.readouterr().err
    assert example in err
    assert command == "train" or "gpuctl train" not in err


def test_doctor_reports_missing_cloud_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "oci", None)  # Python then raises ImportError for oci
    assert cli.main(["doctor", "--shape", "VM.GPU.A10.2"]) == 1
    assert capsys.readouterr().err.endswith(
        "✗ cloud: Provider oci needs the Python package 'oci'\n"
        "  Install it beside gpuctl: `pip install oci`.\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "nope"), "No provider has a shape 'nope'."),
        (("--provider", "nope"), "This build of gpuctl has no provider 'nope'"),
    ],
)
def test_doctor_refuses_a_shape_or_provider_that_nobody_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    assert cli.main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_doctor_takes_the_subnet_and_time_of_new_machines_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "--cluster", "--subnet-id", "subnet-1"]) == 2
    assert "--subnet-id asks for new ones" in capsys.readouterr().err
    assert cli.main(["doctor", "--shape", "VM.GPU.A10.2", "--ttl", "1m"]) == 2
    assert "A --ttl of 1m ends before the machines have booted" in capsys.readouterr().err


def test_left_behind_names_commands_to_follow_or_stop_run() -> None:
    assert left_behind("R", interrupted=False) == "run R continues; gpuctl logs -f R follows it"
    report = left_behind("R", interrupted=True)
    assert report == (
        "run R was told to stop, and its end was not waited for. `gpuctl results R` shows it; if it still runs, "
        "`gpuctl stop R` ends it"
    )


@pytest.mark.parametrize("package", ["gpuctl", "provision", "remote", "inventories"])
def test_every_error_of_a_package_has_the_one_root_and_an_exit_status(package: str) -> None:
    module = importlib.import_module(f"{package}.errors")
    family = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and kind is not errors.Interrupted
    ]
    assert all(issubclass(kind, errors.GpuctlError) for kind in family)
    assert {kind("why").exit_status for kind in family} <= {1, 2, 3, 4}
    assert errors.Interrupted.exit_status == cli.INTERRUPTED


def test_unexpected_exception_is_reported_as_bug(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    register(raising(KeyError("two\nlines")))
    assert cli.main(["probe"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "KeyError" in err
    assert "bug in gpuctl" in err
    assert "--verbose" in err
    assert cli.main(["probe", "--verbose", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "Traceback (most recent call last)" in err
    assert json.loads(out)["error"]["type"] == "KeyError"


def test_os_error_is_reported_as_error_not_bug(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    register(raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/here")))
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err == "error: /here: No space left on device.\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupt_exits_130(
    register: Register, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    register(raising(error))
    assert cli.main(["probe", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["exit_status"] == 130


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["nothing-like-it"], "gpuctl --help"),
        (["probe", "--rnak", "1"], "--rank"),
        (["probe", "--rank", "many"], "'many' is not a valid integer"),
        (["probe", "extra"], "extra"),
        (["--colour", "probe"], "--colour"),
        (["--cluster"], "--cluster"),
    ],
)
def test_wrong_usage_exits_2_with_one_sentence(
    register: Register, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    telling(register)
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert "--help" in err
    assert err.count("\n") == 1
    assert cli.main(["--json", *words]) == 2
    out, _ = capsys.readouterr()
    document = json.loads(out)["error"]
    assert (document["type"], document["exit_status"]) == ("Usage", 2)


def test_json_flag_after_wrong_option_still_applies(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down", "--bogus", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_status"] == 2
    assert cli.main(["exec", "--bogus", "--", "ls", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("value", "json_wanted"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_gpuctl_json_variable_turns_json_on(
    register: Register, monkeypatch: pytest.MonkeyPatch, value: str, json_wanted: bool
) -> None:
    monkeypatch.setenv("GPUCTL_JSON", value)
    apps = telling(register)
    assert cli.main(["probe"]) == 0
    assert apps[0].options.json is json_wanted
    assert cli.main(["probe", "--json"]) == 0
    assert apps[1].options.json


def test_gpuctl_json_variable_applies_to_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCTL_JSON", "1")
    assert cli.main(["down", "--bogus"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_status"] == 2


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["exec", "--", "hostname", "--json"], "went to the command; gpuctl's own goes before it: "
         "gpuctl exec --json -- hostname"),
    ],
)  # fmt: skip
def test_json_flag_after_command_prints_note(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    note: str,
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    assert cli.main(words) == 2, "there is no cluster"
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"note: the --json at the end {note}\n")
    assert "is the script's" not in err
    assert cli.main([words[0], "--json", *words[1:]]) == 2
    out, err = capsys.readouterr()
    assert "at the end" not in err
    assert json.loads(out)["error"]["exit_status"] == 2


def test_check_built_in_refuses_json_after_double_dash() -> None:
    with pytest.raises(errors.Usage, match=r"gpuctl's own --json goes before --: gpuctl train --json -- …$"):
        check_built_in(("--epochs", "1", "--json"))


def test_error_after_json_document_adds_no_second_document(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @common_options
    def command(app: App) -> None:
        app.output.json({"leftovers": 1})
        raise errors.Attention("Something is left.")

    register(command)
    assert cli.main(["probe", "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out) == {"leftovers": 1}
    assert err == "error: Something is left.\n"


def test_result_of_what_is_partly_done_is_the_document_beside_the_error(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    done = UpResult(cluster="c", provider="local", region=None, machines=(), hourly_usd=0.0, seconds=1.0)
    register(raising(errors.Attention("Something is left.", result=done)))
    assert cli.main(["probe", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document.pop("error") == {"type": "Attention", "message": "Something is left.", "exit_status": 4}
    assert document == plain(done)
    assert "setup" not in document, "it has none"


def test_help_of_every_command_lists_global_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in root_help.COMMANDS:
        assert cli.main([name, "-h"]) == 0
        short = capsys.readouterr().out
        assert cli.main([name, "--help"]) == 0
        assert capsys.readouterr().out == short
        for option in ("--json", "-y, --yes", "-v, --verbose", "--no-color", "-h, --help"):
            assert option in short, name


def test_options_without_command_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--no-color"]) == 2
    assert capsys.readouterr() == ("", "error: Missing command. See `gpuctl --help`.\n")


def test_usage_error_after_json_adds_no_second_document(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @common_options
    def command(app: App) -> None:
        app.output.json({})
        raise click.UsageError("Too late.")

    register(command)
    assert cli.main(["probe", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {}
