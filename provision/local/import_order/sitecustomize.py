"""Precedence of a script's own folders `train`, `remote`, … over gpuctl's packages of these names on local hosts.

Local hosts use the Python that gpuctl is installed in. If a folder of the script's has no `__init__.py`, Python would
take gpuctl's package even if the folder is earlier on the path. On other machines gpuctl is not installed. Python
imports this module as it starts. It runs in the user's process, so it imports no package of ours.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, os.pardir, os.pardir, os.pardir))
"""The folder of gpuctl's packages."""
PACKAGES = ("inventories", "provision", "remote", "train")


class UsersFirst:
    """A finder of packages of these names outside ROOT. Without a result, Python asks its next finder."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205, ARG004
        """Return the package's spec. `None`: not found."""
        if name not in PACKAGES:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(
            name, [at for at in sys.path if os.path.realpath(at or os.curdir) != ROOT]
        )


def import_next() -> None:
    """Import the user's own `sitecustomize`, which ours hides."""
    import importlib

    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    sys.path[:] = [at for at in sys.path if os.path.abspath(at or os.curdir) != HERE]
    sys.meta_path.insert(0, UsersFirst())
    import_next()
