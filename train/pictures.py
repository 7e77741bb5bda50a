"""One picture: read from its file, brought to its size, mirrored and shifted.

Needs no torch, so that a process which does nothing else begins at once.
"""

import struct
from pathlib import Path

import numpy as np

from train.errors import BadData, BadEnvironment


def decode(path: Path, size: int) -> np.ndarray:
    """[3, size, size], uint8: the middle of the picture, its shorter side brought to `size`. Else BadData."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise BadEnvironment(
            "Pillow, which reads pictures, is not installed here. Run: pip install pillow"
        ) from error
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            image.draft("RGB", (size, size))  # a large JPEG is decoded at a half, a quarter, an eighth
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
            return np.asarray(fitted).transpose(2, 0, 1)
    # What Pillow raises, by the format and by what is wrong with it.
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadData(f"{path} can't be read as a picture ({reason}). Replace it or remove it.") from error


def augmented(image: np.ndarray, *, flip: bool, down: int, right: int) -> np.ndarray:
    """[c, h, w] as `train.sampling.augment` has it: mirrored, then what is so far down and right, else 0."""
    if flip:
        image = image[:, :, ::-1]
    reach = max(abs(down), abs(right))
    if not reach:
        return image
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)))
    return padded[:, reach + down : reach + down + height, reach + right : reach + right + width]
