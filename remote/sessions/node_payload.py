"""Transfer of the node's part (`remote/node`) to a node, and the commands for it."""

import base64
import hashlib
import io
import shlex
import zlib
from functools import cache
from pathlib import Path

import remote
from remote.shared import greeting
from remote.shared.constants import DISK_FULL, FAILED, NODE_FOLDER, NOT_WRITABLE, PROGRAM_GONE, PROGRAMS

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
root = os.path.expanduser("~/{NODE_FOLDER}")
home = os.path.join(root, "{PROGRAMS}", sys.argv[1])
if os.path.isdir(home):
    sys.stdout.buffer.write(b"\\n" + INSTALLED)
greet(sys.stdin.buffer, sys.stdout.buffer)
data = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
if not data and not os.path.isdir(home):
    os._exit({PROGRAM_GONE})  # without a number of lines
sys.stdout.flush()
temporary = "%s.%s" % (home, os.urandom(8).hex())
try:
    if data and not os.path.isdir(home):
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
sys.argv = [home] + sys.argv[2:]
import runpy
runpy.run_path(home, run_name="__main__")
"""
"""Says whether the machine has the payload; else reads it from standard input and unpacks it. Then runs it."""


@cache
def _files() -> list[tuple[str, bytes]]:
    """Return the names and the contents of the files for the nodes, sorted by name."""
    root = Path(remote.__file__).parent
    sources = [root / "__init__.py", *(path for part in SENT for path in (root / part).rglob("*.py"))]
    files = [(f"remote/{path.relative_to(root).as_posix()}", path.read_bytes()) for path in sources]
    return sorted([("__main__.py", ENTRY.encode()), *files])


@cache
def digest() -> str:
    """Return the digest of the files for the nodes."""
    parts = (b"%s %d\n%s" % (name.encode(), len(data), data) for name, data in _files())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@cache
def packed() -> bytes:
    """Return the archive for the nodes, compressed. The same sources give the same bytes.

    It is compressed as a whole, as its modules are much alike: a quarter less than each alone.
    """
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in _files():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_STORED)
    return zlib.compress(buffer.getvalue())


def first_command(python: str, command: str) -> str:
    """Return the shell command of a connection's first request, which reads `to_send` ahead of the request."""
    boot = base64.b64encode(zlib.compress(BOOT.encode(), 9)).decode()
    return _through_sh(shlex.join([python, "-I", "-c", DECODE, boot, digest(), command]))


def to_send(*, installed: bool) -> bytes:
    """Return the size and the payload that the first request sends after BEGIN. `installed`: size 0, no payload."""
    data = b"" if installed else packed()
    return b"%d\n%s" % (len(data), data)


def next_command(python: str, command: str) -> str:
    """The shell command of every later request."""
    # The shell expands ~: home folders may have names that are not ours to guess.
    program = f'"$HOME"/{NODE_FOLDER}/{PROGRAMS}/{digest()}'
    return _through_sh(f"{shlex.quote(python)} -I {program} greet {shlex.quote(command)}")


def _through_sh(words: str) -> str:
    """The command for any login shell: csh, fish and zsh take it, too."""
    return f"exec /bin/sh -c {shlex.quote(SHELL)} {words}"


def argv_on_node(python: str, home: str, *arguments: str, isolated: bool = True) -> list[str]:
    """The argv of the node's part, for a process started on the node itself, whose home folder is known.

    `isolated`: from the user's variables for Python and packages; its output is not buffered otherwise.
    """
    return [python, "-I" if isolated else "-u", f"{home}/{NODE_FOLDER}/{PROGRAMS}/{digest()}", *arguments]
