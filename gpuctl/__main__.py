"""The start of `gpuctl` and of `python -m gpuctl`.

Puts the user's folders behind ours on `sys.path` before anything of ours is imported, and answers what
needs no command (`gpuctl`, `--help`, `--version`) without importing more than a table of names.
"""

import gc
import os
import sys


def demote_user_folders() -> None:
    """Move the current folder and the entries of PYTHONPATH to the end of `sys.path`.

    A user's `train.py`, `remote.py` or `queue.py` must not stand in for ours or the standard library's;
    what we depend on may live there, so the folders stay reachable. The folder that holds this package
    keeps its place, and gets one before the user's folders if it was found in another way.
    """
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120 - pathlib is slow to import
    users = {_real(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    users.add(_real(""))
    users.discard(ours)
    rest = [entry for entry in sys.path if _real(entry) not in users]
    demoted = [entry for entry in sys.path if _real(entry) in users]
    if demoted and ours not in map(_real, rest):
        rest.append(ours)
    sys.path[:] = rest + demoted


def _real(entry: str) -> str:
    """An entry of `sys.path` as an absolute path without links; empty stands for the current folder."""
    try:
        return os.path.realpath(entry or os.curdir)
    except OSError:  # the current folder has been deleted
        return entry


def main() -> int:
    """Run gpuctl with the arguments of this process; returns the exit status."""
    demote_user_folders()
    arguments = sys.argv[1:]
    completing = "_GPUCTL_COMPLETE" in os.environ  # the shell asks click for completions
    if not completing and arguments in ([], ["-h"], ["--help"]):
        from gpuctl.command_line import root_help

        return _print(root_help.text())
    if not completing and arguments == ["--version"]:
        import gpuctl

        return _print(f"gpuctl {gpuctl.version()}")
    # A command imports for a tenth of a second, and hardly makes garbage: to look through it all again and again,
    # and a last time at the interpreter's end, costs a quarter of a short command's time.
    gc.set_threshold(100_000, 50, 100)
    try:
        from gpuctl.command_line import cli

        status = cli.main(arguments)
    except KeyboardInterrupt:  # while it imports
        print("error: Interrupted.", file=sys.stderr)
        status = 130
    gc.freeze()
    return status


def _print(text: str) -> int:
    """Print to stdout; a reader that went away early (`gpuctl --help | true`) is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes stdout again when it exits, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
