"""A conda environment file (`environment.yml`): what of it installs something, in a form that all tools take."""

import re
from pathlib import Path
from typing import Any

import yaml

from remote.python_env.project_files import BadRequirements, read_text

NAME = re.compile(r"environment.*\.ya?ml")
PLAIN = "environment.yml"
"""What the file is called on the nodes."""
WHAT_COUNTS = ("channels", "dependencies")
"""Its name and prefix are those of an environment on somebody's computer."""


def read_conda_file(path: Path) -> str:
    """The text that the nodes are sent. Raises BadRequirements for what is none, and for folders of this computer."""
    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        raise BadRequirements(
            f"{path} can't be read: it is no YAML{line}. Mend it, or name another file."
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("dependencies"), list):
        raise BadRequirements(f"{path} lists no `dependencies`: it is no environment file of conda's.")
    for one in _of_pip(document["dependencies"]):
        if re.match(r"\s*(?:-|\.|/|file:)", one):
            raise BadRequirements(
                f"{path}: `{one}` among its pip packages is a file or folder of this computer, and the nodes get "
                "packages only. Take the line out: a project with a build system is installed anyway."
            )
    return yaml.safe_dump({key: document[key] for key in WHAT_COUNTS if key in document}, sort_keys=True)


def _of_pip(dependencies: list[Any]) -> list[str]:
    """The requirements for pip in it."""
    parts = [one.get("pip") for one in dependencies if isinstance(one, dict)]
    return [str(line) for part in parts if isinstance(part, list) for line in part]
