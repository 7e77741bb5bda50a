"""A project installed on a node, editable, from where it lies: into an environment over another interpreter.

The environment is a venv of its own that finds all that the interpreter below has. That one is never written to: it
may be gpuctl's own, a system's, or one that other projects share. What can't be installed is found by its path, and
reported.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

from remote.node.environments import build, build_lock, uv_tool
from remote.node.environments.within import normal_name
from remote.node.storage import sync_lock
from remote.node.storage.changed_files import find_changes
from remote.node.storage.pushed import brought, note_pushed
from remote.shared import frames
from remote.shared.files import read_json, walk_files, write_json

WITHIN = str(Path(__file__).with_name("within.py"))
BELOW = """\
import json, os, site
places = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
print(json.dumps([place for place in places if os.path.isdir(place)]))
"""
PROJECTS = "projects"
"""In the folder of an environment of ours: the projects that are installed over it."""
IN_PLACE = "in_place"
"""In the record of an environment: paths of what its installation has written within the root."""
LAST_PATHS = "zzz_below.pth"
"""Read after the project's entries, which go before the ones below."""
ANSWER_S = 60.0
MOST_WORDS = 60
"""Lines to keep of a build system's output: much advice may follow an error."""
DEFAULTS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_RETRIES": "1",
    "PIP_DEFAULT_TIMEOUT": "15",
}
SDISTS_METADATA = "PKG-INFO"
"""The file of a source distribution, by which tools that take a version from git know it without git."""
OWN_METADATA = "Metadata-Version: 2.1\nSummary: written by gpuctl for the time of a build\n"
"""Begins such a file of ours, so that one that a killed build left is known."""


def command_project(request: Dict[str, Any], output: BinaryIO, incoming: Iterator[frames.Frame]) -> None:
    """Answer `project` as `environment` is answered.

    Fields: key, name, python (of the environment below), root (of the sent files), folder, source, beside, extras,
    backend, backend_path, build_requires, not_from_index, version (of git, or `None`), variables (that give it to
    the build), dependencies (`install` or `tell`), indexes, deadline_s.

    Its record has the `problem` that kept the project from being installed, or `None`, and its state `lacking` now.
    An environment with a problem is made anew the next time, and so is one whose requirements the environment below
    no longer meets, or whose built files are missing.
    """
    uv_tool.set_indexes(request["indexes"], os.environ)
    home = home_of(str(request["key"]), str(request["python"]))
    caller = build_lock.Caller(output, incoming, float(request["deadline_s"]))
    with build_lock.alone(home.with_suffix(".lock"), caller):
        backend = usable(home, request)
        try:
            record = backend or install(home, request, caller)
            (home / "used").touch()
        except BrokenPipeError:
            raise
        except (build.Failed, OSError, ValueError, subprocess.SubprocessError) as error:
            tail = error.tail if isinstance(error, build.Failed) else [str(error)]
            frames.write(output, {"t": frames.FAILED, "step": "preparing", "tail": tail})
            return
    ready = {key: value for key, value in record.items() if key != IN_PLACE}
    frames.write(output, {"t": frames.ENVIRONMENT, "ready": ready, "built": backend is None})


def home_of(key: str, python: str) -> Path:
    """The folder of a project's environment: within the one of ours that it lies over, which it goes with."""
    above = [path for path in Path(python).parents if path.parent == build.ENVIRONMENTS]
    return above[0] / PROJECTS / key if above else build.home_of(key)


