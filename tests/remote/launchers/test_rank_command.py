"""Test the check of a requested command before any file is sent."""

from pathlib import Path

import pytest

from remote.errors import ScriptNotFound, ScriptNotSynced
from remote.files.tree import tree_of
from remote.launchers.rank_command import user_function, user_script


@pytest.mark.parametrize(
    "source",
    [
        "def objective(config): pass",
        "async def objective(config): pass",
        "objective = make()",
        "try:\n    from a import objective\nexcept ImportError:\n    from b import other as objective",
        "import search as objective",
        "from search import *",
        "globals()['objective'] = 1",
        "def __getattr__(name): return print",
        "match = newer python's syntax",
        "pattern = '\\d'\nclass objective: pass",
    ],
)
def test_user_function_accepts_sources_that_may_define_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "search.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert user_function("search.py:objective", tree_of(tmp_path, "*.py")).target == "search:objective"


@pytest.mark.parametrize("source", ["", "def objectiv(config): pass", "objective()", "'objective'"])
def test_user_function_refuses_a_missing_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "search.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ScriptNotSynced, match=r"^search.py has no objective(\.|; did you mean 'objectiv'\?)$"
    ):
        user_function("search.py:objective", tree_of(tmp_path, "*.py"))


@pytest.mark.parametrize(
    ("typed", "local", "message"),
    [
        ("text.py", ".", r"There is no script text.py. Did you mean pkg/text.py\?"),
        ("pkg/txet.py", ".", r"There is no script pkg/txet.py. Did you mean pkg/text.py\?"),
        ("tests/test.py", ".", r"There is no script tests/test.py. Did you mean other/test.py\?"),
        ("mian.py", "pkg", r"There is no script mian.py. Did you mean ../main.py\?"),
        ("nope.py", ".", r"There is no script nope.py.$"),
        ("main", ".", r"There is no script main. Did you mean main.py\?"),
        ("nothing-like-it", ".", r"There is no script nothing-like-it.$"),
    ],
)
def test_user_script_suggests_the_path_of_a_file_that_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, local: str, message: str
) -> None:
    for name in ("main.py", "pkg/text.py", "other/test.py", "x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / local)
    with pytest.raises(ScriptNotFound, match=message):
        user_script((typed,), None, tree_of(tmp_path, "**/*.py"))


@pytest.mark.parametrize(
    ("typed", "rest"),
    [
        ("torchrun --nproc_per_node 2 main.py --lr 0.1", ": main.py --lr 0.1"),
        ("uv run main.py", ": main.py"),
        ("srun python main.py", ": main.py"),
        ("accelerate launch -m pkg.train", "."),
        ("bash run.sh", "."),
    ],
)
def test_user_script_names_what_is_left_without_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, rest: str
) -> None:
    (tmp_path / "main.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptNotFound) as report:
        user_script(tuple(typed.split()), None, tree_of(tmp_path, "*.py"))
    assert str(report.value).endswith(f"and begin with the script{rest}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts of all kinds, which is the current one."""
    for name in ("my-pkg/train.py", "pkg/__main__.py", "pkg/go.py", "bare/a.py", "my nb.ipynb", "run.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}" if name.endswith(".ipynb") else "echo 1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "module", "command"),
    [
        ((), "my-pkg.train", ["-m", "my-pkg.train"]),
        ((), "pkg", ["-m", "pkg"]),
        (("pkg", "--lr"), None, ["pkg", "--lr"]),
        (("pkg/../pkg/go.py",), None, ["pkg/go.py"]),
    ],
)
def test_user_script_accepts_what_python_runs(
    project: Path, words: tuple[str, ...], module: str | None, command: list[str]
) -> None:
    script = user_script(words, module, tree_of(project, "**/*"))
    assert script.command("python3") == ["python3", "-u", *command]


@pytest.mark.parametrize(
    ("word", "module", "sentence"),
    [
        ("my nb.ipynb", None, r"jupyter nbconvert --to python 'my nb.ipynb' && gpuctl train 'my nb.py'$"),
        ("run.sh", None, "run.sh is a shell script, and the ranks are started with Python"),
        ("bare", None, "bare is a folder without a __main__.py"),
        ("", "pkg/go.py", "not of its file: -m pkg.go$"),
        ("", "pkg..go", "'pkg..go' is not a module's name"),
        ("", ".go", "'.go' is not a module's name"),
    ],
)
def test_user_script_refuses_what_python_does_not_run(
    project: Path, word: str, module: str | None, sentence: str
) -> None:
    with pytest.raises(ScriptNotSynced, match=sentence):
        user_script((word,), module, tree_of(project, "**/*"))


def test_command_of_the_project_comes_with_the_module_that_it_calls(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\npx-train = "px.cli:main"\nx = "a; b"\n')
    with pytest.raises(ScriptNotFound, match=r"calls px\.cli:main\. .* write: gpuctl train -m px\.cli$"):
        user_script(("px-train",), None, tree_of(tmp_path, "*"), tmp_path)
    with pytest.raises(ScriptNotFound, match=r"write: gpuctl train -m 'a; b'$"):
        user_script(("x",), None, tree_of(tmp_path, "*"), tmp_path)


def test_script_of_uv_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.py").write_text("#!/usr/bin/env -S uv run --script\n")
    monkeypatch.chdir(tmp_path)
    assert user_script(("my.py",), None, tree_of(tmp_path, "*")).target == "my.py"
