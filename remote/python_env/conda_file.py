"""A conda environment file (`environment.yml`): what of it installs something, in a form that all tools take."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from remote.python_env.local_paths import NamedProject, project_of_line
from remote.python_env.project_files import BadRequirements, read_text

NAME = re.compile(r"environment.*\.ya?ml")
PLAIN = "environment.yml"
"""What the file is called on the nodes."""
WHAT_COUNTS = ("channels", "dependencies")
"""Its name and prefix are those of an environment on somebody's computer."""


def read_conda_file(path: Path) -> tuple[str, tuple[NamedProject, ...]]:
    """Return the text for the nodes, and the projects that it installs from folders, which are left out of the text.

    Raises BadRequirements for what is none, and for files of this computer.
    """
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
    for part in document["dependencies"]:
        if isinstance(part, dict) and isinstance(part.get("pip"), list):
            part["pip"] = list(_for_pip(map(str, part["pip"]), path, path.parent, projects))
    document["dependencies"] = [one for one in document["dependencies"] if one != {"pip": []}]
    text = yaml.safe_dump({key: document[key] for key in WHAT_COUNTS if key in document}, sort_keys=True)
    return text, tuple(projects)


def _for_pip(lines: Iterable[str], file: Path, folder: Path, projects: list[NamedProject]) -> Iterator[str]:
    """Yield the requirements for pip, also of included files. Projects in folders are added to `projects`."""
    for line in lines:
        text = line.strip()
        include = re.match(r"(?:-r|--requirement)[ =]?\s*(\S+)", text)
        if include is not None and "://" not in include[1]:
            path = folder / include[1]
            yield from _for_pip(read_text(path).splitlines(), path, path.parent, projects)
        elif (project := project_of_line(text, folder, f"{file}, pip packages")) is not None:
            projects.append(project)
        elif text and not text.startswith("#"):
            yield text
