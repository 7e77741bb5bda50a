"""gpuctl's folder on this node, and the folders in it that a text names."""

import os
import re
from pathlib import Path
from typing import Set, Tuple

from remote.shared import constants

NODE_HOME = Path(os.path.expanduser("~")) / constants.NODE_FOLDER
FOLDERS = {
    "environment": constants.ENVIRONMENTS,
    "uv": constants.UV,
    "code": constants.CODE,
    "run": constants.RUNS,
    "program": constants.PROGRAMS,
}
"""Kind → the folder that has one folder for each of that kind."""


def refuse_noexec() -> None:
    """Raise OSError where no program can be run from gpuctl's folder, as an environment's Python has to."""
    folder = NODE_HOME if NODE_HOME.exists() else NODE_HOME.parent
    if os.statvfs(str(folder)).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError(
            "no environment can be built, as the file system of {} is mounted noexec and runs no programs. Mount it "
            "without (as root: mount -o remount,exec MOUNTPOINT), or use the packages of a Python there: gpuctl up "
            "--python PATH".format(NODE_HOME)
        )


def folders_named_in(text: bytes) -> Set[Tuple[str, str]]:
    """Return kind's folder and name of each folder of gpuctl that a text names by its path: `("envs", "3fa9")`."""
    homes = {os.fsencode(str(NODE_HOME)), os.fsencode(os.path.realpath(str(NODE_HOME)))}
    folders = "|".join(FOLDERS.values()).encode()
    pattern = b"(?:" + b"|".join(map(re.escape, homes)) + rb")/(" + folders + rb")/([^/\0\n:;\"' ]+)"
    return {(os.fsdecode(folder), os.fsdecode(name)) for folder, name in re.findall(pattern, text)}
