"""An environment of conda's packages on a node: made by an installed program of its kind."""

import glob
import os
import re
import shutil
from pathlib import Path
from typing import Dict, List, Optional, Tuple

PLACES = (
    ("micromamba", "~/.local/bin", "~/bin", "/usr/local/bin"),
    ("pixi", "~/.pixi/bin", "~/.local/bin"),
    ("mamba", "~/miniforge3/bin", "/opt/conda/bin", "~/mambaforge/bin"),
    (
        "conda",
        "~/miniforge3/bin",
        "~/miniconda3/bin",
        "~/anaconda3/bin",
        "/opt/conda/bin",
        "/opt/miniconda*/bin",
    ),
)
"""Programs, the fastest first, and their usual places outside the PATH."""
NOT_FOR_CONDA = ("CONDA_DEFAULT_ENV", "CONDA_PREFIX", "CONDA_SHLVL", "PIP_REQUIRE_VIRTUALENV")
"""The variables of an active environment."""
MISSING = (
    "none of micromamba, pixi, mamba and conda is on this node, and {} needs one. Install micromamba: gpuctl exec -- "
    "'mkdir -p ~/.local && curl -Ls https://micro.mamba.pm/api/micromamba/linux-{}/latest | tar -xj -C ~/.local "
    "bin/micromamba' (under `setup:` in the spec the same line does it on every new machine). Or list the packages "
    "in a requirements.txt."
)


class NoProgram(Exception):
    """Nothing that makes conda's environments is there; the message says how to have it."""


def program() -> Optional[Tuple[str, str]]:
    """Return kind and path of a program that makes conda's environments; `None`: no such program."""
    for kind, *folders in PLACES:
        candidates = [
            path for folder in folders for path in glob.glob(os.path.join(os.path.expanduser(folder), kind))
        ]
        for path in (shutil.which(kind), *candidates):
            if path and os.access(path, os.X_OK):
                return kind, path
    return None


def commands(file: str, home: Path) -> List[List[str]]:
    """The command lines that make `home`/venv of an environment file, run in that file's folder.

    Raises NoProgram.
    """
    conda = program()
    if conda is None:
        machine = {"x86_64": "64", "aarch64": "aarch64"}.get(os.uname().machine, os.uname().machine)
        raise NoProgram(MISSING.format(file, machine))
    kind, path = conda
    venv = str(home / "venv")
    if kind == "pixi":
        # Its environments lie within its project.
        os.symlink(str(home / "request" / ".pixi" / "envs" / "default"), venv)
        return [[path, "init", "--import", file], [path, "install"]]
    if kind == "micromamba":
        return [[path, "create", "--yes", "--prefix", venv, "--file", file]]
    return [[path, "env", "create", "--prefix", venv, "--file", file]]


def without_active(environment: Dict[str, str]) -> Dict[str, str]:
    """Return the variables without the settings of an active environment."""
    return {name: value for name, value in environment.items() if name not in NOT_FOR_CONDA}


def python_version(venv: Path) -> Optional[str]:
    """Return the version of the environment's Python, as conda records it; `None` without a record."""
    names = [path.name for path in venv.glob("conda-meta/python-3.*.json")]
    matches = [re.match(r"python-(\d+\.\d+\.\d+)-", name) for name in names]
    return next((match.group(1) for match in matches if match), None)
