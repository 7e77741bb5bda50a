"""Measure a benchmark's device, and check the node's parsers on it."""

import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from typing import Any

import torch

from bench.parts.sections import Tell
from remote.node.checks import facts
from remote.node.gpu import gpu_usage, gpus

MATMULS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
REPEATS = 10
LAUNCHES = 2000
CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,temperature.gpu,pstate"
MEMORY_TOLERANCE = 0.05
"""The driver keeps some of what nvidia-smi counts."""
LOAD_S = 4.0
"""nvidia-smi's use of a GPU is that of up to the last second."""
FEED_S = 30.0


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def environment(device: torch.device) -> dict[str, Any]:
    """Return the facts that a timing depends on, apart from the program."""
    known: dict[str, Any] = {
        "device": device.type,
        "name": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "torchmetrics": _version("torchmetrics"),
        "triton": _version("triton"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type != "cuda":
        return known
    shown = torch.cuda.get_device_properties(device)
    return known | {
        "name": shown.name,
        "capability": f"{shown.major}.{shown.minor}",
        "multiprocessors": shown.multi_processor_count,
        "memory_bytes": shown.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "driver": next((gpu["driver"] for gpu in gpus.read()["gpus"]), None),
        "clocks": clocks(),
    }


def clocks() -> dict[str, str] | None:
    """Return the first GPU's clocks, power and temperature from nvidia-smi. `None`: no answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={CLOCKS}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FEED_S)
    except subprocess.TimeoutExpired:
        return None
    cells = [cell.strip() for cell in done.stdout.strip().split(",")]
    names = CLOCKS.split(",")
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def timed(operation: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Return the median of some runs after two that do not count, seconds."""
    seconds = []
    for _ in range(repeats + 2):
        synchronize(device)
        began = time.perf_counter()
        operation()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def matmul_tflops(device: torch.device, precision: str, size: int) -> float:
    """Return the rate of a product of two square matrices, 10**12 operations a second."""
    # Not zeros, which are faster than any other values.
    left, right = (torch.randn(size, size, device=device, dtype=MATMULS[precision]) for _ in range(2))
    with _matmul_precision("high" if precision == "tf32" else "highest"):
        seconds = timed(lambda: left @ right, device)
    return 2 * size**3 / seconds / 1e12


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def copy_gb_s(device: torch.device, size: int) -> float:
    """Return the rate of a copy within the device's memory, bytes read and written, 10**9 a second."""
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), device)
    return 2 * size / seconds / 1e9


def launch_us(device: torch.device) -> float:
    """Return the time of the smallest operation in a long series, microseconds."""
    number = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            number.add_(1)

    return timed(launches, device, repeats=5) / LAUNCHES * 1e6


def measure_ceilings(device: torch.device, tell: Tell, *, matrix: int, copied: int) -> None:
    """Record the device's best rates."""
    precisions = MATMULS if device.type == "cuda" else {"fp32": torch.float32}
    for precision in precisions:
        tell.value(
            "ceilings", "matmul_tflops", precision, value=round(matmul_tflops(device, precision, matrix), 3)
        )
    tell.value("ceilings", "copy_gb_s", value=round(copy_gb_s(device, copied), 1))
    tell.value("ceilings", "launch_us", value=round(launch_us(device), 2))


def check_parsers(device: torch.device, tell: Tell, *, matrix: int) -> None:
    """Record the node's readings of the real nvidia-smi, and check that they agree with torch."""
    info = gpus.read()
    tell.value("facts", value=info)
    tell.value("cloud", value=facts.cloud())
    tell.value("rdma", value=facts.rdma_devices())
    expected = [
        (torch.cuda.get_device_name(index), torch.cuda.get_device_properties(index).total_memory)
        for index in range(torch.cuda.device_count())
    ]
    tell.value("torch", value=[{"name": name, "memory_bytes": memory} for name, memory in expected])
    _check_alike(
        tell, "facts", [(gpu["name"], (gpu["memory_mb"] or 0) * 2**20) for gpu in info["gpus"]], expected
    )
    driver = info["driver"]
    fits = driver["smi_exit"] == 0 and driver["listed"] >= len(expected) if expected else not driver["listed"]
    tell.check(
        "facts of the driver",
        ok=bool(fits) and all(_is_version(gpu["driver"]) for gpu in info["gpus"]),
        details=f"driver {', '.join(sorted({gpu['driver'] for gpu in info['gpus']})) or 'none'}, nvidia-smi's status "
        f"{driver['smi_exit']}, {driver['listed']} listed, {driver['devices']} on the bus, module {driver['module']}",
    )
    installed = facts.package_version("torch")
    tell.check(
        "facts of torch",
        ok=installed is not None and installed.split("+")[0] == torch.__version__.split("+")[0],
        details=f"{installed} by its folder, {torch.__version__} by itself",
    )
    with closing(gpu_usage.Feed(0.5)) as feed:
        feed.wait(FEED_S)
        if device.type == "cuda":
            _load(device, matrix)
        usage = feed.read()
    tell.value("usage", value=usage)
    listed = usage or []
    _check_alike(tell, "top", [(gpu["name"], gpu["memory_total_bytes"] or 0) for gpu in listed], expected)
    if not listed:
        return
    busy, used = listed[0]["utilization"], listed[0]["memory_used_bytes"]
    tell.check(
        "top under load",
        ok=busy is None or 0 < busy <= 1,
        details=f"the first GPU's use is {'not known' if busy is None else f'{busy:.0%}'} after {LOAD_S:g} s of work",
    )
    tell.check(
        "top's memory",
        ok=used is not None and 0 < used <= (listed[0]["memory_total_bytes"] or 0),
        details=f"{used} of {listed[0]['memory_total_bytes']} bytes in use",
    )


def _load(device: torch.device, size: int) -> None:
    """Keep the device busy for a while."""
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    limit = time.monotonic() + LOAD_S
    while time.monotonic() < limit:
        matrix @ matrix
        synchronize(device)


def _check_alike(
    tell: Tell, title: str, readings: list[tuple[str, int]], expected: list[tuple[str, int]]
) -> None:
    alike = len(readings) == len(expected) and all(
        name == other and math.isclose(memory, total, rel_tol=MEMORY_TOLERANCE)
        for (name, memory), (other, total) in zip(readings, expected, strict=False)
    )
    tell.check(f"{title} against torch", ok=alike, details=f"{_shown(readings)}; torch: {_shown(expected)}")


def _shown(listed: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {memory / 2**30:.1f} GiB" for name, memory in listed) or "no GPU"


def _is_version(text: str) -> bool:
    words = text.split(".")
    return len(words) >= 2 and all(word.isdecimal() for word in words)
