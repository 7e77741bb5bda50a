"""The firewall of this host, and changes to it: read in one go, applied in one go, as root.

This file is also its own program: without root it hands its own text to `sudo -n python3 -c`, so that root reads
nothing from the user's home, which a network file system may keep from it.
"""

import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

SAVERS = (
    ("iptables-legacy", "iptables-nft", "iptables"),
    ("ip6tables-legacy", "ip6tables-nft", "ip6tables"),
)
"""One family each. The last name belongs to another one, and is only used without the first ones."""
OTHER_PROGRAMS = ("nft", "ufw", "firewall-cmd")
FILES = (
    "/etc/iptables/rules.v4",
    "/etc/iptables/rules.v6",
    "/etc/sysconfig/iptables",
    "/etc/sysconfig/ip6tables",
    "/etc/nftables.conf",
    "/etc/sysconfig/nftables.conf",
    "/etc/ufw/user.rules",
    "/etc/ufw/user6.rules",
)
ZONES = "/etc/firewalld/zones/*.xml"
LEGACY_TABLES = {
    "iptables-legacy": "/proc/net/ip_tables_names",
    "ip6tables-legacy": "/proc/net/ip6_tables_names",
}
"""The kernel's list of the old backend's tables: it has no tables if it was never used."""
NOT_IN_KERNEL = "Protocol not supported"
"""What netlink's programs say where the kernel has no nftables, and so no rules of theirs."""
LOCK = "/run/gpuctl-firewall.lock"
LOCK_TIMEOUT_S = 60
READ_TIMEOUT_S = 20
STEP_TIMEOUT_S = 60
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
ENVIRONMENT = dict(os.environ, PATH=SEARCH_PATH, LC_ALL="C")


def command_firewall(request: Dict[str, Any], output: BinaryIO) -> None:
    """`firewall`: steps, each `argv` and `stdin`, or `path`, `sha256` and `text`. Answers with `read` afterwards.

    Nothing is done where a file is not what its step was made from. Raises ValueError with a sentence on the
    first step that fails, and PermissionError where root can't be had.
    """
    # Root's copy of this file has no package around it.
    from remote.shared import frames

    facts = apply(request["steps"]) if os.geteuid() == 0 else _as_root({"steps": request["steps"]})
    frames.write(output, {"t": frames.FIREWALL, "facts": facts})


def read() -> Dict[str, Any]:
    """Return the state of this host's firewall, as the programs and files show it; `None`: could not be read.

    Costs nothing where no firewall program is installed; needs root otherwise, by `sudo -n` if need be.
    """
    programs = find_programs()
    if not programs:
        return _state(programs)
    if os.geteuid() == 0:
        return _read_as_root(programs)
    try:
        return _as_root({"steps": None})
    except (OSError, ValueError) as error:
        return _state(programs, root=False, unreadable={"root": str(error)})


def _state(programs: List[str], **known: object) -> Dict[str, Any]:
    unknown: Dict[str, Any] = {"root": None, "saves": {}, "nft": None, "files": {}, "unreadable": {}}
    return dict(unknown, programs=programs, sudo=has_sudo(), **known)


def has_sudo() -> bool:
    """Return whether the command sudo is installed."""
    return shutil.which("sudo", path=SEARCH_PATH) is not None


def find_programs() -> List[str]:
    """The firewall programs that are installed."""
    programs: List[str] = []
    if not sys.platform.startswith("linux"):
        return programs
    for legacy, nft, either in SAVERS:
        installed = [name for name in (legacy, nft) if shutil.which(name + "-save", path=SEARCH_PATH)]
        if not installed and shutil.which(either + "-save", path=SEARCH_PATH):
            installed = [either]
        programs += installed
    return programs + [name for name in OTHER_PROGRAMS if shutil.which(name, path=SEARCH_PATH)]


def _read_as_root(programs: List[str]) -> Dict[str, Any]:
    started: List[Tuple[str, "subprocess.Popen[bytes]"]] = []
    saves: Dict[str, Optional[str]] = {}
    unreadable: Dict[str, str] = {}
    nft = None
    for name in programs:
        if name in LEGACY_TABLES and not os.path.exists(LEGACY_TABLES[name]):
            saves[name] = ""
        elif name == "nft":
            started.append((name, _start(["nft", "-j", "list", "ruleset"])))
        elif name not in OTHER_PROGRAMS:
            started.append((name, _start([name + "-save"])))
    for name, process in started:
        text, why = _finish(process)
        if text is None:
            unreadable[name] = why
        if name == "nft":
            nft = text
        else:
            saves[name] = text
    files: Dict[str, Dict[str, str]] = {}
    for path in (*FILES, *sorted(glob.glob(ZONES))):
        _read_file(path, files, unreadable)
    return _state(programs, root=True, saves=saves, nft=nft, files=files, unreadable=unreadable)


