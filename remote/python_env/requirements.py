"""What a project needs installed: found in its files or on the command line, and the key that stands for it."""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from inventories import deadline
from remote.errors import RemoteError
from remote.shared.wheels import record_digest

FORMAT = 1
"""Part of every key. To be raised when the same wish is to be built in another way."""
BUILT_IN = "the built-in job"
DISTRIBUTION, BUILT_IN_EXTRA = "gpuctl-train", "train"
"""Whose extra lists what the built-in job needs."""

OWN_BUILD = re.compile(r"download\.pytorch\.org|^\s*torch\s*==\s*[\w.]+\+", re.MULTILINE)
"""Requirements that name a build of torch by themselves."""
INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")
FOLDER = re.compile(r"^\s*(?:(?:-e|--editable)\b|\.|/|file:|[\w.\-]+(?:\[[^]]*\])?\s*@\s*file:)")
COMMENT = re.compile(r"(^|\s)#.*$")

PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
"""Names of a lock file of any tool, as PEP 751 has them."""
CONDA = re.compile(r"environment.*\.ya?ml")

Kind = Literal["requirements", "project", "lock", "pylock"]
LOCKS: tuple[Kind, ...] = ("lock", "pylock")
Found = tuple[str, Kind, dict[str, str]]
"""Where it is written, its kind, its files."""


class BadRequirements(RemoteError):
    """What is to be installed can't be read, or can't be installed on a node."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be installed."""

    source: str
    """Where it is written, for people: `requirements.txt`, `--pip`."""
    kind: Kind
    """`requirements`: the first file is one; `project`: a pyproject.toml; `lock`: with its uv.lock; `pylock`: one."""
    files: tuple[tuple[str, str], ...]
    """Relative path → text."""
    python: str | None = None
    """Version of Python that is asked for, as a specifier: `>=3.11`."""
    wheels: tuple[tuple[str, str], ...] = ()
    """File name → digest of its RECORD. With wheels, nothing comes from an index."""
    wheels_folder: Path | None = None
    always: tuple[str, ...] = ()
    """Requirements that are installed beside, unless a lock decides."""

    @property
    def names_its_build(self) -> bool:
        """Whether the build of torch is settled already: by a lock, by wheels, or by an index that is named."""
        return (
            self.is_locked
            or bool(self.wheels)
            or any(OWN_BUILD.search(text) for text in (*(text for _, text in self.files), *self.always))
        )

    @property
    def is_locked(self) -> bool:
        """Whether a lock file says all that is installed."""
        return self.kind in LOCKS


def wanted(
    folder: Path,
    *,
    root: Path | None = None,
    pip: Sequence[str] = (),
    requirements: Path | None = None,
    wheels: Path | None = None,
    built_in: bool = False,
    always: Sequence[str] = (),
) -> Wanted | None:
    """What is to be installed: as named by the caller, else by the built-in job or the project's own files.

    These are those of `folder`, or of the nearest folder above it that has some, up to `root`. None: nothing names
    it, and the node's Python is to be used as it is. Only reads. Raises BadRequirements.
    """
    found: Found | None
    python: str | None = None
    files: dict[str, str]
    if requirements is not None:
        (source, kind, files), python = _of_file(requirements, pip)
        found = source, kind, files
        always = (*always, *pip) if kind == "project" else always
    elif pip:
        files = {"named.txt": _lines(pip)}
        _refuse_folders(files)
        found = "--pip", "requirements", files
    elif built_in:
        found = BUILT_IN, "requirements", {"requirements.txt": _lines(built_in_requirements())}
    else:
        found, python = _of_project(folder, folder if root is None else root)
    if found is None:
        if wheels is not None:
            raise BadRequirements(
                f"--wheels {wheels} says where to install from, but nothing says what: name it with --pip or "
                "--requirements, or write a requirements.txt."
            )
        return None
    source, kind, files = found
    if wheels is not None and kind == "pylock":
        raise BadRequirements(
            f"{source} says where each file comes from, and --wheels says otherwise: leave out one of them, or name "
            "a requirements.txt."
        )
    return Wanted(
        source=source,
        kind=kind,
        files=tuple(files.items()),
        python=python,
        wheels=tuple(read_wheels(wheels).items()) if wheels else (),
        wheels_folder=wheels,
        always=() if kind in LOCKS else tuple(always),
    )


def built_in_requirements(metadata: Iterable[str] | None = None) -> list[str]:
    """What the built-in job needs, as our own package's metadata lists it under its extra."""
    lines = requires(DISTRIBUTION) or [] if metadata is None else metadata
    parted = [line.partition(";") for line in lines]
    return [
        name.strip() for name, _, marker in parted if marker.split() == ["extra", "==", f'"{BUILT_IN_EXTRA}"']
    ]


def read_wheels(folder: Path) -> dict[str, str]:
    """The wheels of a folder: file name → digest of its RECORD. Raises BadRequirements where there are none."""
    try:
        found = {path.name: record_digest(path) for path in sorted(folder.glob("*.whl"))}
    except (OSError, ValueError) as error:
        raise BadRequirements(f"--wheels {folder}: {error}. Remove it, or fetch it again.") from error
    if not found:
        raise BadRequirements(
            f"--wheels {folder}: there is no wheel (*.whl) in it. Fill it with: pip download -d {folder} -r "
            "requirements.txt"
        )
    return found


