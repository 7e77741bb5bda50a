"""Test `bench/gpu.py`: isolated sections, floors, the table, and a miniature run on a CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bench.gpu import _Stop
from bench.parts.floors import Cost, floors, peaks_of
from bench.parts.gpu_plan import LOOPS, MINIATURE, WHOLE, Steps, sections_of
from bench.parts.gpu_table import judged, precision_of, text
from bench.parts.gpu_work import Work, check_graphs
from bench.parts.job import Steady
from bench.parts.plain_gpt import MINIATURE as PLAIN_GPT
from bench.parts.plain_gpt import GPTSettings, PlainGPT, plain_gpt_speed
from bench.parts.sections import NoTime, Section, Tell, run, status_of, timetable
from train.options import Options

ROOT = Path(__file__).parents[2]
WORKER = """
import os, sys, time
from bench.parts.sections import NoTime, Section, work
def act(section, tell, until):
    tell.value("seen", "pid", value=os.getpid())
    if section.name == "raises":
        raise ValueError("a planted fault")
    if section.name == "dies":
        os._exit(7)
    if section.name == "hangs":
        time.sleep(60)
    if section.name == "slow":
        raise NoTime("3 steps were taken")
    tell.check("fine", ok=section.name != "wrong", details="planted")
sections = [Section(name=name, limit_s=30) for name in sys.argv[2:]]
work(sections, act, lambda: True, int(sys.argv[1]))
"""


def started(sections, handle):
    words = [sys.executable, "-c", WORKER, str(handle), *(section.name for section in sections)]
    return subprocess.Popen(words, cwd=ROOT, pass_fds=[handle], start_new_session=True)


def ran(*names, seconds=120.0, limits=None, alone=()):
    document = {"sections": {}, "checks": []}
    documents = []
    sections = [
        Section(name=name, limit_s=(limits or {}).get(name, 30.0), alone=name in alone) for name in names
    ]
    run(
        sections,
        started,
        document,
        until=time.monotonic() + seconds,
        keep=lambda: documents.append(json.dumps(document)),
    )
    assert len(documents) > len([name for name in names if document["sections"][name]["status"] != "not run"])
    return document


def test_gpu_bench_records_a_failed_section_and_continues():
    names = ("first", "raises", "second", "dies", "third", "slow", "hangs", "last")
    document = ran(*names, seconds=24.0, limits={"last": 60.0})
    sections = document["sections"]
    assert {name: section["status"] for name, section in sections.items()} == {
        "first": "done",
        "raises": "failed",
        "second": "done",
        "dies": "failed",
        "third": "done",
        "slow": "out of time",
        "hangs": "out of time",
        "last": "done",
    }
    assert sections["slow"]["error"] == "3 steps were taken"
    assert sections["raises"]["error"] == "ValueError: a planted fault"
    assert "status 7" in sections["dies"]["error"]
    pids = {name: section["seen"]["pid"] for name, section in sections.items()}
    assert pids["first"] == pids["raises"] == pids["second"] == pids["dies"]
    assert len({pids["dies"], pids["third"], pids["last"]}) == 3
    assert pids["hangs"] == pids["third"]
    assert status_of(document) == 1


def test_gpu_bench_stop_restores_signal_handlers_after_an_error():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stop = _Stop()
        with pytest.raises(OSError, match="no memory"), stop.held():
            raise OSError("no memory")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_gpu_bench_runs_an_alone_section_in_its_own_process():
    sections = ran("one", "two", "three", alone=("two",))["sections"]
    assert len({section["seen"]["pid"] for section in sections.values()}) == 3


def test_gpu_bench_exits_1_on_failed_check_and_4_on_timeout():
    assert status_of(ran("fine")) == 0
    assert status_of(ran("wrong")) == 1
    document = ran("late", seconds=1.0)
    assert document["sections"]["late"] == {
        "status": "not run",
        "error": "no time was left for it",
        "seconds": None,
    }
    assert status_of(document) == 4


@pytest.mark.parametrize(
    ("name", "bf16", "gb_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA H200", 989.4, 4800),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A10", 125, 600),
        ("NVIDIA A10G", 70, 600),
        ("NVIDIA L40S", 362, 864),
        ("Tesla T4", None, 320),
    ],
)
def test_peaks_of_finds_the_data_sheet_by_nvidia_smi_name(name, bf16, gb_s):
    peaks = peaks_of(name)
    assert (peaks.tflops["bf16"], peaks.gb_s) == (bf16, gb_s)


COST = Cost(flop_per_image=217.3e6, activations_per_image=500_000, parameters=11_181_642)


def test_floors_take_the_larger_of_compute_and_memory_time():
    by_source = floors(
        COST, 64, "bf16", name="NVIDIA H100 80GB HBM3", measured={"matmul_tflops": {"bf16": 700.0}}
    )
    sheet = by_source["data_sheet"]
    assert sheet["compute_ms"] == pytest.approx(217.3e6 * 64 / 989.4e12 * 1e3)
    assert sheet["memory_ms"] == pytest.approx((11_181_642 * 40 + 500_000 * 64 * 5 * 2) / 3350e9 * 1e3)
    assert sheet["floor_ms"] == sheet["memory_ms"]
    assert by_source["measured"] == {
        "compute_ms": pytest.approx(217.3e6 * 64 / 700e12 * 1e3),
        "memory_ms": None,
        "floor_ms": None,
    }
    unknown = floors(COST, 64, "fp32", name="a GPU of tomorrow", measured={})
    assert set(unknown["data_sheet"].values()) == set(unknown["measured"].values()) == {None}


def variant(step_ms):
    return {"step_ms": step_ms, "steps": 50, "warm_up_s": 1.0, "peak_memory_bytes": 2_000_000_000}


def sample():
    done = {"status": "done", "error": None, "seconds": 1.0}
    environment = {
        "name": "NVIDIA H100 80GB HBM3",
        "cpus": 16,
        "torch": "2.11",
        "python": "3.12",
        "driver": "580.1",
    }
    return {
        "device": "cuda",
        "seconds": 12.0,
        "sizes": {"model": "resnet18", "batches": [64, 1024]},
        "checks": [{"section": "losses", "name": "alike", "ok": False, "said": "0.1 apart"}],
        "sections": {
            "device": {
                **done,
                "environment": environment,
                "cost": {"flop_per_image": 1e9, "activations_per_image": 0, "parameters": 0},
                "ceilings": {
                    "matmul_tflops": {"fp32": 50.0, "bf16": 700.0},
                    "copy_gb_s": 3000.0,
                    "launch_us": 3.0,
                },
            },
            "batch 64: published": {**done, "variants": {"published": variant(100.0)}},
            "batch 64: fast": {**done, "variants": {"fast": variant(20.0)}},
            "batch 64: fast bf16 --compile": {**done, "variants": {"fast bf16 --compile": variant(5.0)}},
            "gpt: ours": {
                **done,
                "case": {
                    "words": "--model gpt-124m",
                    "forecast": {"step_ms": [23.0, 36.0], "memory_gb": 14.2},
                    "measured": {**variant(50.0), "steps": 21},
                },
            },
            "gpt: plainest loop": {**done, "plain": {"ms_per_step": 25.0}},
            "start": {
                **done,
                "start": {"gpuctl_s": [8.0], "by_hand_s": [7.4], "first_step": {"imports": 3.0}, "parts": {}},
            },
            "profile": {"status": "out of time", "error": "it took longer", "seconds": 40.0},
        },
    }


def test_judged_gives_each_loop_its_ratio_and_distance_to_floor():
    rows = {row["loop"]: row for row in judged(sample())}
    assert {name: row["ratio"] for name, row in rows.items()} == {
        "published": 1.0,
        "fast": 5.0,
        "fast bf16 --compile": 20.0,
    }
    floor_ms = 64 * 1e9 / 50e12 * 1e3
    assert rows["fast"]["floors"]["measured"]["distance"] == pytest.approx(20.0 / floor_ms)
    assert rows["fast bf16 --compile"]["floors"]["data_sheet"]["floor_ms"] == pytest.approx(64 / 989.4)
    assert [precision_of(name) for name in rows] == ["tf32", "fp32", "bf16"]


def test_gpu_bench_table_shows_loops_failed_checks_and_timeouts():
    shown = text(sample())
    assert "NVIDIA H100 80GB HBM3, 16 CPU cores, torch 2.11, Python 3.12, driver 580.1" in shown
    (fast,) = [line for line in shown.splitlines() if line.startswith("  fast  ")]
    assert fast.split() == ["fast", "20.000", "50", "3,200", "5.00", "1.280", "15.6", "2.00", "1.00"]
    assert (
        "--model gpt-124m: 50.00 ms a step of 21, 0.50 times as fast as the plainest loop (25.00 ms); "
        "advise: 23 to 36 ms, outside; 2.00 GB, advise: 14.20"
    ) in shown
    assert "8.0 s; a script under torchrun: 7.4 s; until the first step: imports 3.00 s" in shown
    assert "FAILED  losses: alike: 0.1 apart" in shown
    assert "OUT OF TIME  profile: it took longer" in shown


@pytest.mark.parametrize(("device", "state"), [("cuda", "ok"), ("cpu", "-")])
def test_gpu_bench_table_of_a_cpu_begins_with_its_limits_and_shows_no_check_as_ok(device, state):
    passed = {"section": "losses", "name": "graphs", "ok": True, "said": "equal"}
    document = sample()
    lines = text(document | {"device": device, "checks": [passed, *document["checks"]]}).splitlines()
    assert lines[0].startswith("CPU miniature: ") == (device == "cpu")
    assert f"  {state:6}  losses: graphs: equal" in lines
    assert "  FAILED  losses: alike: 0.1 apart" in lines


@pytest.mark.parametrize("program", ["start.py", "advise.py"])
def test_bench_help_names_the_arguments(program):
    words = [sys.executable, str(ROOT / "bench" / program), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"usage: {program} ")


def test_gpu_bench_compiles_only_in_the_whole_program():
    whole = [section.name for section in sections_of(WHOLE, on_gpu=True)]
    assert whole[:3] == ["device", "batch 64: published", "batch 64: plain"]
    assert [name for name in whole if "compile" in name] == [
        "batch 64: fast bf16 --compile",
        "compiled graphs",
    ]
    assert not [section for section in sections_of(MINIATURE, on_gpu=False) if "compile" in section.name]


def test_gpu_bench_sections_take_five_minutes_and_each_its_part():
    sections = sections_of(WHOLE, on_gpu=True)
    seconds = sum(section.limit_s for section in sections)
    assert seconds <= 300
    timed = timetable(sections, 1000.0, 1000.0 + seconds)
    parts = [after.until - before.until for before, after in pairwise(timed)]
    assert min(parts) >= 7.9
    assert (timed[0].until, timed[-1].until) == (pytest.approx(1012), pytest.approx(1000 + seconds))


@pytest.mark.parametrize(
    ("options", "device", "checked"),
    [({}, "cuda", True), ({"compile": True}, "cuda", False), ({}, "cpu", False)],
)
def test_gpu_bench_checks_that_timed_steps_were_graphs(options, device, checked):
    checks = []

    class Recorded(Tell):
        def check(self, name, *, ok, details):
            checks.append((name, ok, details))

    work = Work(device=torch.device(device), sizes=WHOLE, tell=Recorded(0, ""), until=0.0, folder=ROOT)
    check_graphs(work, "fast", Options(**options), {"steps": 50, "graph_steps": 49})
    assert checks == [("steps of fast are graphs", False, "49 of 50 steps were graphs")] * checked


def test_gpu_bench_continues_in_a_new_process_after_a_failed_recording():
    """Continue as after every section whose process is not usable any more."""
    worker = WORKER.replace("lambda: True", "lambda: False")
    reader, writer = os.pipe()
    words = [sys.executable, "-c", worker, str(writer), "first", "second"]
    subprocess.run(words, cwd=ROOT, pass_fds=[writer], check=True, timeout=60)
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert {json.loads(line)["section"] for line in lines} == {"first"}


def test_steady_counts_whole_steps_after_the_warm_up_or_none():
    steps = Steps(warm_up=3, counted=10, minimum=4, watched=0)
    steady = Steady(torch.device("cpu"), steps)
    steady.begin()
    time.sleep(0.02)
    timed = steady.end(7)
    assert (timed["steps"], timed["step_ms"] >= 5.0) == (4, True)
    with pytest.raises(NoTime, match=r"^6 steps were taken, and 3 of warm-up and 4 others are needed$"):
        steady.end(6)


def bench(*words, path=None):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
    environ |= {"PATH": f"{path}:{environ['PATH']}"} if path else {}
    words = [sys.executable, str(ROOT / "bench" / "gpu.py"), "--device", "cpu", *words]
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_gpu_bench_miniature_runs_all_and_reports_a_wrong_nvidia_smi(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*driver_version*) echo "0, GPU-1, NVIDIA H100 80GB HBM3, 81559, 580.95.05" ;;\n'
        '*) echo "1, 0, GPU-1, 7, 100, 81559, 40, 80.5, NVIDIA H100 80GB HBM3" ;;\n'
        "esac\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    with bench("--out", str(tmp_path / "out"), "--minutes", "6", path=tools) as process:
        out, err = process.communicate(timeout=380)
    assert process.returncode == 1, err
    document = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert document["complete"]
    assert {section["status"] for section in document["sections"].values()} == {"done"}
    failed = {check["name"] for check in document["checks"] if not check["ok"]}
    assert failed == {"facts against torch", "facts of the driver", "top against torch"}
    loops = {(row["batch"], row["loop"]) for row in document["loops"]}
    assert {loop for _, loop in loops} == {"published", *LOOPS} - {"fast bf16 --compile"}
    assert {batch for batch, _ in loops} == set(MINIATURE.batches)
    fast = next(row for row in document["loops"] if row["loop"] == "fast")
    assert fast["floors"]["measured"]["distance"] > 0
    assert fast["steps"] == MINIATURE.steps.counted
    assert document["sections"]["gpt: plainest loop"]["plain"]["steps"] == MINIATURE.steps.counted
    assert document["sections"]["advise: cnn"]["case"]["forecast"]["step_ms"]
    assert document["sections"]["start"]["start"]["ratio"] > 0
    assert set(document["sections"]["nccl"]["averaged"]) == {"none", "half", "powersgd"}
    assert document["sections"]["parsers"]["usage"][0]["power_w"] == 80.5
    assert (tmp_path / "out" / "gpu.txt").read_text() in out


def test_gpu_bench_refuses_an_unknown_section_and_lists_the_known():
    with bench("--only", "speed") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "there is no section speed: give one of 'device', 'batch 4: published'" in err


def test_gpu_bench_sigterm_keeps_results_and_leaves_no_process(tmp_path):
    with bench("--only", "device", "--out", str(tmp_path)) as process:
        limit = time.monotonic() + 60
        while not _worker_of(process.pid):
            assert process.poll() is None and time.monotonic() < limit, "no process for the sections came up"
            time.sleep(0.02)
        (worker,) = _worker_of(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not Path(f"/proc/{worker}").exists()
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert not document["complete"]
    assert set(document["sections"]) == {"device"}


def _worker_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return children.read_text().split()


def test_plain_gpt_has_gpt2s_weights_and_times_its_last_steps_alone():
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in PlainGPT(GPTSettings()).parameters())
    assert weights == 12 * 12 * 768**2 + (50_304 + 1_024) * 768 + 25 * 768
    speed = plain_gpt_speed(torch.device("cpu"), steps=2, settings=PLAIN_GPT)
    assert (speed.steps, speed.memory_gb) == (2, None)
    assert speed.tokens_per_s == pytest.approx(2 * 16 * 1e3 / speed.ms_per_step)
    assert plain_gpt_speed(torch.device("cpu"), until=0.0, settings=PLAIN_GPT).steps == 1
