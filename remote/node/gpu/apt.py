"""apt on a node: run as root, its locks waited for with a deadline, and what its words mean.

apt's own words are parsed, which LC_ALL=C keeps in English. Nothing here ends dpkg.
"""

import os
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set, Tuple

from remote.shared.files import read_text

QUIET = ["DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "LC_ALL=C"]
"""Nothing asks, and no service is restarted while packages are installed: a reboot follows."""
LOCK_PAUSE_S = 5.0
"""Between two tries for a lock that is held. apt waits for dpkg's lock, and for no other one."""
FIRST_TRY = {"limit_s": 50, "silence_s": 6, "retries": 0}
"""To fetch the lists of packages; a mirror that takes connections and sends nothing has failed within 60 s."""
SECOND_TRY = {"limit_s": 300, "silence_s": 30, "retries": 2}
"""Where some of them came: the mirror is slow, or one of several is away."""
TIME_IS_OVER = (124, 137)
"""Exit statuses of `timeout`; the other one stands for a kill."""
PORTS = {"http": 80, "https": 443}
ENVIRONMENT = Path("/etc/environment")
"""Variables of every login, and of what sudo runs."""
ADDRESS_S = 5.0
"""For one address of a mirror; the next one may have a route."""

Tell = Callable[[str, str], None]
"""Takes a phase and a detail, as progress."""


class Failed(Exception):
    """A failure: a reason of a closed set, and its facts."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = dict(facts)


class Apt:
    """apt-get and apt-cache, as root where the user may be that without a password."""

    def __init__(self, log: Path, *, lock_s: float, tell: Tell) -> None:
        """`log`: takes what apt says. `lock_s`: how long one command waits for locks."""
        self._root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        self._log = log
        self._lock_s = lock_s
        self._tell = tell

    def check_root(self) -> None:
        """Raise Failed where the user may not be root without a password."""
        if self._root:
            try:
                code, output = _run([*self._root, "true"])
            except FileNotFoundError:
                raise Failed("no_sudo", said="there is no sudo") from None
            if code != 0:
                raise Failed("no_sudo", said=last_line(output))

    def root(self, words: List[str]) -> Tuple[int, str]:
        """Run a command as root; returns its exit status and its output, which goes into the log, too."""
        code, output = _run([*self._root, "env", *QUIET, *words])
        with open(str(self._log), "a", encoding="utf-8") as log:
            log.write("$ {}\n{}[exit status {}]\n".format(" ".join(words), output, code))
        return code, output

    def update(self) -> str:
        """Fetch the lists of packages; returns apt's words on missing ones, if any.

        Raises Failed if no list could be fetched.
        """
        for settings in (FIRST_TRY, SECOND_TRY):
            code, output = self._unlocked(update_words(**settings))
            missing = unfetched(output)
            if code == 0 and missing is None:
                return ""
            if missing is None and code not in TIME_IS_OVER:
                raise Failed("apt", said=error_of(output), doing="apt-get update")
            if not re.search(r"^(Get|Hit):\d", output, re.MULTILINE):
                break
        else:
            if missing is not None:
                return "{}: {}".format(*missing)
        late = "apt-get update had not ended after {} s".format(settings["limit_s"])
        host, why = missing or ("", late)
        raise Failed("mirror", host=host, said=why)

    def install(self, packages: List[str]) -> None:
        """Install packages, without recommended ones. Raises Failed."""
        words = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=5"]
        words += ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
        words += ["-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=30", *packages]
        code, output = self._unlocked(words)
        if code != 0 and "dpkg --configure -a" in output:
            # An earlier installation was cut off.
            self._unlocked(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
            code, output = self._unlocked(words)
        if code != 0:
            raise Failed("apt", said=error_of(output), doing="apt-get install")

    def _unlocked(self, words: List[str]) -> Tuple[int, str]:
        """Run a command again for as long as another process holds a lock that it needs. Raises Failed."""
        limit = time.monotonic() + self._lock_s
        while True:
            code, output = self.root(words)
            held = None if code == 0 else lock_of(output)
            if held is None:
                return code, output
            if time.monotonic() + LOCK_PAUSE_S > limit:
                raise Failed("lock", waited_s=self._lock_s, **held)
            self._tell("lock", held["holder"])
            time.sleep(LOCK_PAUSE_S)


def update_words(limit_s: int, silence_s: int, retries: int) -> List[str]:
    """The argv that fetches the lists of packages. Here apt may be ended: dpkg has no part in it."""
    words = ["timeout", "--kill-after=5", str(limit_s), "apt-get", "update"]
    settings = ["Acquire::Retries={}".format(retries)]
    settings += ["Acquire::{}::Timeout={}".format(scheme, silence_s) for scheme in PORTS]
    return words + [word for setting in settings for word in ("-o", setting)]


def mirrors() -> List[str]:
    """Return the addresses of the package lists, each host once; empty with a proxy in between."""
    code, settings = _run(["apt-config", "dump"])
    if code != 0 or has_proxy(settings) or proxy_is_set():
        return []
    return mirrors_of(_run(["apt-get", "update", "--print-uris"])[1])


def check_mirrors(urls: List[str], deadline_s: float) -> None:
    """Raise Failed if mirrors exist and all refuse a connection until the deadline."""
    failures = {}  # type: Dict[str, str]
    reached = threading.Event()
    threads = [
        threading.Thread(target=_reach, args=(url, deadline_s, failures, reached), daemon=True)
        for url in urls
    ]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + deadline_s
    while threads and not reached.is_set() and time.monotonic() < limit:
        if not any(thread.is_alive() for thread in threads):
            break
        reached.wait(0.05)
    if urls and not reached.is_set():
        host = host_of(urls[0])
        raise Failed(
            "mirror", host=host, said=failures.get(host, "no answer within {:g} s".format(deadline_s))
        )


def _reach(url: str, timeout_s: float, failures: Dict[str, str], reached: threading.Event) -> None:
    """Connect to the mirror of a URL, at one of its addresses; again where time was all that was missing."""
    host, parts, limit = host_of(url), urllib.parse.urlsplit(url), time.monotonic() + timeout_s
    while not reached.is_set():
        left_s = limit - time.monotonic()
        if left_s <= 0:
            failures[host] = "no answer within {:g} s".format(timeout_s)
            return
        try:
            port = parts.port or PORTS[parts.scheme]
            socket.create_connection((host, port), timeout=min(ADDRESS_S, left_s)).close()
        except socket.timeout:
            continue
        except OSError as error:
            failures[host] = error.strerror or str(error)
            return
        reached.set()


def offered(pattern: str) -> Set[str]:
    """The names of the packages that can be had and match an extended regular expression."""
    return names_of(_run(["apt-cache", "search", "--names-only", pattern])[1])


def installed(*patterns: str) -> Set[str]:
    """The names of the installed packages that match one of these shell patterns."""
    shown = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Abbrev}\\n"]
    return {
        line.split()[0] for line in _run(shown + list(patterns))[1].splitlines() if line.split()[1:] == ["ii"]
    }


def version_of(package: str) -> Optional[str]:
    """The upstream version of an installed package: `580.95.05` of `580.95.05-0ubuntu1`."""
    code, output = _run(["dpkg-query", "--show", "--showformat=${Version}", package])
    return output.strip().rpartition(":")[2].partition("-")[0] if code == 0 else None


def _run(words: List[str]) -> Tuple[int, str]:
    """Return a command's exit status and its output of both streams."""
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=dict(os.environ, LC_ALL="C"),
    )
    return done.returncode, done.stdout.decode(errors="replace")


