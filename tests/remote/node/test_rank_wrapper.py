"""Test the records around a rank, written by the wrapper as a real process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote.node.runs import rank_wrapper
from remote.node.runs.rank_wrapper import samples_at_end

ROOT = Path(__file__).parents[3]
CODE = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from remote.node.__main__ import run; run(sys.argv[1:])"
)
BEGIN = """
import json, os, sys, time
metrics = open(os.environ["GPUCTL_METRICS"], "a")
def tell(*samples, **more):
    for seen in samples:
        print(json.dumps({"samples": seen}), file=metrics)
    print(json.dumps(more) if more else "", end="", file=metrics)
    metrics.flush()
    print(time.time(), flush=True)
"""
CLOCK_S = 0.05
"""Resolution of file times, which are of the kernel's last tick."""


def watched(tmp_path: Path, script: str) -> tuple[dict[str, Any], list[float]]:
    """Return the rank's record after its end, and the times that the script printed."""
    for name in ("ranks", "metrics", "logs"):
        (tmp_path / name).mkdir()
    command = ["rank", str(tmp_path), str(tmp_path), "--", sys.executable, "-c", BEGIN + script]
    done = subprocess.run(
        [sys.executable, "-I", "-c", CODE, *command],
        env={**os.environ, "RANK": "3", "LOCAL_RANK": "1", "GPUCTL_LAUNCHED_AT": "96.5"},
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.returncode == 0
    record = json.loads((tmp_path / "ranks" / "rank-3.json").read_bytes())
    output = (tmp_path / "logs" / "rank-3.log").read_text().split()
    return record, [float(time) for time in output]


@pytest.mark.parametrize(
    ("rank", "chosen", "variables"),
    [
        (0, {}, {"WANDB_RUN_ID": "J", "WANDB_RESUME": "allow"}),
        (3, {}, {"WANDB_RUN_ID": "J-rank3", "WANDB_RESUME": "allow"}),
        (0, {"WANDB_RUN_ID": "mine"}, {}),
        (0, {"WANDB_RESUME": "never"}, {}),
        (0, {"WANDB_SWEEP_ID": "s"}, {}),
    ],
)
def test_wandb_run_is_the_jobs_unless_the_user_chooses(
    rank: int, chosen: dict[str, str], variables: dict[str, str]
) -> None:
    assert rank_wrapper.wandb_run({"GPUCTL_JOB_ID": "J", **chosen}, rank) == variables


def test_rank_record_has_first_and_last_metrics_time(tmp_path: Path) -> None:
    script = "time.sleep(0.3); tell(64); time.sleep(1); tell(128); time.sleep(1); tell(256); time.sleep(0.3)"
    hidden = "assert 'GPUCTL_LAUNCHED_AT' not in os.environ; "
    record, (first, _, last) = watched(tmp_path, hidden + script)
    assert record["launched_at"] == 96.5
    assert record["metrics_began_at"] == pytest.approx(first, abs=CLOCK_S)
    assert record["metrics_began_samples"] == 64
    assert record["metrics_ended_at"] == pytest.approx(last, abs=CLOCK_S)


def test_rank_record_takes_the_last_whole_line_of_a_write(tmp_path: Path) -> None:
    record, (first, _) = watched(tmp_path, "tell(64, 128, 192, half=1); time.sleep(1); tell(256)")
    assert record["metrics_began_at"] == pytest.approx(first, abs=CLOCK_S)
    assert record["metrics_began_samples"] == 192


@pytest.mark.parametrize(
    "script",
    [
        "",
        "tell(None, True, 'many')",
        "os.remove(os.environ['GPUCTL_METRICS'])",
        "os.remove(os.environ['GPUCTL_METRICS']); os.rmdir('metrics'); open('metrics', 'w').write('x')",
    ],
)
def test_rank_record_without_samples_has_no_metrics_time(tmp_path: Path, script: str) -> None:
    record, _ = watched(tmp_path, script)
    assert (record["exit_code"], record["metrics_began_at"], record["metrics_began_samples"]) == (
        0,
        None,
        None,
    )


def test_rank_record_of_metrics_at_exit_begins_and_ends_then(tmp_path: Path) -> None:
    record, (output,) = watched(tmp_path, "tell(64, 128)")
    assert record["metrics_began_at"] == record["metrics_ended_at"] == pytest.approx(output, abs=CLOCK_S)
    assert record["metrics_began_samples"] == 128


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (b'{"samples": 64}\n', 64),
        (b'{"samples": 0.5}\n{"sam', 0.5),
        (b'{"samples": 64}\n{"accuracy": 0.5}\n', 64),
        (b'{"samples": 64}\n{"samples": NaN}\n[]\nno JSON\n', 64),
        (b'{"a": 1}\n{"samples": 64}\n' + b'{"a": 1}\n' * 9, 64),
        (b'{"a": 1}\n{"samples": 64}\n' + b'{"a": 1}\n' * 10, None),
        (b'{"samples": true}\n', None),
        (b'{"samples": "64"}\n', None),
        (b'{"samples": 64}', None),
        (b"[64]\n", None),
        (b"64\n\n", None),
        (b"[" * 60_000 + b"\n", None),
        (b'{"samples": ' + b"6" * 60_000 + b"}\n", None),
        (b'{"samples": ' + b"6" * 400 + b"}\n", None),
        (b'{"samples": -Infinity}\n', None),
        (b'{"samples": 1}\n' * 5000 + b'{"samples": 64}\n', 64),
        (b'{"samples": 64, "more": "' + b"x" * 70_000 + b'"}\n', None),
        (b"\xff\n", None),
        (b"", None),
    ],
)
def test_samples_at_end_reads_the_last_line_with_samples(
    tmp_path: Path, text: bytes, samples: float | None
) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(text)
    result = samples_at_end(path)
    assert result == (rank_wrapper.NO_SAMPLES if samples is None else (path.stat().st_mtime, samples))
