"""Test how busy a run kept its machines, from lines with arbitrary content."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.run_results.csv_table import csv_text
from gpuctl.run_results.evidence import Evidence
from gpuctl.run_results.result import result_of
from gpuctl.run_results.utilisation import use_lines, use_of_node, use_of_run
from gpuctl.tables.run import draw_run
from inventories import codec
from inventories.runs.result import Result
from inventories.runs.run import Run, RunNode
from inventories.runs.usage import GpuUse, NodeUse, RunUse


def line(seconds: Any, cpu: Any, memory: Any, *gpus: Any) -> dict[str, Any]:
    return {
        "seconds": seconds, "cpu_utilization": cpu, "memory_used_bytes": memory, "memory_total_bytes": 64_000_000_000,
        "received_bytes_per_s": 10.0, "sent_bytes_per_s": None, "gpus": list(gpus),
    }  # fmt: skip


def gpu(index: Any, use: Any, memory: Any) -> dict[str, Any]:
    return {
        "index": index, "name": "A10", "utilization": use, "memory_used_bytes": memory,
        "memory_total_bytes": 24_100_000_000, "power_w": 100.0,
    }  # fmt: skip


def test_use_of_node_weights_means_by_time_and_keeps_peaks() -> None:
    lines = [
        line(1.0, 0.2, 5_000_000_000, gpu(0, 0.5, 21_300_000_000), gpu(1, None, None)),
        line(1.0, 0.4, 3_000_000_000, gpu(0, 0.9, 2_000_000_000), gpu(1, 0.9, None)),
        line(2.0, 0.7, 3_000_000_000, gpu(0, 0.9, 2_000_000_000), gpu(1, 0.9, None)),
    ]
    assert use_of_node("n-0", lines) == NodeUse(
        node="n-0",
        seconds=4.0,
        cpu_utilization=0.5,
        memory_peak_bytes=5_000_000_000,
        memory_total_bytes=64_000_000_000,
        received_bytes_per_s=10.0,
        sent_bytes_per_s=None,
        gpus=(
            GpuUse(
                index=0,
                name="A10",
                utilization=0.8,
                memory_peak_bytes=21_300_000_000,
                memory_total_bytes=24_100_000_000,
                power_w=100.0,
            ),
            GpuUse(
                index=1,
                name="A10",
                utilization=None,
                memory_peak_bytes=None,
                memory_total_bytes=24_100_000_000,
                power_w=100.0,
            ),
        ),
    )


@pytest.mark.parametrize("lines", [[], [{}], [line(0, 0.5, 1)], [line("1", 0.5, 1)], [line(-1.0, 0.5, 1)]])
def test_use_of_node_is_none_without_valid_lines(lines: list[dict[str, Any]]) -> None:
    assert use_of_node("n-0", lines) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(
        st.builds(line, ANYTHING, ANYTHING, ANYTHING, ANYTHING | st.builds(gpu, ANYTHING, ANYTHING, ANYTHING))
    )
)
def test_use_of_node_accepts_any_line(lines: list[dict[str, Any]]) -> None:
    if use := use_of_node("n-0", lines):
        use_lines(RunUse(gpu_utilization=None, cpu_utilization=None, nodes=(use,)))


def run_of(count: int) -> Run:
    nodes = tuple(RunNode(name=f"n-{r}", rank=r, nproc=1, first_rank=r, run_dir="/r") for r in range(count))
    return Run(
        run="r", cluster="n", mode="torchrun", script="x", args=(), nodes=nodes, master_addr="h", master_port=1,
        started_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def shown(count: int, lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    use = use_of_run(run_of(count), {f"n-{rank}": lines for rank in range(count)})
    assert use is not None
    return use_lines(use)


def test_use_lines_show_gpu_and_cpu_use_per_node() -> None:
    lines = [line(2.0, 0.121, 3_100_000_000, gpu(0, 0.87, 21_300_000_000), gpu(1, 0.13, 100))] * 3
    assert shown(1, lines) == [
        ("GPU use", "87 % 13 % (peak memory 21.3 of 24.1 GB)"),
        ("CPU use", "12 % (peak memory 3.1 of 64.0 GB)"),
    ]
    assert shown(2, lines) == [
        ("GPU use", "n-0  87 % 13 % (peak memory 21.3 of 24.1 GB)"),
        ("", "n-1  87 % 13 % (peak memory 21.3 of 24.1 GB)"),
        ("CPU use", "n-0  12 % (peak memory 3.1 of 64.0 GB)"),
        ("", "n-1  12 % (peak memory 3.1 of 64.0 GB)"),
    ]
    many = shown(10, lines)
    assert len(many) == 18
    assert many[8] == ("", "and 2 more nodes: gpuctl results --json; the mean of all nodes is 50 %")


def test_cpus_of_hosts_on_one_machine_have_one_line() -> None:
    lines = {name: [line(2.0, 0.5, None)] for name in ("n-0", "n-1")}
    report = use_of_run(replace(run_of(2), master_addr="127.0.0.1"), lines)
    assert report.one_machine
    assert use_lines(report) == [("CPU use", "whole machine  50 %")]


@pytest.mark.parametrize("samples", [1, 2])
def test_use_of_a_gpu_is_not_told_of_a_few_samples(samples: int) -> None:
    lines = [line(2.0, 0.5, None, gpu(0, 0.0, 21_300_000_000))] * samples
    assert shown(1, lines) == [("GPU use", "peak memory 21.3 of 24.1 GB"), ("CPU use", "50 %")]


def test_use_lines_omit_unknown_values() -> None:
    assert shown(1, [line(2.0, None, None)]) == []
    assert shown(1, [line(2.0, 0.5, None, gpu(0, None, None))]) == [("GPU use", "-"), ("CPU use", "50 %")]
    assert use_of_run(run_of(2), {"n-0": [], "n-9": [line(1.0, 0.5, 1)]}) is None


def result_with(*lines: dict[str, Any]) -> Result:
    folder = Path("/home/runs/r")
    return result_of(Evidence(folder=folder, run=run_of(1), ranks={}, nodes=[], usage={"n-0": lines}))


def test_result_stores_shows_and_exports_usage() -> None:
    lines = [line(2.0, 0.121, 3_100_000_000, gpu(0, 0.87, 21_300_000_000))] * 3
    result = result_with(*lines)
    assert codec.load(Result, codec.dump(result), "result.json") == result
    out = io.StringIO()
    Output(Options(), stdout=out).table(draw_run(result))
    assert "\nGPU use     87 % (peak memory 21.3 of 24.1 GB)\nCPU use     12 % (peak" in out.getvalue()
    rows = list(csv.DictReader(io.StringIO(csv_text([result, result_with()]))))
    shares = [(row["usage.gpu_utilization"], row["usage.cpu_utilization"]) for row in rows]
    assert shares == [("0.87", "0.121"), ("", "")]
    assert not {"usage", "usage.nodes"} & set(rows[0])


def test_result_without_usage_field_is_read() -> None:
    document = codec.to_json(result_with())
    del document["usage"]
    assert codec.from_json(Result, document, "result.json").usage is None
