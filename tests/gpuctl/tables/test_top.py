"""The tables of `top` as people see them, without colour."""

from dataclasses import replace

import pytest
from support import drawn

from gpuctl.tables.top import top_table
from remote.runs.usage import GpuUsage, Reading, Usage

GPU = GpuUsage(
    index=0,
    name="NVIDIA A100-SXM4-80GB",
    utilization=0.874,
    memory_used_bytes=21_300_000_000,
    memory_total_bytes=85_100_000_000,
    temperature_c=61.0,
    power_w=311.4,
)
UNTOLD = GpuUsage(
    index=1,
    name="NVIDIA A100-SXM4-80GB",
    utilization=None,
    memory_used_bytes=None,
    memory_total_bytes=85_100_000_000,
    temperature_c=None,
    power_w=None,
)
USAGE = Usage(
    cpus=30,
    cpu_utilization=0.123,
    load_1m=3.21,
    memory_used_bytes=3_100_000_000,
    memory_total_bytes=257_000_000_000,
    interfaces=("ens3",),
    received_bytes_per_s=1_200_000.0,
    sent_bytes_per_s=340.0,
    disk_free_bytes=23_000_000_000,
    gpus=(GPU, UNTOLD),
)
ZERO = Reading(node="node-0", rank=0, state="ok", usage=USAGE, heard_s=100.0)
ONE = Reading(node="node-1", rank=1, state="ok", usage=replace(USAGE, gpus=()), heard_s=100.0)
NOTHING = Usage(
    cpus=8,
    cpu_utilization=None,
    load_1m=2.0,
    memory_used_bytes=None,
    memory_total_bytes=None,
    interfaces=(),
    received_bytes_per_s=None,
    sent_bytes_per_s=None,
    disk_free_bytes=512,
    gpus=(),
)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_top_table_shows_one_row_per_node_and_gpu() -> None:
    assert drawn(top_table([ONE, ZERO], now_s=101.0)) == (
        """\
rank  node     CPU  load           memory    in/s  out/s  disk free
   0  node-0  12 %   3.2  3.1 of 257.0 GB  1.2 MB  340 B    23.0 GB
   1  node-1  12 %   3.2  3.1 of 257.0 GB  1.2 MB  340 B    23.0 GB

rank  node    GPU  name             use           memory  temp  power
   0  node-0    0  A100-SXM4-80GB  87 %  21.3 of 85.1 GB  61 C  311 W
   0  node-0    1  A100-SXM4-80GB     -                -     -      -
"""
    )


def test_top_table_without_gpus_omits_gpu_table() -> None:
    assert drawn(top_table([replace(ONE, usage=NOTHING)])) == (
        """\
rank  node    CPU  load  memory  in/s  out/s  disk free
   1  node-1    -   2.0       -     -      -      512 B
"""
    )


def test_top_table_reports_gpus_that_nvidia_smi_does_not_list() -> None:
    text = drawn(top_table([replace(ONE, usage=replace(NOTHING, gpus=None))]))
    assert text.endswith(
        "\nnode-1: nvidia-smi is there, but tells of no GPU; see gpuctl exec -- nvidia-smi\n"
    )


def test_top_table_shows_silent_lost_and_connecting_nodes() -> None:
    lost = Reading(
        node="node-1", rank=1, state="lost", error="node-1: no answer.\n\x1b[2J See `gpuctl status`."
    )
    new = Reading(node="node-2", rank=2, state="connecting")
    assert drawn(top_table([replace(ZERO, usage=NOTHING), lost, new], now_s=112.4)) == (
        """\
rank  node    CPU  load  memory  in/s  out/s  disk free  state
   0  node-0    -   2.0       -     -      -      512 B  silent for 12 s
   1  node-1    -     -       -     -      -          -  lost
   2  node-2    -     -       -     -      -          -  connecting

node-1 is lost: node-1: no answer. See `gpuctl status`.
"""
    )


def test_top_table_strips_control_sequences_of_gpu_names() -> None:
    evil = replace(USAGE, gpus=(replace(GPU, name="\x1b]0;title\x07[bold]A\n10"),))
    text = drawn(top_table([replace(ZERO, usage=evil)]))
    assert "\x1b" not in text
    assert "[bold]A10" in text


def test_top_table_drops_columns_to_fit_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert drawn(top_table([ONE, ZERO], now_s=101.0)) == (
        """\
rank  node     CPU           memory    in/s  out/s
   0  node-0  12 %  3.1 of 257.0 GB  1.2 MB  340 B
   1  node-1  12 %  3.1 of 257.0 GB  1.2 MB  340 B
no room for disk free, load

rank  node    GPU   use           memory  temp
   0  node-0    0  87 %  21.3 of 85.1 GB  61 C
   0  node-0    1     -                -     -
no room for name, power
"""
    )
