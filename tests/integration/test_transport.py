"""Everything above a transport, over two that are not SSH: a process in a host's namespaces, and a pod."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import IMPORTS
from forks import forks_of
from support import Gpuctl, a_machine, an_inventory, clean_env, wait_for
from vm_support import ALLREDUCE, STEPS, log_of, runs_of, wait_for_ranks

from inventories.disk.store import Store
from tests.fakes.kube.api import Pod, kube_api
from tests.fakes.namespace_transport import enter_argv
from tests.fakes.vms import Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]


@pytest.fixture(params=["namespace", "pod"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def net(tmp_path: Path, transport: str) -> Iterator[Net]:
    """Pods have no firewall."""
    with vms(tmp_path, count=2, firewall="none" if transport == "pod" else "oci") as net:
        yield net


@pytest.fixture
def gpuctl(net: Net, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpuctl]:
    """A gpuctl that has another transport, and a cluster whose machines are reached by it."""
    pods = {
        f"ours/{host.name}": Pod(argv=tuple(enter_argv(host.pid, host.user)), env=os.environ)
        for host in net.hosts
    }
    cluster = Store(tmp_path / "home").cluster("default")
    cluster.make()
    machines = tuple(
        a_machine(
            name=host.name,
            rank=rank,
            host=host.address,
            user=host.user,
            transport=transport,
            context="test",
            gpus=None,
            id=str(host.pid) if transport == "namespace" else f"ours/{host.name}",
            python=sys.executable,
        )
        for rank, host in enumerate(net.hosts)
    )
    cluster.save(an_inventory(created_at="2026-11-01T00:00:00+00:00", machines=machines))
    project = tmp_path / "project"
    project.mkdir()
    with kube_api(pods) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        with forks_of(*IMPORTS, "tests.fakes.namespace_transport", env=clean_env()) as forks:
            yield Gpuctl(home=tmp_path / "home", cwd=project, forks=forks)


def test_whole_way_works_without_ssh(gpuctl: Gpuctl, net: Net, transport: str) -> None:
    output = gpuctl.ok("exec", "--json", "--", "hostname").json
    assert [node["stdout"] for node in output["nodes"]] == ["gpu-0\n", "gpu-1\n"]

    gpuctl.script("allreduce.py", ALLREDUCE)
    done = gpuctl.ok("train", "--json", "allreduce.py", timeout_s=300).json
    assert (done["status"], done["world_size"]) == ("succeeded", 2)
    assert "sum 2" in log_of(gpuctl, done["run"], 1)
    assert gpuctl.ok("results", "--json").json["runs"][0]["run"] == done["run"]
    assert "sum 2" in gpuctl.ok("logs", "--rank", "1").out

    gpuctl.script("fabfile.py", "from fabric import task\n\n@task\ndef who(c):\n    c.run('hostname')\n")
    refused = gpuctl("fab", "who")
    assert (refused.status, "Fabric needs SSH" in refused.err) == (2, True)

    gpuctl.script("data/notes.txt", "two lines\nof text\n")
    gpuctl.ok("push", "data", "there")
    gpuctl.ok("pull", "there/data/notes.txt", "back", "--rank", "0")
    assert (gpuctl.cwd / "back" / "notes.txt").read_text() == "two lines\nof text\n"

    gpuctl.script("steps.py", STEPS)
    watching = gpuctl.forks.start(("train", "--json", "steps.py", "60"), env={**gpuctl.env}, cwd=gpuctl.cwd)
    wait_for(lambda: len(runs_of(gpuctl)) == 2, what="the second run")
    run = wait_for_ranks(gpuctl, net.hosts)
    gpuctl.ok("stop")
    watching.communicate(60)
    assert gpuctl.ok("results", "--json", run).json["runs"][0]["status"] == "stopped"
    rows = gpuctl.ok("doctor", "--cluster", "--json", timeout_s=200).json["findings"]
    result = {row["what"]: row["detail"] for row in rows}
    assert result[transport].startswith("2 of 2 nodes answered")
    assert result["network"].startswith("5 of 5 connections between 2 nodes")
    for host in net.hosts:
        assert "Accepted" not in host.root("cat /var/log/auth.log").stdout, "nobody has logged in"
