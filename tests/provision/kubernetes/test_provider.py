"""Pods as machines: made, replaced, removed, on an API server that is made to fail."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import a_machine, an_inventory

from inventories.disk.store import ClusterFolder, Store
from inventories.errors import InvalidInput
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.errors import (
    BadCredentials,
    CreateFailed,
    Denied,
    LeftBehind,
    NoCapacity,
    OtherAccount,
    ProvisionError,
    RefusedPlan,
    Unclear,
)
from provision.kubernetes.api import connect
from provision.kubernetes.pods import Pods, replacements
from provision.kubernetes.provider import KubernetesProvider, PodPlan
from provision.kubernetes.ray_cluster import EFA, GPU, RANK
from provision.kubernetes.record import load
from provision.provider import Plan
from provision.records import Target
from tests.clocks import StepClock
from tests.fakes.kube.api import KubeApi, kube_api

SPEC = Spec(provider="kubernetes", count=2)
TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    with kube_api() as api:
        api.world.add_node("cpu-0")
        for number in range(3):
            kind = {"node.kubernetes.io/instance-type": "g5.12xlarge"}
            api.world.add_node(f"gpu-{number}", gpus=4, labels=kind, taints=[TAINT])
        api.world.install_kuberay()
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield api


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    return Store(tmp_path / "home").cluster("default")


def provider(folder: ClusterFolder) -> KubernetesProvider:
    """Create a provider as a new process has it, with a clock that never waits."""
    clock = StepClock()
    return KubernetesProvider(folder, clock=clock, connect=partial(connect, clock=clock))


def up(folder: ClusterFolder, spec: Spec = SPEC, said: list[str] | None = None) -> tuple[Machine, ...]:
    """Plan and create, and save the inventory as `up` does."""
    current = folder.load() if folder.exists() else None
    item = provider(folder)
    plan: Plan = item.plan(spec, current)
    machines = item.create(plan, folder.journal, (said if said is not None else []).append)
    folder.save(an_inventory(cluster=folder.name, provider="kubernetes", machines=machines))
    return machines


def ours(api: KubeApi) -> list[str]:
    """Return the names of gpuctl's namespaces."""
    namespaces = [item["metadata"]["name"] for item in api.objects("namespaces")]
    return [name for name in namespaces if name.startswith("gpuctl-")]


def test_workers_of_a_ray_cluster_become_machines_and_nothing_is_left(
    api: KubeApi, folder: ClusterFolder
) -> None:
    machines = up(folder)
    assert [(machine.name, machine.rank, machine.state, machine.gpus) for machine in machines] == [
        ("default-0", 0, "running", 4),
        ("default-1", 1, "running", 4),
    ]
    (namespace,) = ours(api)
    assert all(
        machine.id == f"{namespace}/{machine.host}" and machine.transport == "pod" for machine in machines
    )
    assert provider(folder).find() == machines
    assert not provider(folder).plan(SPEC, folder.load()).create
    more = up(folder, replace(SPEC, count=3))
    assert (more[:2], len(more)) == (machines, 3)
    assert {
        pod["spec"]["nodeName"]
        for pod in api.objects("pods", namespace)
        if "worker" in pod["metadata"]["name"]
    } == {
        "gpu-0",
        "gpu-1",
        "gpu-2",
    }
    fewer = provider(folder).plan(replace(SPEC, count=1), folder.load())
    assert (fewer.keep, fewer.end) == (more[:1], (more[1].id, more[2].id))
    assert up(folder, replace(SPEC, count=1)) == more[:1]
    assert provider(folder).find() == more[:1]
    assert provider(folder).destroy() == ()
    assert ours(api) == []
    assert provider(folder).destroy() == (), "it was gone already"


def test_pods_of_an_image_of_the_user_get_the_nodes_efa(api: KubeApi, folder: ClusterFolder) -> None:
    for number in range(2):
        kind = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
        api.world.add_node(f"fast-{number}", gpus=8, efa=4, labels=kind, taints=[TAINT])
    spec = replace(SPEC, shape="p4d.24xlarge")
    cluster = provider(folder).plan(replace(spec, image="mine:1"), None).requests[-1].body
    (worker,) = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {GPU: "8", EFA: "4"}
    without = provider(folder).plan(spec, None).requests[-1].body
    assert EFA not in str(without), "Ray's image could not use them"


