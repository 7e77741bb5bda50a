"""Pickled arrays of bytes, read without running anything that the file says.

A pickle is a program: it names functions, which `pickle.load` calls. Here the few names with which numpy's arrays are
written stand for harmless classes of this module, from which the array is then made, and any other name is an error.
"""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from train.data.images import REPLACE
from train.errors import BadData


def read_arrays(path: Path) -> dict[str, Any]:
    """The dict that is pickled in the file, its arrays as numpy's, of uint8. Else BadData.

    Reads what Python 2 wrote, too; what was bytes there is text here, in latin-1.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file, encoding="latin1").load()
        if not isinstance(found, dict):
            raise BadData(f"{path} is not what it should be: a pickled dict. {REPLACE}")
        return {str(_text(name)): _array(value) for name, value in found.items()}
    except _Hostile as error:
        raise BadData(
            f"{path} was not opened: it names {error}, which no file of images needs and which may do harm. "
            "Find out where it comes from; then replace it."
        ) from error
    except BadData:
        raise
    except OSError as error:
        raise BadData(f"{path} can't be read: {error.strerror}. {REPLACE}") from error
    except Exception as error:  # a broken pickle may raise anything, as the documentation says
        raise BadData(
            f"{path} is not a whole pickle of images ({type(error).__name__}). {REPLACE}"
        ) from error


class _Hostile(Exception):
    """The name of something that a pickle wants."""


class _Dtype:
    """numpy's data type: its name. How its bytes are ordered does not matter for one byte."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """What numpy writes of an array."""

    state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.state = state


def _reconstruct(*_: object) -> _Array:
    """An array to be filled by its state."""
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Bytes, as Python 3 writes them for Python 2."""
    if encoding != "latin1":
        raise ValueError(encoding)
    return text.encode("latin1")


MEANT = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Knows the names of `MEANT` alone."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        try:
            return MEANT[module, name]
        except KeyError:
            raise _Hostile(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401 - as pickle has it
        raise _Hostile(f"the outside object {pid!r}")


def _text(value: object) -> object:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _array(value: object) -> object:
    """An array of bytes if it is one; raises ValueError for one of another type, or that is not whole."""
    if not isinstance(value, _Array):
        return value
    _, shape, dtype, column_major, content = value.state
    if not isinstance(dtype, _Dtype) or _text(dtype.name) not in ("u1", "|u1", "uint8") or column_major:
        raise ValueError("not rows of bytes")
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("no shape")
    raw = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(raw, bytes) or len(raw) != math.prod(shape):
        raise ValueError("not whole")
    return np.frombuffer(bytearray(raw), dtype=np.uint8).reshape(shape)
