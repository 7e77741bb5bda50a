"""Checkpoints on disk: whole or not there.

A checkpoint is two files, `step-000123.pt` and then `step-000123.json`:

    {"file", "bytes", "sha256", "step", "epoch", "samples", "world_size", "time"}

One whose second file is missing, or does not agree with the first, does not exist. Of the whole ones the newest few
are kept. Only rank 0 writes and reads; tensors are read back as data (`weights_only`), never as code.
"""

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train.errors import BadCheckpoint, NotWritten

DEFAULT_INTERVAL_S = 30.0
"""Between two checkpoints, at least, where the options say nothing."""

WHAT_TO_DO = (
    "Remove it to resume from an earlier one or to start over; under gpuctl, --resume-from names another run."
)


def save(folder: Path, state: Mapping[str, Any], *, step: int, keep: int, **about: float) -> Path:
    """Write a checkpoint and remove all but the newest `keep`. Raises NotWritten; the older ones are there then."""
    content = io.BytesIO()
    torch.save(dict(state), content)
    data = content.getbuffer()
    path = folder / f"step-{step:06d}.pt"
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
        _prune(folder, keep, step)
    except OSError as error:
        raise NotWritten(
            f"The checkpoint {path} can't be written: {error.strerror}. Make room or give access there, or train "
            "with --checkpoint-every 0."
        ) from error
    return path


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint."""
    for manifest in sorted(folder.glob("step-*.json"), key=_step, reverse=True):
        path = manifest.with_suffix(".pt")
        try:
            content = json.loads(manifest.read_bytes())
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            whole = isinstance(content, dict) and content.get("sha256") == digest
        except (OSError, ValueError):
            whole = False
        if whole:
            return path
    return None


def skipped(folder: Path, path: Path | None) -> list[str]:
    """Return the names of checkpoints newer than the newest whole one: they are incomplete or damaged."""
    manifests = sorted(folder.glob("step-*.json"), key=_step)
    return [one.with_suffix(".pt").name for one in manifests if path is None or _step(one) > _step(path)]


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU. Raises BadCheckpoint."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a file that is made to do harm raises in an unpickler can be anything
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
    """Make a rename in the folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prune(folder: Path, keep: int, step: int) -> None:
    """Remove all but the newest ones up to that step; later ones are not whole, or of a run that was not resumed.

    What a killed process has left of one that it was writing or removing is removed, too.
    """
    found = sorted(folder.glob("step-*.json"), key=_step, reverse=True)
    kept = {manifest.stem for manifest in [one for one in found if _step(one) <= step][:keep]}
    for manifest in found:
        if manifest.stem not in kept:
            manifest.unlink(missing_ok=True)
    for left in [*folder.glob("step-*.pt"), *folder.glob("step-*.part")]:
        if left.suffix == ".part" or left.stem not in kept:
            left.unlink(missing_ok=True)


def _step(path: Path) -> int:
    number = path.stem.partition("-")[2]
    return int(number) if number.isdecimal() else -1
