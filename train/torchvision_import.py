"""Import torchvision, even if it was built for another torch.

torchvision's usual wheel is built for a torch with CUDA. With a CPU-only torch its compiled library does not load,
and `import torchvision` fails because it looks up two of that library's operators by name. Networks and datasets need
neither. So if the library does not load, and only then, these names are declared before the import; nothing replaces
the operators, and calling one is an error.
"""

import functools
import importlib
import importlib.machinery
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from train.errors import BadEnvironment

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators that `import torchvision` looks up even if its library was not loaded."""


@functools.cache
def import_torchvision() -> Any:  # noqa: ANN401 - a module, whose names are only known where it is installed
    """Import the module. Raises BadEnvironment where it is not installed, or does not fit the installed torch."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise BadEnvironment("torchvision is not installed here. Run: python -m pip install torchvision")
    if not _library_loads(Path(spec.origin).parent):
        for schema in SCHEMAS:
            if not hasattr(torch.ops.torchvision, schema.split("(")[0]):
                _library().define(schema)  # type: ignore[no-untyped-call]
    try:
        module: ModuleType = importlib.import_module("torchvision")
    except (ImportError, RuntimeError, AttributeError) as error:
        raise BadEnvironment(
            f"torchvision can't be imported beside torch {torch.__version__} ({str(error).splitlines()[0]}). "
            "Install the version that belongs to it: python -m pip install --upgrade torch torchvision"
        ) from error
    return module


def _library_loads(folder: Path) -> bool:
    """Try to load torchvision's compiled library; its import then does so again to no effect."""
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    library = importlib.machinery.FileFinder(str(folder), loader).find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


@functools.cache
def _library() -> torch.library.Library:
    """Return the library of the declarations, which last as long as it does."""
    return torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
