"""A conda environment file (`environment.yml`): its installing parts, in a form that all tools take."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from remote.python_env.local_paths import NamedProject, included_by, project_of_line
from remote.python_env.project_files import BadRequirements, read_text

NAME = re.compile(r"environment.*\.ya?ml")
PLAIN = "environment.yml"
"""The name of the file on the nodes."""
CONSTRAINTS = "constraints.txt"
"""Name on the nodes of a file with all constraints for pip."""
WHAT_COUNTS = ("channels", "dependencies")
"""Its name and prefix belong to an environment on somebody's computer."""


def read_conda_file(path: Path, root: Path) -> tuple[dict[str, str], tuple[NamedProject, ...]]:
    """Return the files for the nodes, and the projects in folders, whose lines the files leave out.

    `root`: the folder that is sent. Raises BadRequirements for other content, and for files of this computer.
    """
    path = Path(os.path.normpath(Path.cwd() / path))
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
    projects: list[NamedProject] = []
    constraints: list[str] = []
    for part in document["dependencies"]:
        if isinstance(part, dict) and isinstance(part.get("pip"), list):
            part["pip"], of_part = _for_pip([*map(str, part["pip"])], path, root, projects)
            part["pip"] += [f"-c {CONSTRAINTS}"] if of_part else []
            constraints += of_part
    document["dependencies"] = [entry for entry in document["dependencies"] if entry != {"pip": []}]
    text = yaml.safe_dump({key: document[key] for key in WHAT_COUNTS if key in document}, sort_keys=True)
    files = {PLAIN: text} | (
        {CONSTRAINTS: "".join(f"{line}\n" for line in constraints)} if constraints else {}
    )
    return files, tuple(projects)


def _for_pip(
    lines: Sequence[str], top: Path, root: Path, projects: list[NamedProject]
) -> tuple[list[str], list[str]]:
    """Return requirements for pip and constraints, also of included files. Projects in folders go to `projects`."""
    requirements: list[str] = []
    constraints: list[str] = []
    read = set()
    ahead = [(top, lines, requirements)]
    while ahead:
        file, lines, collected = ahead.pop(0)
        for text in map(str.strip, lines):
            path = included_by(text, file, top, root)
            if path is not None:
                into = constraints if text.startswith(("-c", "--c")) else collected
                if (path, into is constraints) not in read:
                    read.add((path, into is constraints))
                    ahead.append((path, read_text(path).splitlines(), into))
            elif (project := project_of_line(text, file.parent, f"{file}, pip packages")) is not None:
                projects.append(project)
            elif text and not text.startswith("#"):
                collected.append(text)
    return requirements, constraints
