"""A job in a file, from the first one to the end of its cluster, typed in several folders of a project."""

import subprocess
from pathlib import Path

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
from pathlib import Path

import torch

torch.distributed.init_process_group("gloo")
print("got", sys.argv[1:], os.environ["VERSION"], Path("data/part-0").read_text(), flush=True)
Path(f"made-{torch.distributed.get_rank()}.bin").write_text("1")
torch.distributed.barrier()
os._exit(0)
"""
FILE = """
cluster:
  cluster: ours
  provider: local
  count: 2
environment:
  variables: {VERSION: 1.10}
include: [data]
run:
  script: src/fit.py
  arguments: [--lr, 1e-3]
outputs: ["*.bin"]
"""


@pytest.fixture
def project(gpuctl: Gpuctl) -> Path:
    """A repository with a script and data that git ignores."""
    subprocess.run(["git", "init", "-q", str(gpuctl.cwd)], check=True)
    gpuctl.script("src/fit.py", SCRIPT)
    gpuctl.script("data/part-0", "some data")
    gpuctl.script(".gitignore", "data\n")
    (gpuctl.cwd / "sub").mkdir()
    return gpuctl.cwd


def test_every_command_of_a_project_is_about_the_job_of_its_file(gpuctl: Gpuctl, project: Path) -> None:
    (project / "gpuctl.yaml").write_text(FILE)
    up = gpuctl.ok("up", "--json", cwd=project / "sub")
    assert [machine["name"] for machine in up.json["machines"]] == ["ours-0", "ours-1"]
    assert "from ../gpuctl.yaml: cluster\n" in up.err

    run = gpuctl.ok("train", "--json", "--", "--epochs", "3", cwd=project / "sub")
    assert "from ../gpuctl.yaml: environment, include, outputs, run\n" in run.err
    assert "got ['--lr', '1e-3', '--epochs', '3'] 1.10 some data" in run.err
    assert (run.json["cluster"], run.json["script"], run.json["world_size"]) == ("ours", "src/fit.py", 2)
    assert sorted(output["path"] for output in run.json["outputs"]) == ["made-0.bin", "made-1.bin"]
    assert gpuctl.ok("results", "--json").json["runs"][0]["run"] == run.json["run"]
    assert gpuctl.ok("status", "--json").json["cluster"] == "ours"

    item = gpuctl.ok("train", "--nnodes", "1", "--env", "VERSION=2", "--json", "src/fit.py")
    assert "got [] 2 some data" in item.err
    assert item.json["world_size"] == 1

    gpuctl.ok("down", "--yes")
    assert gpuctl.ok("clusters", "--json").json["clusters"] == []


def test_what_init_writes_is_taken_by_a_dry_run(cluster: Gpuctl) -> None:
    subprocess.run(["git", "init", "-q", str(cluster.cwd)], check=True)
    for name, text in (("src/fit.py", SCRIPT), ("data/part-0", "some data"), (".gitignore", "data\n")):
        cluster.script(name, text)
    result = cluster.ok("init", "--json").json
    assert (result["script"], result["cluster"]) == ("src/fit.py", "default")
    assert result["include"] == [{"path": "data", "bytes": 9}]
    planned = cluster.ok("train", "--dry-run", "--json")
    assert planned.json["script"] == "src/fit.py"
    assert planned.json["files"] == 4, "the script, its data, .gitignore, gpuctl.yaml"
    plan = cluster.ok("up", "--dry-run", "--json")
    assert plan.json["cluster"] == "default"


def test_an_include_that_leads_out_of_the_repository_is_refused(cluster: Gpuctl) -> None:
    subprocess.run(["git", "init", "-q", str(cluster.cwd)], check=True)
    cluster.script("fit.py", SCRIPT)
    outside = cluster.cwd.parent / f"{cluster.cwd.name}-outside"
    outside.mkdir()
    cluster.script("gpuctl.yaml", f"include: ../{outside.name}\nrun: {{script: fit.py}}\n")
    done = cluster("train")
    assert done.status == 2, done.err
    assert f"leads out of {cluster.cwd}" in done.err
