"""Utilisation of a run's machines, from the lines that the nodes wrote during the run.

Any value in these lines may be missing or of a wrong type, and is then not known. Nothing here raises on them.
"""

from collections.abc import Mapping, Sequence

from gpuctl import text
from gpuctl.run_results.metric_names import Line, number, whole, words
from inventories.runs.run import Run
from inventories.runs.usage import GpuUse, NodeUse, RunUse
from inventories.text import plural

NODES_SHOWN = 8
LEAST_SAMPLES = 3
"""Samples of a GPU's utilisation: nvidia-smi averages over its own period, and a shorter run has no value."""
LOOPBACK = "127.0.0.1"
"""Where ranks meet whose nodes are hosts on one machine."""


def use_of_run(run: Run, lines: Mapping[str, Sequence[Line]]) -> RunUse | None:
    """The means and peaks of all nodes' lines (by node); `None` where no node wrote any."""
    nodes = tuple(use for node in run.nodes if (use := use_of_node(node.name, lines.get(node.name, ()))))
    if not nodes:
        return None
    gpus = [(gpu.utilization, node.seconds) for node in nodes for gpu in node.gpus]
    return RunUse(
        gpu_utilization=_mean(gpus),
        cpu_utilization=_mean([(node.cpu_utilization, node.seconds) for node in nodes]),
        nodes=nodes,
        one_machine=run.master_addr == LOOPBACK,
    )


def use_of_node(node: str, lines: Sequence[Line]) -> NodeUse | None:
    """Return a node's means, weighted by the time of each line, and its peaks."""
    timed = [(line, seconds) for line in lines if (seconds := number(line.get("seconds"))) and seconds > 0]
    if not timed:
        return None
    gpus: dict[int, list[tuple[Line, float]]] = {}
    for line, seconds in timed:
        reported = line.get("gpus")
        for gpu in reported if isinstance(reported, list) else ():
            if isinstance(gpu, Mapping) and (index := whole(gpu.get("index"))) is not None:
                gpus.setdefault(index, []).append((gpu, seconds))
    return NodeUse(
        node=node,
        seconds=round(sum(seconds for _, seconds in timed), 3),
        cpu_utilization=_mean_of(timed, "cpu_utilization"),
        memory_peak_bytes=_maximum(timed, "memory_used_bytes"),
        memory_total_bytes=_maximum(timed, "memory_total_bytes"),
        received_bytes_per_s=_mean_of(timed, "received_bytes_per_s"),
        sent_bytes_per_s=_mean_of(timed, "sent_bytes_per_s"),
        gpus=tuple(
            GpuUse(
                index=index,
                name=next((name for gpu, _ in reversed(gpus) if (name := words(gpu.get("name")))), ""),
                utilization=_mean_of(gpus, "utilization", min_lines=LEAST_SAMPLES),
                memory_peak_bytes=_maximum(gpus, "memory_used_bytes"),
                memory_total_bytes=_maximum(gpus, "memory_total_bytes"),
                power_w=_mean_of(gpus, "power_w"),
            )
            for index, gpus in sorted(gpus.items())
        ),
    )


def _mean_of(timed: Sequence[tuple[Line, float]], key: str, *, min_lines: int = 1) -> float | None:
    """Return the mean of a key's known values; `None` where these are fewer than `least`."""
    values = [(value, seconds) for line, seconds in timed if (value := number(line.get(key))) is not None]
    return _mean(values) if len(values) >= min_lines else None


def _mean(values: Sequence[tuple[float | None, float]]) -> float | None:
    """The mean of the known ones of (value, weight)."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 4) if total else None


def _maximum(timed: Sequence[tuple[Line, float]], key: str) -> int | None:
    return max((value for line, _ in timed if (value := whole(line.get(key))) is not None), default=None)


def use_lines(use: RunUse) -> list[tuple[str, str]]:
    """(label, `87 % (peak memory 21.3 of 24.1 GB)`), …: the GPUs, then the CPUs; a line a node.

    The CPUs of hosts on one machine have one line.
    """
    several = len(use.nodes) > 1
    shown = use.nodes[:NODES_SHOWN]
    gpus = [_line(node.node if several else "", _gpus(node)) for node in shown if node.gpus]
    cpus = [
        _line("whole machine" if use.one_machine else node.node if several else "", line)
        for node in shown[: 1 if use.one_machine else None]
        if (line := _with_peak([node.cpu_utilization], node.memory_peak_bytes, node.memory_total_bytes))
    ]
    hidden = len(use.nodes) - len(shown)
    if hidden:
        means = f"and {plural(hidden, 'more node')}: gpuctl results --json; the mean of all nodes is "
        if gpus:
            gpus.append(means + text.percent(use.gpu_utilization, 0))
        if cpus and not use.one_machine:
            cpus.append(means + text.percent(use.cpu_utilization, 0))
    return [
        (label if first else "", line)
        for label, lines in (("GPU use", gpus), ("CPU use", cpus))
        for first, line in ((at == 0, line) for at, line in enumerate(lines))
    ]


def _line(node: str, line: str) -> str:
    return f"{node}  {line}" if node else line


def _gpus(node: NodeUse) -> str:
    """Return all GPUs of a node: the mean of each, and the peak of the GPU nearest to full memory."""

    def filled(gpu: GpuUse) -> float:
        return (gpu.memory_peak_bytes or 0) / (gpu.memory_total_bytes or 1)

    fullest = max(node.gpus, key=filled)
    use = [gpu.utilization for gpu in node.gpus]
    return _with_peak(use, fullest.memory_peak_bytes, fullest.memory_total_bytes) or text.UNKNOWN


def _with_peak(use: Sequence[float | None], peak: int | None, total: int | None) -> str:
    """`87 % 85 % (peak memory 21.3 of 24.1 GB)`; empty where nothing is known."""
    shown = " ".join(text.percent(part, 0) for part in use) if any(part is not None for part in use) else ""
    memory = f"peak memory {peak / 1e9:.1f} of {total / 1e9:.1f} GB" if peak is not None and total else ""
    return f"{shown} ({memory})" if shown and memory else shown or memory
