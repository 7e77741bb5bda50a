"""Rows on a measured bandwidth. Pure: lines in, rows out."""

from typing import Any

import pytest
from support import a_run

from gpuctl.workflow.runs.bandwidth import floor_of, rows_of
from inventories.runs.run import Run, RunNode


def line(**changed: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "event": "allreduce", "scope": "all", "backend": "nccl", "world_size": 8, "bytes": 10**9, "iterations": 5,
        "seconds": 0.004, "algorithm_gb_s": 250.0, "bus_gb_s": 437.5, "device": "NVIDIA H100 80GB HBM3", "rank": 0,
    }  # fmt: skip
    return {**values, **changed}


def run_of(nodes: int, nproc: int) -> Run:
    parts = tuple(
        RunNode(name=f"g-{n}", rank=n, nproc=nproc, first_rank=n * nproc, run_dir="/r") for n in range(nodes)
    )
    return a_run(run="R", cluster="c", script="built-in", nodes=parts, started_at="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("changed", "alone", "floor"),
    [
        ({}, True, 440.0),
        ({"device": "NVIDIA A100-SXM4-80GB"}, True, 185.0),
        ({"device": "NVIDIA H200"}, True, 440.0),
        ({"device": "NVIDIA B200"}, True, 440.0),
        ({"device": "NVIDIA H200 NVL"}, True, None),
        ({"device": "NVIDIA A100-PCIE-40GB"}, True, None),
        ({"device": "NVIDIA A10"}, True, None),
        ({"world_size": 4}, True, None),
        ({"bytes": 64_000_000}, True, None),
        ({}, False, None),
    ],
)
def test_floor_of_needs_eight_nvlinked_gpus_and_large_tensors(
    changed: dict[str, object], alone: bool, floor: float | None
) -> None:
    assert floor_of(line(**changed), alone=alone) == floor


def test_rows_of_report_largest_size_and_flag_slow_node() -> None:
    lines = [
        line(scope="all", world_size=16, bytes=4_000_000, bus_gb_s=3.0, seconds=0.01),
        line(scope="all", world_size=16, bytes=10**9, bus_gb_s=40.0, seconds=0.05),
        line(scope="node", rank=0, bus_gb_s=450.0),
        line(scope="node", rank=8, bus_gb_s=300.0),
    ]
    rows = rows_of(lines, run_of(nodes=2, nproc=8))
    assert [(row.ok, row.detail) for row in rows] == [
        (True, "40.00 GB/s between 2 nodes (16 ranks, nccl, 1000 MB in 50.0 ms)"),
        (True, "450.00 GB/s within g-0 (8 ranks, nccl, 1000 MB in 4.0 ms)"),
        (True, "300.00 GB/s within g-1 (8 ranks, nccl, 1000 MB in 4.0 ms)"),
        (None, "g-1: 300 GB/s between its GPUs, where a healthy node has 440"),
    ]
    assert rows[-1].fix
