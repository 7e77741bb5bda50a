"""Checkpoints on disk: whole or not there.

A checkpoint is a file, `step-000123.pt`, or a folder, `step-000123`, in which each rank has written its part. The
document `step-000123.json` is written last:

    {"file", "bytes", "sha256", "step", "epoch", "samples", "world_size", "time"}
    {"folder", "files": {name: {"bytes", "sha256"}}, "bytes", "step", …}

One whose document is missing, or does not agree with its files, does not exist. Of the whole ones the newest few are
kept. Tensors are read back as data (`weights_only`), never as code.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.errors import BadCheckpoint, NotWritten

DEFAULT_INTERVAL_S = 30.0
"""Default minimum time between two checkpoints."""

WHAT_TO_DO = (
    "Remove it to resume from an earlier one or to start over; under gpuctl, --resume-from names another run."
)


def path_of(folder: Path, step: int) -> Path:
    """Return where a checkpoint's parts lie; with `.pt`, its file, and with `.json`, its document."""
    return folder / f"step-{step:06d}"


def serialized(state: Mapping[str, Any]) -> memoryview:
    """Return a copy of the state as the bytes of a file."""
    content = io.BytesIO()
    torch.save(dict(state), content)
    return content.getbuffer()


def save(folder: Path, data: memoryview, *, step: int, keep: int, **about: float) -> Path:
    """Write a checkpoint and remove all but the newest `keep`. Raises NotWritten, and keeps the older ones then."""
    path = path_of(folder, step).with_suffix(".pt")
    manifest = {
        "file": path.name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "step": step,
        **about,
        "time": time.time(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)  # it would be of an earlier file of that name
        write_atomically(path, data)
        write_atomically(path.with_suffix(".json"), json.dumps(manifest).encode())
        prune(folder, newest_names(folder, keep, step))
    except OSError as error:
        raise not_written(path, str(error.strerror)) from error
    return path


def not_written(path: Path, reason: str) -> NotWritten:
    """Return the error for a checkpoint that could not be written."""
    return NotWritten(
        f"The checkpoint {path} can't be written: {reason}. Make room or give access there, or train with "
        "--checkpoint-every 0."
    )


def documents(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return name and document of each checkpoint, the newest first; the document of a damaged one is empty."""
    documents_by_name = []
    for path in sorted(folder.glob("step-*.json"), key=_step, reverse=True):
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError):
            document = None
        document = document if _is_listing(path, document) else {}
        documents_by_name.append((path.stem if "folder" in document else f"{path.stem}.pt", document))
    return documents_by_name


def files_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return size and digest of each file of a checkpoint, by its path within the checkpoints' folder."""
    if "folder" not in document:
        return {document["file"]: {"bytes": document.get("bytes"), "sha256": document["sha256"]}}
    return {f"{document['folder']}/{name}": about for name, about in document["files"].items()}


def problems(folder: Path, document: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the problems of these files of a checkpoint: `step-000123/__1_0.distcp is missing`."""
    files, messages = files_of(document), []
    for name in names:
        try:
            size, digest = summary(folder / name)
        except OSError:
            messages.append(f"{name} is missing")
            continue
        if files[name]["bytes"] is not None and size != files[name]["bytes"]:
            messages.append(f"{name} is torn, with {size} of {files[name]['bytes']} bytes")
        elif digest != files[name]["sha256"]:
            messages.append(f"{name} is damaged")
    return messages


def summary(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def load(path: Path) -> dict[str, Any]:
    """Read a file of `serialized` onto the CPU. Raises BadCheckpoint."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a malicious file may raise anything
        reason = str(error).split("\n")[0].split(". ")[0].rstrip(".")
        raise BadCheckpoint(
            f"The checkpoint {path} can't be read ({reason}). Nothing in it was run. {WHAT_TO_DO}"
        ) from error
    if not isinstance(state, dict):
        raise BadCheckpoint(f"The checkpoint {path} is not one of this job. {WHAT_TO_DO}")
    return state


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write the file so that at any instant `path` is the old or the whole new one. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def newest_names(folder: Path, keep: int, step: int) -> set[str]:
    """Return the names, without a suffix, of the newest `keep` checkpoints up to that step.

    Later checkpoints are incomplete, or of a run that was not resumed.
    """
    newest_first = sorted(folder.glob("step-*.json"), key=_step, reverse=True)
    return {path.stem for path in [path for path in newest_first if _step(path) <= step][:keep]}


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Remove all checkpoints but the named ones, and the incomplete files of a killed process. Raises OSError.

    Documents are removed first: a half-removed checkpoint does not count.
    """
    names = set(keep)
    for document in folder.glob("step-*.json"):
        if document.stem not in names:
            document.unlink(missing_ok=True)
    for left in folder.glob("step-*"):
        if left.is_dir() and left.name not in names:
            with contextlib.suppress(
                FileNotFoundError
            ):  # another node may remove it from the disk they share
                shutil.rmtree(left)
        elif left.suffix == ".part" or (left.suffix == ".pt" and left.stem not in names):
            left.unlink(missing_ok=True)


def _step(path: Path) -> int:
    number = path.stem.partition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_listing(path: Path, document: object) -> bool:
    """Return whether a document lists files of its own checkpoint, with their digests."""
    if not isinstance(document, dict):
        return False
    if "folder" not in document:
        return document.get("file") == f"{path.stem}.pt" and isinstance(document.get("sha256"), str)
    listed = document.get("files")
    if document["folder"] != path.stem or not isinstance(listed, dict):
        return False
    return bool(listed) and all(
        name not in ("", ".", "..")
        and "/" not in name
        and isinstance(about, dict)
        and isinstance(about.get("sha256"), str)
        and "bytes" in about
        for name, about in listed.items()
    )


def save_model(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a bare model's state_dict; at any instant, `path` is the old or the whole new file.

    The tensors are moved to the CPU. They are read back with `torch.load(path, weights_only=True)`.
    """
    content = io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in weights.items()}, content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getbuffer())
    except OSError as error:
        raise NotWritten(
            f"The model can't be written to {path}: {error.strerror}. Make room or give access there, or train with "
            "--no-save."
        ) from error
