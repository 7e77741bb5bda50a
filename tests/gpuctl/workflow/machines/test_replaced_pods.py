"""A job's treatment of lost pods, with a fake API server: added pods, and the time of waiting."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import an_inventory

from gpuctl.app import App
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.workflow.machines.replaced_pods import ReplacedPods
from gpuctl.workflow.machines.setup_state import unprepared
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.errors import Denied
from provision.kubernetes.provider import KubernetesProvider
from tests.fakes.kube.api import KubeApi, Pod, here, kube_api


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    with kube_api() as api:
        for number in range(3):
            api.world.add_node(f"cpu-{number}", labels={"node.kubernetes.io/instance-type": "c5.large"})
        api.world.install_kuberay()
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield api


@pytest.fixture
def folder(api: KubeApi, tmp_path: Path) -> ClusterFolder:
    """A cluster of two pods."""
    assert api.port
    folder = Store(tmp_path / "home").cluster("default")
    provider = KubernetesProvider(folder)
    plan = provider.plan(Spec(provider="kubernetes", shape="c5.large", count=2), None)
    folder.journal.append("up")
    machines = provider.create(plan, folder.journal)
    folder.save(an_inventory(provider="kubernetes", machines=machines))
    return folder


@pytest.fixture
def errors() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def pods(folder: ClusterFolder, errors: io.StringIO) -> ReplacedPods:
    return ReplacedPods(App(output=Output(Options(), stderr=errors)), folder)


def lose(api: KubeApi, machine: Machine) -> None:
    namespace, _, name = machine.id.partition("/")
    api.world.store.delete("pods", namespace, name)


def test_new_pod_is_in_the_inventory_once_it_is_ready(
    api: KubeApi, folder: ClusterFolder, pods: ReplacedPods, errors: io.StringIO
) -> None:
    before = folder.load().machines
    api.world.images["*"] = "slow"
    lose(api, before[1])
    pods.take_in(lambda _: None)
    assert folder.load().machines == before
    del api.world.images["*"]
    pods.wait_for(2, {before[1].name}, lambda: False)
    retained, new = folder.load().machines
    assert (retained, new.name, new.rank, new.host != before[1].host) == (before[0], "default-1", 1, True)
    assert f"default-1 is now the pod {new.id}" in errors.getvalue()
    assert new.name not in unprepared(folder, [new])


@pytest.mark.slow
def test_lost_pod_that_stays_ready_counts_once_a_command_runs_in_it(
    api: KubeApi, folder: ClusterFolder, pods: ReplacedPods, errors: io.StringIO
) -> None:
    api.runtime = lambda _: Pod(argv=("false",))
    polls = itertools.count(1)
    pods.wait_for(2, {folder.load().machines[1].name}, lambda: next(polls) > 1)
    assert "1 of 2 pods are there; the others are waited for, 10 minutes at most" in errors.getvalue()
    errors.truncate(0)
    api.runtime = here
    pods.wait_for(2, {"default-1"}, lambda: False)
    assert errors.getvalue() == ""


@pytest.mark.slow
def test_no_more_machines_are_waited_for_than_there_are(
    folder: ClusterFolder, pods: ReplacedPods, errors: io.StringIO
) -> None:
    pods.wait_for(3, (), lambda: False)
    assert (len(folder.load().machines), errors.getvalue()) == (2, "")


@pytest.mark.slow
def test_who_may_not_look_waits_for_nothing(
    api: KubeApi, folder: ClusterFolder, pods: ReplacedPods, errors: io.StringIO
) -> None:
    machines = folder.load().machines
    api.denied.add(("list", "pods"))
    pods.wait_for(2, {"default-1"}, lambda: False)
    assert "note: lost pods are not waited for: " in errors.getvalue()
    with pytest.raises(Denied):
        pods.take_in(lambda _: None)
    pods.report_lost(machines)
    assert "whether all pods are still there is not known" in errors.getvalue()


@pytest.mark.slow
def test_pods_that_a_driver_lost_are_named(
    api: KubeApi, folder: ClusterFolder, pods: ReplacedPods, errors: io.StringIO
) -> None:
    machines = folder.load().machines
    pods.report_lost(machines)
    assert errors.getvalue() == ""
    lose(api, machines[1])
    pods.report_lost(machines)
    assert (
        f"default-1 was lost: the pod {machines[1].id} is gone, and Ray went on without it"
        in errors.getvalue()
    )
    assert "default-0 was lost" not in errors.getvalue()
