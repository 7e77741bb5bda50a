"""Environments on a node: `~/.gpuctl-node/envs/<key>/`, built in place by uv, there when its `ready.json` is.

Scripts in an environment hold its path, so that it is never moved: it is built where it will be, and whatever has
no `ready.json` is an unfinished one and is made anew. Homes may be shared: the first node to come builds for all.
"""

import contextlib
import glob
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

from remote.node.environments import build_lock, download_size, uv_tool
from remote.node.home_folder import NODE_HOME, refuse_noexec
from remote.shared import frames
from remote.shared.constants import ENVIRONMENTS as FOLDER
from remote.shared.constants import WHEELS
from remote.shared.files import read_json, read_text, walk_files, write_json
from remote.shared.wheels import record_digest

ENVIRONMENTS = NODE_HOME / FOLDER
TORCH_INDEX = "download.pytorch.org"
UNREACHED = ("Failed to fetch", "error sending request")
"""What uv says of an index that it does not get to."""
OLDEST_PYTHON = (3, 10)
"""That environments are made with."""
NOT_FOR_UV = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "UV_PROJECT", "UV_TORCH_BACKEND")
"""Settings of a login shell that would lead uv elsewhere."""
CONDA_PLACES = (
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
MAX_LISTED = 300
"""Things that are looked for."""
LEFT_OUT = "left-out.txt"
LACKS = (
    r"([\w.-]+)(?:\[[^]]*\])?\S* was not found in the provided package locations",
    r"(?i:there (?:is|are) no versions? of) ([\w.-]+)",
    r"only ([\w.-]+)(?:\[[^]]*\])?[^\s,]* is available",
    r"([\w.-]+)==\S+ has no (?:wheels with|usable wheels)",
)
"""How uv says that it does not have something, the name in brackets."""
NAMED_GLIBCS = (17, 24, 27, 28, 31, 34, 35, 39)
"""Minor versions of glibc 2 that wheels are built for."""


def state_of(key: str) -> Dict[str, Any]:
    """Return the state of an environment, without starting a process.

    `ready`: its record, or `None`. `interpreters`: Pythons of the image that have torch. `environments`: all that are
    ready, the newest first.
    """
    paths = sorted(ENVIRONMENTS.glob("*/ready.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    environments = [ready(str(read_json(path).get("key"))) for path in paths]
    return {
        "key": key,
        "ready": ready(key),
        "interpreters": interpreters(),
        "environments": [
            {
                name: record.get(name)
                for name in ("key", "python", "python_version", "torch", "packages", "bytes")
            }
            for record in environments
            if record is not None
        ],
    }


def home_of(key: str) -> Path:
    """An environment's folder. Nodes of other hardware, or with another Python, may share this home."""
    platform_name = "{}-py{}-{}".format(platform.machine(), *sys.version_info[:2])
    return ENVIRONMENTS / "{}-{}".format(key, platform_name)


def ready(key: str) -> Optional[Dict[str, Any]]:
    """Return the record of a usable environment; `None`: no such environment, or its Python has been removed."""
    record = read_json(home_of(key) / "ready.json")
    usable = record.get("key") == key and os.access(str(record.get("python")), os.X_OK)
    return record if usable else None


def mark_used(key: str) -> None:
    """Note that an environment was asked for now: the one that was used last is kept when others are removed."""
    with contextlib.suppress(OSError):  # a full disk keeps no run from existing files
        (home_of(key) / "used").touch()


def command_environment(request: Dict[str, Any], output: BinaryIO, incoming: Iterator[frames.Frame]) -> None:
    """Answer `environment`: key, files, wheels, commands, instead, env, indexes, deadline_s.

    Sends `progress`, and at the end `environment` with its record, or `failed` with the step and uv's last lines.

    `conda`: the environment file that one of conda's programs makes it of, in place of uv's commands, or `None`.
    `instead`: the last command, for where PyTorch's own index is not reached; `None`: no other index.

    When the other side goes away the build ends. With `look` it only reports the state (`looked`).
    """
    key = str(request["key"])
    if request.get("look"):
        state = state_of(key)
        if state["ready"] is not None:
            mark_used(key)
        frames.write(output, dict(state, t=frames.LOOKED))
        return
    record = ready(key)
    if record is not None:
        mark_used(key)
        frames.write(output, {"t": frames.ENVIRONMENT, "ready": record, "built": False})
        return
    refuse_noexec()
    uv_tool.set_indexes(request["indexes"], os.environ)
    caller = build_lock.Caller(output, incoming, float(request["deadline_s"]))
    with build_lock.alone(home_of(key).with_suffix(".lock"), caller):
        record = ready(key)
        if record is not None:
            frames.write(output, {"t": frames.ENVIRONMENT, "ready": record, "built": False})
            return
        try:
            record = build(key, request, caller)
        except BrokenPipeError:
            raise
        except (Failed, OSError, ValueError) as error:
            step = error.step if isinstance(error, Failed) else "preparing"
            tail = error.tail if isinstance(error, Failed) else [str(error)]
            lacks = error.lacks if isinstance(error, Failed) else {}
            frames.write(output, {"t": frames.FAILED, "step": step, "tail": tail, **lacks})
            return
    frames.write(output, {"t": frames.ENVIRONMENT, "ready": record, "built": True})


class Failed(Exception):
    """A command of uv ended with an error."""

    def __init__(self, step: str, tail: List[str], lacks: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(step)
        self.step = step
        self.tail = tail
        self.lacks = lacks or {}  # type: Dict[str, Any]
        """Where wheels are missing: `missing`, and the `python` and the `platforms` that they are for."""


def build(key: str, request: Dict[str, Any], caller: build_lock.Caller) -> Dict[str, Any]:
    """Make the environment from nothing and write its record. Raises Failed with uv's words, OSError, ValueError."""
    began = time.monotonic()
    home = home_of(key)
    if home.exists():
        caller.progress("removing an environment that was not finished")
        shutil.rmtree(str(home))
    folder = home / "request"
    folder.mkdir(parents=True, mode=0o700)
    for name, text in request["files"].items():
        path = Path(os.path.normpath(str(folder / name)))
        if folder not in path.parents:
            raise ValueError("{} lies outside the environment's folder".format(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    wheels = home / "wheels" if request["wheels"] else None
    if wheels is not None:
        offer(request["wheels"], wheels)
    environment = installers_environment(request["env"])
    torch_index = None
    if request["conda"]:
        uv_tool.tell_of_pip(environment, caller.progress)
        outside = {name: value for name, value in environment.items() if name not in NOT_FOR_CONDA}
        for argv in conda_commands(request["conda"], home):
            run(argv, folder, outside, caller)
    else:
        try:
            uv = uv_tool.provide(wheels, caller.progress)
        except uv_tool.NotSent as error:
            python = platform.python_version() if sys.version_info >= OLDEST_PYTHON else None
            raise Failed("preparing", [str(error)], description_of([uv_tool.PINNED], python)) from error
        torch_index = _install(uv, request, folder, environment, caller)
    listed = packages(home / "venv")
    record = {
        "key": key,
        "python": str(home / "venv" / "bin" / "python"),
        "python_version": python_version(home / "venv"),
        "torch": next((line[len("torch==") :] for line in listed if line.startswith("torch==")), None),
        "torch_index": torch_index,
        "packages": listed,
        "bytes": sum(status.st_size for _, status in walk_files(home)),
        "seconds": round(time.monotonic() - began, 3),
    }
    write_json(home / "ready.json", record)
    return record


def installers_environment(variables: Dict[str, str]) -> Dict[str, str]:
    """Return the variables for an installer, `variables` included."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_UV}
    environment.update(uv_tool.of_this_node(), **variables)
    return environment


def _install(
    uv: str, request: Dict[str, Any], folder: Path, environment: Dict[str, str], caller: build_lock.Caller
) -> Optional[str]:
    """Run uv's commands. The index that torch came from where PyTorch's own was not reached, else `None`."""
    *before, last = request["commands"]
    for arguments in before:
        run([uv, *arguments], folder, environment, caller)
    try:
        _download(uv, last, folder, environment, caller)
        return None
    except Failed as error:
        if request["wheels"]:
            missing = missing_wheels(uv, last, folder, environment, caller)
            error.lacks = description_of(missing, python_version(folder.parent / "venv"))
        text = "\n".join(error.tail)
        if not request["instead"] or TORCH_INDEX not in text or not any(word in text for word in UNREACHED):
            raise
    index = uv_tool.name_of_index()
    caller.progress("{} is not reached from here: installing from {} instead".format(TORCH_INDEX, index))
    _download(uv, request["instead"], folder, environment, caller)
    return index


def _download(
    uv: str, install: List[str], folder: Path, environment: Dict[str, str], caller: build_lock.Caller
) -> None:
    """Install with uv, after reporting the size. Raises Failed."""
    size = download_size.download_size(uv, install, folder, environment, caller)
    if size:
        caller.tell({"t": frames.DOWNLOAD, "bytes": size})
    run([uv, *install], folder, environment, caller)


def run(
    argv: List[str],
    folder: Path,
    environment: Dict[str, str],
    caller: build_lock.Caller,
    *,
    quiet: bool = False,
    keep: int = build_lock.TAIL_LINES,
) -> None:
    """Run a command of an installer in a folder, as `build_lock.run` does. Raises Failed."""
    code, tail = build_lock.run(argv, folder, environment, caller, quiet=quiet, keep=keep)
    if code != 0:
        words = [os.path.basename(argv[0]), *(word for word in argv[1:3] if not word.startswith("-"))]
        raise Failed(" ".join(words), tail or ["exit status {}".format(code)])


def python_version(venv: Path) -> Optional[str]:
    """The version of an environment's Python, as uv or conda writes it down; `None` where they did not."""
    settings = read_text(venv / "pyvenv.cfg")
    names = "\n".join(path.name for path in venv.glob("conda-meta/python-3.*.json"))
    match = re.search(r"^version_info\s*=\s*(\S+)", settings, re.MULTILINE)
    match = match or re.search(r"^python-(\d+\.\d+\.\d+)-", names, re.MULTILINE)
    return match.group(1) if match else None


def packages(venv: Path) -> List[str]:
    """`name==version` of all that is installed, by the names of the metadata folders."""
    names = []
    for folder in sorted(venv.glob("lib/python3.*/site-packages/*.dist-info")):
        name, _, version = folder.name[: -len(".dist-info")].rpartition("-")
        names.append("{}=={}".format(name, version))
    return names


PLACES = (
    "/opt/pytorch/bin/python3",  # AWS Deep Learning AMIs
    "/opt/conda/bin/python3",  # … and containers with conda
    "/opt/conda/envs/*/bin/python3",
    "~/anaconda3/envs/*/bin/python3",  # older Deep Learning AMIs, OCI's AI images
    "~/miniconda3/envs/*/bin/python3",
    "/opt/venv/bin/python3",
    "/usr/local/bin/python3",  # NVIDIA's and PyTorch's containers
)
"""Glob patterns of interpreters, the likeliest first."""


def interpreters() -> List[Dict[str, str]]:
    """`python` and `torch`, its version, of each that is there and has it. Nothing is started."""
    paths = []
    for place in PLACES:
        pattern = os.path.expanduser(place)
        for python in sorted(Path("/").glob(pattern.lstrip("/"))):
            version = torch_of(python)
            if version is not None and os.access(str(python), os.X_OK):
                paths.append({"python": str(python), "torch": version})
    return paths


def torch_of(python: Path) -> Optional[str]:
    """Return the version of torch in the site-packages next to an interpreter."""
    prefix = python.parent.parent
    for kind in ("site-packages", "dist-packages"):
        for metadata in prefix.glob("lib/python3.*/{}/torch-*.dist-info".format(kind)):
            return metadata.name[len("torch-") : -len(".dist-info")]
    return None


STORE = NODE_HOME / WHEELS
"""Where wheels that were sent here are kept, by file name."""


def offer(wheels: Dict[str, str], folder: Path) -> None:
    """Make `folder` hold links to exactly these wheels of the store: name → RECORD's digest.

    Raises ValueError where one is not there, or is another one of the same name.
    """
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    for name, digest in sorted(wheels.items()):
        if os.path.basename(name) != name or not (STORE / name).is_file():
            raise ValueError("the wheel {} has not been sent to this node".format(name))
        if record_digest(STORE / name) != digest:
            raise ValueError("the wheel {} was replaced by another one meanwhile: try again".format(name))
        (folder / name).symlink_to(STORE / name)


def conda_program() -> Optional[Tuple[str, str]]:
    """Return kind and path of a program that makes conda's environments; `None`: no such program."""
    for kind, *folders in CONDA_PLACES:
        candidates = [
            path for folder in folders for path in glob.glob(os.path.join(os.path.expanduser(folder), kind))
        ]
        for path in (shutil.which(kind), *candidates):
            if path and os.access(path, os.X_OK):
                return kind, path
    return None


def conda_commands(file: str, home: Path) -> List[List[str]]:
    """The command lines that make `home`/venv of an environment file, run in that file's folder. Raises Failed."""
    conda = conda_program()
    if conda is None:
        machine = {"x86_64": "64", "aarch64": "aarch64"}.get(os.uname().machine, os.uname().machine)
        raise Failed("looking for conda", [MISSING.format(file, machine)])
    kind, path = conda
    venv = str(home / "venv")
    if kind == "pixi":
        # Its environments lie within its project.
        os.symlink(str(home / "request" / ".pixi" / "envs" / "default"), venv)
        return [[path, "init", "--import", file], [path, "install"]]
    if kind == "micromamba":
        return [[path, "create", "--yes", "--prefix", venv, "--file", file]]
    return [[path, "env", "create", "--prefix", venv, "--file", file]]


def missing_wheels(
    uv: str, arguments: List[str], folder: Path, environment: Dict[str, str], caller: build_lock.Caller
) -> List[str]:
    """The requirements that no wheel meets, as they were asked for, of an installation that has failed.

    The requirements of a missing package are not known. Empty where uv's words do not tell.
    """
    by_name = {}  # type: Dict[str, str]
    while len(by_name) < MAX_LISTED:
        lines = ["{} ; python_version < '0'\n".format(name) for name in by_name]
        (folder / LEFT_OUT).write_text("".join(lines), encoding="utf-8")
        again = [uv, *arguments, "--dry-run", "--override", LEFT_OUT]
        code, tail = build_lock.run(again, folder, environment, caller, quiet=True)
        if code == 0:
            break
        lacking = what_lacks(" ".join(line.strip() for line in tail))
        if lacking is None or lacking[0] in by_name:
            break
        by_name[lacking[0]] = lacking[1]
    return sorted(by_name.values())


def description_of(missing: List[str], python: Optional[str]) -> Dict[str, Any]:
    """Return the description of missing packages for the other side. `python`: the version; `None`: not known."""
    return {"missing": missing, "python": python, "platforms": wheel_platforms()}


def what_lacks(output: str) -> Optional[Tuple[str, str]]:
    """The name and the requirement that uv's words are about; `None` where they are about something else."""
    name = next(
        (match.group(1) for match in (re.search(pattern, output) for pattern in LACKS) if match), None
    )
    if name is None:
        return None
    requirement = re.search(r"(?:require|depends? on) ({}(?![\w.-])[^\s]*)".format(re.escape(name)), output)
    return name, requirement.group(1).rstrip(",.") if requirement else name


def wheel_platforms() -> List[str]:
    """The platforms whose wheels this node takes, as pip names them; the best first."""
    machine, (libc, version) = platform.machine(), platform.libc_ver()
    if libc != "glibc":
        return []
    minor = int(version.split(".")[1])
    fitting = [minor_version for minor_version in reversed(NAMED_GLIBCS) if minor_version <= minor]
    return ["manylinux_2_{}_{}".format(minor_version, machine) for minor_version in fitting] + [
        "manylinux2014_" + machine
    ]
