"""Listening TCP ports of this machine, and processes' open files. Linux's /proc only."""

import os
import socket
import struct
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from remote.shared.files import read_text

PROC = Path("/proc")
LISTEN = "0A"
"""State of a listening socket in the kernel's tables."""
MAX_COMMAND = 80
"""Letters of a command line that are shown."""


def read(proc: Path = PROC) -> List[Dict[str, Any]]:
    """`address`, `port`, `pid` and `command` of every listening socket, by port; empty without /proc.

    `pid` and `command` are `None` where the process is another user's, or the kernel itself.
    """
    entries = [entry for name in ("tcp", "tcp6") for entry in parse(read_text(proc / "net" / name))]
    holders = socket_holders(proc) if entries else {}
    rows = []
    for address, port, inode in sorted(entries, key=lambda entry: (entry[1], entry[0])):
        pid = holders.get(inode)
        rows.append(
            {
                "address": address,
                "port": port,
                "pid": pid,
                "command": None if pid is None else command_of(pid, proc),
            }
        )
    return rows


def parse(table: str) -> List[Tuple[str, int, str]]:
    """Address, port and inode of the listening sockets in the text of /proc/net/tcp or tcp6."""
    entries = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == LISTEN:
            address, _, port = words[1].partition(":")
            # The kernel prints addresses as 32-bit words in the machine's own byte order.
            parts = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
            packed = struct.pack("={}I".format(len(parts)), *parts)
            family = socket.AF_INET if len(parts) == 1 else socket.AF_INET6
            entries.append((socket.inet_ntop(family, packed), int(port, 16), words[9]))
    return entries


def socket_holders(proc: Path = PROC) -> Dict[str, int]:
    """Return inode of a socket → the first process that holds it, among the processes that this user may inspect."""
    holders: Dict[str, int] = {}
    for pid in pids(proc):
        for target in open_files(pid, proc):
            if target.startswith("socket:["):
                holders.setdefault(target[len("socket:[") : -1], pid)
    return holders


def pids(proc: Path = PROC) -> List[int]:
    """Return the existing processes, lowest first; empty without /proc."""
    names = os.listdir(str(proc)) if proc.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def open_files(pid: int, proc: Path = PROC) -> List[str]:
    """Return the targets of a process's file descriptors; empty for another user's process, or an ended one."""
    folder = "{}/{}/fd".format(proc, pid)
    inodes = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            inodes.append(os.readlink("{}/{}".format(folder, name)))
        except OSError:
            continue  # closed since then
    return inodes


def command_of(pid: int, proc: Path = PROC) -> Optional[str]:
    """Return a process's command line, shortened; its name without one; `None` if it has ended."""
    words = read_text(proc / str(pid) / "cmdline").split("\0")
    line = " ".join(words).strip() or read_text(proc / str(pid) / "comm").strip()
    return line[:MAX_COMMAND] or None
