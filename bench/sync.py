"""Compare code sync with rsync: 10,000 files and 500 MB to two hosts at once, the first and the second time.

The hosts are two OpenSSH servers on loopback, each with its own home folder among the temporary files
(TMPDIR=/dev/shm excludes the disk). rsync runs as a person would start it in two terminals: `rsync -a --delete` over
ssh. gpuctl's time is of a whole process: start, imports, reading the project with git, two connections, the sync. The
same without rsync's help is printed, too. The three alternate in one run. Prints the medians of times and of each
round's ratios. Exits 1 if a gpuctl ratio is above 1.2, 2 if a program is missing.

    python bench/sync.py [ROUNDS]
"""

import getpass
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import ROOT, median_ratio, run, timed, turned
from bench.parts.servers import SSHD, openssh_servers

LIMIT = 1.2
HOSTS = 2
FILES, LARGE_FILES = 10_000, 20
TOTAL_BYTES = 500_000_000
PLAIN, OURS, STREAM = "rsync", "gpuctl", "gpuctl-stream"
SYNC = """
import json, resource, sys
from pathlib import Path
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.sessions import connect
from remote import fanout
from remote.files import rsync, sync, tree

folder, project, destination = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if sys.argv[4] != "rsync":
    rsync.usable = lambda: False
machines = {}
for rank, port in enumerate(json.loads(sys.argv[5])):
    machines[f"host-{rank}"] = Machine(
        name=f"host-{rank}", rank=rank, state="running", host="127.0.0.1", port=port, user=sys.argv[6],
        private_ip="127.0.0.1", gpus=None, id=str(rank), key_file=folder / "id", python=sys.executable,
    )
read = tree.read_tree(project, allow_large=True)
nodes = fanout.values(fanout.fan_out(lambda m: connect.connect(m, ClusterFiles(folder)), machines))
done = fanout.values(fanout.fan_out(lambda node: sync.sync(node, read, destination), nodes))
for node in nodes.values():
    node.close()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"files": [d.files for d in done.values()], "rsync": [d.rsync_files for d in done.values()],
                  "bytes": [d.sent_bytes for d in done.values()], "peak_kb": peak}))
"""


def make_project(root: Path) -> None:
    """Create many small text files and a few large files, of bytes that do not compress."""
    chance = random.Random(1)
    noise = chance.randbytes(4 << 20)

    def some(size: int) -> bytes:
        at = chance.randrange(len(noise) - size)
        return noise[at : at + size]

    left = TOTAL_BYTES
    for number in range(FILES - LARGE_FILES):
        path = root / f"pkg{number % 100:02}" / f"part{number // 100 % 10}" / f"module_{number:05}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = chance.randrange(1_000, 3_000)
        path.write_bytes(some(size))
        left -= size
    (root / "data").mkdir()
    for number in range(LARGE_FILES):
        size = left // (LARGE_FILES - number)
        left -= size
        with (root / "data" / f"shard-{number:02}.bin").open("wb") as file:
            for at in range(0, size, 1 << 20):
                file.write(some(min(1 << 20, size - at)))
    subprocess.run(["git", "init", "-q", str(root)], check=True)


def write_ssh_config(folder: Path, ports: Sequence[int]) -> None:
    """Write the file for OpenSSH's client to reach the servers with these ports."""
    (folder / "ssh_config").write_text(
        "".join(
            f"Host host-{rank}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
            f"  UserKnownHostsFile {folder / 'known_hosts'}\n  GlobalKnownHostsFile /dev/null\n"
            f"  StrictHostKeyChecking yes\n  IdentityFile {folder / 'id'}\n  IdentitiesOnly yes\n"
            "  IdentityAgent none\n"
            for rank, port in enumerate(ports)
        )
    )


def rsync(folder: Path, project: Path) -> None:
    """Run two rsync processes at once."""
    clients = []
    for rank in range(HOSTS):
        words = ["rsync", "-a", "--delete", "--exclude=/.git", "-e", f"ssh -F {folder / 'ssh_config'}"]
        words += [f"{project}/", f"host-{rank}:{folder}/home-{rank}/{PLAIN}/"]
        clients.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
    if any(client.wait(300) != 0 for client in clients):
        sys.exit("rsync failed")