def test_pod_that_was_lost_is_replaced_with_its_rank(api: KubeApi, folder: ClusterFolder) -> None:
    first, second = up(folder)
    namespace = second.id.partition("/")[0]
    api.world.store.delete("pods", namespace, first.host)
    assert provider(folder).refresh(first).state == "gone"
    plan = provider(folder).plan(SPEC, folder.load())
    assert [(item.name, item.replaces) for item in plan.create] == [("default-0", first.id)]
    now = up(folder)
    assert (now[0].rank, now[1]) == (0, second)
    assert now[0].host != first.host


def test_pod_that_is_on_its_way_out_leaves_its_room_to_the_next(api: KubeApi, folder: ClusterFolder) -> None:
    first, *_ = up(folder, replace(SPEC, count=3))
    (namespace,) = ours(api)
    api.world.store.get("pods", namespace, first.host)["metadata"]["finalizers"] = ["test/stays"]
    api.world.store.delete("pods", namespace, first.host)
    plan = provider(folder).plan(replace(SPEC, count=3), folder.load())
    assert [item.name for item in plan.create] == ["default-0"], "no other node has a free GPU"


@pytest.mark.slow
def test_pod_in_the_place_of_a_lost_one_is_taken_in_once_it_is_ready(
    api: KubeApi, folder: ClusterFolder
) -> None:
    first, second = up(folder)
    namespace = second.id.partition("/")[0]
    pods = provider(folder).pods()
    assert pods is not None
    api.world.images["*"] = "slow"
    api.world.store.delete("pods", namespace, first.host)
    assert pods.lost((first, second)) == (first,)
    ready, waits = pods.readiness((first, second))
    assert (ready, len(waits)) == ([second], 1)
    assert pods.replace_lost((first, second)) == (first, second)
    del api.world.images["*"]
    now, other = pods.replace_lost((first, second))
    assert (now.name, now.rank, now.state, other) == (first.name, 0, "running", second)
    assert now.host != first.host
    assert provider(folder).find() == (now, second), "the label tells its rank"
    # The label was set, and the inventory not saved.
    assert pods.replace_lost((first, second)) == (now, second)


@pytest.mark.parametrize("broken", ["before", "after"])
def test_reply_that_is_lost_makes_nothing_twice(api: KubeApi, folder: ClusterFolder, broken: str) -> None:
    plan = provider(folder).plan(SPEC, None)
    begun = len(api.calls)
    api.faults = dict.fromkeys(range(begun, begun + 40, 2), broken)  # type: ignore[arg-type]
    machines = provider(folder).create(plan, folder.journal)
    assert (len(machines), len(ours(api))) == (2, 1)
    assert provider(folder).destroy() == ()
    assert ours(api) == []


class Killed(BaseException):
    """The end of a process in the middle of a call."""


def dies_at(api: KubeApi, folder: ClusterFolder, call: int, broken: str) -> bool:
    """Run `up` whose connection and life end at that call; return whether it came that far."""
    item = provider(folder)
    plan = item.plan(SPEC, None)
    at = len(api.calls) + call
    api.faults = {at: broken}  # type: ignore[dict-item]
    clock = item._clock
    made = item._connect

    def connect_once(context: str | None) -> object:
        result = made(context)
        once = result._once

        def end(*words: object) -> object:
            try:
                return once(*words)  # type: ignore[arg-type]
            except Unclear as error:
                raise Killed from error

        result._once = end  # type: ignore[method-assign, assignment]
        return result

    item = KubernetesProvider(folder, clock=clock, connect=connect_once)  # type: ignore[arg-type]
    try:
        item.create(plan, folder.journal)
    except Killed:
        return True
    finally:
        api.faults = {}
    return False


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["before", "after"])
def test_killed_at_any_call_up_converges_and_down_leaves_nothing(
    api: KubeApi, tmp_path: Path, broken: str
) -> None:
    calls = 0
    while dies_at(api, Store(tmp_path / f"up-{calls}").cluster("default"), calls, broken):
        again = Store(tmp_path / f"up-{calls}").cluster("default")
        machines = up(again)
        assert [machine.rank for machine in machines] == [0, 1]
        (namespace,) = ours(api)
        assert (
            len([pod for pod in api.objects("pods", namespace) if "worker" in pod["metadata"]["name"]]) == 2
        )
        assert provider(again).destroy() == ()
        down = Store(tmp_path / f"down-{calls}").cluster("default")
        assert dies_at(api, down, calls, broken)
        assert provider(down).destroy() == ()
        assert ours(api) == []
        calls += 1
    assert calls >= 5, "namespace, secret, cluster, two ranks"


