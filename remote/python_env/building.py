"""The build of the environment on a node: skipped if it exists, else done by uv on the node."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from inventories.text import human_bytes, listed
from remote.errors import BadAnswer, DiskFull, NodeFailed
from remote.files.sync import sync
from remote.files.tree import tree_of
from remote.python_env import build_needs, conda_file
from remote.python_env.backend import DRIVER, settings
from remote.python_env.project_files import project_of
from remote.python_env.requirements import BUILT_IN, EVERY, UV, Requirements, key_of
from remote.sessions.answers import answer_as, reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import NODE_FOLDER, WHEELS

OLDEST_PYTHON = "3.10"
"""What torch 2.13 needs at least."""
BUILD_DEADLINE_S = 3600.0
"""Limit for the whole build: other builds' end, uv itself, and gigabytes from an index."""
SILENCE_S = 60.0
LONGEST_S = BUILD_DEADLINE_S + 300.0
"""The node keeps the deadline itself, and then has to clean up."""
WHEELS_FOLDER = f"~/{NODE_FOLDER}/{WHEELS}"
PREPARING = "preparing"
NO_CONDA = "looking for conda"
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+")
NO_PYTHON = ("No interpreter found", "No download found", "python-build-standalone")
"""uv lacks a Python that suits, or can't fetch one."""
CONSTRAINTS = "constraints.txt"
LOCKED = "locked.txt"
VENV = "../venv"
OFFERED = "../wheels"
"""Relative to the folder that uv is run in, which holds the requirements."""

Say = Callable[[str], None]


class EnvironmentFailed(NodeFailed):
    """The environment could not be built on a node."""


class NoConda(EnvironmentFailed):
    """Conda is missing on a node: another list of packages, or another image, is needed."""

    exit_status = 2


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A Python environment that is ready on a node."""

    key: str
    python: str
    """Its interpreter, absolute."""
    python_version: str | None
    """`3.12.4`. `None`: an older gpuctl built it and did not write that down."""
    torch: str | None
    """`None`: nothing that was asked for needs torch."""
    packages: tuple[str, ...]
    """`name==version` of all that is in it."""
    built: bool
    """Whether it was made now; else it was there."""
    torch_index: str | None
    """The index that torch came from where PyTorch's own was not reached. `None`: it was, or was not asked."""
    seconds: float
    """What making it took, then or now."""
    size_bytes: int


def environment_state(node: Node, requirements: Requirements, backend: str | None) -> Mapping[str, Any]:
    """Return the node's state of this environment, without building it; one short round trip."""
    return node.call("environment", {"key": key_of(requirements, backend), "look": True})


class ReadyEnvironment(NamedTuple):
    """An environment with torch, in a node's list."""

    python: str
    """Its interpreter, absolute."""
    torch: str
    python_version: str | None
    packages: tuple[str, ...]
    """As in Environment."""


def ready_environments(node: Node) -> dict[str, ReadyEnvironment]:
    """Key → the environments that are ready and have torch, the newest first."""
    answer = node.call("environment", {"key": "", "look": True})
    return {
        str(document["key"]): ReadyEnvironment(
            python=str(document["python"]),
            torch=str(document["torch"]),
            python_version=document["python_version"],
            packages=tuple(map(str, document["packages"])),
        )
        for document in answer.get("environments", ())
        if document.get("torch")
    }


def ensure(
    node: Node,
    requirements: Requirements,
    *,
    facts_of_env: Mapping[str, Any] | None,
    backend: str | None,
    say: Say,
    on_download: Callable[[int], None] = lambda _: None,
    constraints: Sequence[str] = (),
    indexes: Mapping[str, str] = MappingProxyType({}),
) -> Environment:
    """The environment on this node, built where it is not there. Blocks for as long as that takes.

    `facts_of_env`: the answer of `environment_state` for the node and the same key. `None`: not read. `say` gets
    every step, and `on_download` the bytes that uv will download, before it does.
    `constraints` are the packages of another node that has it already, so that a node that came later gets the
    same. `indexes`: as `carried` has them.

    Raises EnvironmentFailed with uv's own words, DiskFull, ConnectionLost, BadAnswer.
    """
    key = key_of(requirements, backend)
    ready = (facts_of_env or {}).get("ready")
    if ready and facts_of_env and facts_of_env.get("key") == key:
        return parse(node.name, ready, built=False)
    if requirements.wheels_folder is not None:
        done = sync(node, tree_of(requirements.wheels_folder, "*.whl"), WHEELS_FOLDER, follow_deletions=False)
        if done.files:
            say(f"{node.name}: {done.files} wheels sent, {human_bytes(done.sent_bytes)}")
    answer: Mapping[str, Any] | None = None
    body = request(requirements, backend, constraints, indexes)
    with node.stream("environment", body, timeout_s=SILENCE_S, bounds=Bounds(total_s=LONGEST_S)) as talk:
        for header, _ in talk.frames():
            kind = header.get("t")
            if kind == frames.PROGRESS:
                say(f"{node.name}: {header.get('text')}")
            elif kind == frames.DOWNLOAD:
                on_download(int(header["bytes"]))
            elif kind == frames.FAILED:
                step, tail = str(header.get("step")), list(header.get("tail", ()))
                raise failure(node.name, requirements, step, tail, what_lacks(requirements, header))
            elif kind == frames.ENVIRONMENT:
                answer = header
    if answer is None:
        raise BadAnswer(f"{node.name}: ended before the environment was ready.")
    return parse(node.name, answer.get("ready"), built=answer.get("built") is True)


