"""Test fabfiles: their discovery, tasks and arguments; errors are sentences."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.errors import BadFabfile
from remote.fabfile import Fabfile, failure, load

TASKS = '''
from fabric import task
import helper

@task
def build(c):
    "Build it."

@task(help={"greeting": "what to say"}, aliases=["hello"])
def who(c, greeting="hello", times=1, loud=False):
    """Say who is there.

    And more of it.
    """

@task(pre=[build], post=[build])
def deploy_it(c, name):
    pass

@task(hosts=["elsewhere.invalid"])
def far(c):
    raise KeyError("k")
'''


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("helper", "fabfile") or name.startswith("fabfile."):
            del sys.modules[name]


@pytest.fixture
def fabfile(tmp_path: Path) -> Fabfile:
    (tmp_path / "fabfile.py").write_text(TASKS)
    (tmp_path / "helper.py").write_text("")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    return load(below)


def test_load_finds_the_fabfile_above_and_lists_its_tasks(fabfile: Fabfile, tmp_path: Path) -> None:
    assert fabfile.path == tmp_path / "fabfile.py"
    listed = {task.name: task for task in fabfile.tasks()}
    assert {name: task.help for name, task in listed.items()} == {
        "build": "Build it.",
        "deploy-it": "",
        "far": "",
        "who": "Say who is there.",
    }
    assert listed["who"].aliases == ("hello",)
    assert ("-g STRING, --greeting=STRING", "what to say") in listed["who"].arguments


def test_load_takes_packages_and_their_collections(tmp_path: Path) -> None:
    folder = tmp_path / "fabfile"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from invoke import Collection\nfrom . import db\nns = Collection(db)\n"
    )
    (folder / "db.py").write_text("from fabric import task\n\n@task\ndef dump(c):\n    'Dump it.'\n")
    fabfile = load(tmp_path)
    assert [(task.name, task.help) for task in fabfile.tasks()] == [("db.dump", "Dump it.")]
    assert [step.name for step in fabfile.parse(["db.dump"])[0]] == ["db.dump"]


def test_load_leaves_the_folder_last_on_the_path(fabfile: Fabfile, tmp_path: Path) -> None:
    assert sys.path[-1] == str(tmp_path)


def test_parse_reads_arguments_and_puts_tasks_in_order(fabfile: Fabfile) -> None:
    steps, helped = fabfile.parse(
        ["hello", "--greeting", "hi", "-t", "2", "--loud", "deploy-it", "box", "far"]
    )
    assert helped is None
    assert [(step.name, step.on_machines) for step in steps] == [
        ("who", True),
        ("build", False),
        ("deploy-it", True),
        ("build", False),
        ("far", True),
    ]
    assert steps[0].call.kwargs == {"greeting": "hi", "times": 2, "loud": True}
    assert steps[2].call.kwargs == {"name": "box"}
    assert [step.name for step in steps if step.hosts] == ["far"]
    assert fabfile.parse(["who", "--help"]) == ([], "who")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wo"], r"fabfile\.py has no task 'wo'; did you mean 'who'\? `gpuctl fab` lists them\."),
        (["who", "build", "zzzz"], r"has no task 'zzzz'\. `gpuctl fab` lists them\."),
        (
            ["who", "--gretting", "hi"],
            r"who has no argument '--gretting'; did you mean '--greeting'\? See `gpuctl",
        ),
        (["--loud", "who"], "has no task '--loud'"),
        (
            ["deploy-it"],
            "'deploy-it' did not receive required positional arguments: 'name'. See `gpuctl fab dep",
        ),
        (["who", "--greeting"], "needed value and was not given one. See `gpuctl fab who --help`"),
        (["who", "--times", "x"], "The arguments of `who --times x` can't be used: invalid literal"),
    ],
)
def test_parse_refuses_unknown_tasks_and_arguments(fabfile: Fabfile, words: list[str], message: str) -> None:
    with pytest.raises(BadFabfile, match=message):
        fabfile.parse(words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_the_kind", r"can't be loaded: ModuleNotFoundError: .* \(fabfile\.py, line 1\)"),
        ("def (", "can't be loaded: SyntaxError"),
        ("\nraise SystemExit('no')", r"can't be loaded: SystemExit: no \(fabfile\.py, line 2\)"),
        ("x = 1", "has no tasks"),
    ],
)
def test_load_says_what_is_wrong_with_a_fabfile(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "fabfile.py").write_text(text)
    with pytest.raises(BadFabfile, match=message):
        load(tmp_path)


def test_load_refuses_a_folder_without_a_fabfile(tmp_path: Path) -> None:
    with pytest.raises(BadFabfile, match=r"There is no fabfile\.py in .* or above it"):
        load(tmp_path)


def test_failure_names_the_error_and_its_line(fabfile: Fabfile) -> None:
    (step,) = fabfile.parse(["far"])[0]
    with pytest.raises(KeyError) as raised:
        fabfile.run_here(step)
    line = TASKS[: TASKS.index("raise KeyError")].count("\n") + 1
    assert failure(raised.value, fabfile.path, None) == f"KeyError: 'k' (fabfile.py, line {line})."
    assert failure(SystemExit(0), fabfile.path, None) is None
    assert failure(SystemExit("enough"), fabfile.path, None) == "it ended itself: enough."
