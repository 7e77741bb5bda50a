"""Machines that exist already: listed, never made, never ended."""

import socket
from pathlib import Path

import pytest
from support import an_inventory

from inventories.disk.store import Store
from inventories.errors import InvalidInput
from inventories.machine import Inventory
from inventories.specs.gpu_driver import DriverPlan, unknown_branch
from inventories.specs.spec import Spec
from provision.errors import RefusedPlan
from provision.hosts import HostsProvider


@pytest.fixture
def folder(tmp_path):
    return Store(tmp_path / "home").cluster("default")


@pytest.fixture
def provider(folder) -> HostsProvider:
    return HostsProvider(folder)


@pytest.fixture
def open_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def hosts_file(tmp_path, open_port) -> Path:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        closed_port = closing.getsockname()[1]
    path = tmp_path / "hosts.yaml"
    path.write_text(f"""
all:
  hosts:
    here:
      ansible_host: 127.0.0.1
      ansible_port: {open_port}
      ansible_user: me
    away:
      ansible_host: 127.0.0.1
      ansible_port: {closed_port}
      ansible_user: me
""")
    return path


def test_plan_shows_no_secret_of_a_proxy_command(provider, hosts_file):
    text = hosts_file.read_text()
    secret = "ansible_ssh_args: -o ProxyCommand='sshpass -p hidden ssh -W %h:%p gate'"
    hosts_file.write_text(text + f"      {secret}\n")
    details = [resource.detail for resource in provider.plan(Spec(hosts=hosts_file), None).resources]
    assert details[1].endswith(" over sshpass …")


def test_plan_uses_all_machines_of_the_hosts_file(provider, hosts_file, open_port):
    plan = provider.plan(Spec(hosts=hosts_file), None)
    assert [(machine.name, machine.rank) for machine in plan.keep] == [("here", 0), ("away", 1)]
    assert (plan.create, plan.changes, plan.free, plan.hourly_usd) == ((), False, True, 0.0)
    body = {"name": "here", "user": "me", "host": "127.0.0.1", "port": open_port, "bastion": None}
    assert (plan.requests[0].operation, dict(plan.requests[0].body)) == ("UseMachine", body)
    assert (plan.resources[0].action, plan.resources[0].name) == ("use", "here")


def test_bastion_option_overrides_the_bastions_of_the_file(provider, folder, hosts_file):
    hosts_file.write_text(
        hosts_file.read_text().replace("    away:\n", "    away:\n      bastion: own@gate\n")
    )
    assert [machine.bastion for machine in provider.plan(Spec(hosts=hosts_file), None).keep] == [
        None,
        "own@gate",
    ]
    plan = provider.plan(Spec(hosts=hosts_file, bastion="opc@b"), None)
    assert [machine.bastion for machine in plan.keep] == ["opc@b", "opc@b"]
    assert plan.requests[0].body["bastion"] == "opc@b"
    machines = provider.create(plan, folder.journal)
    assert {machine.state for machine in machines} == {"unknown"}, "this computer can't knock at their ports"
    had = Inventory(cluster="default", provider="hosts", created_at="2026-11-21T06:00:00Z", machines=machines)
    again = provider.plan(Spec(provider="hosts"), had)
    assert [machine.bastion for machine in again.keep] == ["opc@b", "opc@b"]


def test_plan_with_count_uses_the_first_hosts(provider, hosts_file):
    plan = provider.plan(Spec(hosts=hosts_file, count=1), None)
    assert [machine.name for machine in plan.keep] == ["here"]


def test_plan_refuses_a_count_above_the_listed_hosts(provider, hosts_file):
    with pytest.raises(RefusedPlan, match=r"3 machines are asked for, .*hosts\.yaml' lists 2"):
        provider.plan(Spec(hosts=hosts_file, count=3), None)


def test_plan_without_hosts_file_keeps_the_clusters_machines(provider, folder, hosts_file):
    with pytest.raises(InvalidInput, match="--hosts FILE"):
        provider.plan(Spec(provider="hosts"), None)
    machines = provider.create(provider.plan(Spec(hosts=hosts_file), None), folder.journal)
    assert provider.find() == ()
    inventory = an_inventory(machines=machines)
    folder.save(inventory)
    assert [machine.name for machine in provider.find()] == ["here", "away"]
    assert len(provider.plan(Spec(provider="hosts"), inventory).keep) == 2


def test_refresh_reports_running_when_the_ssh_port_answers(provider, folder, hosts_file):
    local, away = provider.create(provider.plan(Spec(hosts=hosts_file), None), folder.journal)
    assert (local.state, away.state) == ("running", "unknown")
    assert provider.refresh(local).state == "running"
    assert provider.refresh(away).state == "unknown"


def test_destroy_ends_no_host(provider, hosts_file, folder):
    (local, _) = provider.create(provider.plan(Spec(hosts=hosts_file), None), folder.journal)
    assert provider.destroy() == ()
    assert provider.refresh(local).state == "running"
    assert not HostsProvider.billed


def cluster_of(plan) -> Inventory:
    return an_inventory(machines=plan.keep)


def test_plan_refuses_to_shrink_the_cluster(provider, hosts_file):
    current = cluster_of(provider.plan(Spec(hosts=hosts_file), None))
    for request in (Spec(provider="hosts", count=1), Spec(hosts=hosts_file, count=1)):
        with pytest.raises(RefusedPlan, match=r"has 2 machines.*gpuctl down --cluster default"):
            provider.plan(request, current)


def test_plan_takes_python_from_spec_then_file_then_cluster(provider, hosts_file):
    current = cluster_of(provider.plan(Spec(hosts=hosts_file, python="/opt/a/python"), None))
    assert {machine.python for machine in current.machines} == {"/opt/a/python"}
    again = provider.plan(Spec(hosts=hosts_file), current)
    assert {machine.python for machine in again.keep} == {"/opt/a/python"}
    changed = provider.plan(Spec(provider="hosts", python="/opt/b/python"), current)
    assert {machine.python for machine in changed.keep} == {"/opt/b/python"}
    text = hosts_file.read_text().replace(
        "ansible_user: me", "ansible_user: me\n      ansible_python_interpreter: /f/python"
    )
    hosts_file.write_text(text)
    assert {m.python for m in provider.plan(Spec(hosts=hosts_file), current).keep} == {"/f/python"}


@pytest.mark.parametrize(
    ("requested", "driver"),
    [
        (None, DriverPlan(source="none")),
        ("none", DriverPlan(source="none")),
        ("auto", DriverPlan(source="install")),
        ("580", DriverPlan(source="install", version="580")),
        ("999", DriverPlan(source="install", version="999")),
    ],
)
def test_plan_installs_a_driver_only_when_requested(provider, hosts_file, requested, driver):
    plan = provider.plan(Spec(hosts=hosts_file, driver=requested), None)
    assert plan.driver == driver
    assert plan.notes == unknown_branch(driver)
    installs = driver.source == "install"
    assert all(("reboot it once" in host.detail) == installs for host in plan.resources)