@pytest.mark.slow
def test_what_can_not_start_is_undone_with_its_reason(api: KubeApi, folder: ClusterFolder) -> None:
    api.world.images = {"docker.io/no/*": "missing", "docker.io/bad/*": "crashing"}
    with pytest.raises(CreateFailed, match="not found"):
        up(folder, replace(SPEC, image="no/such:1"))
    assert ours(api) == []
    with pytest.raises(CreateFailed, match="ended with exit status 1"):
        up(Store(folder.path.parent).cluster("other"), replace(SPEC, image="bad/one:1"))
    assert ours(api) == []
    up(Store(folder.path.parent).cluster("third"), replace(SPEC, count=1))
    api.world.images["*"] = "slow"
    output: list[str] = []
    with pytest.raises(CreateFailed, match=r"is not ready after 1\d+ s: it waits for the image"):
        up(Store(folder.path.parent).cluster("third"), SPEC, output)
    (namespace,) = ours(api)
    assert any("waits for the image docker.io/rayproject/ray" in line for line in output)
    workers = [pod for pod in api.objects("pods", namespace) if "worker" in pod["metadata"]["name"]]
    assert len(workers) == 1, "the machine that was there stays"


@pytest.mark.slow
def test_image_that_may_be_coming_has_its_time_where_events_are_not_told(
    api: KubeApi, folder: ClusterFolder
) -> None:
    api.world.images["*"] = "slow"
    api.denied |= {("list", "events")}
    with pytest.raises(
        CreateFailed, match=r"is not ready after 1\d\d\d s: .* perhaps for the image docker.io/rayproject/ray"
    ):
        up(folder, replace(SPEC, count=1))
    assert ours(api) == []


def test_autoscaler_that_makes_nodes_is_seen(api: KubeApi, folder: ClusterFolder) -> None:
    with pytest.raises(NoCapacity):
        provider(folder).plan(replace(SPEC, count=9), None)
    name = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    api.world.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"status": ""}})
    plan = provider(folder).plan(replace(SPEC, count=9), None)
    assert plan.notes[-1].startswith(
        "the Cluster Autoscaler makes the nodes that are missing, which are billed"
    )
    assert not plan.free
    with pytest.raises(RefusedPlan, match="--max-cost can't be kept: the Cluster Autoscaler makes the nodes"):
        provider(folder).plan(replace(SPEC, count=9, max_cost_usd=5.0), None)
    provider(folder).plan(replace(SPEC, max_cost_usd=5.0), None)


def test_credential_plug_in_that_fails_is_the_reason(
    api: KubeApi, folder: ClusterFolder, tmp_path: Path
) -> None:
    expired = "echo 'Token for sso has expired' >&2; exit 255"
    for script, output in {
        expired: "failed with exit status 255: Token for sso has expired. Log in",
        "echo hello": "printed no credentials: its output is not the JSON of an ExecCredential",
        """echo '{"apiVersion": "v2", "status": {}}'""": "printed credentials of version v2",
        """echo '{"apiVersion": "v1", "status": {}}'""": "printed no token and no certificate",
    }.items():
        plugin = {"apiVersion": "v1", "command": "sh", "args": ["-c", script], "interactiveMode": "Never"}
        api.kubeconfig(tmp_path / "kubeconfig", user={"exec": plugin})
        with pytest.raises(BadCredentials, match=f"The credential plug-in 'sh' of context test {output}"):
            provider(folder).plan(SPEC, None)
    missing = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "Install it so."}
    api.kubeconfig(tmp_path / "kubeconfig", user={"exec": missing})
    with pytest.raises(
        BadCredentials, match=r"'no-such-plugin' of context test is not installed here: .* Install it so"
    ):
        provider(folder).plan(SPEC, None)
    api.kubeconfig(tmp_path / "kubeconfig", user={"username": "me"})
    with pytest.raises(BadCredentials, match="has no credentials: its user has no token"):
        provider(folder).plan(SPEC, None)


