"""Test predicting later failures from the nodes' facts."""

import platform
import sys
from dataclasses import replace
from typing import Any

import pytest
from node_facts import NO_GPU, facts
from support import a_machine

from inventories.text import listed
from provision.oci.images.marketplace import CLUSTER_IMAGE
from remote.checks import preflight
from remote.checks.gpu_use import Expected
from remote.checks.probe import Health, ProbeAnswer
from remote.errors import PreflightFailed
from remote.facts import EfaSoftware, Facts, RdmaDevice
from remote.findings import Finding, named, sentence

MASTER = a_machine(name="a", host="203.0.113.1", private_ip="10.0.0.1")
A10 = {"index": 0, "name": "NVIDIA A10", "memory_mb": 23028, "driver": "570.1"}


def test_preflight_finds_nothing_on_healthy_nodes() -> None:
    assert preflight.findings({"a": facts(), "b": facts()}, master=MASTER) == []


def test_preflight_checks_ray_only_in_ray_mode() -> None:
    result = {
        "a": facts(ray=None),
        "b": facts(ray="2.9.1"),
        "c": facts(ray="2.60.0"),
        "d": facts(ray="3.0.0.dev0"),
    }
    assert preflight.findings(result, master=MASTER) == []
    by_node = {(f.node, f.problem, f.fatal) for f in preflight.findings(result, master=MASTER, mode="ray")}
    assert {node for node, _, fatal in by_node if fatal} >= {"a", "b"}
    problems = [problem for _, problem, _ in by_node]
    assert "ray is not installed for /usr/bin/python3 (Python 3.10.12)" in problems
    assert "Ray is 2.9.1 for /usr/bin/python3, which is older than what gpuctl starts" in problems
    alike = {"a": facts(ray="2.60.0"), "b": facts(ray="2.60.0")}
    assert preflight.findings(alike, master=MASTER, mode="ray") == []


@pytest.mark.parametrize(
    ("hostname", "python", "fix"),
    [
        (platform.node(), sys.executable, f"{sys.executable} -m pip install 'ray[default,train]>=2.60'"),
        (platform.node(), "/other/python", "build an environment with it: --pip 'ray[default,train]>=2.60'"),
        ("h", sys.executable, "build an environment with it: --pip 'ray[default,train]>=2.60'"),
    ],
)
def test_missing_ray_comes_with_the_command_for_the_python_of_local_hosts(
    hostname: str, python: str, fix: str
) -> None:
    result = {"a": facts(hostname=hostname, python=python)}
    [missing] = preflight.findings(result, master=MASTER, mode="ray")
    assert fix in missing.fix


def test_preflight_reports_each_problem_on_its_node() -> None:
    result = preflight.findings(
        {
            "a": facts(free_port=None, cant_listen="Cannot assign requested address"),
            "b": facts(torch=None),
            "c": facts(torch="2.12.0"),
            "d": facts(disk_free_bytes=1000),
            "e": facts(active_runs=("R1",)),
            "f": facts(clock_offset_s=-40.0),
        },
        master=MASTER,
    )
    by_node = {finding.node: finding for finding in result}
    assert len(result) == 6
    assert by_node["a"].problem == (
        "nothing can listen at 10.0.0.1, the address that the other nodes meet it at: Cannot assign requested address"
    )
    assert "torch is not installed" in by_node["b"].problem
    assert "2.12.0 here, and 2.13.0 on a" in by_node["c"].problem
    assert "disk is full" in by_node["d"].problem
    assert "gpuctl stop R1" in by_node["e"].fix
    assert not by_node["f"].fatal
    assert all(finding.fix for finding in result)


def test_preflight_distinguishes_taken_ports_from_a_wrong_address() -> None:
    (result,) = preflight.findings({"a": facts(free_port=None)}, master=MASTER)
    assert (
        result.problem
        == "no free port was found at 10.0.0.1 for the rendezvous, of those from 20000 to 29999"
    )
    assert result.fatal


