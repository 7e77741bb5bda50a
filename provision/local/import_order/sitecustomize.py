"""Lets a script's own folders `train`, `remote`, … win over gpuctl's packages of those names on local hosts.

Local hosts use the Python that gpuctl is installed in. There, Python would take gpuctl's package even where a folder
of the script's comes first, if that has no `__init__.py`. On other machines gpuctl is not installed. Python imports
this module as it starts. It imports nothing of ours: it runs in the user's process.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, os.pardir, os.pardir, os.pardir))
"""The folder that gpuctl's packages are in."""
PACKAGES = ("inventories", "provision", "remote", "train")


class UsersFirst:
    """Finds a package of one of those names outside ROOT. Where there is none, Python goes on to look."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205, ARG004
        """Return where the package is, or None."""
        if name not in PACKAGES:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(
            name, [at for at in sys.path if os.path.realpath(at or os.curdir) != ROOT]
        )


def import_next() -> None:
    """Import the user's own `sitecustomize`, which this one stands before."""
    import importlib

    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    sys.path[:] = [at for at in sys.path if os.path.abspath(at or os.curdir) != HERE]
    sys.meta_path.insert(0, UsersFirst())
    import_next()
