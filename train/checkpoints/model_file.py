"""The file of the trained model."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from train.checkpoints.files import write_atomically
from train.errors import NotWritten


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
