"""Wheels as files: which one is which, and what a node is offered to install from."""

import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Dict

from remote.node.storage.files import NODE_HOME

STORE = NODE_HOME / "wheels"
"""Where wheels that were sent here are kept, by file name."""


def record_digest(wheel: Path) -> str:
    """Identity of a wheel's content: sha256 of its RECORD, which holds the sha256 of every file in it.

    Read in no time, however large the wheel is. Raises ValueError where the file is no wheel.
    """
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            # At the top: packages may carry others within them.
            names = [
                name
                for name in archive.namelist()
                if name.endswith(".dist-info/RECORD") and name.count("/") == 1
            ]
            if len(names) != 1:
                raise ValueError("{} is not a wheel: it has no RECORD".format(wheel))
            return hashlib.sha256(archive.read(names[0])).hexdigest()
    except zipfile.BadZipFile as error:
        raise ValueError("{} is not a wheel: {}".format(wheel, error)) from error


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
