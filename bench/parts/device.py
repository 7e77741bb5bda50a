"""The device of a benchmark as it is found: what it is, what it can do, what the node's own parsers see of it."""

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
from remote.node.checks import facts, hardware
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
    """Until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def environment(device: torch.device) -> dict[str, Any]:
    """What a timing depends on, beside the program."""
    found: dict[str, Any] = {
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
        return found
    shown = torch.cuda.get_device_properties(device)
    return found | {
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
    """The first GPU's clocks, power and temperature in nvidia-smi's words. `None`: it does not say."""
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
    """The median of some runs after two that do not count, seconds."""
    taken = []
    for _ in range(repeats + 2):
        synchronize(device)
        began = time.perf_counter()
        operation()
        synchronize(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def matmul_tflops(device: torch.device, precision: str, size: int) -> float:
    """What a product of two square matrices comes to, 10**12 operations a second."""
    # Not zeros: with them it is faster than with anything else.
    one, other = (torch.randn(size, size, device=device, dtype=MATMULS[precision]) for _ in range(2))
    with _matmul_precision("high" if precision == "tf32" else "highest"):
        seconds = timed(lambda: one @ other, device)
    return 2 * size**3 / seconds / 1e12


@contextmanager
def _matmul_precision(wanted: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def copy_gb_s(device: torch.device, size: int) -> float:
    """What a copy within the device's memory comes to, bytes read and written, 10**9 a second."""
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), device)
    return 2 * size / seconds / 1e9


def launch_us(device: torch.device) -> float:
    """What the smallest operation costs where many are begun one after the other, microseconds."""
    number = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            number.add_(1)

    return timed(launches, device, repeats=5) / LAUNCHES * 1e6


def measure_ceilings(device: torch.device, tell: Tell, *, matrix: int, copied: int) -> None:
    """Tell what the device comes to at its best."""
    precisions = MATMULS if device.type == "cuda" else {"fp32": torch.float32}
    for precision in precisions:
        tell.value(
            "ceilings", "matmul_tflops", precision, value=round(matmul_tflops(device, precision, matrix), 3)
        )
    tell.value("ceilings", "copy_gb_s", value=round(copy_gb_s(device, copied), 1))
    tell.value("ceilings", "launch_us", value=round(launch_us(device), 2))


def check_parsers(device: torch.device, tell: Tell, *, matrix: int) -> None:
    """Tell what the node's part reads from the real nvidia-smi, and whether torch sees the same."""
    seen = gpus.read()
    tell.value("facts", value=seen)
    tell.value("cloud", value=hardware.cloud())
    tell.value("rdma", value=hardware.rdma_devices())
    expected = [
        (torch.cuda.get_device_name(index), torch.cuda.get_device_properties(index).total_memory)
        for index in range(torch.cuda.device_count())
    ]
    tell.value("torch", value=[{"name": name, "memory_bytes": memory} for name, memory in expected])
    _check_alike(
        tell, "facts", [(gpu["name"], (gpu["memory_mb"] or 0) * 2**20) for gpu in seen["gpus"]], expected
    )
    driver = seen["driver"]
    fits = driver["smi_exit"] == 0 and driver["listed"] >= len(expected) if expected else not driver["listed"]
    tell.check(
        "facts of the driver",
        ok=bool(fits) and all(_is_version(gpu["driver"]) for gpu in seen["gpus"]),
        said=f"driver {', '.join(sorted({gpu['driver'] for gpu in seen['gpus']})) or 'none'}, nvidia-smi's status "
        f"{driver['smi_exit']}, {driver['listed']} listed, {driver['devices']} on the bus, module {driver['module']}",
    )
    installed = facts.package_version("torch")
    tell.check(
        "facts of torch",
        ok=installed is not None and installed.split("+")[0] == torch.__version__.split("+")[0],
        said=f"{installed} by its folder, {torch.__version__} by itself",
    )
    with closing(gpu_usage.Feed(0.5)) as feed:
        feed.wait(FEED_S)
        if device.type == "cuda":
            _load(device, matrix)
        usage = feed.read()
    tell.value("usage", value=usage)
    found = usage or []
    _check_alike(tell, "top", [(gpu["name"], gpu["memory_total_bytes"] or 0) for gpu in found], expected)
    if not found:
        return
    busy, used = found[0]["utilization"], found[0]["memory_used_bytes"]
    tell.check(
        "top under load",
        ok=busy is None or 0 < busy <= 1,
        said=f"the first GPU's use is {'not known' if busy is None else f'{busy:.0%}'} after {LOAD_S:g} s of work",
    )
    tell.check(
        "top's memory",
        ok=used is not None and 0 < used <= (found[0]["memory_total_bytes"] or 0),
        said=f"{used} of {found[0]['memory_total_bytes']} bytes in use",
    )


def _load(device: torch.device, size: int) -> None:
    """Keep the device busy for a while."""
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    limit = time.monotonic() + LOAD_S
    while time.monotonic() < limit:
        matrix @ matrix
        synchronize(device)


def _check_alike(tell: Tell, what: str, seen: list[tuple[str, int]], expected: list[tuple[str, int]]) -> None:
    alike = len(seen) == len(expected) and all(
        name == other and math.isclose(memory, total, rel_tol=MEMORY_TOLERANCE)
        for (name, memory), (other, total) in zip(seen, expected, strict=False)
    )
    tell.check(f"{what} against torch", ok=alike, said=f"{_shown(seen)}; torch: {_shown(expected)}")


def _shown(listed: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {memory / 2**30:.1f} GiB" for name, memory in listed) or "no GPU"


def _is_version(text: str) -> bool:
    words = text.split(".")
    return len(words) >= 2 and all(word.isdecimal() for word in words)
