"""Decode an image: read it from its file, resize, mirror and shift it.

Imports no torch, so that Ray's tasks start at once.
"""

import struct
from pathlib import Path

import numpy as np

from train.errors import BadData, BadEnvironment


def decode(path: Path, size: int) -> np.ndarray:
    """Read the middle of an image as [3, size, size] bytes, its shorter side resized. Raises BadData."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise BadEnvironment(
            "Pillow, which reads images, is not installed here. Run: pip install pillow"
        ) from error
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            image.draft("RGB", (size, size))  # a large JPEG is decoded at a half, a quarter, an eighth
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
            return np.asarray(fitted).transpose(2, 0, 1)
    # Pillow's exception depends on the format and the damage.
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadData(f"{path} can't be read as an image ({reason}). Replace it or remove it.") from error


def augment_one(image: np.ndarray, *, flip: bool, down: int, right: int) -> np.ndarray:
    """Mirror and shift an image [c, h, w], as `train.batches.sampling.augment` does, and fill up with 0."""
    if flip:
        image = image[:, :, ::-1]
    margin = max(abs(down), abs(right))
    if not margin:
        return image
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (margin, margin), (margin, margin)))
    return padded[:, margin + down : margin + down + height, margin + right : margin + right + width]
