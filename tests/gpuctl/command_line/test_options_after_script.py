"""Options of gpuctl that stand after the script, or after the function of a search."""

from pathlib import Path

import pytest

from gpuctl.command_line import cli
from gpuctl.scripts.misplaced import without_secrets

SOURCES = {
    "my.py": "import sys\nloss.detach()\n",
    "parses.py": "parser.add_argument('--nnodes'); parser.add_argument('--resume-from-checkpoint')\n",
    "fields.py": "import tyro\nclass Options:\n    max_restarts: int = 3\n\ndef f(on_hang=0, *, dry_run=0): ...\n",
    "pkg/mod.py": "from typer import run\nfrom helpers import (\n    parse,\n)\n",
    "helpers.py": "def parse(detach: bool, device: str): ...\n",
    "kube.py": "cluster = {'cluster': 1}\nclass K:\n    cluster: str\n\ndef run(dry_run): ...\nrun(dry_run=True)\n",
    "imports.py": "import kube\nparser.parse_args()\n",
    "short.py": "parser.add_argument('-v')\n",
    "flags.py": "flags.DEFINE_string('cluster', '', '')\n",
}


@pytest.mark.parametrize(
    ("words", "corrected", "confirmed"),
    [
        ("my.py --lr 1 --detach", "--detach my.py --lr 1", "-- my.py --lr 1 --detach"),
        ("--yes my.py --nnodes 1", "--nnodes 1 --yes my.py", "--yes -- my.py --nnodes 1"),
        ("my.py --nproc_per_node 2 x", "--nproc-per-node 2 my.py x", "-- my.py --nproc_per_node 2 x"),
        (
            "--env A=1 my.py --nnodes 2 --lr 1 --nnodes=3 --lr 2",
            "--nnodes 2 --nnodes=3 --env A=1 my.py --lr 1 --lr 2",
            "--env A=1 -- my.py --nnodes 2 --lr 1 --nnodes=3 --lr 2",
        ),
        (
            "my.py --stop_grace 1 --stop_grace 2",
            "--stop-grace 1 --stop-grace 2 my.py",
            "-- my.py --stop_grace 1 --stop_grace 2",
        ),
        ("my.py --max_restarts=3", "--max-restarts=3 my.py", "-- my.py --max_restarts=3"),
        ("my.py --nnodes=1 --json x", "--nnodes=1 --json my.py x", "-- my.py --nnodes=1 --json x"),
        ("-y -m pkg.mod --dry-run", "--dry-run -y -m pkg.mod", "-y -- -m pkg.mod --dry-run"),
        ("-mpkg.mod --cluster b", "--cluster b -m pkg.mod", "-- -m pkg.mod --cluster b"),
        ("kube.py --cluster prod", "--cluster prod kube.py", "-- kube.py --cluster prod"),
        ("imports.py --cluster prod", "--cluster prod imports.py", "-- imports.py --cluster prod"),
        ("imports.py --dry-run", "--dry-run imports.py", "-- imports.py --dry-run"),
        ("-m no.such.module --dry-run", "--dry-run -m no.such.module", "-- -m no.such.module --dry-run"),
        (
            "-m no.such.module --cluster b",
            "--cluster b -m no.such.module",
            "-- -m no.such.module --cluster b",
        ),
        (
            "fields.py --nproc-per-node 2 --",
            "--nproc-per-node 2 fields.py --",
            "-- fields.py --nproc-per-node 2 --",
        ),
    ],
)
def test_train_refuses_options_after_a_script_that_does_not_know_them(
    project: Path, capsys: pytest.CaptureFixture[str], words: str, corrected: str, confirmed: str
) -> None:
    assert cli.main(["train", *words.split()]) == 2
    err = capsys.readouterr().err
    assert err.endswith(
        f"Put gpuctl's own options first: gpuctl train {corrected}\n"
        f"If the script takes the option, type: gpuctl train {confirmed}\n"
    )
    assert cli.main(["train", *confirmed.split()]) == 2
    assert capsys.readouterr().err.startswith("error: There is no cluster default"), "no question"


@pytest.mark.parametrize(
    ("words", "meant", "corrected"),
    [
        ("my.py --detatch", "--detach", "--detach my.py"),
        ("--yes my.py --lr 0.1 --nnode 1", "--nnodes", "--nnodes 1 --yes my.py --lr 0.1"),
        ("my.py --nproc_per_nodes=2 x", "--nproc-per-node", "--nproc-per-node=2 my.py x"),
        ("parses.py --nnodes 1 --dryrun", "--dry-run", "--dry-run parses.py --nnodes 1"),
        ("my.py --max-restart 3 --share-output", "--max-restarts", "--max-restarts 3 --share-outputs my.py"),
        ("parses.py --resume-from x", "", ""),
        ("parses.py --nnode 1", "", ""),  # argparse takes the beginning of --nnodes
        ("my.py --nnods 1 --restarts 2", "--nnodes", "--nnodes 1 my.py --restarts 2"),
        ("my.py --restarts 2 --cluster-size 3 --num-nodes 2 --max-steps 5", "", ""),
        ("pkg/mod.py --nnode 1", "", ""),
        ("my.py -- --detatch", "", ""),
        ("-- my.py --detatch", "", ""),
    ],
)
def test_misspelt_option_after_a_script_that_does_not_know_it_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], words: str, meant: str, corrected: str
) -> None:
    assert cli.main(["train", *words.split()]) == 2
    err = capsys.readouterr().err
    output = (
        f"does not have that option. Did you mean gpuctl's {meant}? gpuctl train {corrected}\nIf the script"
    )
    assert (output in err) if meant else err.startswith("error: There is no cluster default"), err
    if meant:
        assert cli.main(["train", *err.rpartition("gpuctl train ")[2].split()]) == 2
        assert capsys.readouterr().err.startswith("error: There is no cluster default")


