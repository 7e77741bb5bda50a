"""The command line, the workflow behind it, and what people see of a run.

Importing this package costs nothing: everything heavy is imported by the command that needs it.
"""


def version() -> str:
    """The installed version. `importlib.metadata` is slow to import, so it is asked when it is needed."""
    from importlib import metadata

    try:
        return metadata.version("gpuctl-train")
    except metadata.PackageNotFoundError:
        return "unknown (a checkout that is not installed)"
