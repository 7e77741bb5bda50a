"""Files of a script's checkpoints whose writer was killed, or is still at it. Standard library of Python 3.8."""

import json
from pathlib import Path

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
        return size == 0 or _is_zip_without_end(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return False


def _is_zip_without_end(path: Path) -> bool:
    import zipfile

    with open(str(path), "rb") as file:
        return file.read(len(ZIP_BEGIN)) == ZIP_BEGIN and not zipfile.is_zipfile(file)


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
