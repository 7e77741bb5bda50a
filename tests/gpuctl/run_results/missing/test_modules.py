"""Test the advice on a module missing on a rank: only remedies for that run."""

from pathlib import Path
from typing import Any

import pytest
from support import a_run

from gpuctl.run_results.missing.modules import how_to_install, how_to_run_in_package
from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError
from inventories.runs.run import RunOptions

OR_ANOTHER = " (or the package that has the module tomlkit, if that has another name)"
MISSING = "ModuleNotFoundError: No module named '{}'"


def said(
    folder: Path,
    module: str = "tomlkit",
    *,
    own: str = "",
    local: bool = False,
    script: str = "s.py",
    **options: Any,
) -> str:
    run = a_run(script=script, options=RunOptions(project=str(folder), **options))
    return how_to_install(MISSING.format(module), run, own_python=own, local=local)


def test_package_comes_into_the_python_of_local_hosts_which_is_this_computers(tmp_path: Path) -> None:
    pip = "Install it in the Python that local hosts use: /own/py -m pip install tomlkit"
    assert said(tmp_path, own="/own/py", local=True) == pip + OR_ANOTHER
    (tmp_path / "requirements.txt").write_text("tomlkit\n")
    assert said(tmp_path, own="/own/py", local=True) == pip + OR_ANOTHER
    assert "--requirements requirements.txt" in said(tmp_path, own="/own/py")
    assert said(tmp_path, own="/own/py", local=True, pip=("rich",)).startswith("Name it beside the others")


def test_package_that_nothing_lists_is_named_with_pip(tmp_path: Path) -> None:
    assert said(tmp_path) == (
        "Install it for the ranks, with all else that the script needs: --pip tomlkit, or list that in a file: "
        "--requirements FILE" + OR_ANOTHER
    )
    assert said(tmp_path, "sklearn").endswith(
        "--pip scikit-learn, or list that in a file: --requirements FILE"
    )
    assert said(tmp_path, pip=("rich",)) == "Name it beside the others: --pip tomlkit" + OR_ANOTHER
    assert said(tmp_path, "torch.fast", pip=("torch",)) == (
        "torch is there and has no torch.fast. Name it beside the others: --pip 'torch>=VERSION'"
    )
    assert said(tmp_path, python="/opt/py") == (
        "Install it for that Python on every node: gpuctl exec -- /opt/py -m pip install tomlkit"
    )
    assert said(tmp_path, "imp_of_nothing.x; 'imp_of_nothing' is not a package") == ""
    assert said(tmp_path, "sqlite3") == said(tmp_path, "xml.fast") == "", (
        "no package brings Python's own modules"
    )


def test_part_of_a_package_is_looked_for_in_the_package_that_brings_it(tmp_path: Path) -> None:
    assert said(tmp_path, "sklearn.fast", pip=("scikit-learn",)) == (
        "sklearn is there and has no sklearn.fast. Name it beside the others: --pip 'scikit-learn>=VERSION'"
    )
    assert "'pyyaml>=VERSION'" in said(tmp_path, "yaml.fast")
    for module in ("google.protobuf", "google", "nvidia.dali"):
        assert said(tmp_path, module) == "", "packages share it, and which one is meant is not known"


@pytest.mark.parametrize(
    ("file", "text", "fix"),
    [
        ("requirements.txt", "rich\n", "Add tomlkit to requirements.txt"),
        (
            "pyproject.toml",
            '[project]\nname = "x"\ndependencies = ["rich"]\n',
            "Add tomlkit to pyproject.toml",
        ),
        ("pylock.toml", "", "Add tomlkit to what pylock.toml is made of, and lock it again"),
        ("environment.yml", "dependencies: [rich]\n", "List tomlkit under pip: in environment.yml"),
    ],
)
def test_package_is_added_to_the_file_that_lists_the_others(
    tmp_path: Path, file: str, text: str, fix: str
) -> None:
    (tmp_path / file).write_text(text)
    assert said(tmp_path) == fix + OR_ANOTHER
    with_own = said(tmp_path, own="/own/python")
    assert with_own == f"{fix}, and have that installed: --requirements {file}{OR_ANOTHER}"


