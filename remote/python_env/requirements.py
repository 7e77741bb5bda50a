"""The requirements of a project: read from its files or the command line, and the key that stands for them."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import requires
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from remote.python_env import conda_file
from remote.python_env.build_needs import settings_of
from remote.python_env.groups import with_groups
from remote.python_env.local_paths import NamedProject, project_of_line, with_includes
from remote.python_env.project_files import BadRequirements, parse_toml, read_text, read_toml
from remote.python_env.workspace import is_frame, workspace_above
from remote.shared.addresses import without_logins
from remote.shared.wheels import record_digest

FORMAT = 1
"""Part of every key. To be raised when the same wish is to be built in another way."""
BUILT_IN = "the built-in job"
DISTRIBUTION, BUILT_IN_EXTRA = "gpuctl-train", "train"
"""Its extra lists the requirements of the built-in job."""

OWN_BUILD = re.compile(r"download\.pytorch\.org|^\s*torch\s*==\s*[\w.]+\+", re.MULTILINE)
"""Requirements that name a build of torch."""
OF_REPOSITORY = re.compile(r"^\s*(?:-e|--editable)[ =]+(?=(?:git|hg|svn|bzr)\+)")
COMMENT = re.compile(r"(^|\s)#.*$")
COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
OF_ONE = re.compile(r"\s--\w.*")
"""Options of one requirement, such as its hashes."""

PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
"""Names of a lock file of any tool, as PEP 751 has them."""

Kind = Literal["requirements", "project", "lock", "pylock", "conda"]
UV = "uv"
"""What installs on the nodes, and is itself sent where they have no way out."""
EVERY = "*"
"""All members of a workspace."""
LOCKS: tuple[Kind, ...] = ("lock", "pylock", "conda")
"""Kinds that name every package to install, and its source."""


class Source(NamedTuple):
    """Requirements as written; the fields have the names of Requirements'."""

    source: str
    kind: Kind
    files: dict[str, str]
    python: str | None = None
    package: str | None = None
    projects: tuple[NamedProject, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Packages and versions to install."""

    source: str
    """Where it is written, for people: `requirements.txt`, `--pip`."""
    kind: Kind
    """`requirements`: the first file is one; `project`: a pyproject.toml; `lock`: with its uv.lock; `pylock`: one;
    `conda`: an environment file.
    """
    files: tuple[tuple[str, str], ...]
    """Relative path → text."""
    python: str | None = None
    """Version of Python that is asked for, as a specifier: `>=3.11`."""
    wheels: tuple[tuple[str, str], ...] = ()
    """File name → digest of its RECORD. With wheels, nothing comes from an index."""
    wheels_folder: Path | None = None
    always: tuple[str, ...] = ()
    """Requirements that are installed in addition, unless a lock decides."""
    projects: tuple[NamedProject, ...] = ()
    """Projects that are to be installed from their folders."""
    build_settings: str = ""
    """uv's settings on packages whose build needs others, for a list of requirements. Empty: its project has no
    settings."""
    package: str | None = None
    """Of a lock the member of its workspace that is meant, or EVERY. `None`: its own project."""

    @property
    def names_its_build(self) -> bool:
        """Return whether the build of torch is fixed already: by a lock, by wheels, or by a named index."""
        return (
            self.is_locked
            or bool(self.wheels)
            or any(OWN_BUILD.search(text) for text in (*(text for _, text in self.files), *self.always))
        )

    @property
    def named(self) -> list[str]:
        """The requirements themselves, one by one, without logins; of a lock all that it has from an index."""
        texts = dict(self.files)
        if self.kind == "requirements":
            lines = [*(line for _, text in self.files for line in _requirements_in(text)), *self.always]
        elif self.kind == "project":
            document = parse_toml(texts["pyproject.toml"])
            lines = [*document.get("project", {}).get("dependencies", ()), *self.always]
        else:
            locked = parse_toml(texts["uv.lock"]).get("package", ()) if self.kind == "lock" else ()
            lines = [
                f"{package['name']}=={package['version']}"
                for package in locked
                if "registry" in package.get("source", {})
            ]
        return list(map(without_logins, lines))

    @property
    def is_locked(self) -> bool:
        """Return whether a file names every package to install, and its source."""
        return self.kind in LOCKS


def requirements_of(
    folder: Path,
    *,
    root: Path | None = None,
    pip: Sequence[str] = (),
    requirements: Path | None = None,
    wheels: Path | None = None,
    built_in: bool = False,
    always: Sequence[str] = (),
) -> Requirements | None:
    """Return the requirements: as named by the caller, else by the built-in job or the project's own files.

    These come from `folder`, or of the nearest folder above it that has some, up to `root`. `None`: nothing names
    it, and the node's Python is to be used as it is. Only reads. Raises BadRequirements.
    """
    pip = list(with_groups(pip, folder, folder if root is None else root))
    projects, named_by_pip = _without_projects(folder, {"--pip": _lines(pip)})
    pip = [line for line in projects["--pip"].splitlines() if line]
    if requirements is not None:
        base = _of_file(requirements, pip, member=folder, root=folder if root is None else root)
        base = base._replace(projects=(*base.projects, *named_by_pip))
        if base.kind == "project":
            always = (*always, *pip)
    elif pip or named_by_pip:
        base = Source("--pip", "requirements", {"named.txt": _lines(pip)}, projects=named_by_pip)
    elif built_in:
        base = Source(BUILT_IN, "requirements", {"requirements.txt": _lines(built_in_requirements())})
    elif (of_project := _of_project(folder, folder if root is None else root)) is not None:
        base = of_project
    elif wheels is None:
        return None
    else:
        raise BadRequirements(
            f"--wheels {wheels} says where to install from, but nothing says what: name it with --pip or "
            "--requirements, or write a requirements.txt."
        )
    if wheels is not None and base.kind in ("pylock", "conda"):
        raise BadRequirements(
            f"{base.source} says where each file comes from, and --wheels says otherwise: leave out one of them, "
            "or name a requirements.txt."
        )
    requirements_of_run = Requirements(
        source=base.source,
        kind=base.kind,
        files=tuple(base.files.items()),
        python=base.python,
        wheels_folder=wheels,
        always=() if base.kind in LOCKS else tuple(always),
        build_settings=settings_of(folder, folder if root is None else root)
        if base.kind in ("requirements", "pylock") and wheels is None and not built_in
        else "",
        package=base.package,
        projects=base.projects,
    )
    if wheels is None:
        return requirements_of_run
    return replace(requirements_of_run, wheels=tuple(_read_wheels(wheels, requirements_of_run).items()))


def built_in_requirements(metadata: Iterable[str] | None = None) -> list[str]:
    """Return the requirements of the built-in job, from the extra in our own package's metadata."""
    lines = requires(DISTRIBUTION) or [] if metadata is None else metadata
    split_lines = [line.partition(";") for line in lines]
    return [
        name.strip()
        for name, _, marker in split_lines
        if marker.split() == ["extra", "==", f'"{BUILT_IN_EXTRA}"']
    ]


def _read_wheels(folder: Path, requirements: Requirements) -> dict[str, str]:
    """Return the wheels of a folder: file name → digest of its RECORD.

    Raises BadRequirements for a folder without wheels.
    """
    try:
        digests = {path.name: record_digest(path) for path in sorted(folder.glob("*.whl"))}
    except (OSError, ValueError) as error:
        raise BadRequirements(f"--wheels {folder}: {error}. Remove it, or fetch it again.") from error
    if not digests:
        names = [*requirements.named, UV]
        raise BadRequirements(
            f"--wheels {folder}: there is no wheel (*.whl) in it. Fill it, where platform and Python are the nodes': "
            f"{shlex.join(['pip', 'download', '-d', str(folder), '--only-binary', ':all:', *names])}"
        )
    return digests


def key_of(requirements: Requirements, backend: str | None) -> str:
    """Return the environment's name on every node: the same requirements give the same key, here and tomorrow.

    Comments, blank lines and those parts of a pyproject.toml that install nothing do not count; neither does the
    version of uv, nor the place of the list.
    """
    document = {
        "format": FORMAT,
        "kind": requirements.kind,
        "files": {name: _essence(name, text) for name, text in requirements.files},
        "backend": None if requirements.names_its_build else backend,
        "python": requirements.python,
        "wheels": sorted(requirements.wheels),
        **({"always": sorted(requirements.always)} if requirements.always else {}),
        **({"build": requirements.build_settings} if requirements.build_settings else {}),
        **({"package": requirements.package} if requirements.package else {}),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _of_file(path: Path, pip: Sequence[str] = (), *, member: Path, root: Path) -> Source:
    """Read a list of requirements.

    `pip`: requirements of the command line; `member`: the folder whose packages they are; `root`: the folder that
    is sent.
    """
    name = path.name
    if conda_file.NAME.fullmatch(name):
        if pip:
            raise BadRequirements(
                f"{path} says all that is installed: leave out --pip, or list {pip[0]} under `pip:` in it."
            )
        files, projects = conda_file.read_conda_file(path, root)
        return Source(str(path), "conda", files, projects=projects)
    if name == "uv.lock" or PYLOCK.fullmatch(name):
        if pip:
            raise BadRequirements(
                f"{path} says exactly what is installed: leave out --pip, or add {pip[0]} to the project and lock it "
                "again."
            )
        if name == "uv.lock":
            return _of_lock(path, member)
        python = read_toml(path).get("requires-python")
        return Source(str(path), "pylock", {"pylock.toml": read_text(path)}, python)
    if name == "pyproject.toml":
        text = read_text(path)
        return Source(str(path), "project", {name: text}, _python_of(read_toml(path)))
    place, texts = with_includes(path, root)
    top = next(iter(texts))
    second_name = "named.txt" if top != "named.txt" else "named-too.txt"
    files = {second_name: _lines([*pip, f"-r {top}"])} if pip else {}
    listed, projects = _without_projects(place, texts)
    return Source(str(path), "requirements", files | listed, projects=projects)


def _of_lock(lock: Path, wanted_for: Path) -> Source:
    """Return the requirements of a uv.lock for the project around `wanted_for`, perhaps a member of a workspace."""
    folder = lock.parent.resolve()
    files = {"uv.lock": read_text(lock), "pyproject.toml": read_text(folder / "pyproject.toml")}
    read_toml(lock)  # a file with the marks of a merge, say, is refused here
    pyproject = read_toml(folder / "pyproject.toml")
    for place in (wanted_for.resolve(), *wanted_for.resolve().parents):
        if place == folder or not place.is_relative_to(folder):
            break
        document = read_toml(place / "pyproject.toml")
        if "project" in document and workspace_above(place, folder) == folder:
            path = place / "pyproject.toml"
            files[path.relative_to(folder).as_posix()] = read_text(path)
            package = document["project"].get("name", place.name)
            return Source(str(lock), "lock", files, _python_of(document), package)
    return Source(str(lock), "lock", files, _python_of(pyproject), EVERY if is_frame(folder) else None)


def _python_of(document: Mapping[str, Any]) -> str | None:
    requires: str | None = document.get("project", {}).get("requires-python")
    return requires


def _of_project(folder: Path, root: Path) -> Source | None:
    """Return the requirements in the nearest files of a project."""
    for place in (folder, *folder.parents):
        requirements = _of_folder(place, root)
        if requirements is not None:
            source = Path(os.path.relpath(requirements.source, folder)).as_posix()
            return requirements._replace(source=source)
        if place == root:
            break
    return None


def _of_folder(folder: Path, root: Path) -> Source | None:
    """Return the requirements in the files of a folder; for a workspace's member, its workspace's lock."""
    project = read_toml(folder / "pyproject.toml")
    workspace = workspace_above(folder, root) if "project" in project else None
    candidates = (
        folder / "uv.lock" if project else None,
        workspace / "uv.lock" if workspace else None,
        folder / "pylock.toml",
        folder / "requirements.txt",
        folder / "pyproject.toml" if project.get("project", {}).get("dependencies") else None,
        folder / "environment.yml",
        folder / "environment.yaml",
    )
    path = next((path for path in candidates if path is not None and path.is_file()), None)
    if path is None:
        return None
    requirements = _of_file(path, member=folder, root=root)
    return requirements._replace(python=requirements.python or _python_of(project))


def _without_projects(
    root: Path, files: Mapping[str, str]
) -> tuple[dict[str, str], tuple[NamedProject, ...]]:
    """The files without the lines that install projects from folders, and these, which are installed another way."""
    projects = []
    texts = {}
    for name, text in files.items():
        lines = text.split("\n")
        for number, line in enumerate(lines):
            folder = root / PurePosixPath(name).parent
            project = project_of_line(line, folder, f"{name}, line {number + 1}")
            if project is not None:
                projects.append(project)
            # uv knows no editable repositories, and nobody edits them on a node.
            lines[number] = "" if project is not None else OF_REPOSITORY.sub("", line)
        texts[name] = "\n".join(lines)
    return texts, tuple(projects)


def _essence(name: str, text: str) -> list[str] | dict[str, Any]:
    """Return the significant content of a file."""
    if name == "pyproject.toml":
        document = parse_toml(text)
        project = document.get("project", {})
        wish = {word: project.get(word) for word in ("dependencies", "requires-python")}
        return {**wish, "uv": document.get("tool", {}).get("uv")}
    if name in ("uv.lock", conda_file.PLAIN):
        return text.split()
    return [line for line in (COMMENT.sub("", line).strip() for line in text.splitlines()) if line]


def _requirements_in(text: str) -> list[str]:
    """The requirements of a file without their options; lines that go on in the next are one."""
    joined = re.sub(r"\\\r?\n", " ", COMMENT_LINE.sub("", text))
    lines = (OF_ONE.sub("", COMMENT.sub("", line)).strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("-")]


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)
