"""The watch on a rented machine, which ends the machine after it had no use for the time of `--idle`.

cloud-init writes this file to the machine, and systemd runs it as root with the system's own Python: only the
standard library, Python 3.6. Times are seconds since the boot, so a changed clock has no effect. `step` decides, and
is pure. The names of the files are also in `remote.shared.constants`.
"""

import glob
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

BUSY_GPU_PERCENT = 5
BUSY_BYTES_PER_S = 1e6
MAX_BUSY_CORES = 0.9
"""CPU use that counts on any machine: less than the core that a busy thread takes."""
WINDOW_S = 60.0
"""Time over which the use of CPUs, disks and networks is averaged."""
ALIVE_S = 150.0
"""A login is alive if sshd received something from it within this time: sshd asks a quiet client each minute."""
MAX_KEEP_S = 24 * 3600.0
"""Longest time for which `gpuctl keep` puts the end off. A later time in its file is ignored."""
MAX_GAP_S = 300.0
"""Of a longer time without a look, only this counts as time without use."""
COMMAND_S = 20.0
"""Deadline of ss and nvidia-smi. A look takes at most three of these."""
SECTOR = 512
MAX_DOCUMENT = 65536
LOGINS_UNKNOWN = "ss does not list the logins"
PEERS_UNKNOWN = "another program has the watch's UDP port"
UNAUTHENTICATED = ("[net]", "[accepted]", "-R")
"""Last words of the titles that sshd's processes have before a client proved who it is."""

DEFAULTS: Dict[str, Any] = {
    "home": "",
    "proc": "/proc",
    "folder": "/run/gpuctl-idle",
    "port": 29411,
    "round_s": 30,
}
"""Settings that the machine's file can leave out. It has `cluster`, `idle_s`, `user`, `ssh_port`, `power_off`."""

Counters = NamedTuple("Counters", [("now_s", float), ("cpu_s", Optional[float]), ("bytes", Dict[str, int])])
"""CPU time of all cores, and bytes of each disk and network interface, since the boot."""

Sample = NamedTuple(
    "Sample",
    [
        ("counters", Counters),
        ("signals", Dict[str, Optional[bool]]),  # of run, queue and gpu; `None`: not known
        ("logins", Optional[FrozenSet[str]]),  # addresses of clients that are alive
        ("peer", Optional[bool]),  # whether another machine of the cluster reported use; `None`: not known
        ("keep_until_s", float),  # as `gpuctl keep` wrote it
    ],
)


class State(NamedTuple):
    """The state of the machine after a look at it."""

    last_use_s: float
    ends_at_s: float
    signals: Dict[str, Optional[bool]]
    logins: FrozenSet[str] = frozenset()
    counters: Tuple[Counters, ...] = ()
    shows_use: bool = False  # whether the machine itself shows use, or its logins are not known
    used: bool = False  # whether a look counted as use
    fresh: bool = False  # whether something began that is no use yet: a login, work of a few seconds
    keep_until_s: float = 0.0
    looks: int = 0
    problems: Tuple[str, ...] = ()  # why use is not known, which keeps the machine


def begin(now_s: float) -> State:
    """Return the state of a machine that is taken for used at `now_s`."""
    return State(last_use_s=now_s, ends_at_s=now_s, signals={})


