"""The trained model on disk."""

import io
from pathlib import Path

import torch
from torch import nn

from train.checkpoint import write_whole
from train.errors import NotWritten


def save_model(model: nn.Module, path: Path) -> None:
    """Write the bare model's state_dict; at any instant, `path` is what it was before or the whole new file.

    The tensors are put on the CPU. They are read back with `torch.load(path, weights_only=True)`.
    """
    content = io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getbuffer())
    except OSError as error:
        raise NotWritten(
            f"The model can't be written to {path}: {error.strerror}. Make room or give access there, or train with "
            "--no-save."
        ) from error
