"""The first gpuctl.yaml of a project, for `gpuctl init`: its text, and the reasons for its content."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuctl.command_line.job_file.look import Data, Entry, find_data, find_entry, find_requirements
from gpuctl.errors import Usage
from inventories.codec import plain
from inventories.disk.store import Store
from inventories.errors import InventoryError
from inventories.machine import Inventory
from inventories.specs.job_file import NAME
from inventories.specs.spec import DEFAULT_CLUSTER
from inventories.text import human_bytes
from remote.files.tree import read_tree, root_of

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_COLUMN = 34
"""Where remarks begin."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The proposed content of a project's file, with reasons."""

    path: Path
    entry: Entry | None
    """The script. None: the built-in job runs."""
    requirements: str | None
    found_by_itself: bool
    """Whether a run finds the requirements without the file."""
    data: tuple[Data, ...]
    cluster: Inventory | None
    """An existing cluster."""

    def document(self) -> dict[str, Any]:
        """Return the document of `init --json`."""
        entry = self.entry
        return {
            "file": str(self.path),
            "script": entry.path if entry and not entry.module else None,
            "module": entry.module if entry else None,
            "reason": entry.reason if entry else None,
            "others": list(entry.others) if entry else [],
            "requirements": self.requirements,
            "include": [plain(data) for data in self.data if data.bytes is not None],
            "too_large": [data.path for data in self.data if data.bytes is None],
            "cluster": self.cluster.cluster if self.cluster else None,
        }

    def reasons(self) -> Iterator[str]:
        """Yield the choices and their reasons, in lines for people."""
        if self.entry is None:
            yield "run: the built-in job, as no script that trains was found. Name yours: gpuctl init SCRIPT"
        else:
            what = f"-m {self.entry.module}" if self.entry.module else self.entry.path
            yield f"run: {what}, because {self.entry.reason}"
            if self.entry.others:
                yield f"run: not {', '.join(self.entry.others)}; to choose one of them: gpuctl init SCRIPT"
        if self.requirements is not None:
            yield f"environment: {self.requirements} lists what is installed"
        for data in self.data:
            if data.bytes is None:
                yield f"include: not {data.path}, which is large. Bring it: gpuctl push --into-project {data.path}"
            else:
                size = human_bytes(data.bytes)
                yield f"include: {data.path}, {size}: the script names it, and git ignores it"
        if self.cluster is not None:
            yield f"cluster: {self.cluster.cluster}, which is there"

    def text(self) -> str:
        """Return the text of the file."""
        parts: tuple[Iterable[str], ...] = (
            (
                "# The job of this project. `gpuctl train` does what is said here; what you type wins over it.",
                "# Every key may be left out. Paths begin at this file's folder. Keep secrets out: it is sent, too.",
            ),
            self._cluster(),
            self._environment(),
            self._include(),
            self._run(),
            (
                *_remarked("outputs:", "what comes back in any size; else up to 64 MB a node", comment=True),
                *_remarked('  - "*.pt"', "", comment=True),
            ),
        )
        return "\n".join("".join(f"{line}\n" for line in part) for part in parts)

    def _cluster(self) -> Iterator[str]:
        yield from _remarked(
            "cluster:", "what `gpuctl up` makes, with the keys of a spec file", self.cluster is None
        )
        found, off = self.cluster, self.cluster is None
        if found is not None and found.cluster != DEFAULT_CLUSTER:
            yield f"  cluster: {found.cluster}"
        if found is None or found.provider == "local":
            yield from _remarked(
                "  provider: local", "hosts on this computer; rented: shape: VM.GPU.A10.2", off
            )
        elif found.shape is not None and found.provider != "hosts":
            yield f"  shape: {_quoted(found.shape)}"
            yield from [f"  region: {_quoted(found.region)}"] if found.region else []
        if found is None or found.provider != "hosts":
            yield from _remarked(f"  count: {len(found.machines) if found else 2}", "machines", off)
        if found is None or found.shape is not None:
            yield from _remarked("  ttl: 4h", "rented machines end by themselves", comment=True)

    def _environment(self) -> Iterator[str]:
        yield "environment:"
        line = f"  requirements: {_quoted(self.requirements or 'requirements.txt')}"
        remark = "found without this line, too" if self.found_by_itself else "what the ranks find installed"
        yield from _remarked(line, remark, self.requirements is None or self.found_by_itself)
        yield from _remarked("  variables:", "of every rank", comment=True)
        yield from _remarked("    NCCL_DEBUG: INFO", "", comment=True)
        yield from _remarked("    HF_TOKEN:", "without a value: the one from where you type", comment=True)

    def _include(self) -> Iterator[str]:
        sent = [data for data in self.data if data.bytes is not None]
        yield from _remarked("include:", "what git ignores and the script needs", not sent)
        for data in sent:
            yield from _remarked(f"  - {_quoted(data.path)}", human_bytes(data.bytes or 0))
        for data in self.data:
            if data.bytes is None:
                yield from _remarked(
                    f"  - {_quoted(data.path)}", "large: gpuctl push --into-project", comment=True
                )
        if not self.data:
            yield from _remarked("  - data", "", comment=True)

    def _run(self) -> Iterator[str]:
        entry = self.entry
        yield "run:"
        if entry is None:
            yield from _remarked("  script: train.py", "without one, the built-in job runs", comment=True)
        elif entry.module:
            yield from _remarked(f"  module: {entry.module}", "or script: FILE")
        else:
            yield from _remarked(f"  script: {_quoted(entry.path)}", "or module: package.module")
        yield from _remarked(
            "  arguments: [--lr, 0.1]", "one item a word; more: gpuctl train -- --epochs 3", comment=True
        )
        yield from _remarked("  mode: ray", "torchrun without this line", not (entry and entry.ray))
        yield from _remarked("  nnodes: 2", "all without this line", comment=True)
        yield from _remarked("  nproc_per_node: 2", "one for each GPU without this line", comment=True)