def _start(argv: List[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )


def _finish(process: "subprocess.Popen[bytes]") -> Tuple[Optional[str], str]:
    """Return a program's output, or `None` and the reason."""
    try:
        stdout, stderr = process.communicate(timeout=READ_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, "no answer within {} s".format(READ_TIMEOUT_S)
    if process.returncode != 0:
        if NOT_IN_KERNEL.encode() in stderr:
            return "", ""
        return None, _last_line(stderr) or "exit status {}".format(process.returncode)
    return stdout.decode("utf-8", "surrogateescape"), ""


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else ""


def _read_file(path: str, files: Dict[str, Dict[str, str]], unreadable: Dict[str, str]) -> None:
    """Add a file, and the files that nft's includes name."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        unreadable[path] = os.strerror(error.errno or 0)
        return
    text = content.decode("utf-8", "surrogateescape")
    files[path] = {"text": text, "sha256": hashlib.sha256(content).hexdigest()}
    if os.path.basename(path) == "nftables.conf" or path.endswith(".nft"):
        for pattern in re.findall(r'^\s*include\s+"([^"]+)"', text, re.MULTILINE):
            for included in sorted(glob.glob(os.path.join("/etc", pattern))):
                if included not in files:
                    _read_file(included, files, unreadable)


def apply(steps: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Do the steps in their order, as root, and read everything again. Raises ValueError with a sentence."""
    with open(LOCK, "w") as lock:
        _take(lock.fileno())
        for step in steps:
            if "path" in step:
                with open(step["path"], "rb") as file:
                    if hashlib.sha256(file.read()).hexdigest() != step["sha256"]:
                        sentence = (
                            "{} was changed by something else in the meantime; nothing was done: "
                            "run the command again"
                        )
                        raise ValueError(sentence.format(step["path"]))
        for step in steps:
            if "path" in step:
                _replace(step["path"], step["text"].encode("utf-8", "surrogateescape"))
            else:
                _run(step["argv"], step["stdin"])
        return _read_as_root(find_programs())


def _take(lock: int) -> None:
    """Lock against another gpuctl."""

    def too_long(*_: object) -> None:
        raise ValueError(
            "another gpuctl has been changing the firewall for {} s; run the command again".format(
                LOCK_TIMEOUT_S
            )
        )

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LOCK_TIMEOUT_S)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _replace(path: str, content: bytes) -> None:
    """Write a file that is there whole or not at all; its owner, mode and labels stay."""
    target = os.path.realpath(path)
    status = os.stat(target)
    temporary = os.path.join(os.path.dirname(target), ".gpuctl-{}".format(os.urandom(8).hex()))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
            # Also SELinux's label, without which the host's own service can't read the file at boot.
            shutil.copystat(target, temporary)
            os.utime(temporary)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _run(argv: List[str], stdin: str) -> None:
    try:
        done = subprocess.run(
            argv,
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError("`{}` did not end within {} s".format(" ".join(argv), STEP_TIMEOUT_S)) from None
    if done.returncode != 0:
        message = _last_line(done.stderr) or _last_line(done.stdout)
        raise ValueError("`{}` failed: {}".format(" ".join(argv), message or done.returncode))


def _as_root(document: Dict[str, Any]) -> Dict[str, Any]:
    """Run this file as root with a document. Raises PermissionError without root, ValueError with its sentence."""
    sudo = shutil.which("sudo", path=SEARCH_PATH)
    if sudo is None:
        raise PermissionError("root is needed, and there is no sudo")
    # The system's Python rather than the user's, which may be in a home that root can't read.
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    with open(__file__) as file:
        source = file.read()
    done = subprocess.run(
        [sudo, "-n", python, "-I", "-c", source],
        input=json.dumps(document).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    try:
        answer: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise PermissionError(
            "root is needed, and `sudo -n` says: {}".format(_last_line(done.stderr) or done.returncode)
        ) from None
    if "error" in answer:
        raise ValueError(answer["error"])
    return dict(answer["facts"])


def main() -> None:
    """Root's part: a document from standard input, its answer to standard output."""
    steps = json.loads(sys.stdin.buffer.read())["steps"]
    try:
        answer: Dict[str, Any] = {"facts": _read_as_root(find_programs()) if steps is None else apply(steps)}
    except (OSError, ValueError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
