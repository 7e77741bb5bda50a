"""Opening a rank's GPU, which takes the driver seconds, while Python imports the job.

torch opens the GPU with its first use, and all other threads of Python wait then. Here a thread asks the driver,
before torch is imported. Errors are ignored: torch meets the same ones, and reports them.
"""

import ctypes
import functools
import importlib.util
import os
import re
import threading
from pathlib import Path


@functools.cache
def opening(local_rank: int) -> threading.Thread:
    """Return the thread that opens the GPU of that number; the first call starts it."""
    thread = threading.Thread(target=_open, args=(local_rank,), daemon=True)
    thread.start()
    return thread


def _open(number: int) -> None:
    """Initialize the driver, and make the context that the CUDA runtime, and so torch, uses."""
    if not _has_cuda():
        return
    # torch sets it, too: kernels are loaded with their first use.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # other threads run during its calls
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    except (OSError, AttributeError):  # no driver, or one that lacks these functions
        return


def _has_cuda() -> bool:
    """Return whether torch's build uses CUDA: otherwise an open GPU only takes memory. torch is not imported."""
    torch = importlib.util.find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        return re.search(r"^cuda\b[^=\n]*=\s*[\"']", text, re.MULTILINE) is not None
    return False