def test_preflight_refuses_an_unknown_interface_unless_named() -> None:
    nodes = {"a": facts(), "b": facts(interfaces={"10.0.0.1": None, "10.0.0.2": "ens3"})}
    (result,) = preflight.findings(nodes, master=MASTER)
    assert (result.node, result.fatal) == ("b", True)
    assert (
        result.problem == "the interface on its way to 10.0.0.1 is not known, and NCCL and gloo would guess"
    )
    assert "--env NCCL_SOCKET_IFNAME=IFACE --env GLOO_SOCKET_IFNAME=IFACE" in result.fix
    both = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "X")
    assert preflight.findings(nodes, master=MASTER, env_names=both) == []
    assert preflight.findings(nodes, master=MASTER, env_names=both[:1]) == [result]
    assert preflight.findings({"a": facts(interfaces={})}, master=MASTER) == [], (
        "one node has nobody to reach"
    )


def on_oci(*addressed: bool) -> Facts:
    """An H100 node of OCI: the RDMA device of its VCN, and others with an address or without."""
    rest = [("ens3", True), *((f"rdma{n}", existing) for n, existing in enumerate(addressed))]
    rdma = tuple(
        RdmaDevice(name=f"mlx5_{n}", driver="mlx5_core", interfaces=(name,), addressed=existing)
        for n, (name, existing) in enumerate(rest)
    )
    return facts(cloud="oci", gpus=({**A10, "name": "NVIDIA H100 80GB HBM3"},), rdma=rdma)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (on_oci(True, True), on_oci(True, True), []),
        (on_oci(True, True), on_oci(False, False),
         [("b", "the number of RDMA devices that can be used is 0 here, and 2 on a", True)]),
        (on_oci(True, False), on_oci(True, True),
         [("b", "the number of RDMA devices that can be used is 2 here, and 1 on a", True)]),
        (on_oci(False, False), on_oci(False, False),
         [("a and b", "it has RDMA devices and none can be used, as none has an address: the run goes over TCP",
           False)]),
        (on_oci(), on_oci(), []),
    ],
)  # fmt: skip
def test_preflight_reports_rdma_devices_without_addresses(
    first: Facts, second: Facts, expected: list[tuple[str, str, bool]]
) -> None:
    result = preflight.findings({"a": first, "b": second}, master=MASTER)
    assert [(finding.node, finding.problem, finding.fatal) for finding in result] == expected
    differ = [finding for finding in result if finding.fatal]
    assert all("agent gives RDMA devices their addresses" in finding.fix for finding in differ)
    for finding in set(result) - set(differ):
        assert f"gpuctl up --image '{preflight.OCI_RDMA_IMAGE}'" in finding.fix
        assert "wait" not in finding.fix


def test_preflight_names_oracles_image_where_rdma_devices_are_missing() -> None:
    item = on_oci()
    (result,) = preflight.findings(
        {name: replace(item, gpus=item.gpus * 8, machine=name) for name in ("a", "b")}, master=MASTER
    )
    assert (result.node, result.fatal) == ("a and b", False)
    assert result.problem.startswith("it has no RDMA devices, which machines with these GPUs have on OCI")
    assert f"marketplace:{CLUSTER_IMAGE}" in result.fix


