"""The progress of a script that imports nothing of gpuctl's, while it runs."""

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

PRINTS = """
import os, time
for step in range(1, 31):
    print(f"step {step}/40: loss {1 / step:.4f}", flush=True)
    time.sleep(0.3)
"""
LOGS = """
import json, os, time
from pathlib import Path
if os.environ["RANK"] == "0":
    table, state = Path("lightning_logs/version_0/metrics.csv"), Path("out/checkpoint-10/trainer_state.json")
    for path in (table, state):
        path.parent.mkdir(parents=True)
    state.write_text(json.dumps({"max_steps": 40, "log_history": [{"step": 10, "loss": 0.7}]}))
    table.write_text("epoch,step,train_loss\\n")
    for step in range(1, 31):
        with table.open("a") as file:
            file.write(f"0,{step},{1 / step:.4f}\\n")
        time.sleep(0.5)
"""


def progress(err: str) -> list[str]:
    """Return the lines on progress."""
    return [line for line in err.splitlines() if line.startswith("step ")]


def test_live_view_and_results_read_the_same_lines_of_a_script(cluster: Gpuctl) -> None:
    cluster.script("prints.py", PRINTS)
    done = cluster.ok("bench", "--layouts", "1x1", "prints.py")  # logs are not shown
    lines = progress(done.err)
    assert any("loss" in line and "(log)" in line and "steps/s" in line and " left" in line for line in lines)
    train = cluster.ok("results", "--json").json["runs"][0]["train"]
    assert (train["loss_from"], train["loss"][0]) == ("log", 1.0)


def test_files_of_libraries_are_read_while_the_script_writes_them(cluster: Gpuctl) -> None:
    cluster.script("logs.py", LOGS)
    done = cluster.ok("train", "--json", "logs.py")
    lines = progress(done.err)
    assert any("/40" in line and "(Lightning)" in line for line in lines), done.err
    assert done.json["train"]["loss_from"] == "Lightning"