def usable(home: Path, request: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the record of an environment as it is now; `None`: no environment, or it has to be made anew."""
    record = read_json(home / "ready.json")
    built = record.get(IN_PLACE, [None])
    exist = all(path is not None and os.path.lexists(os.path.join(request["root"], path)) for path in built)
    if not exist or not os.access(str(record.get("python")), os.X_OK):
        return None
    try:
        lacking = _ask(record["python"], _finish(request), _environment())["lacking"]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if request["dependencies"] == "install" and not set(lacking) <= set(record.get("lacking", ())):
        return None
    return dict(record, lacking=lacking)


def install(home: Path, request: Dict[str, Any], caller: build_lock.Caller) -> Dict[str, Any]:
    """Make the environment, install the project and, on request its requirements that the environment below lacks.

    Raises Failed, OSError, ValueError if no environment can be made; all else is the record's `problem`.
    """
    began = time.monotonic()
    if home.exists():
        shutil.rmtree(str(home))
    home.mkdir(parents=True, mode=0o700)
    began_ns = os.lstat(str(home)).st_ctime_ns
    environment = _environment()
    below = request["python"]
    venv = home / "venv"
    build.run([below, "-I", "-m", "venv", "--without-pip", str(venv)], home, environment, caller)
    places = json.loads(_output([below, "-c", BELOW], environment))
    lines = ["import site; site.addsitedir({!r})".format(place) for place in places]
    (site_packages(home) / LAST_PATHS).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    python = str(venv / "bin" / "python")
    site = site_packages(home)
    problem = None
    try:
        installer, flags = _installer(home, request, environment, caller)
        caller.progress("installing the project {}".format(request["name"]))
        quiet = ["--quiet", "--no-deps", *flags]
        folders = [word for name in [request["folder"], *request["beside"]] for word in ("--editable", name)]
        # In the project's folder installers find its settings.
        argv = [*installer, *quiet, *folders]
        variables = dict(request["variables"], **environment)
        with _as_sdists([request["folder"], *request["beside"]], request["version"]):
            build.run(argv, Path(request["folder"]), variables, caller, quiet=True, keep=MOST_WORDS)
    except (build.Failed, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        problem = error.tail if isinstance(error, build.Failed) else [str(error)]
        (site / "by_path.pth").write_text(request["source"] + "\n", encoding="utf-8")
    wish = _finish(request)
    state = _ask(python, wish, environment)
    if problem is None and not state["understood"] and request["dependencies"] == "install":
        with contextlib.suppress(build.Failed):  # then names are all that is compared
            build.run([*installer, "packaging"], home, environment, caller)
            state = _ask(python, wish, environment)
    addable = [
        name
        for name in state["lacking"]
        if normal_name(name) not in map(normal_name, request["not_from_index"])
    ]
    if problem is None and addable and request["dependencies"] == "install":
        problem = _add(addable, state["names"], installer, home, request, environment, caller)
        state = _ask(python, wish, environment)
    record = {
        "key": request["key"],
        "python": python,
        "problem": problem,
        "lacking": state["lacking"],
        IN_PLACE: _note_built(request["root"], began_ns, caller),
        "packages": build.packages(home / "venv"),
        "bytes": sum(status.st_size for _, status in walk_files(home)),
        "seconds": round(time.monotonic() - began, 3),
    }
    if problem is None:
        write_json(home / "ready.json", record)
    return record


@contextlib.contextmanager
def _as_sdists(folders: List[str], version: Optional[str]) -> Iterator[None]:
    """Have the folders of projects tell their version as source distributions do, while the body runs; `None`: don't.

    For versioningit and setuptools-git-versioning, which have no variable for it. Files that a build left
    that was killed are removed.
    """
    files = [Path(folder, SDISTS_METADATA) for folder in folders]
    for file in files:
        if file.is_file() and file.read_bytes().startswith(OWN_METADATA.encode()):
            file.unlink()
    made = [file for file in files if version is not None and not file.exists()]
    try:
        for file in made:
            text = OWN_METADATA + "Name: {}\nVersion: {}\n".format(file.parent.name, version)
            file.write_text(text, encoding="utf-8")
        yield
    finally:
        for file in made:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def _note_built(root: str, began_ns: int, caller: build_lock.Caller) -> List[str]:
    """Record the files written within the root since then, such as extension modules; return their paths.

    Recorded files do not count as a run's.
    """
    with sync_lock.alone(root, lambda: caller.check("waiting for a sync")):
        built = {}
        for path, _, _ in find_changes(root, brought(root), began_ns).listed:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(root, path))
                built[path] = [status.st_size, status.st_mtime_ns, status.st_mode & 0o777]
        note_pushed(root, root, built)
    return sorted(built)


def site_packages(home: Path) -> Path:
    """Return the folder of the environment's own packages."""
    return next((home / "venv").glob("lib/python3*/site-packages"))


def _installer(
    home: Path, request: Dict[str, Any], environment: Dict[str, str], caller: build_lock.Caller
) -> Tuple[List[str], List[str]]:
    """Return the command that installs, and its flags for the project.

    pip of the interpreter below, else uv; uv first for indexes that are set for it alone. If the project's build
    system is installed, no index is asked for it. Over an environment that was made of
    wheels nothing comes from an index.
    """
    python = str(home / "venv" / "bin" / "python")
    wheels = home.parents[1] / "wheels"  # of the environment below, where that is one of ours
    sent = wheels if home.parent.name == PROJECTS and wheels.is_dir() else None
    from_where = [] if sent is None else ["--no-index", "--find-links", str(sent)]
    needed = {name: request[name] for name in ("backend", "backend_path", "build_requires")}
    able = _ask(python, ["able", json.dumps(needed)], environment)
    flags = ["--no-build-isolation"] if able["builds"] else []
    uv_alone = sent is None and uv_tool.not_for_pip(environment) and uv_tool.installed()
    if able["pip"] and not uv_alone:
        if sent is None:
            uv_tool.tell_of_pip(environment, caller.progress)
        return [python, "-m", "pip", "install", *from_where], flags
    uv = uv_tool.provide(sent, caller.progress)
    return [uv, "pip", "install", "--python", python, *from_where], flags


def _add(
    lacking: List[str],
    names: List[str],
    installer: List[str],
    home: Path,
    request: Dict[str, Any],
    environment: Dict[str, str],
    caller: build_lock.Caller,
) -> Optional[List[str]]:
    """Install the project's requirements that the environment below lacks.

    Returns the installer's output if it failed, else `None`.
    """
    caller.progress("installing {}".format(", ".join(lacking)))
    additions = []
    if installer[1] == "pip":
        # uv does not see what lies below, and would bring all of that again.
        file = home / "below.txt"
        installed = [name for name in names if normal_name(name) not in map(normal_name, lacking)]
        file.write_text("".join("{} ; python_version < '0'\n".format(name) for name in installed))
        additions = ["--override", str(file)]
    try:
        build.run([*installer, *additions, *lacking], Path(request["folder"]), environment, caller)
    except build.Failed as error:
        return error.tail
    return None


def _environment() -> Dict[str, str]:
    return dict(DEFAULTS, **build.installers_environment({}))


def _finish(request: Dict[str, Any]) -> List[str]:
    """Return the arguments of `within.py` once the project is installed."""
    return ["finish", json.dumps(request["extras"])]


def _ask(python: str, arguments: List[str], environment: Dict[str, str]) -> Dict[str, Any]:
    """Return the answer of `within.py` in the environment."""
    answer: Dict[str, Any] = json.loads(_output([python, "-I", WITHIN, *arguments], environment))
    return answer


def _output(argv: List[str], environment: Dict[str, str]) -> str:
    done = subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=ANSWER_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no word"]
        raise OSError("{} failed: {}".format(argv[0], lines[-1]))
    return done.stdout.decode().strip().splitlines()[-1]