@pytest.mark.parametrize(
    "words", ["--nproc_per_node=2 my.py", "--max_restarts 1 --nproc_per_node 2 -m pkg.mod --a_b"]
)
def test_torchruns_spelling_counts_before_the_script(
    project: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert cli.main(["train", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("error: There is no cluster default")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("parses.py --nnodes 1 --resume-from x", ""),
        ("fields.py --max-restarts 1 --on-hang stop", ""),
        ("fields.py --on-hang stop --dry-run", "--dry-run after fields.py went to the script; gpuctl's own goes "
         "before it: gpuctl train --on-hang stop --dry-run fields.py"),
        ("flags.py --cluster b", "--cluster after flags.py went to the script; gpuctl's own goes before it: gpuctl "
         "train --cluster b flags.py"),
        ("--no-dry-run my.py --dry-run", ""),
        ("my.py -- --dry-run", ""),
        ("pkg/mod.py --device cpu --detach", ""),
        ("-m no.such.module --device cpu", ""),
        ("my.py --lr 0.1 --json", "--json after my.py went to the script; gpuctl's own goes before it: "
         "gpuctl train --json my.py --lr 0.1"),
        ("my.py -y --device cpu", "-y and --device after my.py went to the script; gpuctl's own goes before it: "
         "gpuctl train -y --device cpu my.py"),
        ("my.py -v --env A=1 --env B=2", "-v and --env after my.py went to the script; gpuctl's own goes before it: "
         "gpuctl train -v --env A=1 --env B=2 my.py"),
        ("my.py -m x -n 2", ""),
        ("fields.py -v", ""),
        ("short.py -v -y", "-y after short.py went to the script; gpuctl's own goes before it: gpuctl train -v -y "
         "short.py"),
        ("torchrun --nproc-per-node 2 my.py", ""),
        ("-m pkg.mod --env A=b", "--env after pkg.mod went to the script; gpuctl's own goes before it: "
         "gpuctl train --env A=b -m pkg.mod"),
        ("-m no.such.module --nnodes 1", "--nnodes after no.such.module went to the script; gpuctl's own goes "
         "before it: gpuctl train --nnodes 1 -m no.such.module"),
    ],
)  # fmt: skip
def test_train_leaves_options_that_a_script_may_know(
    project: Path, capsys: pytest.CaptureFixture[str], words: str, note: str
) -> None:
    assert cli.main(["train", *words.split()]) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert notes == ([f"note: {note}"] if note else [])
    assert error.startswith(f"error: There is no {'script' if 'torchrun' in words else 'cluster'}")


@pytest.mark.parametrize("command", ["train", "bench", "queue add"])
def test_corrected_line_keeps_the_cluster_that_was_typed_before_the_command(
    project: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert cli.main(["--cluster", "blue", *command.split(), "my.py", "--stop_grace=5m"]) == 2
    output = capsys.readouterr().err
    assert f"options first: gpuctl {command} --stop-grace=5m --cluster blue my.py\n" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("my.py", "'my.py' names no function, and a search calls one for each trial: gpuctl tune … my.py:FUNCTION. "
         "To compare settings of a script as it is, start a run for each, and then show them side by side:\n"
         "gpuctl train my.py --lr 1\ngpuctl train my.py --lr 2\ngpuctl results RUN1 RUN2"),
        ("--param n=randint(2,9) my.py --epochs 3", "gpuctl train my.py --epochs 3 --lr 1 --n 2\n"
         "gpuctl train my.py --epochs 3 --lr 2 --n 2\ngpuctl results RUN1 RUN2"),
        ("helpers.py:pars", "helpers.py has no pars; did you mean 'parse'?"),
        ("helpers.py:parse --metric loss", "--metric stands after helpers.py:parse, and a function gets no options. "
         "Put gpuctl's own options first: gpuctl tune --metric loss --param 'lr=grid(1,2)' helpers.py:parse"),
        ("helpers.py:parse --goal=min --cpus_per_trial 2 --metric loss", "options first: gpuctl tune --goal=min "
         "--cpus-per-trial 2 --metric loss --param 'lr=grid(1,2)' helpers.py:parse"),
        ("--metric loss helpers.py:parse --lr 1", "helpers.py:parse gets no arguments: leave out --lr 1, and name "
         "what it gets with --param."),
        ("helpers.py:parse", "--metric is missing: name the value to optimize, which the function reports with "
         "ray.tune.report: gpuctl tune --param 'lr=grid(1,2)' --metric NAME helpers.py:parse"),
    ],
)  # fmt: skip
def test_tune_says_what_a_function_needs_and_where_options_stand(
    project: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert cli.main(["tune", "--param", "lr=grid(1,2)", *words.split()]) == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


def test_options_in_a_record_have_no_secrets() -> None:
    words = "--env A=1 --env=B=2 --pip git+https://me:x@host/y@v1 --pip=https://x@host/z --nnodes 2"
    words += " --notify slack:https://host/x --notify=ntfy:x"
    assert " ".join(without_secrets(words.split())) == (
        "--env A --env=B --pip git+https://host/y@v1 --pip=https://host/z --nnodes 2 "
        "--notify TARGET --notify=TARGET"
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, which is the current one."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    return tmp_path
