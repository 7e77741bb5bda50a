"""The search for the training script of a project, its data and requirements, for `gpuctl init`. Changes nothing."""

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuctl.errors import Usage
from remote.errors import RemoteError
from remote.files.tree import SECRETS, Tree, read_tree

MOST_SCRIPTS = 1000
LARGEST_SCRIPT = 1 << 20
MOST_NAMES = 2000
LONGEST_NAME = 200
_MAIN = re.compile(r"""^if\s+__name__\s*==\s*["']__main__["']""", re.MULTILINE)
_RAY = re.compile(r"\bray\.init\(|\bTorchTrainer\(|\btune\.Tuner\(")
_SIGNS = (
    (re.compile(r"\binit_process_group\("), 8, "it has init_process_group"),
    (_RAY, 7, "it is a driver of Ray's"),
    (re.compile(r"\b(DistributedDataParallel|FullyShardedDataParallel|fully_shard)\b"), 6, "it uses {0}"),
    (re.compile(r"\b(Accelerator|deepspeed\.initialize|Fabric)\("), 6, "it uses {0}"),
    (re.compile(r"\b(Trainer|SFTTrainer|Seq2SeqTrainer)\("), 5, "it has a {0}"),
    (re.compile(r"\.backward\(\)"), 4, "it has backward()"),
    (_MAIN, 1, "it has __main__"),
)
"""Sign of a training script, its points, and the reason for people."""
_NAMES = (("train", 3), ("finetune", 2), ("pretrain", 2), ("main", 1), ("run", 1))
_NO_SCRIPT = re.compile(
    r"(^|/)(tests?|docs?|build|dist|examples?/tests?)/|(^|/)(test_[^/]*|[^/]*_test|conftest|setup)\.py$"
)
_WRITTEN = re.compile(
    r"outputs?|out|runs?|logs?|results?|artifacts?|checkpoints?|ckpts?|saved?|wandb|mlruns|lightning_logs"
    r"|__pycache__|\..*"
)
"""Names of files and folders that scripts write, and do not read."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The script to run, and the reason."""

    path: str
    """From the folder, with `/`."""
    reason: str
    module: str | None = None
    """The name of the module, if it must run as a module."""
    ray: bool = False
    """Whether it is a driver of Ray."""
    others: tuple[str, ...] = ()
    """The next candidates, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A file or folder that git ignores and the script names."""

    path: str
    """From the folder, with `/`."""
    bytes: int | None
    """None: more than gpuctl sends without a question."""


def find_entry(folder: Path, tree: Tree, named: str | None) -> Entry | None:
    """Return the given script, or else the likeliest one in the folder. Raises Usage."""
    if named is not None:
        path = Path(os.path.normpath(folder / named))
        if not path.is_file():
            raise Usage(f"There is no script {named}.")
        if not path.is_relative_to(folder):
            raise Usage(f"{named} is outside {folder}. Type this in the folder that holds it.")
        return _entry(folder, path.relative_to(folder).as_posix(), _text(path) or "", "you named it")
    inner = folder.relative_to(tree.root).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    names = [
        name.removeprefix(prefix) for name in tree.entries if name.endswith(".py") and name.startswith(prefix)
    ]
    scripts = [name for name in names if not _NO_SCRIPT.search(name)]
    scripts.sort(key=lambda name: name.count("/"))  # the nearest to the folder first
    scored = []
    for name in scripts[:MOST_SCRIPTS]:
        text = _text(folder / name)
        score, reason = _score(name, text) if text else (0, "")
        if text and score > 0:
            scored.append((-score, name, reason, text))
    if not scored:
        return None
    scored.sort()
    score, name, reason, text = scored[0]
    if -score <= 1 and len(scored) > 1:  # the best one has no sign of training
        return None
    return _entry(folder, name, text, reason, others=tuple(other for _, other, _, _ in scored[1:6]))


