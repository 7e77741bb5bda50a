"""The load of the node's NVIDIA GPUs: one nvidia-smi that reports again and again, read without waiting."""

import math
import os
import select
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

FIELDS = "count,index,uuid,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,name"
"""The name is last: all else has no commas."""
MIB = 1024 * 1024
STALE_LAPS = 3
GRACE_S = 5.0
"""Values of nvidia-smi older than these laps and seconds are not known any more."""
END_S = 1.0
MAX_LINE_BYTES = 4096

MEASURED = ("utilization", "memory_used_bytes", "temperature_c", "power_w")


def argv(program: str, every_s: float) -> List[str]:
    """nvidia-smi's command line: it starts once, as each start costs up to seconds of driver set-up."""
    return [
        program,
        "--query-gpu=" + FIELDS,
        "--format=csv,noheader,nounits",
        "--loop-ms={}".format(max(100, round(every_s * 1000))),
    ]


def number(cell: str) -> Optional[float]:
    """Return a cell's number; `None` if the driver has no value (`[N/A]`, `[Not Supported]`, `ERR!`, …)."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_row(line: str) -> Optional[Tuple[int, str, Dict[str, Any]]]:
    """Read a line of nvidia-smi's CSV: the number of GPUs, this one's UUID, its values. `None`: no such line.

    Fractions are 0 .. 1. Values unknown to the driver are `None`.
    """
    cells = [cell.strip() for cell in line.split(",", 8)]
    if len(cells) != 9 or not cells[0].isdecimal() or not cells[1].isdecimal():
        return None
    used, memory, total, temperature, power = (number(cell) for cell in cells[3:8])
    values = {
        "index": int(cells[1]),
        "name": cells[8],
        "utilization": None if used is None else used / 100,
        "memory_used_bytes": None if memory is None else int(memory * MIB),
        "memory_total_bytes": None if total is None else int(total * MIB),
        "temperature_c": temperature,
        "power_w": power,
    }
    return int(cells[0]), cells[2], values


def is_visible(index: int, uuid: str, visible: Optional[str]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES (`None`: not set) names the GPU by index or UUID."""
    if visible is None:
        return True
    words = [word.strip() for word in visible.split(",")]
    return str(index) in words or any(word and uuid.startswith(word) for word in words)


class Feed:
    """The GPUs' values, as nvidia-smi prints them every `every_s`; to be closed.

    Without nvidia-smi the list is empty. A process that is left behind ends at its next line, which finds no
    reader. `visible`: as CUDA_VISIBLE_DEVICES has it; `None`: what that variable says here.
    """

    def __init__(self, every_s: float, *, grace_s: float = GRACE_S, visible: Optional[str] = None) -> None:
        self._stale_s = STALE_LAPS * every_s + grace_s
        self._visible = visible or os.environ.get("CUDA_VISIBLE_DEVICES")
        self._rest = b""
        self._count: Optional[int] = None
        self._sampled: Dict[int, float] = {}
        """GPU's index → time of its last sample, monotonic; hidden GPUs, too."""
        self._rows: Dict[int, Dict[str, Any]] = {}
        program = shutil.which("nvidia-smi")
        self._installed = program is not None
        self._process = self._start(program, every_s) if program else None
        self._open = self._process is not None

    @staticmethod
    def _start(program: str, every_s: float) -> "Optional[subprocess.Popen[bytes]]":
        try:
            return subprocess.Popen(
                argv(program, every_s),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None

    def wait(self, timeout_s: float) -> None:
        """Return when every GPU has a sample, when nvidia-smi has ended, or after the timeout."""
        limit = time.monotonic() + timeout_s
        while self._count is None or len(self._sampled) < self._count:
            left_s = limit - time.monotonic()
            if not self._open or left_s <= 0:
                return
            self._read_on(left_s)

    def read(self) -> Optional[List[Dict[str, Any]]]:
        """Return each GPU's latest values, by index, at once; older values are `None`.

        `None`: nvidia-smi exists, but has reported no GPU yet, or failed.
        """
        while self._open and self._read_on(0):
            pass
        if self._installed and not self._sampled:
            return None
        now = time.monotonic()
        return [
            dict(row, **(dict.fromkeys(MEASURED) if now - self._sampled[index] > self._stale_s else {}))
            for index, row in sorted(self._rows.items())
        ]

    def _read_on(self, timeout_s: float) -> bool:
        """Take in what nvidia-smi has written; False where it is nothing."""
        assert self._process is not None
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        if not select.select([handle], [], [], timeout_s)[0]:
            return False
        data = os.read(handle, 65536)
        self._open = bool(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-MAX_LINE_BYTES:]
        for row in filter(None, (parse_row(line.decode(errors="replace")) for line in lines)):
            self._count, uuid, values = row
            self._sampled[values["index"]] = time.monotonic()
            if is_visible(values["index"], uuid, self._visible):
                self._rows[values["index"]] = values
        return self._open

    def close(self) -> None:
        """End nvidia-smi. One that hangs in the driver is left to the system."""
        if self._process is None:
            return
        assert self._process.stdout is not None
        self._open = False
        for end in (self._process.terminate, self._process.kill):
            end()
            try:
                self._process.wait(END_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.stdout.close()
