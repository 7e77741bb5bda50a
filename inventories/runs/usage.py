"""The use of machines during a run."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """The use of a GPU during a run. `None`: its driver could not measure it."""

    index: int
    name: str
    utilization: float | None
    """The mean over the run, 0 .. 1."""
    memory_peak_bytes: int | None
    """The most that was seen used, by anybody."""
    memory_total_bytes: int | None
    power_w: float | None
    """The mean."""


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """The use of a node during a run. `None`: can't be known there."""

    node: str
    seconds: float
    """The time that was sampled."""
    cpu_utilization: float | None
    """The mean of all CPUs, 0 .. 1, whoever used them."""
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    gpus: tuple[GpuUse, ...]


@dataclass(frozen=True, kw_only=True)
class RunUse:
    """The use of the machines during a run, as they sampled themselves."""

    gpu_utilization: float | None
    """The mean of all GPUs of which it is known, 0 .. 1."""
    cpu_utilization: float | None
    """The mean of the nodes."""
    nodes: tuple[NodeUse, ...]
    """By rank; a node without samples is missing."""
    one_machine: bool = False
    """Whether the nodes are hosts on one machine, whose CPUs and memory each of them sampled."""
