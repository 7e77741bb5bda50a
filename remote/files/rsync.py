"""The system's rsync as a faster way for many bytes: it brings the files of a sync, over an ssh of its own.

Never more than a help: files that it did not bring, for whatever reason, are sent over the open connection.
"""

import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

VERSION_S = 30.0
IO_TIMEOUT_S = 60
"""rsync ends after this time without progress."""
SILENCE_S = 600.0
"""The maximum silence; rsync's own limit begins once both sides talk."""
CIPHERS = "^aes128-gcm@openssh.com"
"""The one first that processors have instructions for, then ssh's own choice."""
OLDEST = (3, 1)
"""Keeps modification times in ns, and says how many bytes it has sent. macOS has an older one, or openrsync."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The folder on a node that takes the files, and how ssh gets there."""

    ssh_config: Path
    """A configuration for OpenSSH in which the node is a `Host`."""
    host: str
    root: str
    """Absolute."""
    temporary: str
    """A folder on the disk of `root`, relative to it: files grow there. rsync is slow with an absolute one."""
    partial: str
    """Absolute. Receives the partial files of an interruption."""

    @classmethod
    def of(cls, need: Mapping[str, Any], host: str, ssh_config: Path) -> Self:
        """Read the node's offer in its `need`."""
        offer = need["rsync"]
        return cls(
            ssh_config=ssh_config,
            host=host,
            root=need["root"],
            temporary=offer["temporary"],
            partial=offer["partial"],
        )


@cache
def usable() -> bool:
    """Return whether this computer has ssh and an rsync that is new enough."""
    if shutil.which("ssh") is None or shutil.which("rsync") is None:
        return False
    try:
        output = subprocess.run(
            ["rsync", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=VERSION_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return version(output.stdout) >= OLDEST


def version(text: str) -> tuple[int, ...]:
    """Return the version in the output of `rsync --version`; (0,) for other programs than Tridgell's rsync."""
    match = re.match(r"rsync +version v?(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else (0,)


def argv(target: Target) -> list[str]:
    """The command that sends the files named on its standard input, ended by NUL, of the folder it runs in."""
    ssh = ["ssh", "-F", str(target.ssh_config), "-o", f"Ciphers={CIPHERS}"]
    ssh += ["-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
    return [
        "rsync", "--files-from=-", "--from0", "--perms", "--times",
        # Named files have changed: their time and size may suggest otherwise, to the second.
        "--ignore-times",
        # Folders, and links to folders, stay what they are there.
        "--no-implied-dirs",
        "--protect-args", f"--temp-dir={target.temporary}", f"--partial-dir={target.partial}",
        f"--timeout={IO_TIMEOUT_S}", "--info=progress2", "--no-human-readable", "--outbuf=N",
        f"--rsh={' '.join(map(_quoted, ssh))}",
        "--", "./", f"{target.host}:{target.root}/",
    ]  # fmt: skip


def _quoted(word: str) -> str:
    """A word as rsync takes it apart: a quote within quotes is doubled."""
    return word if re.fullmatch(r"[\w@%+=:,./^-]+", word, re.ASCII) else "'" + word.replace("'", "''") + "'"


def bring(target: Target, folder: Path, paths: Sequence[str], on_bytes: Callable[[int], None]) -> str:
    """Send files of `folder`; empty when all have come, else why not, in a few words.

    `on_bytes` gets the bytes so far, at most once a second or so.
    """
    with tempfile.TemporaryFile() as names, tempfile.TemporaryFile() as errors:
        # A name that begins with # would be a comment.
        names.write(b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths))
        names.seek(0)
        with subprocess.Popen(
            argv(target), cwd=folder, stdin=names, stdout=subprocess.PIPE, stderr=errors, bufsize=0
        ) as process:
            assert process.stdout is not None
            try:
                # Silence ends it: ssh may wait for an agent, or for a name.
                while ready := select.select([process.stdout], [], [], SILENCE_S)[0]:
                    if not (output := process.stdout.read(4096)):
                        break
                    if sent := sent_bytes(output):
                        on_bytes(sent)
                if not ready:
                    process.kill()
                    return f"nothing was heard of it for {SILENCE_S:.0f} s"
            except BaseException:
                process.kill()
                raise
        if process.returncode == 0:
            return ""
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
    # The reason comes first, often ssh's own, and then rsync's message about it.
    return next((line.strip() for line in lines if line.strip()), f"exit status {process.returncode}")


def sent_bytes(output: bytes) -> int:
    """Return the number of bytes in rsync's last complete line of progress; 0 without one."""
    counts = re.findall(rb"\r\s*(\d+)\s+\d+%", output)
    return int(counts[-1]) if counts else 0