def find_data(folder: Path, tree: Tree, script: str) -> list[Data]:
    """Return existing files that the script names in plain text, and that are not sent, as git ignores them."""
    data: dict[str, Data] = {}
    script_folder = (folder / script).parent
    names = _paths_in(_text(folder / script) or "")
    for path in (Path(os.path.normpath(place / name)) for place in (folder, script_folder) for name in names):
        if not path.is_relative_to(tree.root) or path == tree.root or not os.path.lexists(path):
            continue
        inner = _largest_unsent(path.relative_to(tree.root), tree)
        if inner is None or any(part in SECRETS or _WRITTEN.fullmatch(part) for part in inner.parts):
            continue
        shown = Path(os.path.relpath(tree.root / inner, folder)).as_posix()
        if shown not in data and shown.isprintable():
            data[shown] = Data(path=shown, bytes=_size(tree, tree.root / inner))
    return [each for _, each in sorted(data.items()) if each.bytes != 0]


def find_requirements(folder: Path, root: Path) -> tuple[str | None, bool]:
    """Return the file with the requirements, and whether a run finds it without gpuctl.yaml."""
    from remote.python_env.requirements import requirements_of

    try:
        listed = requirements_of(folder, root=root)
    except RemoteError:  # a run reports the error
        listed = None
    if listed is not None:
        return listed.source, True
    found = sorted(path for path in folder.glob("requirements*/*.txt") if path.is_file())
    found = sorted(path for path in folder.glob("*requirements*.txt") if path.is_file()) or found
    return (found[0].relative_to(folder).as_posix() if len(found) == 1 else None), False


def _score(name: str, text: str) -> tuple[int, str]:
    """Return the points of a file as the script, and the best sign. 0: it is no script."""
    if not (_MAIN.search(text) or _does_something(text)):
        return 0, ""
    signs = [
        (points, reason.format(*match.groups()))
        for sign, points, reason in _SIGNS
        if (match := sign.search(text))
    ]
    stem = PurePosixPath(name).stem.lower()
    liked = max((points for begin, points in _NAMES if stem.startswith(begin)), default=0)
    return max(1, 2 * sum(points for points, _ in signs) + 2 * liked - name.count("/")), (
        signs[0][1] if signs else "it is the likeliest script"
    )


def _does_something(text: str) -> bool:
    """Return whether a module does more than define names: a script without `__main__`."""
    module = _parsed(text)
    if module is None:
        return False
    return any(
        isinstance(node, ast.For | ast.While | ast.With)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in module.body
    )


def _entry(folder: Path, name: str, text: str, reason: str, others: Sequence[str] = ()) -> Entry:
    module = _parsed(text)
    relative = module is not None and any(
        isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(module)
    )
    dotted = None
    if relative and "/" in name:
        in_src = name.startswith("src/") and (folder / "pyproject.toml").exists()
        dotted = name.removeprefix("src/" if in_src else "").removesuffix(".py").replace("/", ".")
        dotted = dotted.removesuffix(".__main__")
        reason = f"{reason}; as a module, for its relative imports"
    return Entry(path=name, reason=reason, module=dotted, ray=bool(_RAY.search(text)), others=tuple(others))


def _paths_in(text: str) -> list[str]:
    """Return texts in a script's code that may be relative paths."""
    module = _parsed(text)
    if module is None:
        return []
    texts = (
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    may_be = (
        text
        for text in texts
        if 1 < len(text) <= LONGEST_NAME and text.isprintable() and not text.startswith(("/", "-", "~"))
    )
    return list(dict.fromkeys(may_be))[:MOST_NAMES]


def _largest_unsent(inner: Path, tree: Tree) -> Path | None:
    """Return the path, or the highest folder above it without sent files. None: a part is sent."""
    for path in (*reversed(inner.parents[:-1]), inner):
        name = path.as_posix()
        if name in tree.entries:
            return None
        if not any(entry.startswith(f"{name}/") for entry in tree.entries):
            return path
    return None


def _size(tree: Tree, path: Path) -> int | None:
    """Return the bytes that a path adds to the sent files. None: too many."""
    try:
        return read_tree(tree.root, include=[path]).total_bytes - tree.total_bytes
    except RemoteError:
        return None


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of an older Python, or no Python
        return None


def _text(path: Path) -> str | None:
    """Return the text of a script. None: no text, or too large for a script."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_SCRIPT + 1)
        return None if len(data) > LARGEST_SCRIPT else data.decode()
    except (OSError, UnicodeDecodeError):
        return None
