"""The sources of a script and of all that it imports of the project, and what they say about files."""

import itertools
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inventories.runs.run import Run
    from remote.files.tree import Tree
    from remote.launchers.rank_command import Script

MAX_SOURCE_BYTES = 1000 * 1000
LINES_AROUND = 3
CONFIGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")
MAX_CONFIGS = 50
MAX_PATHS = 300
MAX_NAMES = 2000

_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_READS = re.compile(
    r"(?<![A-Za-z])load(?!er|ed)|(?<![A-Za-z])(?:restore|resume|read)(?:_|\b)|(?<!save_)pretrained|ckpt_path|last_checkpoint"
    r"|exists|is_file|is_dir|i?glob\b|iterdir|listdir|scandir|\bwalk\b|\bopen\((?![^\n]*[,=] ?['\"][wax]b?\+?['\"])"
)
"""Words with which a source loads a file, or looks whether it exists."""
_WRITES = (
    r"(?<!def )(?:\b|_)(?:save|dump|write|to_)\w*\([^\n;]*?{name}"
    r"|\bopen\([^\n;]*?{name}['\")\s]*,\s*(?:mode=)?['\"][wax]"
    r"|{name}['\")\s]*\.(?:write|save|to)_\w+\("
)
"""Calls that write the file of a name, which is among their arguments or is the path that they belong to."""
_SHOWS = re.compile(r"^\s*#|\b(?:print|debug|info|warning|log)\(")
"""Lines that show a name, and neither load nor write its file."""
_SEARCHES = re.compile(
    r"i?glob\b|listdir|iterdir|scandir|\bwalk\b|resume|last_checkpoint|ckpt_path|(?<!save_)pretrained"
)
"""Words with which a source loads files whose names do not stand in it."""
_NAMES_RANKS = re.compile(
    r"RANK|WORLD_SIZE|MASTER_|SLURM_|world_size|get_rank|distribut|horovod|split_by_(?:node|worker)|nodesplitter|shard"
    r"|torchrun|os\.system|Popen|spawn|wandb\.agent|gethostname|\buname\b|lockf?\b|O_EXCL"
    r"|\b(?:accelerate|bagua|celery|colossalai|concurrent|dask|deepspeed|fcntl|ffcv|grpc|h2o|hivemind|hvd|jax|joblib"
    r"|kafka|lightgbm|litdata|mindspore|mpi4py|multiprocessing|mxnet|optuna|paddle|petastorm|pyspark|ray|redis"
    r"|socket|streaming|subprocess|tensorflow|torch_xla|wds|webdataset|xgboost|zmq)\b"
)
"""Words of sources that may divide work among processes without torch.distributed, or start processes."""
PLAIN_LIBRARIES = frozenset(
    (
        "torch",
        "torchvision",
        "numpy",
        "pandas",
        "scipy",
        "sklearn",
        "matplotlib",
        "PIL",
        "tqdm",
        "yaml",
        "einops",
    )
)
"""Libraries that start no processes on other nodes, and join none, unless a source names ranks."""
RUNS_CODE = frozenset(("importlib", "runpy", "ctypes", "pkgutil", "code"))
"""Modules of Python that load what no import shows."""
_LITERAL = re.compile(r"(['\"])(.*?)\1")
_CHUNK = r"(?:\$?\{[^{}\n]*\}|[^\s'\"`,;:()<>|&=\\\\{}*?\[\]#!])"
_OUTSIDE = re.compile(rf"(?<![\w./:~)\]}}<-])(?:(?:~|(?:\.\./)*\.\.)/{_CHUNK}*|/{_CHUNK}+)")
_ALONE = re.compile(r"(['\"])(~|\.\.)\1")
_FIELD = re.compile(r"\$?\{[^{}]*\}|\$\w+|%[-+0-9.]*[a-z]")
"""A part of a path that is put in later: `{name}`, `$NAME`, `%03d`."""
_FILE_NAME = re.compile(r"[\w.*+@%~-]*[\w*+@%~-]")
_SUFFIX = re.compile(r"\.\w+$")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_PLACES = {
    "~": re.compile(r"\bhome\(\)|expanduser|['\"]HOME['\"]"),
    "/tmp": re.compile(r"gettempdir|['\"$]TMPDIR\b"),  # noqa: S108 - only looked into
}
"""Folder → words of a source that stand for it."""
_PLACE = re.compile(r"\((?P<file>[^\s():]+):(?P<line>\d+)\)")


def sources_of(tree: "Tree", folder: Path, target: str, *, module: bool) -> list[str]:
    """Return the sources of a script, or of a module, and of all that it imports of the files that are sent.

    Empty: it is not among them, as a module that is installed on the nodes.
    """
    from remote.files.tree import without_links_above

    root, path = tree.root, without_links_above(folder / (target.replace(".", "/") if module else target))
    ahead = {
        root / name
        for name, entry in tree.entries.items()
        if len(entry) > 1 and entry[0] <= MAX_SOURCE_BYTES and (name.endswith(".py") or root / name == path)
    }
    reached = {path, Path(f"{path}.py"), path / "__main__.py"} & ahead
    sources: list[str] = []
    while reached:
        ahead -= reached
        texts = [file.read_text(errors="replace") for file in reached]
        sources += texts
        lines = (line for text in texts for line in _IMPORT.findall(text))
        names = {name for line in lines for name in re.findall(r"\w+", line)}
        reached = {
            file for file in ahead if (file.parent.name if file.stem == "__init__" else file.stem) in names
        }
    return sources


