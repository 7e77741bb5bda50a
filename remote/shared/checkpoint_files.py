"""The checkpoints among the files of a run's folder, and their description.

Of the built-in job one counts once its `step-N.json` is there, which is written last and names the size of its file,
or of the files in its folder, `step-N`. Other nodes may have some of these: each has the files that its ranks wrote.
Of a user's script every file of the folder counts, but for torn ones; a link within the folder is the file that it
leads to.
"""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

from remote.shared.checkpoint_sets import POINTERS, missing_parts, sets_in
from remote.shared.files import is_regular, read_json, size_of, walk_files


def files_in(folder: Path, whole: bool, newest: bool = False) -> List[Tuple[str, int]]:
    """Return the files that count, relative to the folder, with their bytes; the newest last.

    Empty: no such folder. `whole`: they are the built-in job's. Each file comes before the document that makes it
    count, so that a copy that is cut off holds whole checkpoints, too. `newest`: the files needed to resume, of
    the newest checkpoint; of a script's all, as nobody else knows which belong together.
    """
    if not whole:
        return [(name, size) for name, size in _plain_files(folder) if not is_torn(folder / name, size)]
    counting = _counting(folder)[-1:] if newest else _counting(folder)
    return [
        (name, size)
        for document, files in counting
        for name, size in [*((name, size) for name, size in files if size_of(folder / name) >= 0), document]
    ]


def torn_in(folder: Path) -> List[str]:
    """Return the files of a script that are left out as they are torn, by name."""
    return sorted(name for name, size in _plain_files(folder) if is_torn(folder / name, size))


def _plain_files(folder: Path) -> List[Tuple[str, int]]:
    """Return all plain files in a folder and below it, with their bytes; the newest last."""
    statuses = {name: _behind(folder, name, status) for name, status in walk_files(folder)}
    plain = {name: status for name, status in statuses.items() if is_regular(status)}
    return [
        (name, plain[name].st_size)
        for name in sorted(plain, key=lambda name: (plain[name].st_mtime_ns, name))
    ]


def lacking(folder: Path, newest: bool = False) -> Dict[str, int]:
    """The files of the built-in job's checkpoints, or of the `newest`, that the folder does not have, with bytes."""
    counting = _counting(folder)[-1:] if newest else _counting(folder)
    return {name: size for _, files in counting for name, size in files if size_of(folder / name) < 0}


def parts_in(folder: Path) -> Dict[str, int]:
    """The files in the folders of the built-in job's checkpoints, with their bytes; they may count or not."""
    sizes = {path.relative_to(folder).as_posix(): size_of(path) for path in folder.glob("step-*/*")}
    return {name: size for name, size in sizes.items() if size >= 0}


def _counting(folder: Path) -> "List[Tuple[Tuple[str, int], List[Tuple[str, int]]]]":
    """Return the document of each checkpoint that counts, and its files, with their sizes; the newest last."""
    steps = []
    for path in folder.glob("*.json"):
        document = read_json(path)
        step, files = document.get("step"), _told_files(document)
        if not isinstance(step, int) or not files:
            continue
        sizes = [(size_of(folder / name), size) for name, size in files]
        if all(
            size_on_disk == size or (size_on_disk < 0 and "folder" in document)
            for size_on_disk, size in sizes
        ):
            steps.append((step, ((path.name, size_of(path)), files)))
    return [counted for _, counted in sorted(steps)]


def _told_files(document: Dict[str, Any]) -> List[Tuple[str, int]]:
    """Return the files that a document lists, with their bytes; empty if one of them is impossible."""
    folder, files = document.get("folder"), document.get("files")
    if folder is None:
        files = {document.get("file"): document}
    entries = []
    for name, about in files.items() if isinstance(files, dict) else ():
        size = about.get("bytes") if isinstance(about, dict) else None
        if not (_is_name(name) and isinstance(size, int) and (folder is None or _is_name(folder))):
            return []
        entries.append((name if folder is None else "{}/{}".format(folder, name), size))
    return entries


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and os.path.basename(name) == name


