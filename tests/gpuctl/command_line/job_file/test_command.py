"""Test the project's job file on a command line: it supplies the options that were not typed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.command_line import cli
from gpuctl.errors import Failed
from gpuctl.workflow.runs.request.request import TrainRequest

Requested = Callable[..., Any]
FILE = """
cluster: {cluster: blue, provider: local, count: 2}
environment:
  requirements: needs.txt
  variables: {A: 1, B: 2}
include: data
run:
  script: my.py
  arguments: [--lr, 0.1]
  nnodes: 2
  device: cpu
  detach: true
  name: base
  tags: {sweep: lr, seed: 7}
outputs: '*.pt'
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file, a script and a folder within."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "sub").mkdir()
    (folder / "data").mkdir()
    (folder / "my.py").write_text("")
    (folder / "needs.txt").write_text("")
    (folder / "gpuctl.yaml").write_text(FILE)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Requested:
    """Record the workflow requests of a command line, with their clusters."""
    requests: list[tuple[str, Any]] = []

    def train(app: Any, request: Any, *_: Any, **__: Any) -> None:
        requests.append((app.options.cluster, request))
        raise Failed("It is not run here.")

    monkeypatch.setattr("gpuctl.workflow.jobs.train.train", train)
    monkeypatch.setattr("gpuctl.workflow.jobs.tune.tune", train)
    monkeypatch.setattr("gpuctl.workflow.jobs.bench.bench", train)

    def request(*words: str, cluster: str = "blue") -> Any:
        assert cli.main(words) == 1
        name, result = requests.pop()
        assert name == cluster
        return result

    return request


