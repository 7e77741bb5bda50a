"""What people type who know other tools, and the line that they are given for it."""

import importlib
import json

import click
import pytest

from gpuctl.command_line import cli, other_tools, root_help


def answered(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What gpuctl says of a line that it refuses."""
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("launch", "gpuctl up"),
        ("launch --gpus A10:2", "gpuctl up --shape VM.GPU.A10.2"),
        ("launch --gpus A100-80GB:8 --use-spot -n 2", "gpuctl up --shape p4de.24xlarge --spot --count 2"),
        ("launch -c my task.yaml", "gpuctl up --cluster my -f task.yaml"),
        ("launch --gpus A10:3", "gpuctl up --shape SHAPE (gpuctl shapes A10 lists them)"),
        ("launch --gpus XYZ", "gpuctl up --shape SHAPE (gpuctl shapes lists them)"),
        (
            "launch -c my --gpus=T4 -- python my.py --lr 1",
            "gpuctl up --cluster my --shape g4dn.xlarge; then train on them: gpuctl train --cluster my my.py --lr 1",
        ),
        ("run my.py --lr 0.1", "gpuctl train my.py --lr 0.1"),
        ("python -m pkg.mod --nproc_per_node 2", "gpuctl train -m pkg.mod --nproc_per_node 2"),
        (
            "torchrun --standalone --nnodes 2 --nproc_per_node 4 --master_addr 10.0.0.1 my.py --nproc_per_node 3",
            "gpuctl train --nnodes 2 --nproc-per-node 4 my.py --nproc_per_node 3",
        ),
        ("accelerate launch my.py", "gpuctl train my.py"),
        ("list", "gpuctl clusters"),
        ("--cluster blue ls -l", "gpuctl clusters --cluster blue"),
        ("get pods", "gpuctl status"),
        ("ps", "gpuctl runs"),
        ("tail", "gpuctl logs -f"),
        ("tail -f", "gpuctl logs -f"),
        ("tail --follow 20261121", "gpuctl logs -f 20261121"),
        ("tail -n 5 20261121", "gpuctl logs -f 20261121"),
        ("tail 20261121", "gpuctl logs -f 20261121"),
        ("cp a b", "gpuctl push FILE; from the nodes: gpuctl pull FILE"),
        ("cost", "gpuctl clusters; what a run cost: gpuctl results; list prices: gpuctl shapes"),
        ("destroy -auto-approve", "gpuctl down --yes"),
        ("terminate my", "gpuctl down --cluster my"),
        ("kill 20261121", "gpuctl stop 20261121"),
        ("plan -n 2", "gpuctl up --dry-run --count 2"),
        ("nvidia-smi -L", "gpuctl exec -- nvidia-smi -L"),
        ("help train", "gpuctl train --help"),
    ],
)
def test_other_tools_commands_suggest_gpuctl_line(
    line: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = answered(line, capsys)
    name = line.removeprefix("--cluster blue ").split()[0]
    assert output.startswith(f"gpuctl has no '{name}'. ")
    assert output.partition(". ")[2].partition(": ")[2] == ours


@pytest.mark.parametrize(
    ("line", "missing", "ours"),
    [
        ("up -n 2", "-n", "gpuctl up --count 2"),
        ("up --num-nodes 2 --shape S", "--num-nodes", "gpuctl up --count 2 --shape S"),
        ("up --gpus A10:2 --disk-size=200", "--gpus, --disk-size", "gpuctl up --shape VM.GPU.A10.2 --disk-gb 200"),
        ("up -n", "-n", "gpuctl up --count N"),
        ("up task.yml", "'task.yml'", "gpuctl up -f task.yml"),
        ("train -n 2", "-n", "gpuctl train --nnodes 2"),
        ("train --num-nodes 2 my.py --num-nodes 3", "--num-nodes", "gpuctl train --nnodes 2 my.py --num-nodes 3"),
        ("train --nproc=4 --env A=1 my.py", "--nproc",
         "gpuctl train --nproc-per-node 4 --env A=… my.py"),
        ("train --nproc 2 my.py --nodes 4", "--nproc", "gpuctl train --nproc-per-node 2 my.py --nodes 4"),
        ("train --gpus A10:2", "--gpus", "gpuctl train --nproc-per-node 2"),
        ("down my", "'my'", "gpuctl down --cluster my"),
        ("--cluster blue down --force", "--force", "gpuctl down --cluster blue --yes"),
        ("status -r", "-r", "gpuctl status"),
        ("status --refresh -v", "--refresh", "gpuctl status -v"),
        ("logs --tail 10", "--tail", "gpuctl logs | tail -n 10"),
        ("logs -n 5 20261121 --rank 0", "-n", "gpuctl logs 20261121 --rank 0 | tail -n 5"),
        ("logs -f --tail=10", "--tail", "gpuctl logs -f"),
        ("up --gpus A100", "--gpus", "gpuctl up --shape SHAPE (gpuctl shapes A100 lists them)"),
        ("up --idle-minutes-to-autostop 10 --spot", "--idle-minutes-to-autostop",
         "gpuctl up --ttl TIME --spot (TIME, such as 4h, is the machines' whole life, idle or not)"),
        ("top --rank 0 --once", "--once", "gpuctl top --rank 0 | cat"),
        ("status -o table", "-o", "gpuctl status --json"),
    ],
)  # fmt: skip
def test_other_tools_options_suggest_gpuctl_line(
    line: str, missing: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = line.removeprefix("--cluster blue ").split()[0]
    assert answered(line, capsys) == f"{name} does not take {missing}; write: {ours}"


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
        (
            "down --all",
            "down does not take --all. gpuctl clusters lists them, gpuctl down --cluster NAME removes one; ",
        ),
        ("down -a", "down does not take -a. "),
        ("stop -a", "stop does not take -a. gpuctl runs lists them, gpuctl stop RUN ends one"),
        ("job submit", "gpuctl has no 'job'. Start a run: gpuctl train my.py; "),
        ("fleet", "gpuctl has no 'fleet'. Create machines: gpuctl up; "),
        ("up my --bogus", "No such option '--bogus'."),
        ("--no-color", "Missing command. See `gpuctl --help`."),
    ],
)
def test_other_usage_errors_keep_the_usual_message(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(line, capsys).startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        "run --env KEY=hush my.py",
        "run -e KEY=hush my.py",
        "run -eKEY=hush my.py",
        "run --envs=KEY=hush my.py",
        "run my.py --env KEY=hush",
        "run my.py --env=KEY=hush",
        "train --nproc 2 -e KEY=hush my.py",
        "train --nproc 2 my.py --envs KEY=hush",
        "launch --env KEY=hush task.yaml",
        "launch -- python my.py -e KEY=hush",
        "torchrun --env KEY=hush=hush my.py",
    ],
)
def test_suggestions_hide_values_of_environment_variables(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = answered(line, capsys)
    assert "hush" not in output
    assert "KEY=…" in output


def test_scale_suggests_up_only_for_more_machines(capsys: pytest.CaptureFixture[str]) -> None:
    output = answered("scale --nodes 4", capsys)
    assert output == "gpuctl has no 'scale'. Have more machines: gpuctl up --count 4"


def test_suggestion_keeps_json_flag_and_is_in_json_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "-n", "2", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "gpuctl has no 'launch'. Create machines: gpuctl up --count 2 --json"


def options_of(name: str) -> set[str]:
    command = importlib.import_module(root_help.module_of(name)).command
    return {opt for param in command.params if isinstance(param, click.Option) for opt in param.opts}


def test_familiar_tables_map_foreign_names_to_existing_ones() -> None:
    for typed, (begin, _) in other_tools.COMMANDS.items():
        assert typed not in root_help.COMMANDS
        ours = begin.split()[0]
        assert ours in root_help.COMMANDS or ours.startswith("-"), typed
    assert not set(other_tools.SENTENCES) & {*root_help.COMMANDS, *other_tools.COMMANDS}
    for command, sentences in other_tools.OPTION_SENTENCES.items():
        assert not set(sentences) & (options_of(command) | set(other_tools.OPTIONS.get(command, {})))
    for command, table in other_tools.OPTIONS.items():
        for name in [command] if command else root_help.COMMANDS:
            local = options_of(name)
            for typed, instead in table.items():
                written = instead.partition(" ")[0].partition("{")[0]
                assert not written or written in local, f"{name}: {instead}"
                if command:
                    assert typed not in local, f"{name}: {typed}"
