"""The command line, the workflow behind it, and what people see of a run.

Importing this package costs nothing: everything heavy is imported by the command that needs it.
"""


def __getattr__(name: str) -> str:
    """`gpuctl.__version__`, looked up when asked for: `importlib.metadata` is slow to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gpuctl")
    raise AttributeError(f"module 'gpuctl' has no attribute {name!r}")