def propose(folder: Path, store: Store, *, script: str | None = None) -> Proposal:
    """Look at the project in a folder. `script`: the typed path; default: the likeliest script.

    Raises Usage for an existing file or a missing script, and the errors of reading the project's files.
    """
    path = folder / NAME
    if path.exists() or path.is_symlink():
        raise Usage(f"{NAME} is there already: edit it, or remove it first.")
    root = root_of(folder)
    tree = read_tree(root, allow_large=True)
    with warnings.catch_warnings(action="ignore"):  # of a script's own text
        entry = find_entry(folder, tree, script)
        data = find_data(folder, tree, entry.path) if entry else []
    requirements, found_by_itself = find_requirements(folder, root)
    return Proposal(
        path=path,
        entry=entry,
        requirements=requirements,
        found_by_itself=found_by_itself,
        data=tuple(data),
        cluster=_cluster(store),
    )


def write(proposal: Proposal) -> None:
    """Write the file. Raises Usage if it exists by now."""
    try:
        with proposal.path.open("x", encoding="utf-8") as file:
            file.write(proposal.text())
    except FileExistsError as error:
        raise Usage(f"{NAME} is there already: edit it, or remove it first.") from error


def _cluster(store: Store) -> Inventory | None:
    """Return the default cluster, or else the only cluster, if it exists."""
    clusters = {}
    for folder in store.clusters():
        try:
            clusters[folder.path.name] = folder.load()
        except InventoryError:  # `gpuctl status` reports the error
            continue
    alone = next(iter(clusters.values())) if len(clusters) == 1 else None
    return clusters.get(DEFAULT_CLUSTER, alone)


def _remarked(line: str, remark: str, comment: bool = False) -> Iterator[str]:
    """Yield a line with a remark behind it. `comment`: the line is a comment, as an example."""
    indent = len(line) - len(line.lstrip())
    shown = f"{line[:indent]}# {line[indent:]}" if comment else line
    yield f"{shown + '  ':<{_COLUMN}}# {remark}" if remark else shown


def _quoted(text: str) -> str:
    """Return a text as YAML reads it as text."""
    if _PLAIN.fullmatch(text) and text.isascii() and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