def step(state: State, sample: Sample, idle_s: float) -> State:
    """Return the state after a look at the machine.

    A login counts from the second look on: so a command that only asks for this state is no use. Time without use
    begins with the first look that finds none. Unknown logins and peers are no reason to end.
    """
    now_s = sample.counters.now_s
    signals = dict(sample.signals)
    signals["login"] = None if sample.logins is None else bool(sample.logins & state.logins)
    earlier = [each for each in state.counters if now_s - each.now_s >= WINDOW_S][-1:] or state.counters[:1]
    signals.update(_rates(earlier[0], sample.counters) if earlier else {"cpu": None, "transfer": None})
    last_use_s = min(state.last_use_s, now_s)
    if state.counters:
        last_use_s += max(0.0, now_s - state.counters[-1].now_s - MAX_GAP_S)
    problems = [LOGINS_UNKNOWN] * (sample.logins is None) + [PEERS_UNKNOWN] * (sample.peer is None)
    shows_use = sample.logins is None or any(signals.values())
    used = shows_use or sample.peer is not False
    if used or state.used:
        last_use_s = now_s
    since = _rates(state.counters[-1], sample.counters) if state.counters else {}
    keep_until_s = sample.keep_until_s if now_s < sample.keep_until_s <= now_s + MAX_KEEP_S else 0.0
    recent = [each for each in state.counters if now_s - each.now_s < 2 * WINDOW_S]
    return State(
        last_use_s=last_use_s,
        logins=sample.logins or frozenset(),
        counters=(*recent, sample.counters),
        signals=signals,
        shows_use=shows_use,
        used=used,
        fresh=bool(sample.logins) or any(since.values()),
        keep_until_s=keep_until_s,
        ends_at_s=max(last_use_s + idle_s, keep_until_s),
        looks=state.looks + 1,
        problems=tuple(problems),
    )


def is_over(state: State) -> bool:
    """Return whether the machine's time is over. After a start of the watch, three looks decide."""
    return state.looks > 2 and state.counters[-1].now_s >= state.ends_at_s


def powers_off(state: State) -> bool:
    """Return whether the machine ends now: its time is over, and nothing has begun since the last look."""
    return is_over(state) and not state.fresh


def _rates(before: Counters, now: Counters) -> Dict[str, Optional[bool]]:
    """Return the signals `cpu` and `transfer` of the time between two looks."""
    passed_s = max(now.now_s - before.now_s, 1e-3)
    cpu = (
        None
        if now.cpu_s is None or before.cpu_s is None
        else now.cpu_s - before.cpu_s >= busy_cores(os.cpu_count() or 1) * passed_s
    )
    moved = [count - before.bytes[name] for name, count in now.bytes.items() if name in before.bytes]
    return {"cpu": cpu, "transfer": max(moved) >= BUSY_BYTES_PER_S * passed_s if moved else None}


def busy_cores(cores: int) -> float:
    """Return how many cores' use counts: half a core, and more where daemons have many cores to serve."""
    return min(MAX_BUSY_CORES, 0.5 + cores / 320)


def cpu_seconds(stat: str) -> Optional[float]:
    """Return the CPU time of all cores since the boot, from the text of /proc/stat."""
    fields = stat.split("\n", 1)[0].split()
    if len(fields) < 8 or fields[0] != "cpu":
        return None
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def disk_bytes(diskstats: str) -> Dict[str, int]:
    """Return the bytes of each disk and partition since the boot, from the text of /proc/diskstats."""
    rows = [line.split() for line in diskstats.splitlines()]
    return {"disk " + row[2]: (int(row[5]) + int(row[9])) * SECTOR for row in rows if len(row) > 9}


def network_bytes(dev: str) -> Dict[str, int]:
    """Return the bytes of each network interface but loopback since the boot, from the text of /proc/net/dev."""
    rows = [line.replace(":", " ").split() for line in dev.splitlines()[2:]]
    return {"net " + row[0]: int(row[1]) + int(row[9]) for row in rows if len(row) > 9 and row[0] != "lo"}


def living_logins(output: str, title: Callable[[str], str]) -> FrozenSet[str]:
    """Return the addresses of clients that logged in and sent something lately.

    Args:
        output: Output of `ss -tinpH state established`.
        title: Returns the command line of a process. Empty: not known, which counts as a login.
    """
    logins = set()
    client = ""
    for line in output.splitlines():
        if line[:1].isdigit():
            titles = [title(pid).rstrip() for pid in re.findall(r"\bpid=(\d+)", line)]
            scans = any(each.endswith(UNAUTHENTICATED) for each in titles)
            client = "" if scans else (line.split() + [""] * 4)[3]
            continue
        silence = re.search(r"\blastrcv:(\d+)", line)
        if client and int(silence.group(1) if silence else 0) <= ALIVE_S * 1000:
            logins.add(client)
    return frozenset(logins)