def test_train_runs_script_of_the_file_from_any_folder_of_the_repository(
    project: Path,
    requested: Requested,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    existing = TrainRequest(
        words=("my.py", "--lr", "0.1"),
        project=project,
        nnodes=2,
        device="cpu",
        detach=True,
        name="base",
        tags={"sweep": "lr", "seed": "7"},
        env={"A": "1", "B": "2"},
        requirements=project / "needs.txt",
        include=(project / "data",),
        bring=("*.pt",),
    )
    assert requested("train") == existing
    assert capsys.readouterr().err.startswith("from gpuctl.yaml: environment, include, outputs, run\n")
    monkeypatch.chdir(project / "sub")
    assert requested("train") == replace(existing, words=("../my.py", "--lr", "0.1"))
    assert capsys.readouterr().err.startswith("from ../gpuctl.yaml: ")


def test_file_that_is_taken_is_named_whatever_it_says(
    project: Path, requested: Requested, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "gpuctl.yaml"
    file.write_text("cluster: {provider: local}\ninclude: data\n")
    assert requested("train", cluster="default").include == ()
    report = "from gpuctl.yaml: nothing; include not, as it names no script and the built-in job runs\n"
    assert capsys.readouterr().err.startswith(report)
    assert requested("train", "my.py", cluster="default").include == (project / "data",)
    assert capsys.readouterr().err.startswith("from gpuctl.yaml: include\n")
    requested("train", "--resume", "--mode", "ray", cluster="default")
    assert capsys.readouterr().err.startswith("from gpuctl.yaml: nothing\n")
    file.write_text("")
    requested("train", cluster="default")
    assert "nothing, and the built-in job runs: a script is named under run" in capsys.readouterr().err


def test_typed_options_win_and_repeatable_ones_are_added(project: Path, requested: Requested) -> None:
    typed = (
        "--nnodes 1 --env B=3 --env C=4 --include sub --bring *.csv --pip einops --name mine --tag seed=8 --"
    )
    request = requested("train", *typed.split(), "--epochs", "3")
    assert request.words == ("my.py", "--lr", "0.1", "--epochs", "3")
    assert (request.nnodes, request.device) == (1, "cpu")
    assert request.env == {"A": "1", "B": "3", "C": "4"}
    assert request.include == (project / "data", project / "sub")
    assert request.bring == ("*.pt", "*.csv")
    assert (request.name, request.tags) == ("mine", {"sweep": "lr", "seed": "8"})
    assert requested("train", "--bring", "none").bring == ("none",)


def test_a_typed_script_or_module_takes_the_place_of_the_files(project: Path, requested: Requested) -> None:
    request = requested("train", "other.py", "--x", "1")
    assert (request.words, request.module, request.project) == (("other.py", "--x", "1"), None, None)
    assert (request.nnodes, request.include) == (2, (project / "data",)), "what it needs still holds"
    request = requested("train", "-m", "pkg.mod", "7")
    assert (request.words, request.module, request.project) == (("7",), "pkg.mod", None)
    (project / "gpuctl.yaml").write_text("run: {module: pkg.own, arguments: [1]}")
    assert requested("train", cluster="default").module == "pkg.own"
    assert requested("train", "--", "2", cluster="default").words == ("2",), "a script"
    assert requested("train", "my.py", cluster="default").module is None


def test_a_typed_python_and_typed_requirements_exclude_the_files(project: Path, requested: Requested) -> None:
    request = requested("train", "--python", "/usr/bin/python3")
    assert (request.python, request.requirements) == ("/usr/bin/python3", None)
    (project / "gpuctl.yaml").write_text("environment: {python: /usr/bin/python3}")
    request = requested("train", "--pip", "einops", "my.py", cluster="default")
    assert (request.python, request.pip) == (None, ("einops",))


def test_variable_without_value_takes_the_one_from_here_and_is_told(
    project: Path,
    requested: Requested,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / "gpuctl.yaml").write_text("environment: {variables: {MY_TOKEN: }}\nrun: {script: my.py}")
    monkeypatch.setenv("MY_TOKEN", "of here")
    assert requested("train", cluster="default").env == {"MY_TOKEN": "of here"}
    assert "from gpuctl.yaml: environment, run; MY_TOKEN with the value here\n" in capsys.readouterr().err


def test_file_none_and_another_file_take_the_place_of_the_projects(
    project: Path, requested: Requested
) -> None:
    assert requested("train", "-f", "none", cluster="default") == TrainRequest()
    (project / "sub" / "other.yaml").write_text("cluster: red\nrun: {script: ../my.py}")
    request = requested("train", "-f", "sub/other.yaml", cluster="red")
    assert (request.words, request.project) == (("my.py",), project / "sub")
    assert requested("train", "--cluster", "green", cluster="green").nnodes == 2


def test_built_in_job_of_the_file_leaves_out_what_a_script_needs(project: Path, requested: Requested) -> None:
    (project / "gpuctl.yaml").write_text("include: data\nroot: .\nrun: {arguments: [--model, mlp]}")
    request = requested("train", "--", "--epochs", "3", cluster="default")
    assert request.built_in
    assert (request.words, request.include, request.root) == (("--model", "mlp", "--epochs", "3"), (), None)
    assert requested("train", "my.py", cluster="default").include == (project / "data",)


def test_resumed_run_keeps_its_own_options_but_gets_variables(project: Path, requested: Requested) -> None:
    request = requested("train", "--resume-from", "20260101")
    assert request == TrainRequest(resume_from="20260101", env={"A": "1", "B": "2"})
    assert requested("train", "--resume").words == ("my.py", "--lr", "0.1")
    (project / "gpuctl.yaml").write_text("run: {arguments: [--model, mlp]}")
    assert requested("train", "--resume", cluster="default").words == ()


def test_tune_takes_environment_and_include_alone(project: Path, requested: Requested) -> None:
    request = requested("tune", "--param", "lr=uniform(0,1)", "my.py:objective")
    assert (request.words, request.nnodes, request.device) == (("my.py:objective",), None, None)
    assert (request.env, request.include) == ({"A": "1", "B": "2"}, (project / "data",))
    assert requested("tune", "--param", "lr=uniform(0,1)").include == ()


def test_bench_takes_environment_and_include_alone(project: Path, requested: Requested) -> None:
    job = requested("bench", "--env", "B=2", "my.py").job
    assert (job.words, job.nnodes, job.device) == (("my.py",), None, None)
    assert (job.env, job.include) == ({"A": "1", "B": "2"}, (project / "data",))


@pytest.mark.parametrize("words", [("train",), ("train", "my.py"), ("tune",), ("up",)])
def test_commands_that_read_the_file_refuse_a_bad_one(
    project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (project / "gpuctl.yaml").write_text("run:\n  scritp: my.py\n")
    assert cli.main(words) == 2
    assert "gpuctl.yaml:2: key 'run.scritp' is not known; did you mean 'script'?" in capsys.readouterr().err


def test_other_commands_need_only_the_name_of_the_cluster(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "gpuctl.yaml").write_text("cluster: {cluster: blue, cuont: 2}\ninclde: x\n")
    assert cli.main(["status"]) == 2
    assert "There is no cluster blue." in capsys.readouterr().err
    (project / "gpuctl.yaml").write_text("cluster: {count: 2}")
    assert cli.main(["status"]) == 2
    assert capsys.readouterr().err.endswith("Create it first, as gpuctl.yaml says: gpuctl up\n")
    (project / "gpuctl.yaml").write_text("cluster: {cluster: [")
    assert cli.main(["down", "--yes"]) == 2
    assert "--cluster NAME does without the file." in capsys.readouterr().err
    assert cli.main(["train", "--dry-run"]) == 2
    assert "-f none leaves the file out." in capsys.readouterr().err
    assert cli.main(["train", "--help"]) == 0


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("--dry-run",), "cluster blue"),
        (("--count", "3", "--dry-run"), "cluster blue"),
        (("-f", "gpuctl.yaml", "--cluster", "red", "--dry-run"), "cluster red"),
        (("--provider", "local", "--dry-run"), "cluster blue"),
        (("-f", "spec.yaml", "--dry-run"), "cluster blue"),
        (("-f", "named.yaml", "--dry-run"), "cluster green"),
    ],
)
def test_up_takes_the_cluster_of_the_file_unless_a_shape_is_typed(
    project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], title: str
) -> None:
    (project / "spec.yaml").write_text("{provider: local, count: 3}")
    (project / "named.yaml").write_text("{cluster: green, provider: local, count: 3}")
    assert cli.main(["up", *words]) == 0
    out, err = capsys.readouterr()
    assert title in out
    three = {"3", "spec.yaml", "named.yaml"} & set(words)
    assert out.count("SSH server") == (3 if three else 1 if "--provider" in words else 2)
    assert ("from gpuctl.yaml: cluster" in err) == ("-f" not in words and "--provider" not in words)


def test_up_of_another_cluster_is_not_what_the_file_says(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["up", "--cluster", "red", "--dry-run"]) == 2
    assert "Nothing says where the machines come from" in capsys.readouterr().err