def test_listed_package_needs_an_environment_where_the_machines_python_was_used(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\ntomlkit>=0.12\n")
    assert said(tmp_path, own="/own/python").startswith(
        "requirements.txt lists it and is not installed: /own/python was used as it is. This option builds an "
        "environment with what it lists: --requirements requirements.txt"
    )
    assert said(tmp_path) == "", "it was installed from the list, and has no such module: why is not known"


def test_module_of_the_project_names_what_keeps_it_away(tmp_path: Path) -> None:
    (tmp_path / "src" / "mine").mkdir(parents=True)
    (tmp_path / "src" / "mine" / "words.py").touch()
    assert said(tmp_path, "mine") == (
        "src/mine was sent, but Python does not look for modules in its folder. Have it do so: --env PYTHONPATH=src"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "my-own"\n')
    assert said(tmp_path, "mine", install_project=False) == (
        "src/mine is of the project my-own, which --no-install-project leaves out: leave out that option"
    )
    assert said(tmp_path, "mine") == "", "it was installed: why it is not found is not known"
    assert said(tmp_path, "mine.wrds") == "", "a name that the project's own code has wrong"


def test_module_above_the_script_needs_a_path_and_an_ignored_one_is_to_be_sent(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").touch()
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "one.py").touch()
    (tmp_path / "tomlkit" / "logs").mkdir(parents=True)
    assert said(tmp_path, "helpers", script="scripts/s.py").endswith("Have it do so: --env PYTHONPATH=.")
    assert said(tmp_path, "helpers", script="-m scripts.s") == ""
    assert said(tmp_path, "venv").endswith("Send it with this option: --include venv")
    assert "--pip tomlkit" in said(tmp_path), "a folder without code is no package"


@pytest.mark.parametrize(
    ("script", "place", "module"),
    [
        ("pk/rel.py", "pk/rel.py:1", "pk.rel"),
        ("my pk/rel.py", "apps/my pk/rel.py:12", "'my pk.rel'"),
        ("pk", "pk/__main__.py:1", "pk"),
        ("pk/rel.py", "pk/helper.py:1", None),
        ("rel.py", "rel.py:1", None),
        ("../rel.py", "rel.py:1", None),
        ("-m pk.rel", "pk/rel.py:1", None),
    ],
)
def test_script_with_a_relative_import_is_advised_to_run_as_a_module(
    script: str, place: str, module: str | None
) -> None:
    detail = "ImportError: attempted relative import with no known parent package"
    error = FirstError(
        rank=0, node="a", message=f"exit status 1: {detail} ({place})", reason=Reason.EXIT_CODE, detail=detail
    )
    sentence = how_to_run_in_package(error, script)
    assert sentence.endswith(f"gpuctl train -m {module}") if module else not sentence


@pytest.mark.parametrize("local", [False, True])
def test_package_of_an_extra_or_a_group_comes_with_that(tmp_path: Path, local: bool) -> None:
    extras = '[project]\nname = "x"\n[project.optional-dependencies]\ntrain = ["rich", "TomlKit>=1"]\n'
    (tmp_path / "pyproject.toml").write_text(extras)
    private = "/own/py" if local else ""
    assert said(tmp_path, own=private, local=local) == (
        "tomlkit is in the extra train of pyproject.toml. Install that: --pip '.[train]'"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[dependency-groups]\ntrain = [{include-group = "a"}, "tomlkit"]\n'
    )
    assert said(tmp_path, own=private, local=local).startswith(
        "Install it in the Python that local hosts use: /own/py -m pip install tomlkit"
        if local
        else "tomlkit is in the dependency group train of pyproject.toml. Install that: --pip '--group train'"
    )