def gpu_in_use(utilization: Optional[str], processes: Optional[str]) -> Optional[bool]:
    """Return whether a process keeps a GPU busy, from nvidia-smi's output. `None`: not known.

    A GPU without a process is not in use, whatever nvidia-smi measures. If the driver does not measure (MIG), each
    process counts.
    """
    if utilization is None or not utilization.strip():
        return None
    cells = [cell.strip() for line in utilization.splitlines() for cell in line.split(",")]
    measured = [int(cell) for cell in cells if cell.isdigit()]
    busy = max(measured) >= BUSY_GPU_PERCENT if measured else True
    return busy and (processes is None or bool(processes.strip()))


class Commands:
    """Runs commands with a deadline. One that hangs in the driver is not waited for, nor started a second time."""

    def __init__(self) -> None:
        self._hung: Dict[str, Any] = {}

    def output(self, *argv: str) -> Optional[str]:
        """Return the standard output. `None`: the command is missing, failed, or hangs."""
        hung = self._hung.get(argv[0])
        if hung is not None and hung.poll() is None:
            return None
        try:
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return None
        try:
            text = process.communicate(timeout=COMMAND_S)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            process.kill()
            if process.stdout:
                process.stdout.close()
            self._hung[argv[0]] = process
            return None
        return text if process.returncode == 0 else None


