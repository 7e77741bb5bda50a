"""The trained model on disk."""

import contextlib
import io
import os
from pathlib import Path

import torch
from torch import nn

from train.errors import NotWritten


def save_model(model: nn.Module, path: Path) -> None:
    """Write the model's state_dict; at any instant, `path` is what it was before or the whole new file.

    The tensors are put on the CPU. They are read back with `torch.load(path, weights_only=True)`.
    """
    content = io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, content)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise NotWritten(
            f"The model can't be written to {path}: {error.strerror}. Make room or give access there, or train with "
            "--no-save."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
