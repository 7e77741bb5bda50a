"""EKS and OKE by the installed command: up, status, down, reap on fakes of the clouds; killed at each call."""

import itertools
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from clouds import COUNT, CloudGpuctl, Clouds, Kind
from killing import Point, calls_of, kill, points_of
from lanes import commits_so_far
from support import wait_for

from gpuctl.workflow.clusters.limits import STARTED
from inventories.disk.store import Store
from tests.fakes.apt_mirror import LIST_GPUS
from tests.fakes.kube.api import Pod
from tests.fakes.kube.store import Document
from tests.fakes.namespace_transport import enter_argv
from tests.fakes.vms import lacking, vms
from tests.provision.eks import building as eks_building
from tests.provision.oke import building as oke_building

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SERVICES = {
    "eks": Kind(
        provider="eks",
        fake="aws_proxy",
        shape="g5.12xlarge",
        other_shape="g5.xlarge",
        region="us-east-1",
        zones=("us-east-1a", "us-east-1b", "us-east-1c"),
        client="aws",
        up_options=("--provider", "eks"),
    ),
    "oke": Kind(
        provider="oke",
        fake="oci",
        shape="VM.GPU.A10.2",
        other_shape="VM.GPU.A10.1",
        region="eu-frankfurt-1",
        zones=("Uocm:EU-FRANKFURT-1-AD-1", "Uocm:EU-FRANKFURT-1-AD-2", "Uocm:EU-FRANKFURT-1-AD-3"),
        client="oci",
        up_options=("--provider", "oke"),
    ),
}
API_SERVERS = {"eks": eks_building.api_server, "oke": oke_building.api_server}
JOB = ("--device", "cpu", "--", "--model", "cnn", "--epochs", "1", "--batch-size", "64")
KINDS = {"eks": ("kubernetes-cluster", "node-group"), "oke": ("okecluster", "nodepool")}
"""The fakes' names for a control plane and a node group."""
GPUS = {"eks": 4, "oke": 2}
"""GPUs of a machine, by service."""
A10 = "030200 2236"
SMI = "/usr/local/bin/nvidia-smi"
APART = 9
"""Spacing of the kill points; each day tests other points."""


@contextmanager
def managed(service: str, clouds: Clouds, folder: Path) -> Iterator[CloudGpuctl]:
    """Yield gpuctl with an empty account, and the API server for its future control plane."""
    gpuctl = clouds.as_new(SERVICES[service], folder)
    with API_SERVERS[service]() as kube:
        kube.world.install_kuberay()
        gpuctl.cloud.settings(
            **{f"{service}_endpoint": f"http://127.0.0.1:{kube.port}", f"{service}_cluster_s": 0.1},
            launch_s=0.05,
            terminate_s=0.1,
        )
        yield gpuctl


@contextmanager
def pods_in_hosts(service: str, gpuctl: CloudGpuctl, folder: Path) -> Iterator[None]:
    """Let the pods on two GPU nodes run commands, each in a separate host."""
    folder.mkdir()
    bus = (A10,) * GPUS[service]
    with vms(folder, count=3, firewall="none", pci=bus) as net, API_SERVERS[service]() as kube:
        hosts = {host.name: host for host in net.hosts}
        for host in net.hosts:
            host.root(f"cat > {SMI} <<'END'\n#!/bin/sh\n{LIST_GPUS}END\nchmod 755 {SMI}")

        def runtime(pod: Document) -> Pod:
            host = hosts[pod["spec"]["nodeName"]]
            return Pod(argv=tuple(enter_argv(host.pid, host.user)), env=os.environ)

        kube.runtime = runtime
        kube.world.install_kuberay()
        for host in net.hosts:
            kube.world.addresses[host.name] = host.address
        gpuctl.cloud.settings(**{f"{service}_endpoint": f"http://127.0.0.1:{kube.port}"})
        yield


def with_gpus(gpuctl: CloudGpuctl) -> int:
    return sum(live_instance["shape"] == gpuctl.kind.shape for live_instance in gpuctl.cloud.live_instances())


def script_of(gpuctl: CloudGpuctl, name: str) -> str:
    """A script that does nothing, for long."""
    gpuctl.script(f"{name}.py", "import time\ntime.sleep(600)")
    return f"{name}.py"


def counted(gpuctl: CloudGpuctl) -> Counter[str]:
    return Counter(part.get("kind", "instance") for part in gpuctl.cloud.owned())


