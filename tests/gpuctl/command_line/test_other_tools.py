"""Test the hints for words and options of other tools."""

import importlib

import click
import pytest

from gpuctl.command_line import cli, other_tools, root_help


def answered(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return gpuctl's answer to a refused command line."""
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("launch --gpus A10:2 --env KEY=hush", "up"),
        ("torchrun --nnodes 2 my.py", "train"),
        ("--cluster blue ls -l", "clusters"),
        ("plan", "up --dry-run"),
        ("tail -f", "logs -f"),
        ("help train", "--help"),
    ],
)
def test_commands_of_other_tools_name_gpuctls(
    line: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = line.removeprefix("--cluster blue ").split()[0]
    assert answered(line, capsys) == f"gpuctl has no '{name}'. Its command for that: gpuctl {ours}"


@pytest.mark.parametrize(
    ("line", "refused", "ours"),
    [
        ("up --gpus A10:2", "--gpus", "--shape"),
        ("up --num-nodes=2 --shape S", "--num-nodes", "--count"),
        ("train -n 2 my.py", "-n", "--nnodes"),
        ("--cluster blue down --force", "--force", "--yes"),
        ("logs -F", "-F", "--follow"),
    ],
)
def test_options_of_other_tools_name_gpuctls(
    line: str, refused: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = line.removeprefix("--cluster blue ").split()[0]
    sentence = f"{name} does not take {refused}; its option is {ours}. See `gpuctl {name} --help`."
    assert answered(line, capsys) == sentence


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "There is no command 'trian'; did you mean 'train'? See `gpuctl --help`."),
        (
            "up --count many",
            "Invalid value for '--count': 'many' is not a valid integer. See `gpuctl up --help`.",
        ),
        ("exec --bogus -- ls -n 2", "No such option '--bogus'"),
        ("top --onc", "No such option '--onc'. See `gpuctl top --help`."),
        ("top --evry 2", "No such option '--evry'; did you mean '--every'?"),
        ("logs a b", "gpuctl logs takes one run at a time: leave out b. See `gpuctl logs --help`."),
        ("why a 'b c' d", "gpuctl why takes one run at a time: leave out 'b c' d."),
        ("pull a b c", "gpuctl pull takes source and destination alone: leave out c."),
        ("clusters a", "gpuctl clusters takes no 'a'."),
        (
            "clean --older-than 3",
            "--older-than '3' can't be used: a duration is a number above 0 with its unit s, m, "
            "h or d. For example: --older-than 3s",
        ),
        ("train --hang-after 10 x.py", "--hang-after '10' can't be used"),
        ("stop --stop-grace 1,5", "--stop-grace '1,5' can't be used"),
        ("up --boot-timeout 0", "--boot-timeout '0' can't be used"),
        ("up --cuont 2", "No such option '--cuont'; did you mean '--count'? See `gpuctl up --help`."),
        ("results --csv", "Option '--csv' requires an argument. See `gpuctl results --help`."),
        ("down --cluster", "Option '--cluster' requires an argument. See `gpuctl down --help`."),
        ("--cluster", "Option '--cluster' requires an argument. See `gpuctl --help`."),
        ("up --shpae S", "No such option '--shpae'; did you mean '--shape'? See `gpuctl up --help`."),
        (
            "train --nnode 2 my.py",
            "No such option '--nnode'; did you mean '--nnodes'? Options of your script ",
        ),
        ("up my --bogus", "No such option '--bogus'."),
        ("--no-color", "Missing command. See `gpuctl --help`."),
    ],
)
def test_other_usage_errors_keep_the_usual_message(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(line, capsys).startswith(message)


def options_of(name: str) -> set[str]:
    command = importlib.import_module(root_help.module_of(name)).command
    return {opt for param in command.params if isinstance(param, click.Option) for opt in param.opts}


def test_tables_map_foreign_names_to_existing_ones() -> None:
    for line, rest in other_tools.COMMANDS.items():
        assert line.split()[0] in root_help.COMMANDS or line.startswith("-")
        assert not set(rest.split()) & set(root_help.COMMANDS)
    assert set(other_tools.OPTIONS) <= set().union(*map(options_of, root_help.COMMANDS))
