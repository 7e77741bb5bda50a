"""The project that a script is part of: whether it can be installed, and its installation on a node.

It is installed editable, from the place where it lies on the node, into an environment of its own that lies over the
interpreter which the ranks would use. That interpreter is never changed.
"""

import configparser
import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from inventories.runs.commit import Commit
from inventories.text import listed
from remote.errors import BadAnswer, NodeFailed, SyncRefused
from remote.facts import Facts, over
from remote.files.git import Described, describe
from remote.files.sync import folder_in
from remote.files.tree import Tree, read_tree
from remote.findings import Finding
from remote.python_env.building import BUILD_DEADLINE_S, LONGEST_S, SILENCE_S, Say
from remote.python_env.local_paths import NamedProject
from remote.python_env.project_files import BadRequirements, parse_toml, read_text, read_toml
from remote.python_env.workspace import local_sources
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames

FORMAT = 1
"""Part of every key. To be raised when a project is to be installed in another way."""
FILES = ("pyproject.toml", "setup.cfg", "setup.py")
"""What decides how a project is installed."""
LEGACY = "setuptools.build_meta:__legacy__"
"""The default back end (PEP 517)."""
SETUP_CALL = re.compile(r"^\s*(?:setuptools\.|distutils\.core\.)?setup\(", re.MULTILINE)
SETUP_REQUIRES = re.compile(r"setup_requires\s*=\s*(\[[^]]*\]|\([^)]*\)|[\"'][^\"']+[\"'])")

INDEX_NEEDED = re.compile(
    r"No matching distribution|Could not find a version|Failed to fetch|error sending request|No solution found"
    r"|uv is not on"
)
"""What installers say where they don't get a package."""
FOUND_BY_PATH = ", its modules are found by their path alone"

Dependencies = Literal["install", "tell"]
"""The action on dependencies of the project that the interpreter lacks."""


