"""Test the project of a script: its root, the request to a node, and the messages."""

import subprocess
import sys
from pathlib import Path

import pytest
from node_facts import facts

from remote.errors import BadAnswer
from remote.facts import over
from remote.files.tree import read_tree, tree_of
from remote.node.environments import within
from remote.python_env import project, requirements
from remote.python_env.local_paths import NamedProject
from remote.python_env.project import LocalProject, project_above
from remote.python_env.project_files import BadRequirements

BUILD = '[build-system]\nrequires = ["hatchling>=1.2"]\nbuild-backend = "hatchling.build"\n'
NAMED = '[project]\nname = "mine"\nversion = "1"\n'


def found_in(root: Path, folder: str = ".", **texts: str) -> LocalProject | None:
    """Return the project of a folder with these files: `src__a_py` is src/a.py."""
    for name, text in texts.items():
        path = root / (name.replace("__", "/")[:-3].rstrip("_") + ".py" if name.endswith("_py") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / folder).mkdir(parents=True, exist_ok=True)
    return project_above(root / folder, tree_of(root, "**/*"))


def toml(root: Path, text: str, folder: str = ".") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "pyproject.toml").write_text(text)


@pytest.mark.parametrize(
    ("text", "files", "name"),
    [
        (BUILD + NAMED, {}, "mine"),
        (BUILD, {}, "repo"),
        (NAMED, {}, None),
        (NAMED, {"src__mine__a_py": ""}, "mine"),
        (NAMED + "[tool.setuptools]\npackages = []\n", {}, "mine"),
        (NAMED + "[tool.uv]\npackage = true\n", {}, "mine"),
        (BUILD + NAMED + "[tool.uv]\npackage = false\n", {}, None),
        (BUILD + '[tool.poetry]\nname = "poem"\n', {}, "poem"),
        (BUILD + "[tool.poetry]\npackage-mode = false\n", {}, None),
        ("[tool.ruff]\n", {"src__mine__a_py": ""}, None),
        ("[tool.ruff]\n", {"setup_py": "from setuptools import setup\nsetup(name='x')\n"}, "repo"),
        ("[tool.ruff]\n", {"setup_py": "def setup_all():\n    return 1\n"}, None),
    ],
)
def test_project_is_installed_where_it_has_a_build_system(
    tmp_path: Path, text: str, files: dict[str, str], name: str | None
) -> None:
    root = tmp_path / "repo"
    toml(root, text)
    result = found_in(root, **files)
    assert (result and result.name) == name


def test_nearest_project_within_what_is_sent_is_taken(tmp_path: Path) -> None:
    toml(tmp_path, BUILD + NAMED)
    root = tmp_path / "repo"
    assert found_in(root, "apps/one", x_py="") is None, "the one above is not sent"
    toml(root, BUILD + NAMED.replace("mine", "whole"))
    toml(root, "[tool.ruff]\n", "apps/one")
    whole = found_in(root, "apps/one")
    assert (whole.name, whole.folder) == ("whole", ".")
    toml(root, BUILD + NAMED.replace("mine", "part"), "apps")
    part = found_in(root, "apps/one", apps__src__part__a_py="")
    assert (part.name, part.folder, part.source) == ("part", "apps", "src")


def test_request_names_the_place_on_the_node_and_changes_with_what_counts(tmp_path: Path) -> None:
    toml(tmp_path, BUILD + NAMED, "lib")
    result = found_in(tmp_path, "lib", lib__src__mine__a_py="")
    assert result is not None
    local = facts(python="/opt/python")
    request = project.request(result, "/home/u/code", local, "install", {"A": "b"})
    assert request == {
        "key": request["key"],
        "name": "mine",
        "python": "/opt/python",
        "folder": "/home/u/code/lib",
        "beside": [],
        "extras": {"mine": []},
        "not_from_index": [],
        "root": "/home/u/code",
        "source": "/home/u/code/lib/src",
        "backend": "hatchling.build",
        "backend_path": [],
        "build_requires": ["hatchling>=1.2"],
        "version": None,
        "variables": dict.fromkeys((*project.VARIABLES, *result.version_variables), "0"),
        "dependencies": "install",
        "indexes": {"A": "b"},
        "deadline_s": 3600.0,
    }
    rest = [
        project.request(result, "/home/u/other", local, "install", {}),
        project.request(result, "/home/u/code", local, "tell", {}),
        project.request(result, "/home/u/code", facts(python="/other"), "install", {}),
        project.request(result, "/home/u/code", facts(python_version="3.13.1"), "install", {}),
    ]
    assert len({request["key"], *(other["key"] for other in rest)}) == 5
    assert project.request(result, "/home/u/code", local, "install", {})["key"] == request["key"]


