"""`train --end-if-gpu-below`: the nodes end a run whose GPUs do nothing, also without gpuctl."""

import json
import os
from pathlib import Path

import pytest
from support import Gpuctl, wait_for
from vm_support import cluster

from tests.fakes import nvidia_smi
from tests.fakes.vms import lacking

pytestmark = pytest.mark.slow

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
SMI = "/usr/local/bin/nvidia-smi"
ROWS = "2, 0, GPU-5a1f0b7c, {}, 3, 23028, 38, 20, NVIDIA A10\n2, 1, GPU-c93e4d10, {}, 3, 23028, 38, 20, NVIDIA A10\n"


@pytest.fixture
def smi(gpuctl: Gpuctl, tmp_path: Path) -> Path:
    """A cluster of two hosts with a GPU each; the program's folder."""
    folder = nvidia_smi.install(tmp_path / "smi", ROWS.format(0, 90))
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    gpuctl.ok("up", "--provider", "local", "--count", "2", env=path)
    gpuctl.script("sleeps.py", SLEEPS)
    return folder


def test_run_ends_when_no_gpu_of_any_node_computes(gpuctl: Gpuctl, smi: Path) -> None:
    train = gpuctl.start("train", "--end-if-gpu-below", "10%", "--for", "8s", "--json", "sleeps.py")
    with pytest.raises(AssertionError):
        wait_for(lambda: train.poll() is not None, what="an end", deadline_s=25)
    (smi / "rows.csv").write_text(ROWS.format(3, 0))
    output, error = train.communicate(timeout=90)
    assert train.returncode == 1, error
    result = json.loads(output)
    assert (result["status"], result["reason"], result["first_error"]) == ("stopped", "gpus_idle", None)


@pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
def test_detached_run_ends_on_machines_with_firewalls_of_their_own(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2, firewall="oci") as net:
        for number, host in enumerate(net.hosts):
            row = f"1, {number}, GPU-{number}a1f0b7c, 0, 3, 23028, 38, 20, NVIDIA A10"
            program = nvidia_smi.PROGRAM.format(folder="/var/smi")
            host.root(f"mkdir /var/smi; echo '{row}' > /var/smi/rows.csv")
            host.root(f"cat > {SMI} <<'END'\n{program}END\nchmod 755 {SMI}")
        gpuctl.script("sleeps.py", SLEEPS)
        words = ("--end-if-gpu-below", "10", "--for", "8s", "--detach", "--json")
        run = gpuctl.ok("train", *words, "sleeps.py").json["run"]
        ends = f"cat 2>/dev/null /home/*/.gpuctl-node/runs/{run}/*/exit.json"
        reasons = [
            json.loads(
                wait_for(
                    lambda host=host: host.root(ends, check=False).stdout, what="the run's end", deadline_s=90
                )
            )["ended"]
            for host in net.hosts
        ]
        assert reasons == [{"reason": "gpus_idle", "seconds": 8.0, "percent": 10.0}] * 2
        result = gpuctl.ok("results", "--json", run).json["runs"][0]
        assert (result["status"], result["reason"]) == ("stopped", "gpus_idle")