def request(
    requirements: Requirements,
    backend: str | None,
    constraints: Sequence[str] = (),
    indexes: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the request for a node: files to write, and uv's command lines to run next to them, in this order."""
    # They are another node's word: nothing but a name and a version is passed on.
    pins = [line for line in constraints if PIN.fullmatch(line)]
    files = dict(requirements.files)
    if requirements.build_settings:
        files[build_needs.SETTINGS] = requirements.build_settings
    if pins and not requirements.is_locked:
        files[CONSTRAINTS] = "".join(f"{pin}\n" for pin in pins)
    constrained = CONSTRAINTS in files
    command_lines = commands(requirements, backend, constrained=constrained)
    other = commands(requirements, None, constrained=constrained)
    return {
        "key": key_of(requirements, backend),
        "files": files,
        "conda": conda_file.PLAIN if requirements.kind == "conda" else None,
        "wheels": dict(requirements.wheels),
        "commands": command_lines,
        "instead": other[-1] if other != command_lines else None,
        "env": environment(requirements, backend),
        "indexes": dict(indexes),
        "deadline_s": BUILD_DEADLINE_S,
    }


def commands(
    requirements: Requirements, backend: str | None, *, constrained: bool = False
) -> list[list[str]]:
    """Return uv's arguments, command by command, run in the folder of the requirements; empty for conda's."""
    if requirements.kind == "conda":
        return []
    # The interpreter of the system goes first; if it is missing or too old, uv brings one.
    make = ["venv", "--no-project", "--python", requirements.python or f">={OLDEST_PYTHON}"]
    make += ["--python-preference", "system", VENV]
    member = [] if requirements.package is None else ["--package", requirements.package]
    member = ["--all-packages"] if requirements.package == EVERY else member
    if requirements.kind == "lock" and not requirements.wheels:
        without = ["--no-dev", "--no-install-project", "--no-install-workspace"]
        return [make, ["sync", "--frozen", *without, *member]]
    install = ["pip", "install", "--python", VENV]
    if requirements.wheels:
        install += ["--no-index", "--find-links", OFFERED]
    elif not requirements.names_its_build:
        install += settings(backend)[0]
    if constrained:
        install += ["--constraint", CONSTRAINTS]
    if requirements.kind == "lock":
        # `sync` would go where the lock says; the wheels are elsewhere, and may be of another build.
        without = ["--no-dev", "--no-emit-workspace", "--no-hashes"]
        export = ["export", "--frozen", *without, "--quiet", *member, "-o", LOCKED]
        return [make, export, [*install, "-r", LOCKED]]
    return [make, [*install, "-r", requirements.files[0][0], *requirements.always]]


def environment(requirements: Requirements, backend: str | None) -> dict[str, str]:
    """Variables for uv on the node."""
    return {
        "UV_PROJECT_ENVIRONMENT": VENV,
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        # DeepSpeed is built without torch next to it, and compiles its parts on first use.
        "DS_BUILD_OPS": "0",
        # Nodes may share a cache, and wait there for what another one downloads.
        "UV_LOCK_TIMEOUT": f"{BUILD_DEADLINE_S:.0f}",
        # With wheels the node is taken to have no way out: better no Python than a minute's wait for one.
        **({"UV_OFFLINE": "1"} if requirements.wheels else {}),
        **({} if requirements.names_its_build else settings(backend)[1]),
    }


def parse(name: str, document: Mapping[str, Any] | None, *, built: bool) -> Environment:
    """The node's own record of an environment. Raises BadAnswer."""
    with reading(name, "what it says of its environment"):
        assert document is not None
        known = {"python_version": None, "torch_index": None, **document}
        return answer_as(
            Environment, {**known, "built": built, "size_bytes": document["bytes"]}, "the document"
        )


def packages_of(states: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the packages of the first node with the environment. `states`: of the nodes, in their order."""
    return next((tuple(map(str, state["ready"]["packages"])) for state in states if state.get("ready")), ())


def which_build(name: str, environment: Environment, backend: str | None) -> str:
    """The sentence on torch of another index than PyTorch's own: which build it is, and what that means."""
    cuda = any(pin.startswith("nvidia_") for pin in environment.packages)
    known = backend is not None and backend.startswith(DRIVER)
    if cuda and not known:
        means = "its default build, for CUDA, which runs on CPUs, too"
    elif cuda:
        means = "its default build, whose CUDA may be too new for the GPU driver there"
    else:
        means = "its default build, which does not use GPUs"
    return (
        f"{name}: download.pytorch.org is not reached from there, so torch {environment.torch} came from "
        f"{environment.torch_index}: {means}."
    )


def what_lacks(requirements: Requirements, lacks: Mapping[str, Any]) -> str:
    """Return the wheels that a node misses, all of them, and the command that fetches them; empty: unknown.

    `lacks`: `missing`, `python`, `platforms`, from the node.
    """
    missing = [str(package) for package in lacks.get("missing", ())]
    if not missing or requirements.wheels_folder is None:
        return ""
    if any(project_of(package) == UV for package in missing):  # without it only the names can be compared
        sent = {project_of(name.partition("-")[0]) for name, _ in requirements.wheels}
        # One with a marker may be for another platform than the node's.
        sure = (package for package in requirements.named if ";" not in package)
        missing += [package for package in sure if project_of(package) not in sent]
    # A lock lists all packages; other lists get dependencies from the index.
    source = ["--no-deps"] if requirements.is_locked else ["--find-links", str(requirements.wheels_folder)]
    words = ["pip", "download", "-d", str(requirements.wheels_folder), *source, "--only-binary", ":all:"]
    words += ["--python-version", str(lacks.get("python"))] if lacks.get("python") else []
    words += [word for tag in lacks.get("platforms", ()) for word in ("--platform", str(tag))]
    return (
        f"Missing in {requirements.wheels_folder}: {listed(missing, limit=len(missing))}. Where there is internet "
        f"access, this fetches {'it' if len(missing) == 1 else 'them'}:\n    {shlex.join([*words, *missing])}"
    )


def failure(
    name: str, requirements: Requirements, step: str, tail: Sequence[str], lacks: str = ""
) -> NodeFailed:
    """Return the error of a node, in uv's own words, with the next step.

    `lacks`: what `what_lacks` says, in place of these words, which name one thing at a time.
    """
    text = "\n".join(tail)
    needs = build_needs.advice(
        text, build_needs.uv_settings(requirements.files, requirements.build_settings), requirements.named
    )
    output = "\n".join(f"    {line}" for line in build_needs.without_hint(tail) if line.strip())
    if "os error 28" in text or "No space left" in text:
        return DiskFull(
            f"{name}: the disk is full, and the environment for {requirements.source} is not built:\n{output}\n"
            "  Free some space there (`gpuctl exec -- df -h`), or choose a larger --disk-gb."
        )
    # Failures before uv's start have their own sentence.
    hint = "" if step in (PREPARING, NO_CONDA) else f"\n  {needs or fix_of(requirements, text)}"
    why = f"  {lacks}" if lacks else f"{output}{hint}"
    kind = NoConda if step == NO_CONDA else EnvironmentFailed
    return kind(f"{name}: the environment for {requirements.source} could not be built ({step}):\n{why}")


def fix_of(requirements: Requirements, text: str) -> str:
    """Return the next step, by uv's output."""
    if any(words in text for words in NO_PYTHON):
        return (
            f"Install Python {requirements.python or OLDEST_PYTHON} or newer there, or name an interpreter that has "
            "all that is needed with --python PATH."
        )
    if "error sending request" in text or "Failed to fetch" in text:
        host = re.search(r"https?://(?:[^/\s@]*@)?([^/\s)`]+)", text)
        return (
            f"The node does not get to {host[1] if host else 'the package index'}. Give it a way out, set "
            "UV_DEFAULT_INDEX here to an index that it reaches, or send all wheels with --wheels DIR."
        )
    if requirements.wheels:
        return (
            f"Add what is missing to {requirements.wheels_folder} (pip download, for the nodes' platform and "
            f"Python), or mend {requirements.source}."
        )
    if requirements.source == BUILT_IN:
        return "Name an interpreter that has torch, torchmetrics and scikit-learn with --python PATH."
    return (
        f"Mend {requirements.source}, or name an interpreter that has all that is needed with --python PATH."
    )
