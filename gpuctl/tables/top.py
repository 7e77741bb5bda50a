"""The tables of `top`: a row a node, a row a GPU.

Imports rich: import this module where you print.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.tables.layout import FittedTable
from inventories.text import human_bytes

if TYPE_CHECKING:
    from remote.runs.usage import GpuUsage, Reading, Usage

SILENT_S = 5.0
"""After this time without an answer of a node, its state is `silent`."""
BUSY = 0.85
FULL = 0.95


def top_table(readings: "Sequence[Reading]", *, now_s: float | None = None) -> RenderableType:
    """The nodes by rank, their GPUs if any has some, and why nodes are lost.

    `now_s`: monotonic; `None`: the readings are as old as they should be.
    """
    ordered = sorted(readings, key=lambda reading: (reading.rank, reading.node))
    silent = {
        reading.node: now_s - reading.heard_s
        for reading in ordered
        if now_s is not None and reading.heard_s is not None and now_s - reading.heard_s > SILENT_S
    }
    parts: list[RenderableType] = [_nodes(ordered, silent)]
    if any(reading.usage and reading.usage.gpus for reading in ordered):
        parts += ["", _gpus(ordered)]
    if remarks := [remark for reading in ordered if (remark := _remark(reading))]:
        parts += ["", *remarks]
    return Group(*parts)


def _remark(reading: "Reading") -> Text | None:
    """Return the remark on a node's problem."""
    if reading.error:
        return Text(text.clean(f"{reading.node} is lost: {reading.error}"), "red")
    if reading.usage and reading.usage.gpus is None:
        problem = "nvidia-smi is there, but tells of no GPU; see gpuctl exec -- nvidia-smi"
        return Text(f"{reading.node}: {problem}", "yellow")
    return None


def _nodes(readings: "Sequence[Reading]", silent: dict[str, float]) -> RenderableType:
    """A row a node; `state` only where one is not well."""
    columns: dict[str, Callable[[Usage], str | Text]] = {
        "CPU": lambda usage: share(usage.cpu_utilization),
        "load": lambda usage: text.known(usage.load_1m, "{:.1f}"),
        "memory": lambda usage: of(usage.memory_used_bytes, usage.memory_total_bytes),
        "in/s": lambda usage: _bytes(usage.received_bytes_per_s),
        "out/s": lambda usage: _bytes(usage.sent_bytes_per_s),
        "disk free": lambda usage: _bytes(usage.disk_free_bytes),
    }
    all_well = all(reading.state == "ok" and reading.node not in silent for reading in readings)
    rows: list[list[str | Text]] = []
    for reading in readings:
        usage = reading.usage
        cells = [cell(usage) if usage else text.UNKNOWN for cell in columns.values()]
        state = Text(reading.state, {"ok": "green", "lost": "red"}.get(reading.state, "cyan"))
        if reading.node in silent:
            state = Text(f"silent for {silent[reading.node]:.0f} s", "yellow")
        rows.append([str(reading.rank), reading.node, *cells, *([] if all_well else [state])])
    return FittedTable(
        ["rank", "node", *columns, *(() if all_well else ("state",))],
        rows,
        right=("rank", *columns),
        optional=("disk free", "load", "out/s", "in/s", "memory", "CPU"),
        steady=True,
    )


def _gpus(readings: "Sequence[Reading]") -> RenderableType:
    """A row a GPU."""
    columns: dict[str, Callable[[GpuUsage], str | Text]] = {
        "GPU": lambda gpu: str(gpu.index),
        "name": lambda gpu: text.clean(gpu.name, 30).removeprefix("NVIDIA "),
        "use": lambda gpu: share(gpu.utilization),
        "memory": lambda gpu: of(gpu.memory_used_bytes, gpu.memory_total_bytes),
        "temp": lambda gpu: text.known(gpu.temperature_c, "{:.0f} C"),
        "power": lambda gpu: text.known(gpu.power_w, "{:.0f} W"),
    }
    rows = [
        [str(reading.rank), reading.node, *(cell(gpu) for cell in columns.values())]
        for reading in readings
        for gpu in (reading.usage.gpus if reading.usage else None) or ()
    ]
    return FittedTable(
        ["rank", "node", *columns],
        rows,
        right=("rank", "GPU", "use", "memory", "temp", "power"),
        optional=("name", "power", "temp", "memory"),
        steady=True,
    )


def share(fraction: float | None) -> Text:
    """`87 %`, green where it is much: idle hardware is what costs."""
    if fraction is None:
        return Text(text.UNKNOWN)
    return Text(f"{fraction * 100:.0f} %", "green" if fraction >= BUSY else "")


def of(used: int | None, total: int | None) -> Text:
    """`21.3 of 24.1 GB`, red where little is left."""
    if used is None or not total:
        return Text(text.UNKNOWN)
    return Text(f"{used / 1e9:.1f} of {total / 1e9:.1f} GB", "red" if used / total >= FULL else "")


def _bytes(count: float | None) -> str:
    return text.UNKNOWN if count is None else human_bytes(count)
