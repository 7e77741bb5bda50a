"""`gpuctl bench` over local hosts."""

import os
import signal
from typing import Any

import pytest
from support import Done, Gpuctl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = ("--model", "mlp", "--epochs", "1", "--device", "cpu", "--threads", "1")
LAYOUT = {
    "layout", "nnodes", "nproc_per_node", "world_size", "batch_size", "runs", "epoch_s", "epoch_s_median",
    "samples_per_s", "unit", "per_s", "from_log", "spread", "disturbed", "speed_up", "efficiency", "step_ms", "share",
    "hourly_usd", "epoch_usd",
}  # fmt: skip
FORECAST = {
    "layout", "nnodes", "nproc_per_node", "world_size", "from", "steps", "bandwidth_gb_s", "bandwidth_source",
    "buckets", "latency_ms", "communication_ms", "step_ms", "epoch_s", "samples_per_s", "speed_up", "efficiency",
    "epoch_usd", "measured_epoch_s", "why",
}  # fmt: skip


def assert_foretold(document: Any, two: Any) -> None:
    """Check the forecast for 2x1, which was measured as well, and for 1x2, which was not."""
    foretold, unknown = document["forecast"]
    assert set(foretold) == set(unknown) == FORECAST
    assert (foretold["from"], foretold["bandwidth_source"]) == ("1x1", "measured")
    assert 0 < foretold["step_ms"]["fast"] <= foretold["step_ms"]["slow"]
    assert foretold["measured_epoch_s"] == two["epoch_s_median"]
    assert foretold["buckets"] == 1
    assert foretold["latency_ms"] > 0
    assert unknown["step_ms"] is None
    assert unknown["why"].startswith(
        "Processes that share a node's CPU slow each other down: measure one with 2"
    )


def test_bench_measures_each_layout_and_forecasts_another(cluster: Gpuctl) -> None:
    words = (
        "--layouts",
        "1x1,2x1",
        "--repeats",
        "3",
        "--forecast",
        "2x1,1x2",
        "--plot",
        "bench.png",
        "--json",
    )
    done = cluster("bench", *words, "--", *JOB, timeout_s=560)
    assert done.status == 4, "one of the forecasts can't be given"
    document = done.json
    assert document["status"] == "succeeded"
    assert document["failure"] is None
    assert (document["model"], document["dataset"]) == ("mlp", "digits")
    item, two = document["layouts"]
    assert set(item) == set(two) == LAYOUT
    assert (item["layout"], two["layout"], two["world_size"]) == ("1x1", "2x1", 2)
    assert (item["speed_up"], item["efficiency"]) == (1, 1)
    for layout in (item, two):
        assert len(layout["runs"]) == len(layout["epoch_s"]) == 3
        assert layout["epoch_s_median"] == sorted(layout["epoch_s"])[1] > 0
        assert sum(layout["share"].values()) == pytest.approx(1)
        assert layout["epoch_usd"] == 0, "local hosts are free"
    assert item["share"]["communication"] == 0
    assert document["cost_usd"] == 0

    if two["speed_up"] is None:  # something else held up a process alone, and nothing follows from that
        assert document["forecast"] == []
        assert any(layout["disturbed"] for layout in document["layouts"])
        assert "measured again, as the figures contradict themselves" in done.err
    else:
        assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
        assert two["speed_up"] == pytest.approx(two["samples_per_s"] / item["samples_per_s"])
        assert_foretold(document, two)
    assert {line["bytes"] for line in document["allreduce"]} >= {64_000, 4_000_000}
    assert document["bottleneck"]
    assert (cluster.cwd / "bench.png").read_bytes().startswith(b"\x89PNG")

    runs = {run["run"]: run for run in cluster.ok("runs", "--json").json["runs"]}
    timed = [*item["runs"], *two["runs"]]
    assert [runs[run]["status"] for run in timed] == ["succeeded"] * 6
    assert len([run for run in runs.values() if run["args"][-len(JOB) :] == list(JOB)]) >= 6
    assert len([run for run in runs.values() if run["args"][-2:] == ["--epochs", "1"]]) == 2, (
        "each warmed up once"
    )
    assert done.err.count("preflight: done") == 1, "the nodes are prepared once"


SCRIPT = """
import json, os, sys, time
if not os.path.exists("data.txt"):
    open("data.txt", "w").write("downloaded")
    print("downloads", flush=True)
if os.path.exists("snapshot"):
    raise SystemExit
for step in range(1, 21):
    time.sleep(0.01)
    with open(os.environ["GPUCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "time": time.time()}) + "\\n")
if "--save" in sys.argv and os.environ["RANK"] == "0":
    open("snapshot", "w").close()
"""


def downloads(cluster: Gpuctl, *words: str) -> tuple[list[bool], Done]:
    """Bench the script, and say of each run, the first one first, whether it downloaded anything."""
    before = {run["run"] for run in cluster.ok("runs", "--json").json["runs"]}
    done = cluster.ok("bench", "--json", *words, timeout_s=300)
    runs = sorted({run["run"] for run in cluster.ok("runs", "--json").json["runs"]} - before)
    return [bool(list((cluster.run_folder(run) / "logs").glob("rank-*.log"))) for run in runs], done


def test_bench_measures_a_script_by_its_steps(cluster: Gpuctl) -> None:
    cluster.script("mine.py", SCRIPT)
    downloaded, done = downloads(cluster, "--layouts", "2x1", "mine.py")
    document = done.json
    (layout,) = document["layouts"]
    assert (document["script"], layout["unit"], len(layout["runs"])) == ("mine.py", "steps", 3)
    assert 10 < layout["per_s"] <= 2 * 100, "of both ranks, each of which takes 10 ms at least for a step"
    assert (layout["epoch_s"], layout["samples_per_s"], layout["from_log"]) == ([], None, False)
    assert "The hosts share one machine: this is no measurement of machines." in document["doubts"]
    assert "is put aside on the nodes" in done.err
    assert downloaded == [True, False, False, False], "in the warm-up"


def test_bench_of_a_script_that_resumes_begins_each_run_anew(cluster: Gpuctl) -> None:
    cluster.script("mine.py", SCRIPT)
    downloaded, done = downloads(cluster, "--layouts", "1x1", "mine.py", "--save")
    assert len(done.json["layouts"][0]["runs"]) == 3
    assert done.err.count("did less than the warm-up, as a script that resumes its own checkpoint") == 1
    assert downloaded == [True, False, True, True, True]


def test_bench_interrupted_shows_finished_layouts(cluster: Gpuctl) -> None:
    process = cluster.start("bench", "--layouts", "1x1,2x1", "--", *JOB)
    for line in process.stderr:
        if "repetition 2 of 3" in line:
            os.kill(process.pid, signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "mlp on digits, batch 64 a rank" in out
    assert out.splitlines()[2].startswith("1x1 ")
    assert "2x1" not in out
    assert cluster.ok("train", "--nnodes", "1", "--json", "--", *JOB).json["status"] == "succeeded"
