"""Compare the CPU time of `gpuctl queue add` with `python -c pass`, in pairs.

    python bench/queue_add.py [--pairs 10]

One local host, which was connected to before. Its queue is paused, so that no run takes part of the processors. The
time is that of gpuctl and of the programs that it starts, such as git: user and system time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import GPUCTL, ROOT, gpuctl, keep_byte_code, median_ratio


def cpu_s(words: list[str], folder: Path, home: Path) -> float:
    """Return the CPU time of a command. Ends the program if the command fails."""
    checkout = {"PYTHONPATH": str(ROOT)} if len(GPUCTL) > 1 else {}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "GPUCTL_HOME": str(home), **checkout},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit((folder / "output").read_text())
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="gpuctl queue add against python -c pass")
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        project, home = Path(folder, "project"), Path(folder, "home")
        project.mkdir()
        (project / "train.py").write_text("print('ready')\n")
        keep_byte_code(str(Path(folder, "bytecode")))
        commands = ([*GPUCTL, "queue", "add", "train.py"], [sys.executable, "-c", "pass"])
        try:
            gpuctl(home, "up", "--provider", "local", "--count", "1")
            gpuctl(home, "queue", "pause")
            measured = [[cpu_s(words, project, home) for words in commands] for _ in range(pairs + 1)]
        finally:
            gpuctl(home, "down", "--yes")
    added, python = zip(*measured[1:], strict=True)
    median = statistics.median(added)
    print(
        f"gpuctl queue add  {median * 1000:5.0f} ms of CPU, median of {pairs} (min {min(added) * 1000:.0f})"
    )
    print(
        f"python -c pass    {statistics.median(python) * 1000:5.0f} ms   ratio {median_ratio(added, python):.0f}"
    )


if __name__ == "__main__":
    main()