def converge(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    result = counted(gpuctl)
    plane, nodes = KINDS[gpuctl.kind.provider]
    assert (result[plane], result[nodes], result["instance"]) == (1, 2, COUNT + 1), result
    assert len(gpuctl.ok("status", "--json").json["machines"]) == COUNT
    vanish(gpuctl)


def vanish(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("down", "--yes")
    assert left(gpuctl) == []


def reap_with_files_lost(gpuctl: CloudGpuctl) -> None:
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--yes")
    assert left(gpuctl) == []


def left(gpuctl: CloudGpuctl) -> list[object]:
    """Return gpuctl's remaining resources, and EKS's for gpuctl."""
    named = [part for part in gpuctl.cloud.state()["resources"] if "eks" in str(part.get("name"))]
    return [*gpuctl.cloud.owned(), *named]


LIMITS = ("--min", "0", "--max", str(COUNT))
START, END = (
    ("up", *more, "--ssh-cidr", "127.0.0.1/32", "--no-wait", "--yes")
    for more in (("--count", str(COUNT)), ())
)
"""Commands that a run issues before its start and after its end."""
Words = tuple[str, ...]
KILLED: dict[str, Callable[[Words], tuple[list[Words], Words]]] = {
    "up": lambda up: ([], up),
    "down": lambda up: ([up], ("down", "--yes")),
    "start of a run": lambda up: ([without_count(up)], START),
    "end of a run": lambda up: ([without_count(up), START], END),
}
"""Killed command → the commands before it, and the command itself."""


def without_count(up: Words) -> Words:
    """An `up` of no machine, which runs start."""
    at = up.index("--count")
    return (*up[:at], *up[at + 2 :], *LIMITS)


AFTERWARDS: dict[str, Callable[[CloudGpuctl], None]] = {
    "up": converge,
    "down": vanish,
    "reap": reap_with_files_lost,
}


@pytest.mark.parametrize("service", SERVICES)
def test_cluster_comes_and_goes_by_the_usual_commands(service: str, clouds: Clouds, tmp_path: Path) -> None:
    with managed(service, clouds, tmp_path) as gpuctl:
        made = gpuctl.ok(*gpuctl.up_words).json
        assert [item["rank"] for item in made["machines"]] == [0, 1]
        assert [item["host"] for item in made["machines"]] == [None, None]
        shown = gpuctl.ok("reap", "--dry-run", "--json").json
        assert [item["provider"] for item in shown["clusters"]] == [service]
        converge(gpuctl)


ENDLESS = "Nothing in the cloud ends these machines"


def test_status_shows_whether_eks_will_end_the_machines(clouds: Clouds, tmp_path: Path) -> None:
    with managed("eks", clouds, tmp_path) as gpuctl:
        up = gpuctl.ok(*gpuctl.up_words, "--ttl", "4h")
        (guard,) = up.json["ends"]
        at = guard["at"]
        assert guard == {
            "guard": "scaling group",
            "at": at,
            "armed": True,
            "ends_bill": True,
            "problem": "",
        }
        assert ENDLESS not in up.err
        assert gpuctl.ok("status", "--json").json["ends"] == [guard]
        gpuctl.cloud.settings(denied=["DescribeScheduledActions"])
        (guard,) = gpuctl.ok("status", "--json").json["ends"]
        assert guard["armed"] is None
        assert "autoscaling:DescribeScheduledActions" in guard["problem"]


def test_status_shows_that_nothing_ends_the_machines_on_oke(clouds: Clouds, tmp_path: Path) -> None:
    with managed("oke", clouds, tmp_path) as gpuctl:
        up = gpuctl.ok(*gpuctl.up_words, "--ttl", "4h")
        assert "ends" not in up.json
        assert ENDLESS in up.err
        assert gpuctl.ok("status", "--json").json["ends"] == []


@pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
@pytest.mark.parametrize("service", SERVICES)
def test_run_starts_its_machines_and_ends_them_after_it(service: str, clouds: Clouds, tmp_path: Path) -> None:
    """The cluster goes from 0 machines to a run and back. Its pods are hosts of network namespaces; GPUs are only
    counted.
    """
    with managed(service, clouds, tmp_path) as gpuctl, pods_in_hosts(service, gpuctl, tmp_path / "hosts"):
        up = ("up", "--provider", service, "--shape", gpuctl.kind.shape, "--min", "0", "--max", "2")
        made = gpuctl.ok(*up, "--ssh-cidr", "127.0.0.1/32", "--python", sys.executable, "--yes", "--json")
        assert made.json["machines"] == []
        assert with_gpus(gpuctl) == 0
        assert "has no machines now. Where it has --max, a run" in gpuctl("exec", "--", "true").err

        missing = gpuctl("train", "missing.py")
        assert (missing.status, "created" in missing.err) == (2, False)

        done = gpuctl.ok("train", "--json", *JOB, timeout_s=400)
        assert (done.json["status"], done.json["world_size"]) == ("succeeded", 2)
        assert "2 ended" in done.err
        assert with_gpus(gpuctl) == 0
        assert gpuctl.ok("status", "--json").json["machines"] == []

        gpuctl.script("large.py", "open('large.bin', 'wb').truncate(80_000_000)")
        saved = gpuctl.ok("train", "--nnodes", "1", "--device", "cpu", "large.py", timeout_s=400)
        assert "1 machine stays, for $" in saved.err
        assert "1 file that run" in saved.err
        assert with_gpus(gpuctl) == 1
        assert "1 ended" in gpuctl.ok("up", "--yes").err
        assert with_gpus(gpuctl) == 0

        # A start that was cut off before anything was in the inventory.
        Store(gpuctl.home).cluster("default").journal.append(STARTED, count=2)
        assert "start of machines did not come to its end" in gpuctl.ok("status").err
        gpuctl.ok("up", "--yes")
        assert "did not come to its end" not in gpuctl.ok("status").err

        followed = gpuctl.start("train", "--device", "cpu", script_of(gpuctl, "long"))
        wait_for(lambda: gpuctl.ok("status", "--json").json["runs"], what="the run", deadline_s=120)
        assert "left to the command that started them" in gpuctl.ok("stop", timeout_s=120).err
        assert followed.wait(timeout=240) == 1
        assert with_gpus(gpuctl) == 0

        detach = ("train", "--nnodes", "1", "--detach", "--device", "cpu", script_of(gpuctl, "sleep"))
        assert "1 machine stays" in gpuctl.ok(*detach, timeout_s=400).err
        # A separate machine for the run that starts in parallel.
        assert "2 machines stay" in gpuctl.ok(*detach, timeout_s=400).err
        assert gpuctl("up", "--yes").status == 2, "a run is active on them"
        for row in gpuctl.ok("runs", "--json").json["runs"][-2:]:
            gpuctl.ok("stop", row["run"])
        assert with_gpus(gpuctl) == 0
        vanish(gpuctl)


@pytest.mark.parametrize(
    ("killed", "afterwards"),
    [
        *itertools.product(["up", "down"], AFTERWARDS),
        *itertools.product(["start of a run", "end of a run"], ["up", "down"]),
    ],
)
@pytest.mark.parametrize("service", SERVICES)
def test_command_killed_at_each_call_can_be_rerun_or_removed(
    service: str,
    killed: str,
    afterwards: str,
    clouds: Clouds,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    homes = itertools.count()

    def at(point: Point | None) -> int:
        with managed(service, clouds, tmp_path / f"home-{next(homes)}") as gpuctl:
            before, words = KILLED[killed](gpuctl.up_words)
            for earlier in before:
                gpuctl.ok(*earlier)
            if point is None:
                return calls_of(gpuctl, words)
            kill(gpuctl, words, point)
            AFTERWARDS[afterwards](gpuctl)
            return 0

    points = points_of(at(None))
    if os.environ.get("GPUCTL_TEST_SWEEPS") != "all":
        points = points[commits_so_far() % APART :: APART]
    failures = []
    for point in points:
        try:
            at(point)
        except AssertionError as error:
            failures.append(f"{point}: {error}")
    with capsys.disabled():
        print(f"\n{service}: {killed}, then {afterwards}: killed at {len(points)} points", flush=True)
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("service", SERVICES)
def test_second_computer_adopts_cluster_and_removes_it(service: str, clouds: Clouds, tmp_path: Path) -> None:
    with managed(service, clouds, tmp_path) as gpuctl:
        up = gpuctl.ok(*gpuctl.up_words).json
        second = replace(gpuctl, home=tmp_path / "second")
        adopted = second.ok("adopt", "--yes", "--json").json
        assert (adopted["provider"], adopted["machines"]) == (service, up["machines"])
        assert "nothing changed" in second.ok(*gpuctl.up_words).err
        shutil.rmtree(gpuctl.home)
        assert second.ok("down", "--yes", "--json").json["leftovers"] == []
        assert gpuctl.cloud.owned() == []


@pytest.mark.parametrize("command", ["up", "down"])
def test_adopt_names_the_command_for_an_eks_cluster_without_pods(
    command: str, clouds: Clouds, tmp_path: Path
) -> None:
    with managed("eks", clouds, tmp_path) as gpuctl:
        if command == "up":
            total = calls_of(gpuctl, gpuctl.up_words)
            gpuctl.ok("down", "--yes")
            kill(gpuctl, gpuctl.up_words, Point(nth=total, phase="after"))
        else:
            gpuctl.ok(*gpuctl.up_words)
            kill(gpuctl, ("down", "--yes"), Point(nth=1, phase="after"))
        shutil.rmtree(gpuctl.home)
        refused = gpuctl("adopt", "--yes")
        assert (refused.status, "has no record of its machines" in refused.err) == (2, True), refused.err
        (command,) = re.findall(r"`gpuctl (reap [^`]*)`", refused.err)
        gpuctl.ok(*command.split(), "--yes")
        assert left(gpuctl) == []
