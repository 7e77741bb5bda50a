"""Test a node's usage figures from the kernel and nvidia-smi, and the usage log of a run."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import processes_with, wait_for

from inventories.errors import CorruptFile
from remote.node import process
from remote.node.gpu import gpu_usage
from remote.node.runs import usage
from remote.runs import usage as ours
from remote.shared.files import write_json
from tests.fakes import nvidia_smi

A10 = {
    "index": 0,
    "name": "NVIDIA A10",
    "utilization": 0.87,
    "memory_used_bytes": 20314 * 1024**2,
    "memory_total_bytes": 23028 * 1024**2,
    "temperature_c": 61.0,
    "power_w": 141.27,
}
UNKNOWN = dict.fromkeys(
    ("utilization", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w")
)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("2, 0, GPU-5a, 87, 20314, 23028, 61, 141.27, NVIDIA A10", (2, "GPU-5a", A10)),
        (
            "1, 0, GPU-5a, [N/A], [Not Supported], [Insufficient Permissions], ERR!, [Unknown Error], NVIDIA A10",
            (1, "GPU-5a", {"index": 0, "name": "NVIDIA A10", **UNKNOWN}),
        ),
        (
            "1, 0, GPU-5a, nan, inf, , -, N/A, A, with a comma",
            (1, "GPU-5a", {"index": 0, "name": "A, with a comma", **UNKNOWN}),
        ),
        ("No devices were found", None),
        ("count, index, uuid, utilization.gpu [%], a, b, c, d, name", None),
        ("1, [N/A], GPU-5a, 0, 0, 0, 0, 0, NVIDIA A10", None),
        ("2, 0, GPU-5a, 87, 20314", None),
        ("", None),
    ],
)
def test_parse_row_reads_a_line_of_nvidia_smi(line: str, row: tuple[int, str, dict[str, Any]] | None) -> None:
    assert gpu_usage.parse_row(line) == row


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, True),
        ("", False),
        ("0", False),
        ("1", True),
        ("0, 1", True),
        ("11", False),
        ("GPU-c9", True),
        ("GPU-5a,", False),
    ],
)
def test_is_visible_respects_cuda_visible_devices(visible: str | None, shown: bool) -> None:
    assert gpu_usage.is_visible(1, "GPU-c93e", visible) is shown


STAT = "cpu  100 5 45 800 50 3 7 0 40 0\ncpu0 100 5 45 800 50 3 7 0 40 0\nintr 1 2\n"


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        (STAT, (160, 1010)),
        ("cpu  1 2 3 4\n", (6, 10)),
        ("", None),
        ("cpu  a b c d\n", None),
        ("cpu 1\n", None),
    ],
)
def test_parse_stat_reads_busy_and_total_ticks(text: str, ticks: tuple[int, int] | None) -> None:
    assert usage.parse_stat(text) == ticks


@pytest.mark.parametrize(
    ("before", "after", "fraction"),
    [
        ((100, 1000), (150, 1200), 0.25),
        ((100, 1000), (300, 1200), 1.0),
        ((100, 1000), (99, 1200), 0.0),
        ((100, 1000), (310, 1200), 1.0),
        ((100, 1000), (100, 1000), None),
        ((100, 1000), (50, 500), None),
        (None, (1, 1), None),
        ((1, 1), None, None),
    ],
)
def test_cpu_busy_returns_the_cpu_fraction_between_samples(
    before: tuple[int, int] | None, after: tuple[int, int] | None, fraction: float | None
) -> None:
    assert usage.busy(before, after) == fraction


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   400 kB\n", (600 * 1024, 1000 * 1024)),
        ("MemTotal:  1000 kB\nMemFree: 1 kB\n", None),  # a kernel before 3.14
        ("MemTotal:  many kB\nMemAvailable:   400 kB\n", None),
        ("", None),
    ],
)
def test_parse_meminfo_reads_used_and_total_memory(text: str, memory: tuple[int, int] | None) -> None:
    assert usage.parse_meminfo(text) == memory


NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo:  10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
enp1s0f0:123456 9 0 0 0 0 0 0 654321 9 0 0 0 0 0 0
"""


def test_parse_net_reads_bytes_per_interface() -> None:
    assert usage.parse_net(NET) == {"lo": (10, 10), "enp1s0f0": (123456, 654321)}
    assert usage.parse_net("") == {}


