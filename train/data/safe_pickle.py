"""Reading pickled arrays of bytes without running anything that the file names.

A pickle is a program: it names functions, and `pickle.load` calls them. Here the few names that numpy writes for an
array stand for harmless classes of this module, from which the array is then made. Any other name is an error.
"""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from train.data.dataset import REPLACE
from train.errors import BadData


def read_arrays(path: Path) -> dict[str, Any]:
    """Read the dict that is pickled in the file, with numpy's arrays of uint8. Raises BadData.

    Reads what Python 2 wrote, too; its strings become text, in latin-1.
    """
    try:
        with path.open("rb") as file:
            arrays = _Unpickler(file, encoding="latin1").load()
        if not isinstance(arrays, dict):
            raise BadData(f"{path} is not what it should be: a pickled dict. {REPLACE}")
        return {str(_as_text(name)): _as_array(value) for name, value in arrays.items()}
    except _Forbidden as error:
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


class _Forbidden(Exception):
    """A pickle names something that it may not."""


class _Dtype:
    """Stands for numpy's data type. The order of its bytes does not matter for one byte."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands for numpy's array."""

    state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.state = state


def _reconstruct(*_: object) -> _Array:
    """Return an array that gets its state next."""
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Decode bytes as Python 3 writes them for Python 2."""
    if encoding != "latin1":
        raise ValueError(encoding)
    return text.encode("latin1")


ALLOWED = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Allows the names in `ALLOWED` alone."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401 - as pickle has it
        raise _Forbidden(f"the outside object {pid!r}")


def _as_text(value: object) -> object:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _as_array(value: object) -> object:
    """Make an array of bytes of a stand-in. Raises ValueError for one of another type, or that is not whole."""
    if not isinstance(value, _Array):
        return value
    _, shape, dtype, column_major, content = value.state
    if not isinstance(dtype, _Dtype) or _as_text(dtype.name) not in ("u1", "|u1", "uint8") or column_major:
        raise ValueError("not rows of bytes")
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("no shape")
    raw = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(raw, bytes) or len(raw) != math.prod(shape):
        raise ValueError("not whole")
    return np.frombuffer(bytearray(raw), dtype=np.uint8).reshape(shape)
