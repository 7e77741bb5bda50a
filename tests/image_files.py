"""Small data sets in the formats of the real ones, written as their authors wrote them."""

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR_BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def idx(values: np.ndarray) -> bytes:
    """Return an IDX file of bytes."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def mnist(training: int = 50, test: int = 20, side: int = 28) -> dict[str, bytes]:
    """Return the four files by their names; labels cycle through 0 .. 9; each image's first pixel is its number."""
    files = {}
    for part, count in (("train", training), ("test", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, side, side))
        images[:, 0, 0] = np.arange(count) % 256
        names = MNIST_FILES[part]
        files[names[0]], files[names[1]] = idx(images), idx(np.arange(count) % 10)
    return files


def write_mnist(folder: Path, *, zipped: bool = False, **sizes: int) -> Path:
    """Write the files in torchvision's layout, and return their folder."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in mnist(**sizes).items():
        if zipped:
            (raw / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (raw / name).write_bytes(content)
    return folder


class _Python2Pickler(pickle._Pickler):
    """Writes what Python 2 and the numpy of its time wrote in protocol 2: bytes as its strings, numpy's old names."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_text(self, value: str) -> None:
        self.save_bytes(value.encode("ascii"))

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name or value.__qualname__}\n".encode())
        self.memoize(value)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_text
    dispatch[type] = save_global
    dispatch[type(idx)] = save_global
    dispatch[type(len)] = save_global


def python2_pickle(value: object) -> bytes:
    """Pickle dicts, lists, numbers, text and arrays as Python 2 does."""
    content = io.BytesIO()
    _Python2Pickler(content, protocol=2).dump(value)
    return content.getvalue()


def cifar_batch(count: int, seed: int) -> dict[str, Any]:
    """Return the content of a batch; labels cycle through 0 .. 9."""
    data = np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
    labels = [number % 10 for number in range(count)]
    return {
        "batch_label": f"batch {seed}",
        "labels": labels,
        "data": data,
        "filenames": [f"{number}.png" for number in labels],
    }


def cifar10(count: int = 12) -> dict[str, bytes]:
    """Return the files of the Python version by their names, `count` images in each batch."""
    files = {name: python2_pickle(cifar_batch(count, seed)) for seed, name in enumerate(CIFAR_BATCHES, 1)}
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    files["batches.meta"] = python2_pickle(
        {"label_names": names, "num_vis": 3072, "num_cases_per_batch": count}
    )
    return files


def write_cifar10(folder: Path, count: int = 12) -> Path:
    """Write the Python version to a data folder, and return the folder."""
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name, content in cifar10(count).items():
        (batches / name).write_bytes(content)
    return folder


def write_cifar10_binary(folder: Path, count: int = 12) -> Path:
    """Write the binary version of the same images, and return the folder."""
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for seed, name in enumerate(CIFAR_BATCHES, 1):
        batch = cifar_batch(count, seed)
        rows = np.column_stack([np.array(batch["labels"], dtype=np.uint8), batch["data"]])
        (batches / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def write_picture(
    path: Path, *, color: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (20, 16)
) -> Path:
    """Write a picture of one color; the suffix sets the format. `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path