@pytest.mark.parametrize(
    ("before", "after", "interfaces", "expected"),
    [
        ({"a": (0, 10)}, {"a": (300, 20)}, ["a"], (150.0, 5.0)),
        ({"a": (0, 0), "b": (0, 0)}, {"a": (100, 2), "b": (100, 4)}, ["a", "b"], (100.0, 3.0)),
        ({"a": (0, 0)}, {"a": (100, 2), "b": (100, 4)}, ["a", "b"], (50.0, 1.0)),
        ({"a": (500, 0)}, {"a": (100, 2)}, ["a"], (None, None)),
        ({"a": (0, 0)}, {"a": (100, 2)}, ["b"], (None, None)),
        ({}, {}, [], (None, None)),
    ],
)
def test_network_rates_returns_network_bytes_per_second(
    before: usage.Counters,
    after: usage.Counters,
    interfaces: list[str],
    expected: tuple[float | None, float | None],
) -> None:
    assert usage.rates(before, after, interfaces, 2.0) == expected


def test_physical_lists_interfaces_that_have_a_device(tmp_path: Path) -> None:
    for name in ("lo", "docker0", "ens5"):
        (tmp_path / name).mkdir()
    assert usage.physical(tmp_path) == ["docker0", "ens5"]
    (tmp_path / "ens5" / "device").mkdir()
    assert usage.physical(tmp_path) == ["ens5"]
    assert usage.physical(tmp_path / "none") == []


def test_usage_log_line_interval_doubles_over_time() -> None:
    assert [usage.line_s(written) for written in (0, 255, 256, 511, 512, 2560)] == [1, 1, 2, 2, 4, 1024]
    assert sum(usage.line_s(written) for written in range(2048)) > 18 * 3600


def sample(seconds: float, cpu: float | None, memory: int | None, *gpus: dict[str, Any]) -> dict[str, Any]:
    return {
        "seconds": seconds, "cpu_utilization": cpu, "load_1m": 1.0, "memory_used_bytes": memory,
        "received_bytes_per_s": 8.0, "sent_bytes_per_s": None, "disk_free_bytes": memory, "gpus": list(gpus),
    }  # fmt: skip


def test_usage_merge_keeps_unknown_gpus_unknown() -> None:
    assert usage.merge_samples([dict(sample(1.0, None, None), gpus=None)] * 2)["gpus"] is None


