"""Test the end of a run whose GPUs do nothing, on its nodes."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from support import wait_for

from remote.node.network import free_port
from remote.node.runs.gpu_watch import GpuWatch, Reports, TimeBelow, mean_use
from remote.node.signed_lines import opened, sealed


@pytest.fixture
def settings() -> dict[str, Any]:
    port, _ = free_port("127.0.0.1")
    return {"below": 0.1, "for_s": 0.4, "nodes": ["a", "b"], "address": "127.0.0.1", "port": port, "key": "k"}


def sample(*use: float | None, seconds: float = 1.0) -> dict[str, Any]:
    gpus = [{"index": index, "utilization": value} for index, value in enumerate(use)]
    return {"seconds": seconds, "gpus": gpus}


@pytest.mark.parametrize(
    ("samples", "use"),
    [
        ([sample(0.2, 0.0), sample(0.0, 0.3, seconds=3.0)], 0.225),
        ([sample(0.0), sample(0.0)], 0.0),
        ([sample(0.0), sample(None)], None),
        ([sample(0.0, 0.0), sample(0.0)], None),
        ([sample(), sample()], None),
        ([{"seconds": 1.0, "gpus": None}, sample(0.0)], None),
    ],
)
def test_use_is_that_of_the_busiest_gpu_and_not_known_if_any_is_not(
    samples: list[dict[str, Any]], use: float | None
) -> None:
    assert mean_use(samples) == pytest.approx(use)


def test_time_below_counts_full_windows_and_begins_again_with_any_use() -> None:
    below = TimeBelow(0.1, window_s=3.0)
    times = []
    for use in (0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, 0.0):
        below.add(sample(0.0, use))
        times.append(below.seconds)
    assert times == [0, 0, 3, 3, 3, 6, 6, 6, 0, 0, 0, 0, 0, 0, 3]


def test_run_ends_only_if_every_node_was_below_and_has_reported_lately() -> None:
    reports = Reports(["a", "b"], for_s=100.0, report_s=10.0)
    assert reports.report("a", 500.0, 0.0) is None, "the other has not reported"
    assert reports.report("b", 99.0, 1.0) is None
    assert reports.report("a", 500.0, 60.0) is None
    assert reports.report("b", 500.0, 200.0) is None, "the first has been silent"
    ends_at = reports.report("a", 500.0, 201.0)
    assert ends_at == 201.0 + 25.0, "until the other has asked again"
    assert reports.report("b", 0.0, 210.0) == ends_at
    reports = Reports(["a", "b"], for_s=100.0, report_s=10.0)
    assert reports.report("b", None, 0.0) is None, "its part has ended"
    assert reports.report("a", 100.0, 900.0) == 925.0
    assert Reports(["a"], for_s=100.0, report_s=10.0).report("a", 100.0, 5.0) == 5.0


def test_signed_line_opens_with_its_key_only() -> None:
    line = sealed({"node": "a"}, b"key")
    assert opened(line, b"key") == {"node": "a"}
    assert opened(line, b"other") is None
    assert opened(line.replace(b'"a"', b'"b"'), b"key") is None
    assert opened(b"", b"key") is None


def test_nodes_end_a_run_together_when_the_last_gpu_is_below(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    first, other = (GpuWatch(tmp_path / name, name, settings) for name in ("a", "b"))
    first._reports._notice_s = other._reports._notice_s = 0.5

    def look(use_of_other: float | None) -> bool:
        for watch, use in ((first, 0.0), (other, use_of_other)):
            watch.add(sample(use, seconds=0.2))
        return (tmp_path / "a" / "stop").exists()

    for use in (0.9, None, 0.9):
        for _ in range(5):
            assert not look(use)
    with socket.create_connection(("127.0.0.1", settings["port"])) as stranger:
        stranger.sendall(sealed({"node": "b", "below_s": 500.0}, b"guess"))
        assert stranger.recv(100) == b"", "no answer"
    assert not look(0.9)
    wait_for(lambda: look(0.0), what="the order to stop on the first node", deadline_s=20)
    for name in ("a", "b"):
        wait_for((tmp_path / name / "stop").exists, what=f"the order on {name}", deadline_s=5)
        order = json.loads((tmp_path / name / "stop").read_text())
        assert order == {"reason": "gpus_idle", "seconds": 0.4, "percent": 10.0, "signal": "SIGTERM"}


def test_node_whose_first_one_does_not_answer_ends_nothing_and_says_so_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    (tmp_path / "b" / "logs").mkdir(parents=True)
    watch = GpuWatch(tmp_path / "b", "b", settings)
    watch._report_s = 0.0
    for _ in range(6):
        watch.add(sample(0.0))
    assert not (tmp_path / "b" / "stop").exists()
    [line] = (tmp_path / "b" / "logs" / "b.log").read_text().splitlines()
    assert line.startswith("gpuctl: --end-if-gpu-below ends nothing until")


def test_first_node_whose_port_is_taken_says_so(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "a" / "logs").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", settings["port"])):
        watch = GpuWatch(tmp_path / "a", "a", settings)
        watch._report_s = 0.0
        for _ in range(3):
            watch.add(sample(0.0))
    assert f"127.0.0.1:{settings['port']}" in (tmp_path / "a" / "logs" / "a.log").read_text()