@dataclass(frozen=True, kw_only=True)
class LocalProject:
    """A project with a build system, as its files on this computer describe it."""

    name: str
    folder: str
    """Relative to the folder that is sent; `.`: that folder itself."""
    backend: str
    """`module` or `module:object`, as PEP 517 has it."""
    backend_path: tuple[str, ...]
    build_requires: tuple[str, ...]
    """The requirements of the back end."""
    source: str
    """The folder in it from which its modules are imported: `src`, or `.`."""
    files: tuple[tuple[str, str], ...]
    """Existing FILES: name → text."""
    beside: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Projects that it needs and that are sent with it: folder, relative as `folder` is → its FILES."""
    extras: tuple[str, ...] = ()
    """The wanted groups of its optional dependencies."""
    extras_beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a related project → its wanted extras."""
    not_from_index: tuple[str, ...] = ()
    """Names of its requirements from folders, sent or not: an index may have another package of that name."""
    version: str | None = None
    """Its version, where its build system takes that from git. `None`: it does not, or no commit is known."""

    def key(self, place: str, facts: Facts, dependencies: Dependencies) -> str:
        """Return the name of the environment of a project at `place` on a node."""
        document = {
            "format": FORMAT,
            "files": self.files,
            **({"beside": self.beside} if self.beside else {}),
            **({"extras": self.extras} if self.extras else {}),
            **({"extras_beside": self.extras_beside} if any(self.extras_beside.values()) else {}),
            **({"version": self.version} if self.version else {}),
            "place": place,
            "over": [facts.python, facts.python_version],
            "dependencies": dependencies,
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def version_variables(self) -> dict[str, str]:
        """Variables that give the version to the builds of this project and its companions alone."""
        toml = "pyproject.toml"
        other_names = (
            _name_of(parse_toml(dict(files).get(toml, "")), place) for place, files in self.beside.items()
        )
        return variables(self.version or UNKNOWN, (self.name, *other_names))


def with_version(project: LocalProject, commit: Commit | None, root: Path) -> LocalProject:
    """Give a project the version that git has for it, if its build system takes it from there.

    `root`: the folder that is sent; `commit`: its own. Raises SyncRefused.
    """
    texts = (text for files in (project.files, *project.beside.values()) for _, text in files)
    if commit is None or not any(TOOLS.search(text) for text in texts):
        return project
    today = datetime.now(UTC).date()
    return replace(project, version=version_of(commit, describe(root), today))


def project_above(folder: Path, tree: Tree) -> LocalProject | None:
    """Return the nearest project at or above `folder`, within the sent files, that has a build system.

    `None`: no such project. Raises BadRequirements if its files can't be read.
    """
    for place in (folder, *folder.parents):
        if not place.is_relative_to(tree.root):
            return None
        if (project := _project_in(place, tree)) is not None:
            return project
    return None


def with_named(
    project: LocalProject | None, named: Sequence[NamedProject], tree: Tree
) -> LocalProject | None:
    """Return the project, with the projects that a requirements file names.

    Without a project around the script, the first of them. Raises BadRequirements for one that is not sent, or
    has no build system.
    """
    for folder, extras in named:
        project_in_folder = (
            _project_in(folder, tree, is_named=True) if folder.is_relative_to(tree.root) else None
        )
        if project_in_folder is None:
            hint = _way_to(folder, tree.root)
            raise BadRequirements(f"{folder} is among the requirements and is not sent to the nodes. {hint}")
        if project is None or project.folder == project_in_folder.folder:
            project = project or project_in_folder
            project = replace(project, extras=tuple(dict.fromkeys((*project.extras, *extras))))
        else:
            projects = {**project.beside, project_in_folder.folder: project_in_folder.files}
            project = replace(
                project,
                beside=projects,
                extras_beside={**project.extras_beside, project_in_folder.name: extras},
            )
    return project


def _way_to(folder: Path, root: Path) -> str:
    """The sentence on how a project outside the folder that is sent gets to the nodes."""
    above = Path(os.path.commonpath([folder, root]))
    if folder.is_relative_to(root):
        inner = shlex.quote(os.path.relpath(folder))
        return (
            f"git ignores it, or it is a repository of its own. Send it with this option: --include {inner}"
        )
    try:
        read_tree(above)
    except SyncRefused:
        copy = shlex.join(["cp", "-r", str(folder), str(root)])
        return (
            f"The folder that holds both, {above}, is too large to send, or holds your home. Copy the project into "
            f"yours ({copy}) and name the copy in the requirements."
        )
    return f"Send the folder that holds both, with this option: --root {shlex.quote(os.path.relpath(above))}"


def _project_in(folder: Path, tree: Tree, *, is_named: bool = False) -> LocalProject | None:
    """Return the project of a folder; `None`: no project. `is_named`: a person asked for its installation."""
    relative = folder.relative_to(tree.root)
    texts = _texts(folder, tree)
    if not texts:
        return None
    document = read_toml(folder / "pyproject.toml") if "pyproject.toml" in texts else {}
    source_prefix = f"{(relative / 'src').as_posix()}/"
    has_src = any(name.startswith(source_prefix) and name.endswith(".py") for name in tree.entries)
    if not is_named and not _is_package(document, texts.get("setup.py", ""), has_src=has_src):
        return None
    build = document.get("build-system", {})
    sources = local_sources(folder, tree.root)
    # setup.py and setup.cfg may list what they need to run, in plain words.
    listed = []
    for match in SETUP_REQUIRES.finditer(texts.get("setup.py", "")):
        listed += re.findall(r"""["']([^"']+)["']""", match[1])
    settings = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error):
        settings.read_string(texts.get("setup.cfg", ""))
        listed += settings.get("options", "setup_requires", fallback="").splitlines()
    return LocalProject(
        name=_name_of(document, folder.name),
        folder=relative.as_posix(),
        backend=build.get("build-backend", LEGACY),
        backend_path=tuple(build.get("backend-path", ())),
        build_requires=(
            *map(str, build.get("requires", ("setuptools",))),
            *filter(None, map(str.strip, listed)),
        ),
        source="src" if has_src else ".",
        files=tuple(texts.items()),
        beside={
            place.relative_to(tree.root).as_posix(): tuple(texts.items())
            for place in sources.values()
            if place.is_relative_to(tree.root) and (texts := _texts(place, tree))
        },
        not_from_index=tuple(sources),
    )


