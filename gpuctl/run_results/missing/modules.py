"""A module that a rank did not find on its node: which option, file or command brings it."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuctl.run_results.missing.files import ignored, is_sent
from inventories.runs.result import FirstError
from inventories.runs.run import Run, RunOptions
from remote.files.tree import Tree, read_tree
from remote.python_env.groups import listed_in, project_file
from remote.python_env.project import project_above
from remote.python_env.requirements import Requirements, requirements_of

_NAMED = re.compile(r"No module named '(?P<name>[\w.]+)'(?!; '[\w.]+' is not a package)")
_NO_PACKAGE = "attempted relative import with no known parent package"
_PACKAGES = {
    "Crypto": "pycryptodome", "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless", "dateutil": "python-dateutil", "distutils": "setuptools",
    "dotenv": "python-dotenv", "fitz": "pymupdf", "git": "gitpython", "hydra": "hydra-core",
    "pkg_resources": "setuptools", "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip
"""Module → the package that brings it, where that has another name."""
_SHARED = frozenset(
    {"azure", "backports", "google", "jaraco", "nvidia", "opentelemetry", "ruamel", "sphinxcontrib", "zope"}
)
"""Namespace packages: no single package brings them, and a package of that name is another thing."""


def how_to_run_in_package(error: FirstError, script: str) -> str:
    """Return the sentence on a script whose own relative import fails; empty for every other failure."""
    place = rf"\((?:[^():]*/)?{re.escape(script)}(?P<main>/__main__\.py)?:\d+\)"
    match = re.search(place, error.message) if _NO_PACKAGE in error.detail else None
    *folders, name = script.removesuffix(".py").split("/")
    if match is None or ".." in folders or not (folders or match["main"]):
        return ""
    module = shlex.quote(".".join([*folders, name]))
    return (
        f"{script} imports from its own package. Run it as a module of the package: gpuctl train -m {module}"
    )


def how_to_install(words: str, run: Run, *, own_python: str, local: bool = False) -> str:
    """The sentence on the module that a rank's words name; empty where nothing certain can be said.

    `own_python`: the interpreter that the machines have of their own; `local`: they are hosts on this computer.
    Raises RemoteError, OSError.
    """
    match, options = _NAMED.search(words), run.options
    if match is None or options is None or options.project is None:
        return ""
    name, top, folder = match["name"], match["name"].partition(".")[0], Path(options.project)
    root = Path(options.root or folder)
    if not root.is_dir():
        return ""
    tree = read_tree(root, include=map(Path, options.include), allow_large=True)
    if (place := _folder_of(name, folder, root)) is not None:
        return _of_project(name, place, tree, run)
    package = _PACKAGES.get(top, top)
    if _folder_of(top, folder, root) is not None or package in _SHARED | sys.stdlib_module_names:
        return ""
    project = project_above(folder, tree) if options.install_project else None
    install = _Install(options=options, own_python=own_python, local=local, project=project is not None)
    if top == name:
        return install.sentence(name, package)
    newer = install.sentence(name, f"'{package}>=VERSION'")
    return f"{top} is there and has no {name}. {newer}"


def _folder_of(name: str, folder: Path, root: Path) -> Path | None:
    """The folder of the project from which a module can be imported; `None`: it is not in the project."""
    path = Path(*name.split("."))
    above = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(root)]
    places = (place for parent in above for place in (parent, parent / "src"))
    patterns = (f"{path}.py", f"{path}/*.py", f"{path}/*/*.py")
    return next((place for place in places if any(any(place.glob(pattern)) for pattern in patterns)), None)


def _of_project(name: str, place: Path, tree: Tree, run: Run) -> str:
    """The sentence on a module of the project's own that can be imported from `place`."""
    options = run.options
    assert options is not None and options.project is not None
    folder = Path(options.project)
    path = place.joinpath(*name.split("."))
    path = path if path.is_dir() else Path(f"{path}.py")
    shown, place_shown = os.path.relpath(path, folder), os.path.relpath(place, folder)
    inner = path.relative_to(tree.root)
    if why := tree.why_skipped(inner.as_posix()):
        return f"{shown} is on this computer and was not sent: {why}"
    if not is_sent(inner, tree):
        return ignored(shown, path, folder)
    project = project_above(place, tree)
    if project is not None:
        left_out = (
            f"{shown} is of the project {project.name}, which --no-install-project leaves out: leave out that"
        )
        return "" if options.install_project else f"{left_out} option"
    script = folder / run.script
    searched = folder if run.script.startswith("-m ") else script if script.is_dir() else script.parent
    if run.mode != "torchrun" or "PYTHONPATH" in options.env or place == searched:
        return ""
    return (
        f"{shown} was sent, but Python does not look for modules in its folder. Have it do so: --env "
        f"PYTHONPATH={shlex.quote(place_shown)}"
    )


