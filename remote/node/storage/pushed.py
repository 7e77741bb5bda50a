"""Records next to a project's folder: its sent files, and files pushed into it or built by its installation.

Pushed or built files are not sent again by a sync and not written by a run: nothing but a person
removes it.
"""

import os
from pathlib import Path
from typing import Any, Dict

from remote.shared.files import read_json, write_json

MANIFEST = ".manifest.json"
"""After the path of the project's folder: path in it → entry, of the last sync."""
RECORD = ".pushed.json"
"""After the path of the project's folder: path in it → entry, as in a manifest."""


def sent(project: str) -> Dict[str, Any]:
    """Return the manifest of the last sync into a project's folder."""
    return read_json(Path(project + MANIFEST))


def pushed(project: str) -> Dict[str, Any]:
    """Return the manifest of files that were pushed into a project's folder, or built there."""
    return read_json(Path(project + RECORD))


def pushed_into(project: str, root: str) -> Dict[str, Any]:
    """Return the manifest of the files pushed into `root`, the project's folder or one below."""
    prefix = os.path.relpath(root, project) + "/"
    known = pushed(project)
    if prefix == "./":
        return known
    return {path[len(prefix) :]: entry for path, entry in known.items() if path.startswith(prefix)}


def brought(project: str) -> Dict[str, Any]:
    """Return the manifest of all files that were sent to a project's folder, pushed or built there.

    Sent ones count first.
    """
    return dict(pushed(project), **sent(project))


def note_pushed(project: str, root: str, manifest: Dict[str, Any]) -> None:
    """Keep that these are pushed into `root`, which is the project's folder or one in it."""
    inner = os.path.relpath(root, project)
    known = pushed(project)
    now = dict(
        known, **{os.path.normpath(os.path.join(inner, path)): entry for path, entry in manifest.items()}
    )
    if now != known:
        write_json(Path(project + RECORD), now)