class Machine:
    """The machine that is watched."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self.settings = settings
        self._proc = settings["proc"]
        home = settings["home"] or os.path.expanduser("~" + settings["user"])
        self._node_home = os.path.join(home, ".gpuctl-node")
        self._commands = Commands()
        self._message = ("gpuctl busy " + settings["cluster"]).encode()
        self._socket: Optional[socket.socket] = None

    def sample(self) -> Sample:
        """Return a look at the machine."""
        smi = ("nvidia-smi", "--format=csv,noheader,nounits")
        used = self._commands.output(*smi, "--query-gpu=utilization.gpu,utilization.memory")
        processes = self._commands.output(*smi, "--query-compute-apps=pid") if used else None
        # sshd's own port, on the left side.
        listed = self._commands.output(
            "ss", "-tinpH", "state", "established", "( sport = :{} )".format(self.settings["ssh_port"])
        )
        amounts = disk_bytes(self._text("diskstats"))
        amounts.update(network_bytes(self._text("net/dev")))
        return Sample(
            counters=Counters(now_s(), self._cpu_s(), amounts),
            signals={"run": self._has_run(), "queue": self._has_queue(), "gpu": gpu_in_use(used, processes)},
            logins=None if listed is None else living_logins(listed, self._title),
            peer=self._heard_peer(),
            keep_until_s=self._keep_until_s(),
        )

    def tell_peers(self) -> None:
        """Report use to the other machines of the cluster."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for peer in self._peers():
                try:
                    sender.sendto(self._message, (peer, self.settings["port"]))
                except (OSError, ValueError):
                    continue

    def _cpu_s(self) -> Optional[float]:
        """Return the CPU time of all cores since the boot, without that of the watch and its commands."""
        cpu_s, watch = cpu_seconds(self._text("stat")), os.times()
        return None if cpu_s is None else cpu_s - sum(watch[:4])

    def _title(self, pid: str) -> str:
        return self._text(pid + "/cmdline").replace("\0", " ")

    def _text(self, name: str) -> str:
        try:
            with open(os.path.join(self._proc, name), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _document(self, path: str) -> Dict[str, Any]:
        """Return a file of the user, which can be anything: a pipe, or text without an end. Empty: no document."""
        try:
            descriptor = os.open(os.path.join(self._node_home, path), os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, errors="replace") as file:
                whole = stat.S_ISREG(os.fstat(descriptor).st_mode)
                document = json.loads(file.read(MAX_DOCUMENT)) if whole else {}
            return document if isinstance(document, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}

    def _has_run(self) -> bool:
        return any(map(self._is_active, glob.iglob(os.path.join(self._node_home, "runs/*/*/runner.json"))))

    def _is_active(self, path: str) -> bool:
        """Return whether a run's supervisor lives: the process with its number was born with it."""
        if os.path.exists(os.path.join(os.path.dirname(path), "exit.json")):
            return False
        supervisor = self._document(path)
        fields = self._text("{}/stat".format(supervisor.get("pid"))).rpartition(")")[2].split()
        same_boot = supervisor.get("boot_id") == self._boot_id()
        return (
            same_boot and len(fields) > 19 and fields[0] not in "ZX" and fields[19] == supervisor.get("birth")
        )

    def _has_queue(self) -> bool:
        """Return whether an entry waits or runs; ended ones are in a folder that the pattern leaves out."""
        return any(glob.iglob(os.path.join(self._node_home, "queue/*/*.json")))

    def _boot_id(self) -> str:
        return self._text("sys/kernel/random/boot_id").strip()

    def _keep_until_s(self) -> float:
        keep = self._document("idle-keep.json")
        until_s = keep.get("until_s") if keep.get("boot_id") == self._boot_id() else None
        return float(until_s) if isinstance(until_s, (int, float)) and 0 <= until_s < 1e12 else 0.0

    def _peers(self) -> List[str]:
        peers = self._document("idle-peers.json").get("peers")
        return [str(peer) for peer in peers] if isinstance(peers, list) else []

    def _heard_peer(self) -> Optional[bool]:
        """Return whether another machine of the cluster reported use since the last look. `None`: not known."""
        peers, reported = self._peers(), False
        try:
            receiver = self._open_socket()
        except OSError:
            return None if peers else False
        try:
            for _ in range(10000):
                message, sender = receiver.recvfrom(256)
                reported = reported or (sender[0] in peers and message == self._message)
        except OSError:
            pass
        return reported

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                opened.bind(("", self.settings["port"]))
            except OSError:
                opened.close()
                raise
            opened.setblocking(False)
            self._socket = opened
        return self._socket


def now_s() -> float:
    """Return the seconds since the boot, sleep included: CLOCK_BOOTTIME, which Python 3.6 has no name for."""
    return time.clock_gettime(7)


def report(state: State, settings: Dict[str, Any]) -> Dict[str, Any]:
    """Return the state as the machine's file has it."""
    at_s = state.counters[-1].now_s if state.counters else state.last_use_s
    return {
        "at_s": at_s,
        "after_s": settings["idle_s"],
        "round_s": settings["round_s"],
        "last_use_s": state.last_use_s,
        "keep_until_s": state.keep_until_s or None,
        "ends_at_s": state.ends_at_s,
        "over": is_over(state),
        "signals": state.signals,
        "problems": state.problems,
    }


def resumed(document: Any, time_s: float) -> State:  # noqa: ANN401 - any JSON
    """Return the state that a watch before this one left in its file, else a new one."""
    try:
        gap_s = max(0.0, time_s - float(document["at_s"]) - MAX_GAP_S)
        return begin(min(float(document["last_use_s"]) + gap_s, time_s))
    except (KeyError, TypeError, ValueError):
        return begin(time_s)


def main(arguments: Iterable[str]) -> None:
    """Watch the machine for ever. The argument: the machine's file of settings."""
    (path,) = arguments
    with open(path) as file:
        settings = dict(DEFAULTS, **json.load(file))
    folder = settings["folder"]
    os.makedirs(folder, mode=0o755, exist_ok=True)
    state_path = os.path.join(folder, "state.json")
    try:
        with open(state_path) as file:
            before = json.load(file)
    except (OSError, ValueError):
        before = None
    machine, state = Machine(settings), resumed(before, now_s())
    while True:
        began_s = time.monotonic()
        sample = machine.sample()
        state = step(state, sample, settings["idle_s"])
        document = report(state, settings)
        try:
            with open(state_path + ".new", "w") as file:
                json.dump(document, file)
            os.replace(state_path + ".new", state_path)
        except OSError as error:  # a full /run must not keep the machine
            print("the state could not be written: {}".format(error), flush=True)
        if state.shows_use:
            machine.tell_peers()
        if powers_off(state) and settings["power_off"]:
            print(
                "no use for {:.0f} s: powering off".format(sample.counters.now_s - state.last_use_s),
                flush=True,
            )
            subprocess.call(["systemctl", "--no-block", "poweroff"])
        time.sleep(max(0.0, settings["round_s"] - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
