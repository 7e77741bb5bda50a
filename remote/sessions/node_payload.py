"""Transfer of the node's part (`remote/node`) to a node, and the commands for it."""

import base64
import hashlib
import io
import shlex
import zipfile
import zlib
from functools import cache
from pathlib import Path

import remote
from remote.shared import greeting
from remote.shared.constants import DISK_FULL, FAILED, NODE_FOLDER, NOT_WRITABLE, PROGRAMS

ENTRY = "import sys\n\nfrom remote.node.__main__ import run\n\nrun(sys.argv[1:])\n"
SENT = ("node", "shared")
"""The folders of `remote` that go to the nodes."""

SHELL = f'echo; echo {shlex.quote(greeting.RUNS.decode().strip())}; exec "$0" "$@"'
"""For /bin/sh, which every login shell can start: what follows is understood alike on all machines."""

DECODE = "import sys, base64, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
"""A program without line ends, which csh does not take between quotes."""

BOOT = f"""\
{Path(greeting.__file__).read_text()}
import os, sys
greet(sys.stdin.buffer, sys.stdout.buffer)
digest, size = sys.argv[1], int(sys.argv[2])
data = sys.stdin.buffer.read(size)
root = os.path.expanduser("~/{NODE_FOLDER}")
home = os.path.join(root, "{PROGRAMS}", digest)
temporary = "%s.%s" % (home, os.urandom(8).hex())
try:
    if not os.path.isdir(home):
        import io, shutil, zipfile, zlib
        os.makedirs(root, 0o700, exist_ok=True)
        try:
            zipfile.ZipFile(io.BytesIO(zlib.decompress(data))).extractall(temporary)
            try:
                os.rename(temporary, home)
            except OSError:
                if not os.path.isdir(home):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
except OSError as error:
    sys.stderr.write("%s\\n" % error)
    statuses = {{28: {DISK_FULL}, 122: {DISK_FULL}, 1: {NOT_WRITABLE}, 13: {NOT_WRITABLE}, 30: {NOT_WRITABLE}}}
    sys.exit(statuses.get(error.errno, {FAILED}))
sys.argv = [home] + sys.argv[3:]
import runpy
runpy.run_path(home, run_name="__main__")
"""
"""Reads the packed payload from standard input, unpacks it once, and continues as its program."""


@cache
def packed() -> tuple[str, bytes]:
    """Return the archive for the nodes, compressed, with its digest. The same sources give the same bytes.

    It is compressed as a whole, as its modules are much alike: a quarter less than each alone.
    """
    root = Path(remote.__file__).parent
    sources = [root / "__init__.py", *sorted(path for part in SENT for path in (root / part).rglob("*.py"))]
    files = {f"remote/{path.relative_to(root).as_posix()}": path.read_bytes() for path in sources}
    files["__main__.py"] = ENTRY.encode()
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_STORED)
    return digest, zlib.compress(buffer.getvalue(), 9)


def first_command(python: str, command: str) -> tuple[str, bytes]:
    """Return the shell command of a connection's first request, and the bytes to send before it, after BEGIN."""
    digest, data = packed()
    boot = base64.b64encode(zlib.compress(BOOT.encode(), 9)).decode()
    return _through_sh(shlex.join([python, "-I", "-c", DECODE, boot, digest, str(len(data)), command])), data


def next_command(python: str, command: str) -> str:
    """The shell command of every later request."""
    # The shell expands ~: home folders may have names that are not ours to guess.
    program = f'"$HOME"/{NODE_FOLDER}/{PROGRAMS}/{packed()[0]}'
    return _through_sh(f"{shlex.quote(python)} -I {program} greet {shlex.quote(command)}")


def _through_sh(words: str) -> str:
    """The command for any login shell: csh, fish and zsh take it, too."""
    return f"exec /bin/sh -c {shlex.quote(SHELL)} {words}"


def argv_on_node(python: str, home: str, *arguments: str, isolated: bool = True) -> list[str]:
    """The argv of the node's part, for a process started on the node itself, whose home folder is known.

    `isolated`: from the user's variables for Python and packages; its output is not buffered otherwise.
    """
    return [python, "-I" if isolated else "-u", f"{home}/{NODE_FOLDER}/{PROGRAMS}/{packed()[0]}", *arguments]