def test_what_a_setup_needs_to_run_is_of_the_build_system(tmp_path: Path) -> None:
    setup = "import setuptools\nsetuptools.setup(setup_requires=['setuptools_scm', \"pbr>=6\"])\n"
    (tmp_path / "setup.cfg").write_text("[options]\nsetup_requires =\n    cython\n    numpy>=2\n")
    result = found_in(tmp_path, setup_py=setup)
    assert result.build_requires == ("setuptools", "setuptools_scm", "pbr>=6", "cython", "numpy>=2")


def test_facts_over_an_interpreter_have_both_programs_and_packages() -> None:
    below = facts(python="/env/bin/python", torch="2.12.0", packages=("numpy==1.0", "torch==2.12.0"))
    above = over(below, python="/over/bin/python", packages=("mine==1", "numpy==2.0"))
    assert above.programs == "/over/bin:/env/bin"
    assert above.packages == ("mine==1", "numpy==2.0", "torch==2.12.0")
    assert (above.torch, above.ray) == ("2.12.0", None)
    of_machine = over(facts(packages=None), python="/over/bin/python", packages=("mine==1", "torch==2.13.0"))
    assert (of_machine.packages, of_machine.torch) == (None, "2.13.0")


def test_problem_of_a_project_is_told_with_the_way_on(tmp_path: Path) -> None:
    toml(tmp_path, BUILD + NAMED)
    result = found_in(tmp_path)
    assert result is not None
    record = {
        "python": "/over/bin/python",
        "problem": [
            "Collecting hatchling",
            "  ERROR: No matching distribution found for hatchling>=1.2",
            "",
            "error: subprocess-exited-with-error",
            "note: This error originates from a subprocess.",
        ],
        "lacking": ["einops"],
        "packages": [],
        "seconds": 1.0,
    }
    done = project.parse("n-0", {"ready": record, "built": True}, facts(python="/usr/bin/python3"))
    report = project.findings(result, "n-0", done)
    assert [(item.problem, item.fix, item.fatal) for item in report] == [
        (
            "the project mine is not installed, its modules are found by their path alone: ERROR: No matching "
            "distribution found for hatchling>=1.2",
            "what builds it (hatchling>=1.2) can't be fetched: set UV_DEFAULT_INDEX here to an index that the node "
            "reaches, have it in the Python that the ranks use, or leave the project out with --no-install-project",
            False,
        ),
        (
            "the project mine needs einops, which /usr/bin/python3 does not have",
            "add it to what is installed, such as by --pip einops",
            False,
        ),
    ]
    with pytest.raises(BadAnswer, match=r"n-0: what it says of the project can't be read"):
        project.parse("n-0", {"ready": {"problem": None}}, facts())


def test_lacking_requirements_are_those_that_are_not_met() -> None:
    expected = ["pytest>=1", "pytest<2", "no-such-package", "win; sys_platform == 'win32'", "torch[no-such]"]
    assert within.lacking(expected) == ["pytest<2", "no-such-package"]
    assert within.lacking(["pytest", "x; extra == 'more'"], "more") == ["x; extra == 'more'"]


def test_build_system_is_used_as_it_is_where_all_of_it_is_there() -> None:
    def builds(backend: str, *requires: str, path: tuple[str, ...] = ()) -> bool:
        return bool(within.able(backend, list(path), list(requires))["builds"])

    assert builds("setuptools.build_meta", "setuptools>=64", "wheel")
    assert not builds("setuptools.build_meta", "setuptools>=9999")
    assert not builds("no_such_backend.api")
    assert builds("own", path=("tools",))


