"""Runs with names and tags, on real hosts: one command finds the best of six, and names stand where ids do."""

import csv

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time

rate, steps = float(sys.argv[2]), 20
with open(os.environ["GPUCTL_METRICS"], "a", buffering=1) as lines:
    for step in range(1, steps + 1):
        loss = 2 / step + abs(rate - 0.3)
        lines.write(json.dumps({"step": step, "loss": loss, "samples": step * 8, "time": time.time()}) + "\\n")
        time.sleep(0.005)
"""


def test_best_of_six_runs_is_found_by_one_command_and_reported(two_hosts: Gpuctl) -> None:
    two_hosts.script("fit.py", SCRIPT)
    (two_hosts.cwd / "gpuctl.yaml").write_text("run: {script: fit.py, nnodes: 1, tags: {sweep: lr}}\n")
    ids = {}
    for rate in ("0.1", "0.2", "0.3", "0.5", "0.9"):
        ran = two_hosts.ok("train", "--json", "--name", f"lr-{rate}", "--", "--lr", rate).json
        assert (ran["name"], ran["tags"], ran["status"]) == (f"lr-{rate}", {"sweep": "lr"}, "succeeded")
        ids[ran["name"]] = ran["run"]
    failed = two_hosts("train", "--name", "odd", "--note", "no number", "--", "--lr", "x")
    assert failed.status == 1

    table = two_hosts.ok("results", "--tag", "sweep=lr").out
    assert f"\n*  {ids['lr-0.3']}  lr-0.3  0.3  succeeded  0.100 " in table
    assert "* best of 5 runs by last loss: lr-0.3 with 0.100; next: lr-0.2 with 0.200" in table
    assert "odd (lr x): rank 0 on default-0 failed first: " in table
    assert two_hosts.ok("results", "best", "--json").json["runs"][0]["run"] == ids["lr-0.3"]
    listed = {run["name"]: run for run in two_hosts.ok("runs", "--json").json["runs"]}
    assert (listed["lr-0.2"]["changed"], listed["odd"]["note"]) == ("lr 0.2", "no number")

    again = two_hosts.ok("train", "--json", "--name", "lr-0.1", "--", "--lr", "0.15").json
    assert two_hosts.ok("results", "lr-0.1", "--json").json["runs"][0]["run"] == again["run"]
    assert "is over: succeeded" in two_hosts.ok("stop", "lr-0.9").err
    assert two_hosts("logs", "lr-0.77").err.startswith("error: There is no run 'lr-0.77'; did you mean 'lr-")

    made = two_hosts.ok("results", "--last", "2", "--csv", "a.csv", "--plot", "a.png").err
    assert "a.png (losses)" in made
    with (two_hosts.cwd / "a.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "lr-0.1"]
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 21)]
    two_hosts.ok("report", "--tag", "sweep=lr", "-o", "report.html")
    page = (two_hosts.cwd / "report.html").read_text()
    assert "<title>7 runs of fit.py</title>" in page
    assert "gpuctl train --nnodes 1 --name lr-0.5 --tag sweep=lr fit.py --lr 0.5" in page
