"""The package as others install it: the wheel holds everything, and each installer makes a gpuctl that works."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import clean_env, processes_with

import gpuctl
from remote.python_env.requirements import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("gpuctl", "inventories", "provision", "remote", "train")


def done(*words: str | Path, **env: str) -> str:
    """Run a command that must succeed, and return its output."""
    ran = subprocess.run(
        words,
        env={**clean_env(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, f"{words}\n{ran.stdout}"
    return ran.stdout


def test_version_and_requirements_are_those_of_the_distribution() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert gpuctl.version() == PROJECT["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of its sources."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools, which builds the wheel, is not installed here")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path_factory.mktemp("wheel")
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    ours = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == ours


def installed_by(installer: str, wheel: Path, folder: Path) -> Path:
    """A new environment into which the installer has put the wheel. Nothing is fetched."""
    environment = folder / "environment"
    python = environment / "bin" / "python"
    if installer == "uv":
        done("uv", "venv", "--offline", "--python", sys.executable, environment)
        done("uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    else:
        done(sys.executable, "-m", "venv", environment)
        done(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    # gpuctl's dependencies come from this Python's environment.
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_installed_package_trains_on_local_hosts(installer: str, wheel: Path, tmp_path: Path) -> None:
    if installer != "pip" and shutil.which(installer) is None:
        pytest.skip(f"{installer} is not installed here")
    environment = installed_by(installer, wheel, tmp_path)
    command = environment / "bin" / "gpuctl"
    where = {"GPUCTL_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    code = "import gpuctl, train; print(gpuctl.__file__, train.__file__)"
    for file in done(environment / "bin" / "python", "-I", "-c", code).split():
        assert Path(file).is_relative_to(environment)
    try:
        done(command, "up", "--provider", "local", "--count", "2", **where)
        report = done(command, "train", "--", "--model", "mlp", "--epochs", "1", **where)
        assert "2 nodes, 2 ranks" in report
    finally:
        done(command, "down", "--yes", **where)
    assert not processes_with(str(tmp_path)), "processes were left behind"