def host_of(url: str) -> str:
    """The host of a URL."""
    return urllib.parse.urlsplit(url).hostname or url


def has_proxy(settings: str) -> bool:
    """Return whether `apt-config dump` names a proxy, or a program that finds one."""
    return (
        re.search(r'^Acquire::[\w:.-]*Proxy[\w:.-]* "(?!DIRECT|false)[^"]', settings, re.M | re.I) is not None
    )


def proxy_is_set() -> bool:
    """Return whether a variable names a proxy: here, or for every login."""
    names = [name for name, value in os.environ.items() if value]
    names += re.findall(r"""^\s*(?:export\s+)?(\w+)=["']?[^\s"']""", read_text(ENVIRONMENT), re.MULTILINE)
    return any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in names)


def mirrors_of(uris: str) -> List[str]:
    """A URL of each host in what `apt-get update --print-uris` says, in order."""
    mirrors = {}  # type: Dict[str, str]
    for url in re.findall(r"^'(https?://[^']+)'", uris, re.MULTILINE):
        mirrors.setdefault(host_of(url), url)
    return list(mirrors.values())


def names_of(shown: str) -> Set[str]:
    """The names in what `apt-cache search` says."""
    return {line.partition(" - ")[0] for line in shown.splitlines() if " - " in line}


def lock_of(output: str) -> Optional[Dict[str, str]]:
    """Return the lock that apt or dpkg could not get, and its holder, if it failed over one."""
    by_dpkg = re.search(
        r"^dpkg: error: [\w ]*lock (?:was|is) locked by another process(?: with pid (\d+))?", output, re.M
    )
    if by_dpkg is None and not re.search(
        r"^E: (Could not get lock|Unable to (acquire|lock)) ", output, re.MULTILINE
    ):
        return None
    paths = re.findall(r"(?:ould not get lock |lock \()(/[^\s.)]+(?:\.[^\s.)]+)*)", output)
    holders = re.findall(r"held by process (\d+(?: \([^)]*\))?)", output)
    if by_dpkg is not None and by_dpkg.group(1):
        holders.append(by_dpkg.group(1))
    return {
        "lock": paths[-1] if paths else "/var/lib/dpkg/lock-frontend",
        "holder": "process {}".format(holders[-1]) if holders else "another process",
    }


def unfetched(output: str) -> Optional[Tuple[str, str]]:
    """The host of the first list that `apt-get update` could not fetch, and why."""
    match = re.search(r"^[WE]: Failed to fetch (\S+)\s+(.*)$", output, re.MULTILINE)
    match = match or re.search(r"^Err:\d+ (\S+).*\n\s+(.*)$", output, re.MULTILINE)
    return (host_of(match.group(1)), match.group(2).strip()) if match else None


def error_of(output: str) -> str:
    """Return apt's first error, else its last words."""
    errors = [line[2:].strip() for line in output.splitlines() if line.startswith("E:")]
    unmet = re.search(r"^\s*(\S+ : (?:Pre)?Depends: .*)$", output, re.MULTILINE)
    if errors and unmet and "unmet dependencies" in output:
        return "{} ({})".format(errors[0], " ".join(unmet.group(1).split()))
    return errors[0] if errors else last_line(output)


def last_line(output: str) -> str:
    """The last words of a command."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
