"""Files of runs: outputs in the project's folder on a node, and copies on this computer."""

from dataclasses import dataclass
from typing import Literal

FileKind = Literal["log", "metrics", "artifact", "output", "checkpoint"]


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A file that a run wrote into the project's folder, as its node listed it."""

    path: str
    """Relative to the project's folder. Bytes that are not text are written as escapes."""
    bytes: int
    changed_ns: int
    """When it was changed last, by the disk that it is on; unix time in ns."""
    brought: bool


@dataclass(frozen=True, kw_only=True)
class OutsidePath:
    """A file that a run wrote outside the project's folder, or a folder with such files. No file is copied here."""

    node: str
    path: str
    """As `gpuctl pull` takes it: relative to the home folder where it is in it. A folder's ends with a slash."""
    bytes: int
    files: int
    on_this_computer: bool = False
    """True: the node is a local host, so that the path is one of this computer."""


@dataclass(frozen=True, kw_only=True)
class NodeOutputs:
    """A node's list of the files that a run wrote into the project's folder there (`written/NODE.json`)."""

    node: str
    folder: str
    """The project's on the node, as `gpuctl pull` takes it: relative to the home folder where it is in it."""
    files: int
    bytes: int
    whole: bool
    """False: the folder was too large for a full listing, so more files may exist."""
    shared_with: tuple[str, ...] = ()
    """Nodes that share this node's home, and that listed its files, too."""
    listed: tuple[WrittenFile, ...] = ()
    outside: tuple[OutsidePath, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file that a run wrote into the project's folder on a node."""

    node: str
    path: str
    """Relative to the project's folder; if it was brought, to `outputs/NODE/` of the run's folder.

    Outside the project's folder it begins with `HOME/` (the node's home folder) or `GPUCTL_RUN_DIR/`.
    """
    bytes: int
    kind: str | None
    """`Ray`, `TensorBoard`, `W&B`, `MLflow`, `Hydra` or `Lightning`. `None`: unknown."""
    brought: bool
    """True: it is in the run's folder. False: it is on the node alone."""


@dataclass(frozen=True, kw_only=True)
class OutputTotal:
    """The total of files that a run wrote into the project's folder on a node; the list may hold a part of them."""

    node: str
    folder: str
    """The project's on the node, as `gpuctl pull` takes it."""
    files: int
    bytes: int
    whole: bool
    """False: the folder was too large for a full listing, so more files may exist."""


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file in a run's folder on this computer."""

    kind: FileKind
    path: str
    """Relative to the run's folder."""
    bytes: int