def _name_of(document: Mapping[str, Any], folder: str) -> str:
    """The name of a project by its pyproject.toml, else by its folder."""
    named = document.get("project", {}).get("name") or document.get("tool", {}).get("poetry", {}).get("name")
    return str(named or PurePosixPath(folder).name)


def _texts(folder: Path, tree: Tree) -> dict[str, str]:
    """Return the texts of a folder's FILES that are sent: name → text."""
    relative = folder.relative_to(tree.root)
    return {name: read_text(folder / name) for name in FILES if (relative / name).as_posix() in tree.entries}


def _is_package(document: Mapping[str, Any], setup: str, *, has_src: bool) -> bool:
    """Return whether to install a project: as uv and Poetry decide it, and if setuptools knows its packages."""
    tool = document.get("tool", {})
    is_package = tool.get("uv", {}).get("package")
    if is_package is not None:
        return bool(is_package)
    if tool.get("poetry", {}).get("package-mode") is False:
        return False
    if "build-system" in document or SETUP_CALL.search(setup):
        return True
    return "name" in document.get("project", {}) and (has_src or "setuptools" in tool)


def request(
    project: LocalProject, root: str, facts: Facts, dependencies: Dependencies, indexes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the request for a node that has the sent files at `root`."""
    place = folder_in(root, project.folder)
    return {
        "key": project.key(place, facts, dependencies),
        "name": project.name,
        "python": facts.python,
        "root": root,
        "folder": place,
        "beside": [folder_in(root, folder) for folder in project.beside],
        "extras": {project.name: list(project.extras)}
        | {k: list(v) for k, v in project.extras_beside.items()},
        "not_from_index": list(project.not_from_index),
        "source": folder_in(place, project.source),
        "backend": project.backend.partition(":")[0],
        "backend_path": list(project.backend_path),
        "build_requires": list(project.build_requires),
        "version": project.version,
        "variables": {
            **dict.fromkeys(VARIABLES, project.version or UNKNOWN),
            **project.version_variables,
        },
        "dependencies": dependencies,
        "indexes": dict(indexes),
        "deadline_s": BUILD_DEADLINE_S,
    }


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A project's environment on a node."""

    facts: Facts
    """The node's, with the environment's interpreter."""
    problem: str | None
    """Why the project could not be installed; its modules are found all the same. `None`: it is installed."""
    lacking: tuple[str, ...]
    """Its requirements that are not met there."""
    made: bool
    """Whether it was made now; else it was there."""
    seconds: float


def install(
    node: Node,
    project: LocalProject,
    root: str,
    facts: Facts,
    dependencies: Dependencies,
    *,
    indexes: Mapping[str, str],
    say: Say,
) -> Installed:
    """Have the project installed over the interpreter of `facts`. Blocks for as long as that takes.

    `root`: the place of the sent files on the node. `indexes`: as `carried` has them. Raises NodeFailed where no
    environment could be made, ConnectionLost, BadAnswer.
    """
    answer: Mapping[str, Any] | None = None
    body = request(project, root, facts, dependencies, indexes)
    with node.stream("project", body, timeout_s=SILENCE_S, bounds=Bounds(total_s=LONGEST_S)) as talk:
        for header, _ in talk.frames():
            kind = header.get("t")
            if kind == frames.PROGRESS:
                say(f"{header.get('text')}")
            elif kind == frames.FAILED:
                raise NodeFailed(f"{node.name}: {_last_words(header.get('tail', ()))}")
            elif kind == frames.ENVIRONMENT:
                answer = header
    if answer is None:
        raise BadAnswer(f"{node.name}: ended before the project {project.name} was installed.")
    return parse(node.name, answer, facts)


def parse(name: str, answer: Mapping[str, Any], facts: Facts) -> Installed:
    """Read a node's answer about a project's environment; `facts`: of the environment below. Raises BadAnswer."""
    with reading(name, "what it says of the project"):
        record = answer["ready"]
        problem = record["problem"]
        return Installed(
            facts=over(facts, python=str(record["python"]), packages=tuple(map(str, record["packages"]))),
            problem=None if problem is None else _last_words(problem),
            lacking=tuple(map(str, record["lacking"])),
            made=answer.get("built") is True,
            seconds=float(record["seconds"]),
        )


def findings(project: LocalProject, name: str, done: Installed) -> list[Finding]:
    """Return the findings on a project's environment on a node."""
    problems = []
    if done.problem is not None:
        problems.append(not_installed(project, name, done.problem, by_path=True))
    if done.lacking:
        below = done.facts.python_below
        problems.append(
            Finding(
                node=name,
                problem=f"the project {project.name} needs {listed(list(done.lacking))}, which {below} does not have",
                fix="add it to what is installed, such as by "
                + " ".join(f"--pip {shlex.quote(package)}" for package in done.lacking),
                fatal=False,
            )
        )
    return problems


def not_installed(project: LocalProject, name: str, why: str, *, by_path: bool) -> Finding:
    """The finding for a project that is not installed. `by_path`: whether its modules are found all the same."""
    mend = "mend that"
    if INDEX_NEEDED.search(why):
        mend = (
            f"what builds it ({', '.join(project.build_requires)}) can't be fetched: set UV_DEFAULT_INDEX here to an "
            "index that the node reaches, have it in the Python that the ranks use"
        )
    return Finding(
        node=name,
        problem=f"the project {project.name} is not installed{FOUND_BY_PATH if by_path else ''}: {why}",
        fix=f"{mend}, or leave the project out with --no-install-project",
        fatal=False,
    )


def _last_words(lines: "list[str] | tuple[str, ...]") -> str:
    """Return the error in an installer's output, on one line."""
    texts = [line.strip() for line in lines if line.strip()]
    errors = [line for line in texts if re.match(r"(?i)\w*(error|exception): (?![a-z-]+$)", line)]
    return (errors or texts or ["it did not say why"])[-1].rstrip(".")


UNKNOWN = "0"
"""The version where no commit is known."""


TOOLS = re.compile(
    r"setuptools[-_]scm|use_scm_version|vcs[-_]versioning|hatch[-_]vcs|flit[-_]scm|versioningit|git[-_]versioning"
    r"|dynamic[-_]versioning|\bpbr\b|^\s*source\s*=\s*[\"']scm[\"']",
    re.MULTILINE,
)
"""Traces of what takes a version from git, in the files that say how a project is built."""


VARIABLES = (
    "SETUPTOOLS_SCM_PRETEND_VERSION",  # setuptools-scm, hatch-vcs, flit-scm
    "VCS_VERSIONING_PRETEND_VERSION",
    "PBR_VERSION",
    "PDM_BUILD_SCM_VERSION",
    "POETRY_DYNAMIC_VERSIONING_BYPASS",
    "UV_DYNAMIC_VERSIONING_BYPASS",
)
"""Variables that give these tools a version. versioningit and setuptools-git-versioning have no such variable."""


OF_PROJECT = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{}"
"""The form of the first variable for one project; hatch-vcs does not look for it."""


_TAG = re.compile(
    r"(?:[\w-]+-)?[vV]?(?P<release>\d+(?:\.\d+)*)(?P<rest>[-_.]?(?:a|b|rc|alpha|beta)\.?\d+)?(?:\+.*)?"
)


def variables(version: str, names: Iterable[str]) -> dict[str, str]:
    """Return the variables that give a version to the build of projects of these names, and to no other."""
    return {OF_PROJECT.format(re.sub(r"[-_.]+", "_", name).upper()): version for name in names}


def version_of(commit: Commit, described: Described, today: date) -> str:
    """Return the version of a commit as setuptools-scm makes it where nothing else is configured.

    That is the tag's own version, or a development version before the next one.
    """
    tag = _TAG.fullmatch(described.tag)
    release, rest = (tag["release"], tag["rest"] or "") if tag else ("0.0", "")
    if tag and described.distance == 0 and not commit.dirty:
        return release + rest
    # 1.2.3 is followed by 1.2.4, 2.0rc1 by 2.0rc2; without a tag the next version is 0.1.
    upcoming = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), release + rest)
    local = f"g{commit.sha[:9]}" + (f".d{today:%Y%m%d}" if commit.dirty else "")
    return f"{upcoming}.dev{described.distance}+{local}"