def test_plan_refuses_before_anything_is_made(api: KubeApi, folder: ClusterFolder) -> None:
    def refusal(kind: type[Exception], spec: Spec = SPEC) -> str:
        with pytest.raises(kind) as caught:
            provider(folder).plan(spec, None)
        return str(caught.value)

    assert "4 new machines with 4 GPUs each are asked for" in refusal(NoCapacity, replace(SPEC, count=4))
    assert "has no context 'nope'" in refusal(ProvisionError, replace(SPEC, context="nope"))
    assert "instance type p4d" in refusal(InvalidInput, replace(SPEC, shape="p4d"))
    api.denied = {("create", "pods/exec"), ("patch", "rayclusters.ray.io")}
    assert "you may not patch rayclusters.ray.io; create pods/exec" in refusal(Denied)
    api.denied = set()
    for crd in [item["metadata"]["name"] for item in api.objects("customresourcedefinitions")]:
        api.world.store.forget(("customresourcedefinitions", None, crd))
    assert "has no KubeRay 1.7" in refusal(RefusedPlan)
    assert ours(api) == []
    assert load(folder) is None


def test_context_that_means_another_cluster_is_refused(
    api: KubeApi, folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(folder)
    with kube_api() as other:
        monkeypatch.setenv("KUBECONFIG", str(other.kubeconfig(tmp_path / "other")))
        with pytest.raises(OtherAccount, match="the context test is now of"):
            provider(folder).find()
        assert provider_calls(other) == []


def provider_calls(api: KubeApi) -> list[tuple[str, str]]:
    return [call for call in api.calls if "selfsubjectaccessreviews" not in call[1]]


@pytest.mark.slow
def test_down_names_what_keeps_the_namespace(api: KubeApi, folder: ClusterFolder) -> None:
    up(folder)
    api.world.hold_namespaces = True
    (left,) = provider(folder).destroy()
    assert left.kind == "namespace"
    api.world.hold_namespaces = False
    assert provider(folder).destroy() == ()


def test_namespace_of_somebody_else_is_left_alone(api: KubeApi, folder: ClusterFolder) -> None:
    up(folder)
    (name,) = ours(api)
    api.world.store.objects["namespaces", None, name]["metadata"]["labels"]["gpuctl/cluster-id"] = "another"
    (left,) = provider(folder).destroy()
    assert (left.id, "has not the label gpuctl/cluster-id" in left.reason) == (name, True)
    assert ours(api) == [name]


def workers(api: KubeApi, namespace: str) -> set[str]:
    result = (pod["metadata"]["name"] for pod in api.objects("pods", namespace))
    return {name for name in result if "worker" in name}


def test_growth_that_was_cut_off_is_put_right_and_machines_at_work_stay(
    api: KubeApi, folder: ClusterFolder
) -> None:
    """KubeRay removes any surplus worker unless the request names the workers."""
    first, second = up(folder)
    (namespace,) = ours(api)
    grown = provider(folder).plan(replace(SPEC, count=3), folder.load())
    item = provider(folder)
    assert isinstance(grown.details, PodPlan)
    Pods(item._connect(None), grown.details.cluster, StepClock()).apply(3, folder.ray_token())
    assert len(workers(api, namespace)) == 3
    assert provider(folder).plan(SPEC, folder.load()).requests, "it is seen"
    assert up(folder) == (first, second)
    assert workers(api, namespace) == {first.host, second.host}
    assert provider(folder).plan(SPEC, folder.load()).requests == ()


@pytest.mark.slow
def test_growth_that_fails_keeps_the_machines_that_there_were(api: KubeApi, folder: ClusterFolder) -> None:
    first, second = up(folder)
    (namespace,) = ours(api)
    api.world.images["*"] = "slow"
    with pytest.raises(CreateFailed, match="is not ready after"):
        up(folder, replace(SPEC, count=3))
    assert workers(api, namespace) == {first.host, second.host}
    assert provider(folder).find() == (first, second)


def test_undoing_that_fails_says_what_is_left(api: KubeApi, folder: ClusterFolder) -> None:
    api.world.images = {"*": "missing"}
    api.denied = set()
    plan = provider(folder).plan(replace(SPEC, image="no/such:1"), None)
    api.denied = {("delete", "namespaces")}
    with pytest.raises(LeftBehind, match="What was begun is still there: namespace gpuctl-default-"):
        provider(folder).create(plan, folder.journal)


@pytest.mark.slow
def test_doctor_tells_which_nodes_have_the_image_and_what_a_quota_leaves(
    api: KubeApi, folder: ClusterFolder
) -> None:
    kind = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    api.world.add_node("fast-0", gpus=8, labels=kind, taints=[TAINT], images=["docker.io/library/mine:1"])
    spec = replace(SPEC, count=1, shape="p4d.24xlarge", image="mine:1")

    def told(spec: Spec) -> dict[str, tuple[bool | None, str]]:
        return {item.what: (item.ok, f"{item.detail} {item.fix}") for item in provider(folder).check(spec)}

    assert told(spec)["image"] == (True, "mine:1 is on all nodes that fit ")
    ok, sentence = told(replace(spec, image="mine:2"))["image"]
    assert (ok, sentence.partition(";")[0]) == (None, "mine:2 is on 0 of 1 nodes that fit")
    ok, sentence = told(replace(spec, image="Mine"))["image"]
    assert ok is False
    assert "can't be the name of a container image" in sentence
    assert "quota" not in told(spec)

    g5 = replace(SPEC, shape="g5.12xlarge")
    up(folder, g5)
    (namespace,) = ours(api)
    hard, used = {"requests.nvidia.com/gpu": "12"}, {"requests.nvidia.com/gpu": "8"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": namespace},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }
    api.world.add(quota)
    assert told(replace(g5, count=3))["quota"][0] is True
    ok, sentence = told(replace(SPEC, count=3, shape="p4d.24xlarge"))["quota"]
    assert ok is False
    assert "team allows 12 GPUs, 8 are used; 24 are asked for Ask for fewer" in sentence


def test_name_that_no_image_can_have_is_told_before_anything_is_made(
    api: KubeApi, folder: ClusterFolder
) -> None:
    with pytest.raises(InvalidInput, match="can't be the name of a container image"):
        up(folder, replace(SPEC, image="Mine:1"))
    assert ours(api) == []


def test_pod_gets_no_rank_that_another_is_labelled_with() -> None:
    """A label was set, and the inventory not saved; then that pod is not ready for a moment."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    saved, new = ({"metadata": {"name": name}, "spec": {}, "status": ready} for name in ("kept", "new"))
    labelled = {"metadata": {"name": "labelled", "labels": {RANK: "1"}}, "spec": {}, "status": {}}
    machines = [
        a_machine(name=f"default-{rank}", rank=rank, host=host, user="ray", private_ip="", id=host)
        for rank, host in enumerate(("kept", "lost", "lost too"))
    ]  # fmt: skip
    assert replacements(machines, [saved, labelled, new]) == {2: new}


def test_adopt_while_pods_come_up_keeps_their_number(
    api: KubeApi, folder: ClusterFolder, tmp_path: Path
) -> None:
    up(folder)
    record = load(folder)
    assert record is not None
    Pods(connect(None), record, StepClock()).apply(3, folder.ray_token())  # another `up` waits for these
    second = Store(tmp_path / "second").cluster("default")
    provider(second).adopt(Target(provider="kubernetes"), record.id)
    for each in (folder, second):
        plan = provider(each).plan(Spec(provider="kubernetes"), None)
        assert ([machine.rank for machine in plan.create], plan.end) == ([2], ())