def key_of(wanted: Wanted, backend: str | None) -> str:
    """What the environment is called on every node: the same wish gives the same key, here and tomorrow.

    Comments, blank lines and those parts of a pyproject.toml that install nothing do not count; nor does the
    version of uv, nor where the wish was written.
    """
    document = {
        "format": FORMAT,
        "kind": wanted.kind,
        "files": {name: _essence(name, text) for name, text in wanted.files},
        "backend": None if wanted.names_its_build else backend,
        "python": wanted.python,
        "wheels": sorted(wanted.wheels),
        **({"always": sorted(wanted.always)} if wanted.always else {}),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _of_file(path: Path, pip: Sequence[str]) -> tuple[Found, str | None]:
    """What a file names that a person gave, and the Python that it asks for; `pip`: what is named beside it."""
    name, folder = path.name, path.parent
    if CONDA.fullmatch(name):
        raise BadRequirements(
            f"{path} is for conda, and the nodes install with uv. List what the script needs in a requirements.txt, "
            "or name a Python on the nodes that has it: --python PATH."
        )
    if name == "uv.lock" or PYLOCK.fullmatch(name):
        if pip:
            raise BadRequirements(
                f"{path} says exactly what is installed: leave out --pip, or add {pip[0]} to the project and lock it "
                "again."
            )
        if name != "uv.lock":
            return (str(path), "pylock", {"pylock.toml": read_text(path)}), read_toml(path).get(
                "requires-python"
            )
        files = {name: read_text(path), "pyproject.toml": read_text(folder / "pyproject.toml")}
        return (str(path), "lock", files), _python_of(folder / "pyproject.toml")
    if name == "pyproject.toml":
        _refuse_folders({"--pip": _lines(pip)})
        return (str(path), "project", {name: read_text(path)}), _python_of(path)
    beside = "named.txt" if name != "named.txt" else "named-too.txt"
    files = {beside: _lines([*pip, f"-r {name}"])} if pip else {}
    return (str(path), "requirements", files | _with_includes(folder, name)), None


def _python_of(pyproject: Path) -> str | None:
    found: str | None = read_toml(pyproject).get("project", {}).get("requires-python")
    return found


def _of_project(folder: Path, root: Path) -> tuple[Found | None, str | None]:
    """What the nearest files of a project name, and the Python they ask for."""
    for place in (folder, *folder.parents):
        found, python = _of_folder(place)
        if found is not None:
            source, kind, files = found
            return (Path(os.path.relpath(place / source, folder)).as_posix(), kind, files), python
        if place == root:
            break
    return None, None


def _of_folder(folder: Path) -> tuple[Found | None, str | None]:
    """What the files in a folder name, and the Python they ask for."""
    project = read_toml(folder / "pyproject.toml")
    names = (
        "uv.lock" if project else "",
        "pylock.toml",
        "requirements.txt",
        "pyproject.toml" if project.get("project", {}).get("dependencies") else "",
    )
    name = next((name for name in names if name and (folder / name).is_file()), None)
    if name is None:
        return None, None
    (_, kind, files), python = _of_file(folder / name, ())
    return (name, kind, files), python or project.get("project", {}).get("requires-python")


def _with_includes(root: Path, name: str) -> dict[str, str]:
    """A requirements file and those it includes, by their path relative to `root`."""
    files: dict[str, str] = {}
    ahead = [name]
    while ahead:
        name = ahead.pop(0)
        if name in files:
            continue
        files[name] = read_text(root / name)
        for line in files[name].splitlines():
            include = INCLUDE.match(line)
            if include is None or "://" in include[1]:
                continue
            target = PurePosixPath(name).parent / include[1]
            if target.is_absolute() or ".." in target.parts:
                raise BadRequirements(
                    f"{root / name} includes {include[1]}, which lies outside its folder and is not sent. Move it "
                    "beside the file, or name all that is needed with --pip."
                )
            ahead.append(str(target))
    _refuse_folders(files)
    return files


def _refuse_folders(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if FOLDER.match(line):
                raise BadRequirements(
                    f"{name}, line {number}: `{line.strip()}` is a folder of this computer, and the nodes install "
                    "packages only. Take the line out: the project's own files are sent and can be imported "
                    "anyway. Or name what is needed with --requirements FILE or --pip."
                )


def _essence(name: str, text: str) -> list[str] | dict[str, Any]:
    """What counts in a file."""
    if name == "pyproject.toml":
        document = tomllib.loads(text)
        project = document.get("project", {})
        wish = {word: project.get(word) for word in ("dependencies", "requires-python")}
        return {**wish, "uv": document.get("tool", {}).get("uv")}
    if name == "uv.lock":
        return text.split()
    return [line for line in (COMMENT.sub("", line).strip() for line in text.splitlines()) if line]


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def read_text(path: Path) -> str:
    """A file's text, with plain line ends. Raises BadRequirements."""
    try:
        text = deadline.read(path).decode("utf-8")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequirements(f"{path} can't be read: {error}. Mend it, or name another one.") from error


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document; empty where there is none."""
    try:
        return tomllib.loads(read_text(path)) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise BadRequirements(
            f"{path} can't be read: {error}. Mend it, or name what is needed with --pip."
        ) from error
