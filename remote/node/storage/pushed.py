"""What a person has pushed into a project's folder, or its installation has built there: in a record beside it.

It is neither sent again by a sync nor written by a run, so that nothing but a person removes it.
"""

import os
from pathlib import Path
from typing import Any, Dict

from remote.shared.files import read_json, write_json

RECORD = ".pushed.json"
"""After the path of the project's folder: path in it → entry, as in a manifest."""


def pushed(project: str) -> Dict[str, Any]:
    """What has been pushed into a project's folder, or built there, as a manifest."""
    return read_json(Path(project + RECORD))


def brought(project: str) -> Dict[str, Any]:
    """All that was sent to a project's folder, pushed or built there, as a manifest; what was sent counts first."""
    return dict(pushed(project), **read_json(Path(project + ".manifest.json")))


def note_pushed(project: str, root: str, manifest: Dict[str, Any]) -> None:
    """Keep that these are pushed into `root`, which is the project's folder or one in it."""
    inner = os.path.relpath(root, project)
    known = pushed(project)
    now = dict(
        known, **{os.path.normpath(os.path.join(inner, path)): entry for path, entry in manifest.items()}
    )
    if now != known:
        write_json(Path(project + RECORD), now)