def _behind(folder: Path, name: str, status: os.stat_result) -> os.stat_result:
    """The status of the file that a link leads to, where that is in the folder, too; else the link's own."""
    if not stat.S_ISLNK(status.st_mode):
        return status
    target = os.path.realpath(str(folder / name))
    inside = target.startswith(os.path.realpath(str(folder)) + os.sep)
    return os.stat(target) if inside and os.path.isfile(target) else status


def describe_script(
    files: Mapping[str, Path], written: Collection[str], ranks: int
) -> Optional[Dict[str, Any]]:
    """Describe a script's files as `describe` does. `files`: name → the folder in which it is. `None`: no files.

    The newest is a folder, if its ranks wrote a part each. `lacks`: the required parts that are not
    among the files. `written`: names of files that the run itself wrote; `ranks`: how many it has.
    """
    sizes = {}
    for name, folder in files.items():
        with contextlib.suppress(FileNotFoundError):  # the run may remove old ones
            status = os.stat(str(folder / name))
            sizes[name] = (status.st_mtime_ns, status.st_size)
    if not sizes:
        return None
    content = [name for name in sizes if name.rpartition("/")[2] not in POINTERS] or list(sizes)
    newest = max(content, key=lambda name: (sizes[name][0], name))
    of_set = next((root for root, members in sets_in(sizes).items() if newest in members), newest)
    return {
        "files": len(sizes),
        "bytes": sum(size for _, size in sizes.values()),
        "newest": of_set,
        "written_ns": sizes[newest][0],
        "lacks": missing_parts(files, written, ranks),
    }


def describe(folder: Path, newest: bool = False) -> Optional[Dict[str, Any]]:
    """Describe the built-in job's checkpoints. Returns `None` if no checkpoint counts.

    How many `files` and `bytes` count, name and time (`written_ns`) of the `newest`.

    `lacks`: the files of the newest that are not in the folder. The bytes are of all, as if they were.
    """
    files = files_in(folder, True, newest)
    if not files:
        return None
    _, sizes = _counting(folder)[-1]
    name, _, part = sizes[0][0].partition("/")
    dated = files[-1][0] if part else name
    written_ns = 0
    with contextlib.suppress(FileNotFoundError):  # an active run may remove old ones
        written_ns = os.lstat(str(folder / dated)).st_mtime_ns
    return {
        "files": len(files),
        "bytes": sum(size for _, size in files) + sum(lacking(folder, newest).values()),
        "newest": name,
        "written_ns": written_ns,
        "lacks": sorted(lacking(folder, newest=True)),
    }


TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".npz")


SAFETENSORS = ".safetensors"


ZIP_BEGIN = b"PK\x03\x04"


LENGTH_BYTES = 8
"""In front of the header of safetensors: its length."""


def is_torn(path: Path, size: int) -> bool:
    """Return whether a file is only the beginning of what torch.save, numpy or safetensors writes.

    A zip archive ends with its directory. The header of safetensors says where the last tensor ends. Files of another
    kind, and files that can't be read, are not torn.
    """
    try:
        if path.suffix == SAFETENSORS:
            return size < _safetensors_bytes(path, size)
        if path.suffix not in TORCH_ENDINGS:
            return False
        if size == 0:
            return True
        import zipfile

        with open(str(path), "rb") as file:
            return file.read(len(ZIP_BEGIN)) == ZIP_BEGIN and not zipfile.is_zipfile(file)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return False


def _safetensors_bytes(path: Path, size: int) -> int:
    """Return the bytes of the whole file; if its header is cut off, more than `size`."""
    with open(str(path), "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = LENGTH_BYTES + length
        if size <= LENGTH_BYTES or size < header:
            return size + 1
        tensors = json.loads(file.read(length).decode())
    ends = [int(about["data_offsets"][1]) for name, about in tensors.items() if name != "__metadata__"]
    return header + max(ends, default=0)
