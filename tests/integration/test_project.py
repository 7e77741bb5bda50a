"""A project with a build system, installed on local hosts over the interpreter that they use."""

import sys
from pathlib import Path
from subprocess import run
from zipfile import ZipFile

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

PYPROJECT = """\
[build-system]
requires = ["{requires}"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
version = "0.3"
[project.scripts]
mine-says = "mine.words:say"
"""
MAIN = """\
import shutil, subprocess, sys
from importlib.metadata import version
import mine.words
print("main", version("mine"), mine.words.__file__, sys.prefix, shutil.which("torchrun"), flush=True)
subprocess.run(["mine-says"], check=True)
"""


BUILDS_IN_PLACE = """\
import setuptools
open("src/mine/built.py", "w").close()
setuptools.setup()
"""


@pytest.fixture
def project(cluster: Gpuctl) -> Gpuctl:
    cluster.script("pyproject.toml", PYPROJECT.format(requires="setuptools>=64"))
    cluster.script("src/mine/__init__.py", "")
    cluster.script("src/mine/words.py", "def say():\n    print('said', flush=True)\n")
    cluster.script("src/mine/__main__.py", MAIN)
    return cluster


def test_project_with_src_layout_runs_as_a_module_and_is_installed_once(project: Gpuctl) -> None:
    project.script("setup.py", BUILDS_IN_PLACE)
    using = project.script("using.py", "import mine.built\n").name
    planned = project.ok("train", "--dry-run", "-m", "mine").err
    assert "the project mine is installed, editable" in planned
    first = project.ok("train", "--json", "-m", "mine")
    assert first.err.count("project mine: installed in") == 2
    log = (project.run_folder(first.json["run"]) / "logs" / "rank-1.log").read_text()
    main, output = [line for line in log.splitlines() if line.startswith(("main", "said"))]
    _, version, file, prefix, torchrun = main.split()
    assert (version, output) == ("0.3", "said")
    assert "/.gpuctl-node/code/" in file
    assert "/.gpuctl-node/envs/" in prefix
    assert torchrun.startswith(prefix), "programs of what lies below start the interpreter above it"
    assert run([sys.executable, "-c", "import mine"], check=False, capture_output=True).returncode == 1

    again = project.ok("train", "-m", "mine")
    assert again.err.count("project mine: ready") == 2
    fresh = project.ok("train", "--fresh", using)
    assert fresh.err.count("project mine: ready") == 2, "what was built in its folder is no file of a run"
    node = project.home / "clusters" / "default" / "local" / "default-0"
    next(node.rglob("src/mine/built.py")).unlink()
    anew = project.ok("train", using)
    assert (anew.err.count("project mine: installed in"), anew.err.count("project mine: ready")) == (1, 1)
    without = project("train", "--no-install-project", "-m", "mine")
    assert without.status == 1
    assert "No module named mine" in without.err


def test_project_that_cannot_be_installed_is_found_by_its_path_and_told(project: Gpuctl) -> None:
    project.script("pyproject.toml", PYPROJECT.format(requires="no-such-build-system>=1"))
    project.script("s.py", "import mine.words\nmine.words.say()\n")
    done = project.ok(
        "train", "--json", "s.py", env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(Path("/none"))}
    )
    assert "the project mine is not installed, its modules are found by their path alone: " in done.err
    assert "what builds it (no-such-build-system>=1) can't be fetched: set UV_DEFAULT_INDEX here" in done.err
    assert "said" in (project.run_folder(done.json["run"]) / "logs" / "rank-0.log").read_text()


VERSION_OF_GIT = """\
import os
from setuptools import setup
# as pbr and versioningit do where there is no repository
version = os.environ["PBR_VERSION"]
assert f"Version: {version}\\n" in open("PKG-INFO").read()
setup(name="of-git", version=version, py_modules=["of_git"])
"""
TELLS_COMMIT = """\
import os, subprocess
from importlib.metadata import version
print("commit", os.environ["GPUCTL_COMMIT"], os.environ["GPUCTL_DIRTY"], version("of-git"), flush=True)
subprocess.check_output(["git", "rev-parse", "HEAD"])
"""


def test_commit_and_version_of_git_reach_the_ranks_and_the_results(cluster: Gpuctl) -> None:
    cluster.script("setup.py", VERSION_OF_GIT)
    cluster.script("of_git.py", "")
    script = cluster.script("s.py", TELLS_COMMIT)
    git = ("git", "-C", str(script.parent), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"], ["tag", "v1.4"]):
        run([*git, *words], check=True, capture_output=True)
    sha = run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    assert "The commit is in the variable GPUCTL_COMMIT" in " ".join(cluster("train", "s.py").out.split())
    clean = cluster("train", "--json", "s.py")
    assert clean.json["commit"] == {"sha": sha, "dirty": False}
    assert f"commit {sha} 0 1.4\n" in clean.err
    script.write_text(TELLS_COMMIT + "#")
    dirty = cluster("train", "--json", "s.py")
    assert dirty.json["commit"] == {"sha": sha, "dirty": True}
    assert f"commit {sha} 1 1.5.dev0+g{sha[:9]}.d" in dirty.err
    assert dirty.json["outputs"] == [], "the file that told the version is gone"
    assert cluster.ok("results", "--json", dirty.json["run"]).json["runs"][0]["commit"]["dirty"] is True


def test_extras_of_projects_that_requirements_name_reach_local_hosts(project: Gpuctl, tmp_path: Path) -> None:
    for name in ("tiny_a", "tiny_b"):
        info = f"{name}-1.0.dist-info"
        with ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    extra = "[project.optional-dependencies]\nmore = ['{}']\n"
    mine = PYPROJECT.format(requires="setuptools>=64")
    lib = mine.replace("mine", "lib").replace("0.3", "0.4")
    project.script("pyproject.toml", mine + extra.format("tiny-a"))
    project.script("lib/pyproject.toml", lib + extra.format("tiny-b"))
    project.script("lib/src/lib/__init__.py", "")
    project.script("requirements.txt", "-e .[more]\nlib[more] @ file:lib\n")
    project.script("s.py", "import lib, mine, tiny_a, tiny_b\nprint('all there', lib.__file__, flush=True)\n")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = project.ok("train", "--nnodes", "1", "s.py", env=index)
    assert "/code/" in done.err.partition("all there")[2]
