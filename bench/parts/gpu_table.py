"""Print the results of `bench/gpu.py` as a table. Standard library only."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.parts.floors import Cost, floors
from bench.parts.gpu_plan import GPT, PLAIN_GPT, PUBLISHED
from bench.parts.sections import Document

COLUMNS = (
    "loop",
    "ms a step",
    "steps",
    "images/s",
    "x published",
    "floor",
    "x floor",
    "peak GB",
    "warm-up s",
)


def judged(document: Document) -> list[dict[str, Any]]:
    """Return each variant of each batch size with its ratio to the published loop and its distance to the floors."""
    rows: list[dict[str, Any]] = []
    for batch, variants in sorted(_batches(document).items()):
        published = variants.get(PUBLISHED)
        for name, variant in variants.items():
            step_ms = variant["step_ms"]
            row = {
                "batch": batch,
                "loop": name,
                **variant,
                "images_per_s": batch / step_ms * 1e3,
                "ratio": published and published["step_ms"] / step_ms,
                "floors": _floors(document, batch, precision_of(name), step_ms),
            }
            rows.append(row)
    return rows


def precision_of(name: str) -> str:
    """Return a variant's precision by its name. The published loop has torch's default: tf32 in convolutions."""
    if name.startswith(PUBLISHED):
        return "tf32"
    return next((word for word in name.split() if word in ("bf16", "tf32", "fp16")), "fp32")


def _batches(document: Document) -> dict[int, dict[str, dict[str, Any]]]:
    variants: dict[int, dict[str, dict[str, Any]]] = {}
    for name, section in document["sections"].items():
        if name.startswith("batch "):
            batch = int(name.split()[1].rstrip(":"))
            variants.setdefault(batch, {}).update(section.get("variants", {}))
    return variants


def _floors(document: Document, batch: int, precision: str, step_ms: float) -> dict[str, Any] | None:
    device = document["sections"].get("device", {})
    if "cost" not in device or "environment" not in device:
        return None
    by_source = floors(
        Cost(**device["cost"]),
        batch,
        precision,
        name=device["environment"]["name"],
        measured=device.get("ceilings", {}),
    )
    return {
        source: {**floor, "distance": step_ms / floor["floor_ms"] if floor["floor_ms"] else None}
        for source, floor in by_source.items()
    }


def text(document: Document) -> str:
    """Return the whole table for a terminal."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    on_cpu = document["device"] == "cpu"
    if on_cpu:
        yield "CPU miniature: shows only that the program works; a check with - holds here, and says nothing of a GPU"
    yield from _head(document)
    rows = judged(document)
    for batch in sorted({row["batch"] for row in rows}):
        yield f"\nbatch {batch}, {document['sizes']['model']}, images of 3 x 32 x 32; steady steps:"
        yield from _aligned([COLUMNS, *(_cells(row) for row in rows if row["batch"] == batch)])
    if rows:
        yield (
            "  Floor: the larger of arithmetic and memory, at the rates that were measured on this device. The "
            "published loop computes convolutions in TF32, as torch does by itself; fp32 is fp32."
        )
    yield from _profiled(document)
    yield from _models(document)
    yield from _start(document)
    yield ""
    for check in document["checks"]:
        state = "FAILED" if not check["ok"] else "-" if on_cpu else "ok"
        yield f"  {state:6}  {check['section']}: {check['name']}: {check['said']}"
    for name, section in document["sections"].items():
        if section["status"] != "done":
            yield f"  {section['status'].upper()}  {name}: {section['error']}"
    yield f"\n{document['seconds']:.0f} s in all"


def _head(document: Document) -> Iterator[str]:
    device = document["sections"].get("device", {})
    facts = device.get("environment")
    if facts is None:
        yield "the device is not known"
        return
    parts = [
        facts["name"],
        f"{facts['cpus']} CPU cores",
        f"torch {facts['torch']}",
        f"Python {facts['python']}",
    ]
    parts += [
        f"{name} {facts[name]}" for name in ("driver", "cuda", "cudnn", "nccl", "triton") if facts.get(name)
    ]
    yield ", ".join(parts)
    if facts.get("clocks"):
        yield "  " + ", ".join(f"{name} {value}" for name, value in facts["clocks"].items())
    ceilings = device.get("ceilings", {})
    if ceilings:
        products = ", ".join(
            f"{value:.1f} in {name}" for name, value in ceilings.get("matmul_tflops", {}).items()
        )
        yield (
            f"  measured: products of matrices {products} TFLOP/s; "
            f"copies {_number(ceilings.get('copy_gb_s'), 0)} GB/s; "
            f"the smallest operation {_number(ceilings.get('launch_us'))} us"
        )
    nccl = document["sections"].get("nccl", {})
    if "start_s" in nccl:
        yield (
            f"  one rank's process group starts in {nccl['start_s']:.2f} s, its first all-reduce takes "
            f"{_number(nccl.get('first_all_reduce_s'))} s, one of all gradients "
            f"{_number(nccl.get('all_reduce_ms'))} ms"
        )


def _profiled(document: Document) -> Iterator[str]:
    for name, step in document["sections"].get("profile", {}).get("steps", {}).items():
        yield (
            f"  a step of {name}, batch {document['sizes']['batches'][0]}, under the profiler: {step['kernels']:.0f} "
            f"kernels, the device busy for {step['device_ms']:.2f} ms"
        )


def _models(document: Document) -> Iterator[str]:
    """Yield a line for each larger network: its step, the plainest loop's, and the range of advise."""
    sections = document["sections"]
    plain = sections.get(PLAIN_GPT, {}).get("plain")
    for name, section in sections.items():
        case = section.get("case", {})
        measured, forecast = case.get("measured"), case.get("forecast")
        if not measured or not forecast:
            continue
        line = f"  {case['words']}: {measured['step_ms']:.2f} ms a step of {measured['steps']}"
        if name == GPT and plain:
            ratio = plain["ms_per_step"] / measured["step_ms"]
            line += f", {ratio:.2f} times as fast as the plainest loop ({plain['ms_per_step']:.2f} ms)"
        if forecast["step_ms"]:
            low, high = forecast["step_ms"]
            outside = "" if low <= measured["step_ms"] <= high else ", outside"
            line += f"; advise: {low:.3g} to {high:.3g} ms{outside}"
        if measured["peak_memory_bytes"] and forecast["memory_gb"]:
            line += f"; {measured['peak_memory_bytes'] / 1e9:.2f} GB, advise: {forecast['memory_gb']:.2f}"
        yield line


def _start(document: Document) -> Iterator[str]:
    start = document["sections"].get("start", {}).get("start")
    if start and "parts" in start:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in start["first_step"].items())
        yield (
            f"  gpuctl train, two short epochs: {start['gpuctl_s'][-1]:.1f} s; a script under torchrun: "
            f"{start['by_hand_s'][-1]:.1f} s; until the first step: {parts}"
        )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    floor = (row["floors"] or {}).get("measured", {})
    peak = row["peak_memory_bytes"]
    return (
        row["loop"],
        _number(row["step_ms"], 3),
        str(row["steps"]),
        f"{row['images_per_s']:,.0f}",
        _number(row["ratio"]),
        _number(floor.get("floor_ms"), 3),
        _number(floor.get("distance"), 1),
        _number(None if peak is None else peak / 1e9),
        _number(row["warm_up_s"]),
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *numbers = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *numbers])
