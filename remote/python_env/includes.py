"""Files that a list of requirements includes, and which of them may be sent to the nodes."""

import os
import re
from pathlib import Path

from remote.files.tree import PRIVATE, root_of, up_to_secret
from remote.python_env.project_files import BadRequirements, read_text

INCLUDE = re.compile(r"^\s*(?P<option>-r|-c|--requirement|--constraint)[ =]?\s*(?P<path>\S+)")


def with_includes(path: Path, root: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder that holds a requirements file and all that it includes, and their texts by paths in it.

    `root`: the folder that is sent. Raises BadRequirements.
    """
    texts: dict[Path, str] = {}
    top = Path(os.path.normpath(Path.cwd() / path))
    ahead = [top]
    while ahead:
        file = ahead.pop(0)
        if file in texts:
            continue
        texts[file] = read_text(file)
        included = (included_by(line, file, top, root) for line in texts[file].splitlines())
        ahead += [path for path in included if path is not None]
    folder = Path(os.path.commonpath([file.parent for file in texts]))
    return folder, {file.relative_to(folder).as_posix(): text for file, text in texts.items()}


def included_by(line: str, file: Path, top: Path, root: Path) -> Path | None:
    """Return the file of this computer that a line of `file` includes. `None`: the line includes no file.

    `top`: the file that was read first; `root`: the folder that is sent. Raises BadRequirements for a file that must
    not be sent: it is outside the project and the first file's repository, or may hold credentials.
    """
    include = INCLUDE.match(line)
    if include is None or "://" in include["path"]:
        return None
    if Path(include["path"]).is_absolute():
        raise BadRequirements(
            f"{file} includes {include['path']}, an absolute path, which no node has. Write the path from the "
            f"file's own folder: {os.path.relpath(include['path'], file.parent)}"
        )
    path = Path(os.path.normpath(file.parent / include["path"]))
    actual, sent = path.resolve(), root.resolve()
    if not actual.is_relative_to(sent):
        sent = root_of(top.parent.resolve())
    if not actual.is_relative_to(sent):
        raise BadRequirements(
            f"{file} includes {actual}, which is not in {sent}, and gpuctl sends no file from outside. Copy it into "
            "that folder, or send a folder that holds both: --root FOLDER"
        )
    if up_to_secret(actual.relative_to(sent).as_posix()):
        raise BadRequirements(f"{file} includes {actual}, which is not sent to the nodes: {PRIVATE}.")
    return path