def script_path(run: "Run") -> str | None:
    """Return the path of a run's script on this computer, a module by its title. `None`: the path is not known."""
    from remote.files.tree import without_links_above

    project = run.options.project if run.options else None
    return None if project is None else str(without_links_above(Path(project, run.script)))


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources of a script and of its imports, with what they and its arguments say about files and ranks."""

    texts: Sequence[str] = ()
    """Empty: no source is among the files to send."""
    names: frozenset[str] = frozenset()
    """Names of files and folders."""
    name_patterns: Sequence[str] = ()
    outside_paths: Sequence[str] = ()
    names_ranks: bool = True
    shares_nothing: bool = False
    """Whether it is known that its processes do not divide their work: they only use libraries that do not."""


def read_sources(script: "Script", tree: "Tree", folder: Path) -> Sources:
    """Read the sources of a run's script. `folder`: that of the script on this computer."""
    target = script.target.partition(":")[0]
    texts = sources_of(tree, folder, target, module=script.kind in ("module", "function"))
    names = names_in(texts, script.args)
    own = {part for name in tree.entries for part in Path(name).with_suffix("").parts}
    return Sources(
        texts=texts,
        names=frozenset(names),
        name_patterns=name_patterns(names),
        outside_paths=outside_paths([*script.args, *texts, *config_texts(tree, names)]),
        names_ranks=names_ranks(texts),
        shares_nothing=shares_nothing(texts, own),
    )


def config_texts(tree: "Tree", names: Collection[str]) -> list[str]:
    """Return the texts of the project's settings files that have one of these names."""
    chosen = (
        tree.root / path
        for path, entry in tree.entries.items()
        if path.endswith(CONFIGS) and len(entry) > 1 and entry[0] <= MAX_SOURCE_BYTES
        if not {Path(path).name, Path(path).stem}.isdisjoint(names)
    )
    return [path.read_text(errors="replace") for path in itertools.islice(chosen, MAX_CONFIGS)]


def outside_paths(texts: Iterable[str]) -> list[str]:
    """Return the paths in texts that may lie outside the project: absolute, in the home folder, or above.

    An asterisk stands for a part that the texts do not say, such as a field of an f-string.
    """
    paths: dict[str, None] = {}
    for text in texts:
        plain = text.replace("${HOME}", "~").replace("$HOME", "~")
        paths |= dict.fromkeys(_as_pattern(path) for path in _OUTSIDE.findall(plain))
        paths |= dict.fromkeys(path for _, path in _ALONE.findall(plain))
        paths |= dict.fromkeys(place for place, words in _PLACES.items() if words.search(text))
    return list(itertools.islice((path for path in paths if path.strip("/*.~") or path in "~.."), MAX_PATHS))


def name_patterns(names: Iterable[str]) -> list[str]:
    """Return patterns of the names of files, as a script composes them.

    Words that no file has as its name, and patterns without two letters or digits, are left out. Of too many,
    names with a suffix are kept first, then names with an asterisk.
    """
    patterns = {
        _as_pattern(f"*{name}" if name[0] in ".-_" else f"{name}*" if name[-1] in "-_" else name)
        for name in names
    }
    likely = [
        name for name in patterns if _FILE_NAME.fullmatch(name) and len(_LETTER_OR_DIGIT.findall(name)) > 1
    ]
    likely.sort(key=lambda name: (not _SUFFIX.search(name), "*" not in name, name))
    return sorted(likely[:MAX_NAMES])


def _as_pattern(path: str) -> str:
    return re.sub(r"\*+", "*", _FIELD.sub("*", path))


def reads_files(source: str) -> bool:
    """Return whether a source loads files, or looks for them."""
    return bool(_READS.search(source))


def only_writes(sources: Iterable[str], name: str) -> bool:
    """Return whether each line with a file's name is a call that writes the file, and no source searches for files.

    A variable or a default that holds the name may be loaded elsewhere.
    """
    if any(_SEARCHES.search(source) for source in sources):
        return False
    lines = [line for source in sources if name in source for line in source.splitlines() if name in line]
    if any(map(_READS.search, lines)):
        return False
    writes = re.compile(_WRITES.format(name=re.escape(name)))
    used = [line for line in lines if not _SHOWS.search(line)]
    return bool(used) and all(map(writes.search, used))


def names_ranks(sources: Sequence[str]) -> bool:
    """Return whether sources name ranks or other processes, also where no source is known."""
    return not sources or any(map(_NAMES_RANKS.search, sources))


def shares_nothing(sources: Sequence[str], own: Collection[str]) -> bool:
    """Return whether all imports of sources are known to divide no work among processes. `own`: project's modules."""
    lines = [line for text in sources for line in _IMPORT.findall(text)]
    modules = {name for line in lines for name in _imported(line)}
    plain = (PLAIN_LIBRARIES | sys.stdlib_module_names | {*own}) - RUNS_CODE
    return not names_ranks(sources) and modules <= plain


def _imported(line: str) -> list[str]:
    """Return the top names of the modules of an import. Empty: a module next to the source."""
    first, *words = line.split()
    if first == "from":
        return [top] if (top := words[0].partition(".")[0]) else []
    return [part.split()[0].partition(".")[0] for part in " ".join(words).split(",") if part.split()]


def names_in(sources: Iterable[str], words: Sequence[str]) -> set[str]:
    """Return the names of files and folders in the string literals of sources, and in a script's arguments."""
    texts = [*words, *(literal for source in sources for _, literal in _LITERAL.findall(source))]
    return {part for text in texts for part in re.split(r"[/=\s]+", text) if part.strip(".")}


def reads_at(folder: Path, text: str) -> bool:
    """Return whether the script reads files about the place that a text names, as in `(train.py:12)`."""
    if (place := _PLACE.search(text)) is None:
        return False
    try:
        lines = (folder / place["file"]).read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return False
    number = int(place["line"])
    return reads_files("\n".join(lines[max(0, number - 1 - LINES_AROUND) : number + LINES_AROUND]))
