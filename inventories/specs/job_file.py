"""Where the file of a project's job is, `gpuctl.yaml`, and which cluster it is about.

What else is in it says the options of commands: the command line reads that.
"""

import os
from pathlib import Path

from inventories.errors import InvalidInput
from inventories.specs.checks import check_cluster_name
from inventories.specs.spec import DEFAULT_CLUSTER
from inventories.specs.validate import CLUSTER, holds_job
from inventories.yaml_source import read

NAME = "gpuctl.yaml"


def find() -> Path | None:
    """The nearest gpuctl.yaml at or above the current folder in its git repository; outside of one, the folder's own.

    As seen from the folder: `../gpuctl.yaml`. None: there is no such file.
    """
    try:
        here = Path.cwd()
    except OSError:  # the current folder has been deleted
        return None
    top = repository_above(here) or here
    within = (one for one in (here, *here.parents) if one.is_relative_to(top))
    path = next((one / NAME for one in within if os.path.lexists(one / NAME)), None)
    return None if path is None else Path(os.path.relpath(path, here))


def repository_above(folder: Path) -> Path | None:
    """The git repository that a folder is in; None: it is in none.

    One that holds the user's home is for their settings, and no project's.
    """
    top = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), None)
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - never raises
    return None if top is None or home.is_relative_to(top) else top


def cluster_of(path: Path) -> str | None:
    """The name of the cluster that a job's file is about; None: it names none.

    Raises InvalidInput where that can't be known. Nothing else in the file is looked at.
    """
    source = read(path)
    keys: tuple[str, ...] = (CLUSTER,)
    name = source.data.get(CLUSTER) if isinstance(source.data, dict) else None
    if holds_job(source.data):
        name, keys = source.data[CLUSTER].get(CLUSTER), (CLUSTER, CLUSTER)
    try:
        return None if name is None else check_cluster_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"{path}:{source.line(*keys)}: key '{'.'.join(keys)}': {error}") from error


def describes(path: Path, cluster: str) -> bool:
    """Whether `gpuctl up` makes the cluster of that name from a job's file; False where that can't be read."""
    try:
        return holds_job(read(path).data) and (cluster_of(path) or DEFAULT_CLUSTER) == cluster
    except InvalidInput:
        return False
