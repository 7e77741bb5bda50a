"""torch's tracker and the arithmetic, on ranks that are not there."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "more"), [("fsdp", ()), ("zero2", ()), ("tp", ()), ("ddp", ("--activation-checkpointing",))]
)
def test_torchs_tracker_agrees_with_the_arithmetic(strategy, more):
    words = ["--model", "gpt-10m", "--seq-len", "128", "--precision", "bf16", "--strategy", strategy, *more]
    nodes, gpus = (1, 2) if strategy == "tp" else (2, 2)
    layout = {"count": nodes, "gpus": gpus, "micro_batch": 4, "vocabulary": 257}
    done = subprocess.run(
        [sys.executable, "-m", "train.ask", "memory", *words],
        input=json.dumps(layout),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer = json.loads(done.stdout)
    assert answer["arithmetic_gb"] == pytest.approx(answer["torch_gb"], rel=0.05)
