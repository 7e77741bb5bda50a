"""Installing the GPUs' driver on a node, with Ubuntu's own packages.

A process of its own does it, which outlives the connection and writes how far it is into a file; who asks follows
that file. One installation at a time: a second request follows the active one.
"""

import fcntl
import os
import re
import signal
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List

from remote.node import process
from remote.node.gpu import apt, driver_packages, gpus
from remote.node.gpu.apt import Failed
from remote.node.home_folder import NODE_HOME
from remote.shared import frames
from remote.shared.files import read_json, read_text, write_json

MACHINE_ID = Path("/etc/machine-id")


def machine_id() -> str:
    """This machine's own name, in a home that others may share."""
    return read_text(MACHINE_ID).strip() or os.uname().nodename


FOLDER = NODE_HOME / "driver" / machine_id()
STATUS = FOLDER / "status.json"
LOG = FOLDER / "apt.log"
OS_RELEASE = Path("/etc/os-release")
RUNNING_KERNEL = Path("/proc/sys/kernel/osrelease")
NEXT_KERNEL = Path("/boot/vmlinuz")
"""Ubuntu's link to the kernel that boots next."""
BEAT_S = 5.0
LOOK_S = 0.2


def command_driver(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `driver`: attempt, version, mirror_s, lock_s, follow_s.

    Begins the installation, unless one is active or this attempt has ended already; reports its phases and beats,
    for `follow_s`; then reports its end.
    """
    FOLDER.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(str(FOLDER / "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status = read_json(STATUS)
        mine_ended = status.get("attempt") == request["attempt"] and status.get("result") is not None
        if not mine_ended and not _goes_on(status):
            process.start_detached(
                lambda answers: _work(request, answers), "the installation of the driver died before it began"
            )
    _follow(output, request["attempt"], float(request["follow_s"]))


def _goes_on(status: Dict[str, Any]) -> bool:
    """Return whether the process that wrote this status is alive."""
    return (
        bool(status)
        and status["result"] is None
        and status["boot_id"] == process.boot_id()
        and process.alive(status["pid"], status["birth"])
    )


def _follow(output: BinaryIO, attempt: str, limit_s: float) -> None:
    """Report the status file until a result is in it, at most `limit_s`."""
    limit, beat = time.monotonic() + limit_s, 0.0
    reported = ("", "")
    while True:
        # In this order: what ends in between has written its result before.
        in_progress = _goes_on(read_json(STATUS))
        status = read_json(STATUS)
        # A status of an earlier boot, or of a machine of the same name, does not count.
        is_current = status.get("attempt") == attempt or status.get("boot_id") == process.boot_id()
        recorded = status.get("result") if is_current else None
        result = recorded if isinstance(recorded, dict) else None
        if result is None and not in_progress:
            result = {"state": "failed", "reason": "died", "facts": {"phase": status.get("phase", "")}}
        if result is None and time.monotonic() > limit:
            result = {"state": "going on"}
        now = (str(status.get("phase", "")), str(status.get("detail", "")))
        if result is not None or now != reported or time.monotonic() > beat:
            beat, reported = time.monotonic() + BEAT_S, now
            since_s = time.monotonic() - float(status.get("began", time.monotonic()))
            frames.write(
                output,
                {"t": frames.DRIVER, "phase": now[0], "detail": now[1], "since_s": since_s, "result": result},
            )
        if result is not None:
            return
        time.sleep(LOOK_S)


def _work(request: Dict[str, Any], answers: int) -> None:
    """The process itself: installs, and writes how it ended."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    try:
        status = _Status(request["attempt"])
        LOG.write_text("")
    except OSError as error:
        os.write(answers, str(error).encode())
        return
    os.write(answers, b"ok")
    os.close(answers)
    try:
        done = install(request, status)
        status.end({"state": "installed", **done})
    except Failed as error:
        status.end({"state": "failed", "reason": error.reason, "facts": error.facts})
    except (OSError, ValueError) as error:
        status.end({"state": "failed", "reason": "system", "facts": {"said": str(error)}})


class _Status:
    """The status file, as its process writes it."""

    def __init__(self, attempt: str) -> None:
        pid = os.getpid()
        self._document = {
            "attempt": attempt,
            "pid": pid,
            "birth": process.birth(pid),
            "boot_id": process.boot_id(),
            "began": time.monotonic(),
            "phase": "begin",
            "detail": "",
            "result": None,
        }  # type: Dict[str, Any]
        write_json(STATUS, self._document)

    def __call__(self, phase: str, detail: str) -> None:
        """Report the current step."""
        self._document.update(phase=phase, detail=detail)
        write_json(STATUS, self._document)

    def end(self, result: Dict[str, Any]) -> None:
        """Say how it ended."""
        self._document["result"] = result
        write_json(STATUS, self._document)


def install(request: Dict[str, Any], tell: apt.Tell) -> Dict[str, Any]:
    """Install the driver's packages; returns the branch and the packages. Raises Failed."""
    tell("check", "")
    check_system(OS_RELEASE)
    tool = apt.Apt(LOG, lock_s=float(request["lock_s"]), tell=tell)
    tool.check_root()
    tell("mirror", "")
    apt.check_mirrors(apt.mirrors(), float(request["mirror_s"]))
    tell("update", "")
    unfetched = tool.update()
    bus = gpus.bus(gpus.PCI)
    machine = driver_packages.Machine(
        kernels=kernels(),
        gpus=[gpu for gpu in bus.gpus if gpu],
        fabric=gpus.needs_fabric(bus),
        installed=apt.installed("linux-image-*", "linux-headers-*", "nvidia-*"),
    )
    offered = apt.offered(driver_packages.pattern(machine.kernels))
    try:
        choice = driver_packages.choose(offered, machine, request["version"])
    except Failed as error:
        error.facts["unfetched"] = unfetched
        raise
    tell("install", " ".join(choice["packages"]))
    tool.install(choice["packages"])
    if machine.fabric:
        branch = choice["branch"]
        driver, manager = "nvidia-utils-{}-server".format(branch), "nvidia-fabricmanager-{}".format(branch)
        versions = {name: apt.version_of(name) for name in (driver, manager)}
        if versions[driver] != versions[manager]:
            raise Failed("fabric_version", driver=versions[driver], manager=versions[manager])
        code, output = tool.root(["systemctl", "enable", gpus.FABRIC_SERVICE])
        if code != 0:
            raise Failed("apt", said=apt.last_line(output), doing="systemctl enable " + gpus.FABRIC_SERVICE)
    return choice


def check_system(os_release: Path) -> None:
    """Raise Failed where this is no Ubuntu."""
    names = dict(re.findall(r'^(ID|PRETTY_NAME)="?([^"\n]*)"?$', read_text(os_release), re.MULTILINE))
    if names.get("ID") != "ubuntu":
        raise Failed("system_is_other", os=names.get("PRETTY_NAME") or "an unknown system")


def kernels() -> List[str]:
    """The release of the running kernel, and of the one that boots next where that is another one."""
    running = RUNNING_KERNEL.read_text().strip()
    coming = os.path.basename(os.path.realpath(str(NEXT_KERNEL)))
    prefix = "vmlinuz-"
    after = coming[len(prefix) :] if coming.startswith(prefix) else running
    return [running] if after == running else [running, after]
