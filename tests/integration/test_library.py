"""`import gpuctl`, as programs use it: the page about it, Ctrl-C, exceptions, a loop that is running."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from clouds import KINDS, Clouds
from support import Gpuctl, interrupt

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
MY = """
import json, os
with open(os.environ["GPUCTL_METRICS"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": 0.5, "samples": 8}) + "\\n")
print("rank", os.environ["RANK"])
"""
ENDLESS = "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(1)\n"


def program(gpuctl: Gpuctl, text: str) -> "subprocess.Popen[str]":
    """Start a program of a person's in the project's folder; warnings of the interpreter are errors."""
    for name, script in (("my.py", MY), ("endless.py", ENDLESS)):
        gpuctl.script(name, script)
    return gpuctl.start_program(
        sys.executable, "-W", "error::ResourceWarning", gpuctl.script("program.py", text)
    )


def test_every_line_of_the_page_runs(clouds: Clouds, tmp_path: Path) -> None:
    aws = clouds.as_new(KINDS["aws"], tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    process = program(aws, "\n".join(blocks))
    out, err = process.communicate(timeout=360)
    assert (process.returncode, err) == (0, ""), out
    assert "succeeded 2 (0.5,) " in out
    assert "work local running 0.0 None" in out
    assert re.search(r"Create 2 machines \(\$[\d.]+ an hour, \$[\d.]+ until they end\)\?", out)
    assert "Nobody was asked: pass confirm=True" in out
    assert (aws.cloud.owned(), list((aws.home / "clusters").glob("*"))) == ([], [])


def test_ctrl_c_stops_the_run_brings_the_cluster_down_and_reaches_the_caller(gpuctl: Gpuctl) -> None:
    process = program(
        gpuctl,
        """
import asyncio, gpuctl

async def main():
    try:
        with gpuctl.up(provider="local", count=2, progress=lambda line: print(line, flush=True)) as cluster:
            cluster.train("endless.py")
    except KeyboardInterrupt as error:
        print("caught", type(error).__name__, error.result.status, gpuctl.clusters(), flush=True)

asyncio.run(main())
""",
    )
    calls = ""
    while "begun" not in calls:
        line = process.stdout.readline()
        assert line, process.communicate()
        calls += line
    interrupt(process)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "caught Interrupted stopped ()" in out


@pytest.mark.whole
def test_exception_in_the_block_brings_the_cluster_down_and_is_kept(gpuctl: Gpuctl) -> None:
    process = program(
        gpuctl,
        """
import gpuctl

with gpuctl.up(provider="local", count=1) as cluster:
    cluster.train("endless.py", detach=True)
    {}["not there"]
""",
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.endswith("KeyError: 'not there'\n")
    assert list((gpuctl.home / "clusters").glob("*")) == []
    (run,) = gpuctl.ok("runs", "--all", "--json").json["runs"]
    assert run["status"] == "stopped"
