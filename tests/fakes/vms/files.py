"""Writes a host's image to disk, as the upper layer of its file system."""

import os
import shutil
import sys
from pathlib import Path

from tests.fakes.vms.image import Accounts, File, Ground, Link
from tests.fakes.vms.lacking import faketime

HIDDEN = (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/home", 0o755))
"""Folders of this machine that a host does not see, but has empty."""


def ground() -> Ground:
    """Return the properties of this machine."""
    accounts = Accounts(
        passwd=Path("/etc/passwd").read_text(),
        group=Path("/etc/group").read_text(),
        shadow=Path("/etc/shadow").read_text(),
    )
    persistent = Path("/usr/sbin/netfilter-persistent").exists()
    return Ground(accounts=accounts, netfilter_persistent=persistent, faketime=faketime())


def write_image(upper: Path, files: tuple[File, ...], links: tuple[Link, ...]) -> None:
    """Write the upper layer of a host before its first boot."""
    upper.mkdir()
    upper.chmod(0o755)
    for path, mode in HIDDEN:
        _add_parents(upper, Path(path))
        folder = upper / path.lstrip("/")
        folder.mkdir()
        folder.chmod(mode)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")
    _open_the_way(upper, Path(sys.executable).resolve())
    for file in files:
        _add_parents(upper, Path(file.path), owner=file.owner)
        target = upper / file.path.lstrip("/")
        target.write_text(file.text)
        target.chmod(file.mode)
        os.chown(target, *file.owner)
    for link in links:
        _add_parents(upper, Path(link.path))
        (upper / link.path.lstrip("/")).symlink_to(link.target)


def _add_parents(upper: Path, path: Path, owner: tuple[int, int] = (0, 0)) -> None:
    """Create the folders above a file, with the owner and mode of this machine's folders where these exist."""
    for below in reversed(path.parents[:-1]):
        folder = upper / str(below).lstrip("/")
        if folder.exists():
            continue
        folder.mkdir(mode=0o755)
        if below.is_dir():
            status = below.stat()
            shutil.copymode(below, folder)
            os.chown(folder, status.st_uid, status.st_gid)
        else:
            # A home and `.ssh`, or a folder of /etc that the image adds.
            os.chown(folder, *owner)
            folder.chmod(0o700 if folder.name == ".ssh" else 0o755)


def _open_the_way(upper: Path, program: Path) -> None:
    """Let users pass through the folders above a program, such as one in root's home."""
    _add_parents(upper, program)
    for below in program.parents[:-1]:
        folder = upper / str(below).lstrip("/")
        folder.chmod(folder.stat().st_mode | 0o011)