def ours(folder: Path, project: Path, ports: list[int], way: str, *, files: int) -> int:
    """Sync to both hosts, which sends `files` files; returns the process's peak memory in kB."""
    arguments = [str(folder), str(project), f"~/{way}", "rsync" if way == OURS else "", json.dumps(ports)]
    words = [sys.executable, "-c", SYNC, *arguments, getpass.getuser()]
    # Name the packages' folder: the current folder may be another.
    done = run(words, PYTHONPATH=str(ROOT))
    summary = json.loads(done.stdout)
    expected = {"files": [files] * HOSTS, "rsync": [LARGE_FILES if files and way == OURS else 0] * HOSTS}
    if {name: summary[name] for name in expected} != expected:
        sys.exit(f"the sync did something else than expected: {summary}, not {expected}")
    return int(summary["peak_kb"])


def check_and_remove(project: Path, folder: Path, name: str) -> None:
    """Check that both homes have the project's files, bytes and times, then remove them."""
    for rank in range(HOSTS):
        copy = folder / f"home-{rank}" / name
        words = ["rsync", "-rtn", "--checksum", "--itemize-changes", "--exclude=/.git", "--delete"]
        differing = run([*words, "--omit-dir-times", f"{project}/", f"{copy}/"]).stdout
        if differing:
            sys.exit(f"{name} transferred other files than were sent:\n{differing[:1000]}")
        shutil.rmtree(copy)
        copy.with_name(f"{name}.manifest.json").unlink(missing_ok=True)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    missing = [name for name in ("rsync", "ssh", "ssh-keygen", "git") if shutil.which(name) is None]
    if missing or SSHD is None:
        print(f"needs {', '.join(missing + ([] if SSHD else ['sshd']))} on this machine", file=sys.stderr)
        return 2
    seconds: dict[tuple[str, str], list[float]] = {}
    peak_kb = 0
    with tempfile.TemporaryDirectory() as name:
        folder, project = Path(name), Path(name) / "project"
        project.mkdir()
        make_project(project)
        homes = [folder / f"home-{rank}" for rank in range(HOSTS)]
        for home in homes:
            home.mkdir()
        with openssh_servers(folder, homes) as ports:
            write_ssh_config(folder, ports)
            works: dict[str, Callable[[int], int | None]] = {
                PLAIN: lambda _: rsync(folder, project),
                OURS: lambda files: ours(folder, project, ports, OURS, files=files),
                STREAM: lambda files: ours(folder, project, ports, STREAM, files=files),
            }
            for number in range(rounds):
                for way, work in turned(list(works.items()), number):
                    for when, files in (("first", FILES), ("second", 0)):
                        os.sync()  # the previous sync's writes must not count here
                        took, peak = timed(lambda work=work, files=files: work(files))  # type: ignore[misc]
                        seconds.setdefault((way, when), []).append(took)
                        peak_kb = max(peak_kb, peak or 0)
                    check_and_remove(project, folder, way)
                times_text = ", ".join(
                    f"{way} {when} {times[-1]:.2f} s" for (way, when), times in seconds.items()
                )
                print(f"round {number + 1}: {times_text}; load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"{FILES:,} files, {TOTAL_BYTES / 1e6:.0f} MB, {HOSTS} hosts; medians of {rounds} rounds:")
    fine = True
    for way in works:
        line = f"  {way:15}"
        for when in ("first", "second"):
            took = statistics.median(seconds[way, when])
            ratio = median_ratio(seconds[way, when], seconds[PLAIN, when])
            line += f"  {when} {took * 1000:7.0f} ms, ratio {ratio:.2f}"
            fine = fine and (way != OURS or ratio <= LIMIT)
        print(line)
    print(f"  gpuctl's memory at most {peak_kb / 1024:.0f} MB; load {os.getloadavg()[0]:.1f}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