@dataclass(frozen=True, kw_only=True)
class _Install:
    """The way to one more package in the ranks' Python of a run."""

    options: RunOptions
    own_python: str
    local: bool
    """Whether that interpreter is this computer's."""
    project: bool
    """Whether the project was installed."""

    def sentence(self, module: str, package: str) -> str:
        """Return the sentence on a missing package. `module`: the module that was looked for."""
        options, listed = self.options, self._listed()
        asks_for_no_file = not (options.pip or options.requirements or options.wheels)
        if options.python:
            on_every = f"gpuctl exec -- {shlex.quote(options.python)} -m pip install {package}"
            return f"Install it for that Python on every node: {on_every}"
        if asks_for_no_file and (optional := self._optional(package)):
            return optional
        if self.local and self.own_python and asks_for_no_file:
            pip = f"{shlex.quote(self.own_python)} -m pip install {package}"
            advice = f"Install it in the Python that local hosts use: {pip}"
        elif listed is not None:
            advice = self._in_list(listed, package)
        elif options.pip:
            advice = f"Name it beside the others: --pip {package}"
        else:
            advice = (
                f"Install it for the ranks, with all else that the script needs: --pip {package}, or list that in a "
                "file: --requirements FILE"
            )
        if advice and package == module:
            advice += f" (or the package that has the module {module}, if that has another name)"
        return (
            f"{advice}; its wheel has to be in {options.wheels}, too" if advice and options.wheels else advice
        )

    def _optional(self, package: str) -> str:
        """Return the sentence on a package of an extra or a dependency group.

        Empty: it is in neither, or pip fits better.
        """
        assert self.options.project is not None
        folder = Path(self.options.project)
        path = project_file(folder, Path(self.options.root or folder))
        groups = listed_in(path, package)
        if groups is None or (groups[0] == "group" and self.local):
            return ""
        kind, name = groups
        place = os.path.relpath(path.parent, folder)
        word = f"{place if place == '.' else f'{place}/'}[{name}]" if kind == "extra" else f"--group {name}"
        of_what = "extra" if kind == "extra" else "dependency group"
        return f"{package} is in the {of_what} {name} of {path.name}. Install that: --pip {shlex.quote(word)}"

    def _listed(self) -> Requirements | None:
        """The file that lists the packages to install, also if the machines' own Python was used."""
        options = self.options
        if options.pip and not options.requirements:
            return None
        assert options.project is not None
        folder = Path(options.project)
        requirements = Path(options.requirements) if options.requirements else None
        return requirements_of(folder, root=Path(options.root or folder), requirements=requirements)

    def _in_list(self, listed: Requirements, package: str) -> str:
        """Return the advice on a package if a file lists all packages to install."""
        named = self.options.requirements or self.options.wheels
        as_it_is = self.own_python and not named and not (self.project and listed.kind == "project")
        build = f"--requirements {shlex.quote(listed.source)}"
        pattern = re.sub(r"[-_.]+", "[-_.]+", package)
        if any(re.search(rf"(?i)(?<![\w-]){pattern}(?![\w-])", text) for _, text in listed.files):
            not_used = f"{listed.source} lists it and is not installed: {self.own_python} was used as it is. "
            return (
                f"{not_used}This option builds an environment with what it lists: {build}" if as_it_is else ""
            )
        match listed.kind:
            case "lock":
                advice = f"Add it to the project: uv add {package}"
            case "pylock":
                advice = f"Add {package} to what {listed.source} is made of, and lock it again"
            case "conda":
                advice = f"List {package} under pip: in {listed.source}"
            case _:
                advice = f"Add {package} to {listed.source}"
        return f"{advice}, and have that installed: {build}" if as_it_is else advice