def test_usage_merge_averages_samples_into_one_line() -> None:
    first = {"index": 0, "utilization": 0.9, "power_w": 100.0, "memory_used_bytes": 7}
    second = {"index": 0, "utilization": None, "power_w": 300.0, "memory_used_bytes": 5}
    other = {"index": 1, "utilization": None, "power_w": None, "memory_used_bytes": None}
    merged = usage.merge_samples([sample(1.0, 0.2, 9, first), sample(3.0, 0.6, 4, second, other)])
    assert merged == {
        "seconds": 4.0, "cpu_utilization": 0.5, "load_1m": 1.0, "memory_used_bytes": 9,
        "received_bytes_per_s": 8.0, "sent_bytes_per_s": None, "disk_free_bytes": 4,
        "gpus": [{"index": 0, "utilization": 0.9, "power_w": 250.0, "memory_used_bytes": 7}, other],
    }  # fmt: skip


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nvidia-smi on PATH; its folder."""
    folder = nvidia_smi.install(tmp_path / "smi")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def test_feed_reports_every_gpu_and_ends_nvidia_smi(smi: Path) -> None:
    with closing(gpu_usage.Feed(0.2)) as feed:
        feed.wait(10)
        assert feed.read() == [A10, {**A10, **UNKNOWN, "index": 1, "memory_used_bytes": 3 * 1024**2,
                                     "memory_total_bytes": 23028 * 1024**2, "temperature_c": 38.0}]  # fmt: skip
        assert processes_with(str(smi))
        (smi / "rows.csv").write_text(nvidia_smi.TWO_A10.replace(" 87,", " 12,"))
        wait_for(lambda: feed.read()[0]["utilization"] == 0.12, what="the next lap", deadline_s=10)
    assert feed.read()[0]["name"] == "NVIDIA A10"
    wait_for(lambda: not processes_with(str(smi / "nvidia-smi")), what="the end of nvidia-smi", deadline_s=60)


def test_feed_reports_stale_values_as_unknown(smi: Path) -> None:
    with closing(gpu_usage.Feed(0.1, grace_s=0.1)) as feed:
        feed.wait(10)
        (smi / "rows.csv").unlink()
        missing = {**A10, **dict.fromkeys(gpu_usage.MEASURED)}
        wait_for(lambda: feed.read()[0] == missing, what="unknown values", deadline_s=10)


def test_feed_is_none_if_nvidia_smi_fails_and_empty_if_missing(
    smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (smi / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    with closing(gpu_usage.Feed(0.2)) as feed:
        feed.wait(10)
        assert feed.read() is None, "not known"
    monkeypatch.setenv("PATH", str(smi.parent))
    with closing(gpu_usage.Feed(0.2)) as feed:
        feed.wait(10)
        assert feed.read() == []


def test_feed_does_not_block_on_a_hanging_nvidia_smi(smi: Path) -> None:
    (smi / "nvidia-smi").write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 60\n")
    with closing(gpu_usage.Feed(0.2)) as feed:
        feed.wait(0.3)
        assert feed.read() is None
    wait_for(lambda: not processes_with(str(smi)), what="the end of nvidia-smi", deadline_s=60)


def test_feed_shows_only_gpus_in_cuda_visible_devices(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with closing(gpu_usage.Feed(0.2)) as feed:
        feed.wait(10)
        assert feed.read() == [A10]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("number", [15, 9])
def test_usage_log_ends_with_the_runner(smi: Path, tmp_path: Path, number: int) -> None:
    runner = subprocess.Popen(["sleep", "60"])
    try:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        write_json(run_dir / "runner.json", {"pid": runner.pid, "birth": process.birth(runner.pid)})
        usage.begin_log(run_dir, "n-0", ["lo"])
        usage.begin_log(run_dir, "n-0", ["lo"])
        path = run_dir / "usage" / "n-0.jsonl"
        wait_for(lambda: len(lines_of(path)) >= 2, what="two lines", deadline_s=20)
    finally:
        runner.send_signal(number)
        runner.wait()
    wait_for(lambda: not processes_with(str(smi / "nvidia-smi")), what="the end of nvidia-smi", deadline_s=10)
    for line in lines_of(path):
        sampled = ours.parse(line)
        assert sampled.gpus is not None
        assert [gpu.utilization for gpu in sampled.gpus] == [0.87, None]
        # The kernel counts in ticks of 10 ms; the last line may cover less and then has no usage.
        if sys.platform == "linux" and line["seconds"] > 0.05:
            assert sampled.cpu_utilization is not None
            assert sampled.received_bytes_per_s is not None
    assert max(line["seconds"] for line in lines_of(path)) > 0.05
    times = [line["time"] for line in lines_of(path)]
    assert times == sorted(times), "one writer"


def test_usage_log_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    write_json(tmp_path / "runner.json", {"pid": os.getpid(), "birth": process.birth(os.getpid())})
    (tmp_path / "usage").write_text("in the way")
    usage.begin_log(tmp_path, "n-0", [])
    usage.begin_log(tmp_path / "never-started", "n-0", [])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["runner.json", "usage"]


GOOD = {
    "cpus": 2, "cpu_utilization": 0.5, "load_1m": 1, "memory_used_bytes": 1, "memory_total_bytes": 2,
    "interfaces": ["lo"], "received_bytes_per_s": None, "sent_bytes_per_s": 1.5, "disk_free_bytes": 3, "gpus": [A10],
}  # fmt: skip


def test_parse_reads_a_usage_sample() -> None:
    result = ours.parse(GOOD)
    assert result.gpus == (ours.GpuUsage(**A10),)
    assert ours.parse({**GOOD, "gpus": None}).gpus is None
    assert (result.cpus, result.load_1m, result.received_bytes_per_s, result.interfaces) == (
        2,
        1.0,
        None,
        ("lo",),
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"cpus": "2"}, {"load_1m": True}, {"cpu_utilization": float("nan")}, {"gpus": {}}, {"gpus": [{}]},
        {"gpus": [A10] * 65}, {"gpus": [{**A10, "index": "x"}]}, {"interfaces": 3},
    ],
)  # fmt: skip
def test_parse_refuses_a_malformed_usage_sample(changed: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile):
        ours.parse({**GOOD, **changed})
