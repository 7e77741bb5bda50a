"""The path of a project's `gpuctl.yaml`, and the name of its cluster.

The command line reads the options of commands in it.
"""

import os
from pathlib import Path

from inventories.errors import InvalidInput
from inventories.specs.checks import check_cluster_name
from inventories.specs.spec import DEFAULT_CLUSTER
from inventories.specs.validate import CLUSTER, holds_job
from inventories.yaml_source import Source, read

NAME = "gpuctl.yaml"


def find() -> Path | None:
    """Return the nearest gpuctl.yaml at or above the current folder in its git repository, such as `../gpuctl.yaml`.

    Outside a repository, only the current folder counts. `None`: no such file exists.
    """
    try:
        current = Path.cwd()
    except OSError:  # the current folder has been deleted
        return None
    top = repository_above(current) or current
    within = (folder for folder in (current, *current.parents) if folder.is_relative_to(top))
    path = next((folder / NAME for folder in within if os.path.lexists(folder / NAME)), None)
    return None if path is None else Path(os.path.relpath(path, current))


def repository_above(folder: Path) -> Path | None:
    """Return the git repository of a folder, if it has one.

    A repository that contains the user's home has settings, and is no project.
    """
    top = next((each for each in (folder, *folder.parents) if os.path.lexists(each / ".git")), None)
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - never raises
    return None if top is None or home.is_relative_to(top) else top


def cluster_of(path: Path) -> str | None:
    """Return the name of the cluster of a job's file, if the file names a cluster.

    Raises InvalidInput for a file without a readable name. Nothing else in the file is checked.
    """
    return _cluster_in(read(path))


def _cluster_in(source: Source) -> str | None:
    keys: tuple[str, ...] = (CLUSTER,)
    name = source.data.get(CLUSTER) if isinstance(source.data, dict) else None
    if holds_job(source.data):
        name, keys = source.data[CLUSTER].get(CLUSTER), (CLUSTER, CLUSTER)
    try:
        return None if name is None else check_cluster_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"{source.path}:{source.line(*keys)}: key '{'.'.join(keys)}': {error}") from error


def describes(path: Path, cluster: str) -> bool:
    """Return whether `gpuctl up` makes the cluster of this name from a job's file. False for an unreadable file."""
    try:
        source = read(path)
        return holds_job(source.data) and (_cluster_in(source) or DEFAULT_CLUSTER) == cluster
    except InvalidInput:
        return False
