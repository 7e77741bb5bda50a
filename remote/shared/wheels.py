"""The identity of a wheel's file, computed alike on both sides."""

import hashlib
import zipfile
from pathlib import Path


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
                raise ValueError(f"{wheel} is not a wheel: it has no RECORD")
            return hashlib.sha256(archive.read(names[0])).hexdigest()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{wheel} is not a wheel: {error}") from error
