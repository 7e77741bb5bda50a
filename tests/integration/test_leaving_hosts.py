"""Test machines that leave an inventory: their firewalls are closed again, and the other machines block them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import Gpuctl
from vm_support import STEPS, begin, up

from tests.fakes.vms import Host, Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]


@pytest.fixture
def net(gpuctl: Gpuctl, tmp_path: Path) -> Iterator[Net]:
    """Three hosts behind OCI's firewall, of which the first two are a cluster that has trained."""
    gpuctl.script("steps.py", STEPS)
    with vms(tmp_path, count=3, firewall="oci") as net:
        up(gpuctl, replace(net, hosts=net.hosts[:2]))
        yield net


def with_the_third_instead(gpuctl: Gpuctl, net: Net) -> str:
    """Replace the cluster's second host in its inventory by the third; return the output of `up`."""
    left = replace(net, hosts=(net.hosts[0], net.hosts[2]))
    hosts_file, known_hosts = left.inventory(python=sys.executable)
    return gpuctl.ok("up", "--hosts", str(hosts_file), "--known-hosts", str(known_hosts)).err


def ours(host: Host) -> list[str]:
    """Return gpuctl's rules, in the kernel and for the next boot."""
    text = host.root("iptables-save; cat /etc/iptables/rules.v4").stdout
    return [line for line in text.splitlines() if "gpuctl" in line]


def test_up_closes_firewall_of_host_that_leaves(gpuctl: Gpuctl, net: Net) -> None:
    a, b, _ = net.hosts
    gpuctl.ok("train", "steps.py", "0")
    assert ours(b)
    assert any(b.address in line for line in ours(a))
    output = with_the_third_instead(gpuctl, net)
    assert f"{b.name}: firewall: the cluster's rules go" in output
    assert f"{a.name}: firewall: {b.name} no longer let in" in output
    assert ours(b) == []
    assert not any(b.address in line for line in ours(a))
    gpuctl.ok("train", "steps.py", "0")
    down = gpuctl.ok("down", "--yes").err
    assert f"{b.name}: firewall" not in down, "what is closed is not asked again"
    assert [ours(host) for host in net.hosts] == [[], [], []]


def test_down_closes_firewall_of_host_that_left_while_off(gpuctl: Gpuctl, net: Net) -> None:
    a, b, _ = net.hosts
    gpuctl.ok("train", "steps.py", "0")
    b.power_off()
    output = with_the_third_instead(gpuctl, net)
    assert f"note: {b.name}: it may still let the cluster's machines in ({b.address})" in output
    assert "`gpuctl down` tries it again" in output
    assert not any(b.address in line for line in ours(a))
    b.power_on()
    b.wait_for_boot()
    assert ours(b)
    assert f"{b.name}: firewall: the cluster's rules go" in gpuctl.ok("down", "--yes").err
    assert ours(b) == []


def test_up_keeps_firewalls_of_hosts_with_a_running_job(gpuctl: Gpuctl, net: Net) -> None:
    a, b, _ = net.hosts
    process, run = begin(gpuctl, net.hosts[:2], "steps.py", "300")
    before = [ours(host) for host in (a, b)]
    output = with_the_third_instead(gpuctl, net)
    assert output.count(f"the run {run} is still active there") == 2
    assert [ours(host) for host in (a, b)] == before
    gpuctl("stop", run)
    process.communicate(timeout=120)
    gpuctl.ok("down", "--yes")
    assert [ours(host) for host in (a, b)] == [[], []]