def test_within_answers_any_python_with_one_line_of_json() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-I", str(within.__file__), "able",
         '{"backend": "x", "backend_path": [], "build_requires": []}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == '{"builds": false, "pip": false}\n'


def test_projects_that_a_project_has_from_folders_are_installed_beside_it(tmp_path: Path) -> None:
    toml(tmp_path, "[tool.uv.workspace]\nmembers = ['libs/*']\n")
    sources = "[tool.uv.sources]\n{} = {}\n"
    toml(tmp_path, BUILD + NAMED + sources.format("Words__x", "{workspace = true}"), "libs/mine")
    toml(
        tmp_path,
        BUILD + '[project]\nname = "words.x"\n' + sources.format("far", '{path = "../../../elsewhere"}'),
        "libs/words",
    )
    result = found_in(tmp_path, "libs/mine")
    assert list(result.beside) == ["libs/words"]
    assert result.not_from_index == ("Words__x", "far")
    request = project.request(result, "/code", facts(), "install", {})
    assert (request["beside"], request["not_from_index"]) == (["/code/libs/words"], ["Words__x", "far"])
    path = tmp_path / "libs/words/pyproject.toml"
    path.write_text(path.read_text() + '[project.scripts]\nsay = "words:say"\n')
    changed = found_in(tmp_path, "libs/mine")
    assert changed is not None
    assert project.request(changed, "/code", facts(), "install", {})["key"] != request["key"]


def test_projects_that_requirements_name_by_folder_are_installed_with_what_they_need(tmp_path: Path) -> None:
    toml(tmp_path, BUILD + NAMED)
    toml(tmp_path, "[tool.ruff]\n", "lib")
    (tmp_path / "requirements.txt").write_text("torch\n-e .[train, eval]  # us\n./lib[gpu]\n")
    listed = requirements.requirements_of(tmp_path)
    assert listed.files == (("requirements.txt", "torch\n\n\n"),)
    assert listed.projects == ((tmp_path, ("train", "eval")), (tmp_path / "lib", ("gpu",)))
    tree = tree_of(tmp_path, "**/*")
    around = project_above(tmp_path, tree)
    for result in (around, None):
        both = project.with_named(result, listed.projects, tree)
        assert (both.name, both.extras, [*both.beside]) == ("mine", ("train", "eval"), ["lib"])
        assert project.request(both, "/code", facts(), "install", {})["extras"] == {
            "mine": ["train", "eval"], "lib": ["gpu"],
        }  # fmt: skip


def test_named_project_that_is_not_sent_comes_with_the_option_that_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "lib", "mine/out"):
        toml(tmp_path, BUILD + NAMED, name)
    monkeypatch.chdir(tmp_path / "mine")
    named = [NamedProject(tmp_path / "lib")]
    with pytest.raises(BadRequirements, match=r"lib is among .* is not sent to the nodes\. .*: --root \.\.$"):
        project.with_named(None, named, tree_of(tmp_path / "mine", "**/*"))
    assert project.with_named(None, named, read_tree(tmp_path)) is not None
    ignored = [NamedProject(tmp_path / "mine" / "out")]
    with pytest.raises(BadRequirements, match=r"git ignores it, .*: --include out$"):
        project.with_named(None, ignored, tree_of(tmp_path / "mine", "*"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(
        BadRequirements, match=rf"holds your home\. .* \(cp -r {tmp_path}/lib {tmp_path}/mine\)"
    ):
        project.with_named(None, named, tree_of(tmp_path / "mine", "**/*"))


def test_lacking_of_a_folder_counts_the_extras_of_the_project_alone(tmp_path: Path) -> None:
    for name in ("my.pkg", "other"):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        needs = "".join(
            f"Requires-Dist: {item}\n" for item in ("pytest", f"gone-{name}", f"x-{name}; extra == 'more'")
        )
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}")
    result = within.lacking_in(str(tmp_path), {"My_Pkg": ["more"]})
    assert sorted(result) == ["gone-my.pkg", "gone-other", "x-my.pkg"]