def on_aws(**software: Any) -> Facts:
    """A node of AWS with an EFA device."""
    device = RdmaDevice(name="rdmap0s6", driver="efa", interfaces=(), addressed=False)
    efa = EfaSoftware(
        **{"plugin": "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "loadable": True, "libfabric": True}
        | software
    )
    return facts(cloud="aws", gpus=(A10,), rdma=(device,), efa=efa)


@pytest.mark.parametrize(
    ("software", "env_names", "problem", "fix"),
    [
        ({}, (), None, ""),
        ({"plugin": None, "loadable": False}, (),
         "it has EFA devices and lacks aws-ofi-nccl: NCCL uses TCP sockets, not EFA", "AWS's Deep Learning image"),
        ({"plugin": None, "loadable": False, "libfabric": False}, (),
         "it has EFA devices and lacks aws-ofi-nccl and libfabric: NCCL uses TCP sockets, not EFA", "EFA installer"),
        ({"loadable": False}, (),
         "it has EFA devices, and NCCL's plug-in is in /opt/amazon/ofi-nccl/lib, where the loader does not look: "
         "NCCL uses TCP sockets, not EFA", "--env LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib"),
        ({"loadable": False}, ("LD_LIBRARY_PATH",), None, ""),
        ({"plugin": None, "loadable": False}, ("NCCL_NET_PLUGIN",), None, ""),
    ],
)  # fmt: skip
def test_preflight_reports_efa_without_the_plugin_of_nccl(
    software: dict[str, Any], env_names: tuple[str, ...], problem: str | None, fix: str
) -> None:
    nodes = {"a": on_aws(**software), "b": on_aws(**software)}
    result = preflight.findings(nodes, master=MASTER, env_names=env_names)
    expected = [] if problem is None else [("a and b", problem, False)]
    assert [(finding.node, finding.problem, finding.fatal) for finding in result] == expected
    assert all(fix in finding.fix for finding in result)
    assert preflight.findings({"a": on_aws(**software)}, master=MASTER, env_names=env_names) == []


@pytest.mark.parametrize(
    ("first", "second", "problem", "fatal"),
    [
        ({}, {"torch": "2.12.0"}, "torch is 2.12.0 here, and 2.13.0 on a", True),
        ({"gpus": (A10,)}, {}, "the ranks would use the CPU here, and GPUs on a", True),
        ({}, {"python_version": "3.12.1"}, "Python is 3.12 here, and 3.10 on a", False),
        ({"gpus": (A10,)}, {"gpus": (A10, A10)}, "the number of GPUs is 2 here, and 1 on a", False),
        ({"gpus": (A10,)}, {"gpus": ({**A10, "name": "NVIDIA A100"},)},
         "the GPU is NVIDIA A100 here, and NVIDIA A10 on a", False),
        ({"gpus": (A10,)}, {"gpus": ({**A10, "driver": "550.2"},)},
         "the GPU driver is 550.2 here, and 570.1 on a", False),
    ],
)  # fmt: skip
def test_preflight_reports_versions_and_gpus_that_differ(
    first: dict[str, object], second: dict[str, object], problem: str, fatal: bool
) -> None:
    result = preflight.findings({"a": facts(**first), "b": facts(**second)}, master=MASTER)
    assert [(finding.node, finding.problem, finding.fatal) for finding in result] == [("b", problem, fatal)]


def test_preflight_ignores_python_patch_releases() -> None:
    nodes = {"a": facts(python_version="3.10.4"), "b": facts(python_version="3.10.12")}
    assert preflight.findings(nodes, master=MASTER) == []


def test_preflight_refuses_unusable_gpus_except_on_local_hosts() -> None:
    broken = replace(NO_GPU, devices=2, smi_exit=-1)
    nodes = {"a": facts(driver=broken), "b": facts(gpus=(A10,))}
    result = preflight.findings(nodes, master=MASTER)
    assert ("a", "it has 2 NVIDIA GPUs, and the driver does not answer", True) in {
        (item.node, item.problem, item.fatal) for item in result
    }
    (local,) = preflight.findings({"a": nodes["a"]}, master=MASTER, expected=Expected(local=True))
    assert not local.fatal


@pytest.mark.parametrize(
    ("offsets_s", "node", "problem"),
    [
        ((40.0, 41.0), "this computer", "its clock is 40.0 s behind the clocks of all nodes"),
        ((-40.0, -39.5), "this computer", "its clock is 40.0 s ahead of the clocks of all nodes"),
        ((0.5, 41.0), "b", "the clock is off by +41.0 s"),
        ((9.0,), "a", "its clock and this computer's differ by +9.0 s"),
    ],
)
def test_preflight_names_the_clock_that_is_off(offsets_s: tuple[float, ...], node: str, problem: str) -> None:
    nodes = {name: facts(clock_offset_s=offset_s) for name, offset_s in zip("ab", offsets_s, strict=False)}
    (result,) = preflight.findings(nodes, master=MASTER)
    assert (result.node, result.problem, result.fatal) == (node, problem, False)


def test_preflight_refuses_a_machine_that_is_listed_twice() -> None:
    nodes = {"a": facts(machine="m"), "b": facts(), "c": facts(machine="m")}
    (result,) = preflight.findings(nodes, master=MASTER)
    assert (result.node, result.fatal) == ("a and c", True)
    assert result.problem == "the inventory lists one machine 2 times: its hostname is h"


@pytest.mark.parametrize("interface", ["docker0", "virbr0", "br-5f3a", "lo"])
def test_preflight_notes_a_route_over_a_virtual_interface(interface: str) -> None:
    nodes = {
        "a": facts(interfaces={"10.0.0.1": "ens3", "172.17.0.9": interface}),
        "b": facts(interfaces={"10.0.0.1": "ens3", "10.0.0.2": None}),
    }
    (result,) = preflight.findings(nodes, master=MASTER)
    assert result.node == "a"
    assert f"goes over {interface}, which leads to no network" in result.problem
    assert not result.fatal


def test_preflight_accepts_loopback_for_nodes_of_one_machine() -> None:
    assert preflight.findings({"a": facts(interfaces={"127.0.0.1": "lo"})}, master=MASTER) == []


def test_preflight_merges_the_same_finding_of_several_nodes() -> None:
    nodes = {name: facts(disk_free_bytes=1000) for name in ("a", "g-1", "g-2", "g-3", "g-4", "h")}
    (result,) = preflight.findings(nodes, master=MASTER)
    assert result.node == "a, g-1…g-4 and h"


def test_check_refuses_with_every_fatal_finding_and_its_fix() -> None:
    nodes = {
        "a": facts(torch=None, clock_offset_s=9.0),
        "b": facts(active_runs=("R1",)),
    }
    notes: list[str] = []
    with pytest.raises(PreflightFailed) as refused:
        preflight.check(nodes, master=MASTER, note=notes.append)
    output = str(refused.value)
    assert output.startswith("The run can't start:\n  a: torch is not installed")
    assert "\n  b: the run R1 is still active. Fix: wait for it" in output
    assert "clock" not in output
    (note,) = notes
    assert note.startswith("a: the clock is off by +9.0 s. Fix: ")


def test_check_is_silent_about_what_is_harmless() -> None:
    health = Health(
        interface="ens3", mtu=9000, hostname="h", hostname_addresses=("127.0.1.1",), free_inodes=10**6, nccl=None,
        stale=(),
    )  # fmt: skip
    nodes = {"a": facts(), "b": facts()}
    probes = {name: ProbeAnswer(node=name, health=health) for name in nodes}
    (result,) = preflight.findings(nodes, probes, master=MASTER)
    assert (result.node, result.harmless) == ("a and b", True), "doctor tells it"
    notes: list[str] = []
    preflight.check(nodes, probes, master=MASTER, note=notes.append)
    assert notes == []


def test_check_notes_findings_that_are_not_fatal() -> None:
    notes: list[str] = []
    preflight.check({"a": facts(clock_offset_s=9.0)}, master=MASTER, note=notes.append)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["g-0", "g-1"], "g-0 and g-1"),
        (["g-0", "g-1", "g-2"], "g-0, g-1 and g-2"),
        ([f"g-{n}" for n in range(12)], "g-0…g-11"),
        (["g-0", "g-1", "g-2", "g-3", "g-7", "head"], "g-0…g-3, g-7 and head"),
    ],
)
def test_named_shortens_many_node_names(names: list[str], text: str) -> None:
    assert named(names) == text


def test_listed_cuts_lists_after_four_items() -> None:
    assert listed(["1", "2", "3", "4"]) == "1, 2, 3 and 4"
    assert listed(["1", "2", "3", "4", "5"]) == "1, 2, 3 and 2 more"


def test_sentence_formats_a_finding_with_its_fix() -> None:
    finding = Finding(node="a", problem="the disk is full", fix="free some")
    assert sentence(finding) == "a: the disk is full. Fix: free some."
