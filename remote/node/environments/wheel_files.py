"""Wheels as files: their identity, and the folder from which a node installs."""

import os
import shutil
from pathlib import Path
from typing import Dict

from remote.node.home_folder import NODE_HOME
from remote.shared.constants import WHEELS
from remote.shared.wheels import record_digest

STORE = NODE_HOME / WHEELS
"""Where wheels that were sent here are kept, by file name."""


def offer(wheels: Dict[str, str], folder: Path) -> None:
    """Make `folder` hold links to exactly these wheels of the store: name → RECORD's digest.

    Raises ValueError where one is not there, or is another one of the same name.
    """
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    for name, digest in sorted(wheels.items()):
        if os.path.basename(name) != name or not (STORE / name).is_file():
            raise ValueError("the wheel {} has not been sent to this node".format(name))
        if record_digest(STORE / name) != digest:
            raise ValueError("the wheel {} was replaced by another one meanwhile: try again".format(name))
        (folder / name).symlink_to(STORE / name)
