"""Processes on a node, known by pid *and* birth, so that a reused pid is never taken for ours."""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from remote.shared.files import read_text

POLL_S = 0.5
"""How often a process is looked at where the system can't wait for it."""
MAX_OPEN_FILES = 1 << 20
"""Linux's own maximum. A container may allow a billion, and some programs close each number up to the limit."""

OPEN_MAX = 10240
"""What macOS allows where the hard limit says unlimited."""


def allow_open_files(count: int = MAX_OPEN_FILES) -> None:
    """Raise the soft limit of open files, which is often 1024, to `count`, or to the hard limit if that is lower.

    Child processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(count, OPEN_MAX if hard == resource.RLIM_INFINITY else hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # a hard limit above fs.nr_open can't be set again
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def boot_id() -> str:
    """Changes with every boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.decode().strip()


def birth(pid: int) -> Optional[str]:
    """Return the birth of a process, in the system's own units; `None` without such a live process."""
    if sys.platform == "linux":
        fields = read_text(Path("/proc/{}/stat".format(pid))).rpartition(")")[2].split()
        return None if not fields or fields[0] in "ZX" else fields[19]
    shown = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], stdout=subprocess.PIPE, check=False
    )
    state, _, started = shown.stdout.decode().strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def alive(pid: int, born: str) -> bool:
    """True while that very process lives."""
    return birth(pid) == born


def output_of(argv: Sequence[str], timeout_s: float) -> Tuple[Optional[int], str]:
    """Run a program; return its exit status and its output. `None`: it did not start, or did not end in time."""
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, done.stdout.decode(errors="replace")


def wait_for_end(pids: Sequence[int], timeout_s: float) -> None:
    """Return when one of the processes has ended, or after the timeout; they need not be children."""
    handles = []
    try:
        for pid in pids:
            handle = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]  # Linux, Python 3.9
            handles.append(handle)
        select.select(handles, [], [], timeout_s)
    except (AttributeError, OSError):
        time.sleep(min(timeout_s, 0.05))
    finally:
        for handle in handles:
            os.close(handle)


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group, if it exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def children(pid: int) -> List[int]:
    """Direct children of a process (Linux; elsewhere empty)."""
    tasks = Path("/proc/{}/task".format(pid)).glob("*/children")
    return [int(word) for task in tasks for word in read_text(task).split()]


def with_variable(name: str, value: str) -> List[int]:
    """Live processes of this user that were started with a variable of that value (Linux; elsewhere empty)."""
    assignment = "{}={}".format(name, value).encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # ended, or another user's
            continue
        if assignment in variables and birth(int(path.parent.name)) is not None:
            pids.append(int(path.parent.name))
    return pids


def name(pid: int) -> Optional[str]:
    """Return the system's name of a process (Linux; elsewhere, and without such a process, `None`)."""
    return read_text(Path("/proc/{}/comm".format(pid))).strip() or None


def start_detached(work: Callable[[int], None], died: str) -> None:
    """Run `work` in a process of its own session, which outlives this one; return once it says it has begun.

    It gets a descriptor: `ok` is that word, anything else is the reason for a failure begin, raised as OSError;
    `died` where it ended without a word.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        # Above all a lock, which a copy would hold as long as it runs.
        os.closerange(3, writer)
        os.closerange(writer + 1, 256)
        os.setsid()
        if os.fork() == 0:
            status = 1
            try:
                work(writer)
                status = 0
            finally:
                os._exit(status)
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    if answer != "ok":
        raise OSError(answer or died)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own (Linux; elsewhere nothing)."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def kill_descendants(deadline_s: float) -> None:
    """SIGKILL whatever descends from this process and reap it, until nothing is left or the deadline passed."""
    limit = time.monotonic() + deadline_s
    while time.monotonic() < limit:
        for pid in children(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def detach(work: Callable[[], None]) -> None:
    """Do work in a process that has nothing to do with this one any more."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            os.closerange(3, 256)
            work()
    finally:
        os._exit(0)


def lives_on(pid: int, born: str, seconds: float) -> bool:
    """Wait that long; False, and at once, where that very process ends before."""
    limit = time.monotonic() + seconds
    while alive(pid, born):
        left_s = limit - time.monotonic()
        if left_s <= 0:
            return True
        began = time.monotonic()
        wait_for_end([pid], left_s)
        if time.monotonic() - began < left_s and alive(pid, born):
            # Where the system can't wait for a process, looking costs one of its own (macOS).
            time.sleep(min(POLL_S, max(0.0, limit - time.monotonic())))
    return False
