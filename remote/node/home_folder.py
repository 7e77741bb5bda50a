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


def folders_named_in(text: bytes) -> Set[Tuple[str, str]]:
    """Return kind's folder and name of each folder of gpuctl that a text names by its path: `("envs", "3fa9")`."""
    homes = {os.fsencode(str(NODE_HOME)), os.fsencode(os.path.realpath(str(NODE_HOME)))}
    folders = "|".join(FOLDERS.values()).encode()
    pattern = b"(?:" + b"|".join(map(re.escape, homes)) + rb")/(" + folders + rb")/([^/\0\n:;\"' ]+)"
    return {(os.fsdecode(folder), os.fsdecode(name)) for folder, name in re.findall(pattern, text)}
